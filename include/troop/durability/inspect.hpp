/// @file
/// What is in a run directory and how it stands with each of its files, without touching anything.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/error.hpp>
#include <troop/durability/checkpoint.hpp>
#include <troop/durability/lease.hpp>
#include <troop/durability/object_store.hpp>
#include <troop/durability/replay_log.hpp>
#include <troop/durability/run_directory.hpp>

namespace troop::durability {

/// One file of a run directory.
struct InspectedFile {
  std::string name;  ///< within the directory
  std::uint64_t bytes = 0;
  std::string content;     ///< what it says of itself, in some words
  std::string fault = {};  ///< why it is of no use, or not wholly; empty: nothing was found
};

/// Whether the batches of clients in a log are there once each. Those of actors of the learner's own process are not
/// counted. What was lost to damage, or acknowledged without a log, is missing as well.
struct BatchCount {
  std::uint64_t batches = 0, clients = 0;
  std::uint64_t repeated = 0, missing = 0;
  std::uint64_t reused_keys = 0;
};

struct RunInspection {
  std::string path;
  std::optional<Manifest> manifest;
  std::optional<LeaseHolder> holder;         ///< who holds the directory or held it last
  std::optional<CheckpointInfo> newest;      ///< counters of the newest checkpoint without a fault
  std::uint64_t first_key = 0, end_key = 0;  ///< of the items on the disk
  std::optional<BatchCount> batches = {};    ///< where everything was read
  std::vector<InspectedFile> files;

  std::size_t faults() const;
};

namespace detail {

/// Reads and checks all blocks of a file.
void read_to_the_end(BlockReader& reader);

/// One behind the other, as a stream writes them.
template <class... Parts>
std::string words(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

std::string describe(const CheckpointInfo& info);

/// Goes through the batches of a segment; `f(head, batch)` for each. Returns what it says of itself.
template <class F>
SegmentHead read_segment(BlockReader& reader, bool whole, F&& f) {
  if (reader.next() != static_cast<std::uint32_t>(SegmentBlock::head))
    reader.damaged("it does not begin with a head");
  try {
    const SegmentHead head = SegmentHead::from_bytes(reader.content());
    const std::size_t record_bytes = ByteReader(head.layout).layout().size();
    if (head.codec != Lz4::name) reader.damaged("it is packed by \"" + head.codec + "\"");
    std::vector<std::byte> block;
    while (whole && reader.left() > 0 && reader.next() != kEnd) {
      unpack_block(reader.content(), block);
      for_batches(block, record_bytes, [&](const BatchHead& batch, auto, auto) { f(head, batch); });
    }
    return head;
  } catch (const FileError&) {
    throw;
  } catch (const Error& error) {
    reader.damaged(error.what());
  }
}

/// Follows the batches of a log from the oldest segment on.
class BatchCounter {
 public:
  /// What was there before the oldest segment.
  void begin(const SegmentHead& head);

  void see(const BatchHead& batch);

  BatchCount count() const;

 private:
  std::map<std::array<std::byte, 16>, std::uint64_t> last_;
  BatchCount count_;
  std::uint64_t next_key_ = 0;
  bool has_begun_ = false;
};

}  // namespace detail

/// Looks at a run directory, which may be in use. With `verify` every byte of every file is read and checked; else of
/// checkpoints and of segments but the newest the heads alone. Throws FileError when there is no such directory.
RunInspection inspect_run(const std::string& path, bool verify);

/// For people: what the run is about, how far it is, and a line for each file.
std::string to_string(const RunInspection& run);

}  // namespace troop::durability
