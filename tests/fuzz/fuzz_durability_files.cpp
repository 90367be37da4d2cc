// The files of a run directory from any bytes: what they hold, or refused with a reason.
//
// Input: which kind of file (a byte); then a checkpoint's bytes (0), its blocks as a script of types (a byte) and contents
// (texts) under right checksums (1), the head of a segment (2), or a block of batches as it is packed (3) or unpacked (4).
#include <troop/durability/checkpoint.hpp>

#include <cmath>
#include <filesystem>
#include <string>

#include <troop/compression/lz4.hpp>
#include <troop/durability/object_store.hpp>
#include <troop/durability/replay_log.hpp>

#include "fuzz.hpp"

namespace troop::fuzz {
namespace {

namespace detail = durability::detail;

constexpr std::size_t kRecordBytes = 12;

Bytes rest_of(Script& script) {
  const auto rest = script.rest();
  return {rest.begin(), rest.end()};
}

/// A file of blocks whose checksums are right.
Bytes assemble(Script& script) {
  const auto head = detail::file_head(detail::kCheckpointFile);
  Bytes file(head.begin(), head.end());
  while (!script.empty()) {
    const std::uint32_t type = script.number<std::uint8_t>();
    const auto content = script.text();
    const detail::BlockHead block = detail::block_head(type, content);
    ByteWriter(file).bytes(std::as_bytes(std::span(&block, 1)));
    ByteWriter(file).bytes(content);
  }
  return file;
}

void read_checkpoint(const Bytes& bytes) {
  const MemoryFile file(bytes);
  try {
    durability::read_checkpoint_info(file.path());
  } catch (const Error&) {
  }
  durability::Checkpoint checkpoint;
  try {
    checkpoint = durability::read_checkpoint(file.path());
  } catch (const FileError&) {
    return;
  }
  check(durability::is_checkpoint(file.path()), "a checkpoint begins as one does");
  check(checkpoint.online.size() == checkpoint.info.parameters,
        "a checkpoint has as many parameters as it says");
  for (const float value : checkpoint.target) check(std::isfinite(value), "parameters are finite");
  check(detail::info_from(detail::info_bytes(checkpoint.info)).network == checkpoint.info.network,
        "counters are the same when they are written and read again");
}

void read_batches(std::span<const std::byte> block) {
  std::size_t items = 0;
  detail::for_batches(block, kRecordBytes, [&](const detail::BatchHead& head, auto priorities, auto records) {
    check(priorities.size() == head.count * sizeof(float), "a batch has a priority for each item");
    check(records.size() >= head.count * kRecordBytes, "a batch has a record for each item");
    items += head.count;
  });
  check(items <= block.size() / kRecordBytes, "there are no more items than there is room for");
}

Bytes block_of_batches() {
  detail::RawBytes block;
  for (std::uint32_t count = 1; count <= 3; ++count) {
    const detail::BatchHead head{.first_key = 7, .count = count};
    const std::vector<float> priorities(count, 1.0f);
    const std::vector<std::byte> records(count * kRecordBytes, static_cast<std::byte>(count));
    block.append(&head, sizeof head);
    block.append(priorities.data(), priorities.size() * sizeof(float));
    block.append(records.data(), records.size());
  }
  return {block.bytes().begin(), block.bytes().end()};
}

}  // namespace

void run(std::span<const std::byte> input) {
  Script script(input);
  const auto kind = script.number<std::uint8_t>() % 5;
  if (kind == 0) return read_checkpoint(rest_of(script));
  if (kind == 1) return read_checkpoint(assemble(script));
  const Exactly bytes(script.rest());
  try {
    if (kind == 2) {
      const auto head = detail::SegmentHead::from_bytes(bytes);
      check(equal(head.to_bytes(), bytes), "the head of a segment is the same when it is written again");
    } else if (kind == 3) {
      std::vector<std::byte> block;
      detail::unpack_block(bytes, block);
      read_batches(block);
    } else {
      read_batches(bytes);
    }
  } catch (const Error&) {
  }
}

std::vector<Bytes> seeds() {
  durability::Checkpoint checkpoint;
  checkpoint.info.network = "input(4) dueling(2,2)";
  checkpoint.info.parameters = 3;
  checkpoint.info.sampler = Random(1, "sampler").state();
  checkpoint.online = checkpoint.target = {1.0f, 2.0f, 3.0f};
  checkpoint.optimizer = {0.0f, 0.0f};
  checkpoint.sessions.resize(2);
  ScriptWriter blocks;
  detail::for_blocks(checkpoint, detail::info_bytes(checkpoint.info), [&](auto type, auto content) {
    blocks.number(static_cast<std::uint8_t>(type)).text(content);
  });
  blocks.number(static_cast<std::uint8_t>(detail::kEnd)).text({});
  const Bytes script = blocks;
  Script reader(script);
  std::vector<Bytes> seeds;
  seeds.push_back(ScriptWriter().number(std::uint8_t{0}).bytes(assemble(reader)));
  seeds.push_back(ScriptWriter().number(std::uint8_t{1}).bytes(script));
  const Bytes block = block_of_batches();
  detail::SegmentHead head{.layout = Bytes(9), .codec = "lz4", .first_key = 5, .sessions = {}};
  head.sessions.resize(1);
  seeds.push_back(ScriptWriter().number(std::uint8_t{2}).bytes(head.to_bytes()));
  Bytes packed(Lz4::bound(block.size()));
  packed.resize(Lz4::compress(block, packed));
  seeds.push_back(
      ScriptWriter().number(std::uint8_t{3}).number(static_cast<std::uint64_t>(block.size())).bytes(packed));
  seeds.push_back(ScriptWriter().number(std::uint8_t{4}).bytes(block));
  return seeds;
}

}  // namespace troop::fuzz
