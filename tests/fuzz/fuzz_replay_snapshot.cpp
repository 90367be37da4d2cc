// A replay's snapshot from any bytes: loaded as a replay that works, or refused with the replay as it was.
//
// Input: which kind of replay (a byte); then for odd kinds the bytes of a file, for even ones a script: the
// file's head (16 bytes), and again and again a block's type (a byte) and content (a text).
#include <troop/replay/snapshot.hpp>

#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>

#include <troop/compression/lz4.hpp>
#include <troop/core/random.hpp>
#include <troop/replay/frame_storage.hpp>
#include <troop/replay/heap_storage.hpp>
#include <troop/replay/removers.hpp>
#include <troop/serialization/cereal.hpp>

#include "fuzz.hpp"

namespace troop::fuzz {
namespace {

struct Item {
  std::array<float, 2> observation;
  std::int32_t action;
};

struct FrameItem {
  std::array<std::array<std::array<std::uint8_t, 6>, 4>, 2> observation, next_observation;
  float reward;
};

using Ring = PrioritizedReplay<Item>;
using Table = PrioritizedReplay<Item, ArrayStorage, ProportionalSampler, InversePriorityRemover>;
using Frames = PrioritizedReplay<FrameItem, FrameStorage<Lz4>>;
using Heap = PrioritizedReplay<std::string, HeapStorage<std::string, CerealSerializer<std::string>>>;

constexpr std::size_t kCapacity = 16, kFileHead = 16;

template <class Replay>
void add(Replay& replay) {
  static const std::vector<float> priorities{1.0f, 2.0f, 0.5f};
  if constexpr (std::is_same_v<Replay, Heap>) {
    std::vector<std::shared_ptr<const std::string>> items;
    for (const char* text : {"one", "two", ""}) items.push_back(std::make_shared<const std::string>(text));
    replay.add(std::span<const std::shared_ptr<const std::string>>(items), priorities);
  } else {
    using Record = std::conditional_t<std::is_same_v<Replay, Frames>, FrameItem, Item>;
    const std::vector<Record> items(3);
    replay.add(std::span<const Record>(items), priorities);
  }
}

template <class Replay>
void load(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  try {
    read_snapshot_info(file.path());
  } catch (const Error&) {
  }
  Replay replay({.capacity = kCapacity});
  for (int batch = 0; batch < 2; ++batch) add(replay);  // no seed holds so many
  const std::size_t before = replay.size();
  RateLimiter limiter(RateLimiterOptions{});
  Random random(1, "sample");
  try {
    load_snapshot(file.path(), replay, {.limiter = &limiter, .random = &random});
  } catch (const Error&) {
    check(replay.size() == before, "a snapshot that is refused changes nothing");
    return;
  }
  check(replay.size() <= kCapacity, "a replay holds no more than its capacity");
  for (std::size_t i = 0; i < 2 * kCapacity; ++i) add(replay);
  const auto batch = replay.sample(8, {}, random);
  replay.update(batch.keys, std::vector<float>(batch.keys.size(), 1.0f));
}

/// A file of blocks whose checksums are right.
Bytes assemble(Script& script) {
  const auto head = script.bytes(kFileHead);
  Bytes file(head.begin(), head.end());
  while (!script.empty()) {
    detail::SnapshotBlockHead block{.type =
                                        static_cast<detail::SnapshotBlock>(script.number<std::uint8_t>())};
    const auto content = script.text();
    block.bytes = content.size();
    block.crc = detail::checksum(block, content);
    ByteWriter(file).bytes(std::as_bytes(std::span(&block, 1)));
    ByteWriter(file).bytes(content);
  }
  return file;
}

Bytes rest_of(Script& script) {
  const auto rest = script.rest();
  return {rest.begin(), rest.end()};
}

template <class Replay>
void append_seeds(std::uint8_t kind, std::vector<Bytes>& seeds) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("troop-seed-" + std::to_string(::getpid()));
  for (const std::size_t batches : {0u, 1u, 8u}) {
    Replay replay({.capacity = kCapacity});
    for (std::size_t i = 0; i < batches; ++i) add(replay);
    RateLimiter limiter(RateLimiterOptions{});
    Random random(1, "sample");
    save_snapshot(path, replay, {.limiter = &limiter, .random = &random});
    const Bytes file = read_file(path, 1 << 20);
    std::filesystem::remove(path);
    seeds.push_back(ScriptWriter().number(static_cast<std::uint8_t>(kind + 1)).bytes(file));
    ScriptWriter script;
    script.number(kind).bytes(std::span(file).first(kFileHead));
    for (std::size_t at = kFileHead; at < file.size();) {
      detail::SnapshotBlockHead block;
      std::memcpy(&block, file.data() + at, sizeof block);
      script.number(static_cast<std::uint8_t>(block.type));
      script.text(std::span(file).subspan(at + sizeof block, block.bytes));
      at += sizeof block + block.bytes;
    }
    seeds.push_back(script);
  }
}

}  // namespace

void run(std::span<const std::byte> input) {
  Script script(input);
  const auto kind = script.number<std::uint8_t>() % 8;
  const Bytes file = kind % 2 == 0 ? assemble(script) : rest_of(script);
  switch (kind / 2) {
    case 0:
      return load<Ring>(file);
    case 1:
      return load<Table>(file);
    case 2:
      return load<Heap>(file);
    default:
      return load<Frames>(file);
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> seeds;
  append_seeds<Ring>(0, seeds);
  append_seeds<Table>(2, seeds);
  append_seeds<Heap>(4, seeds);
  append_seeds<Frames>(6, seeds);
  return seeds;
}

}  // namespace troop::fuzz
