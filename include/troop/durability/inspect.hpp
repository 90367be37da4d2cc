/// @file
/// What is in a run directory and how it stands with each of its files, without touching anything.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
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

  std::size_t faults() const {
    return static_cast<std::size_t>(
        std::count_if(files.begin(), files.end(), [](const auto& file) { return !file.fault.empty(); }));
  }
};

namespace detail {

/// Reads and checks all blocks of a file.
inline void read_to_the_end(BlockReader& reader) {
  while (reader.left() > 0 && reader.next() != kEnd) {
  }
}

/// One behind the other, as a stream writes them.
template <class... Parts>
std::string words(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

inline std::string describe(const CheckpointInfo& info) {
  const std::string text = words("learner step ", info.learner_steps, ", ", info.environment_steps,
                                 " environment steps, ", std::lround(info.seconds), " s");
  return std::isnan(info.mean_return) ? text : words(text, ", mean return ", info.mean_return);
}

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
  void begin(const SegmentHead& head) {
    if (std::exchange(has_begun_, true)) return;
    for (const ClientBatch& session : head.sessions) last_[session.client] = session.number;
  }

  void see(const BatchHead& batch) {
    if (batch.first_key < next_key_) count_.reused_keys += next_key_ - batch.first_key;
    next_key_ = std::max(next_key_, batch.first_key + batch.count);
    if (batch.from.client == decltype(batch.from.client){}) return;
    ++count_.batches;
    const auto [known, is_new] = last_.try_emplace(batch.from.client, batch.from.number);
    if (is_new) return;
    if (batch.from.number <= known->second) {
      ++count_.repeated;
    } else {
      count_.missing += batch.from.number - known->second - 1;
      known->second = batch.from.number;
    }
  }

  BatchCount count() const {
    BatchCount count = count_;
    count.clients = last_.size();
    return count;
  }

 private:
  std::map<std::array<std::byte, 16>, std::uint64_t> last_;
  BatchCount count_;
  std::uint64_t next_key_ = 0;
  bool has_begun_ = false;
};

}  // namespace detail

/// Looks at a run directory, which may be in use. With `verify` every byte of every file is read and checked; else of
/// checkpoints and of segments but the newest the heads alone. Throws FileError when there is no such directory.
inline RunInspection inspect_run(const std::string& path, bool verify) {
  if (std::error_code ignored; !std::filesystem::is_directory(path, ignored))
    throw FileError(path, "is no directory");
  const ObjectStore store(path, StoreKind::disk);
  RunInspection run{
      .path = path, .manifest = {}, .holder = detail::newest_lease(store), .newest = {}, .files = {}};
  const auto look = [&](const std::string& name, auto&& read) {
    std::error_code ignored;
    InspectedFile file{.name = name, .content = {}};
    const auto bytes = std::filesystem::file_size(store.path(name), ignored);
    if (!ignored) file.bytes = bytes;
    try {
      file.content = read(store.path(name));
    } catch (const FileError& error) {
      file.fault = std::string(error.what()).substr(error.path().size() + 2);
    }
    run.files.push_back(std::move(file));
  };
  for (const std::string& name : store.names("", detail::kManifestPrefix)) {
    look(name, [&](const std::string& file) {
      run.manifest = detail::read_manifest_file(file);
      return detail::words("generation ", run.manifest->generation);
    });
  }
  for (const std::string& name : store.names(detail::kCheckpointFolder, detail::kCheckpointPrefix)) {
    look(name, [&](const std::string& file) {
      run.newest = verify ? read_checkpoint(file).info : read_checkpoint_info(file);
      return detail::describe(*run.newest);
    });
  }
  const auto segments = store.names(detail::kReplayFolder, detail::kSegmentPrefix);
  detail::BatchCounter counter;
  run.first_key = segments.empty() ? 0 : std::numeric_limits<std::uint64_t>::max();
  for (const std::string& name : segments) {
    look(name, [&](const std::string& file) {
      const bool whole = verify || name == segments.back();
      std::uint64_t items = 0;
      detail::BlockReader reader(file, detail::kSegmentFile);
      const auto take = [&](const detail::SegmentHead& begin, const detail::BatchHead& batch) {
        counter.begin(begin);
        counter.see(batch);
        items += batch.count;
        run.end_key = batch.first_key + batch.count;
      };
      const detail::SegmentHead head = detail::read_segment(reader, whole, take);
      run.first_key = std::min(run.first_key, head.first_key);
      run.end_key = std::max(run.end_key, head.first_key);
      const std::string from = detail::words("items from key ", head.first_key, " on");
      return whole ? detail::words(from, ", ", items, " of them") : from;
    });
  }
  run.first_key = std::min(run.first_key, run.end_key);
  if (verify && !segments.empty()) run.batches = counter.count();
  for (const std::string& name : store.names(detail::kReplayFolder, detail::kPrioritiesPrefix)) {
    look(name, [&](const std::string& file) {
      detail::BlockReader reader(file, detail::kPrioritiesFile);
      if (verify) detail::read_to_the_end(reader);
      return std::string("priorities");
    });
  }
  return run;
}

/// For people: what the run is about, how far it is, and a line for each file.
inline std::string to_string(const RunInspection& run) {
  std::string text = "run          " + run.path + "\n";
  const auto line = [&](const char* what, const std::string& content) { text += what + content + "\n"; };
  if (run.manifest) {
    const Manifest& manifest = *run.manifest;
    line("environment  ", manifest.environment);
    if (!manifest.network.empty()) line("network      ", manifest.network);
    line("begun        ", manifest.created + " UTC");
    line("programs     ", std::to_string(manifest.generation));
    line("state        ", manifest.is_finished ? "finished, " + manifest.result : "not finished");
  } else {
    line("state        ", "no manifest");
  }
  if (run.holder) line(run.holder->is_released ? "last held by " : "held by      ", run.holder->describe());
  line("checkpoint   ", run.newest ? detail::describe(*run.newest) : "none");
  line("replay       ", run.end_key == 0 ? std::string("none")
                                         : detail::words("keys ", run.first_key, " to ", run.end_key - 1,
                                                         ", ", run.end_key - run.first_key, " items"));
  if (run.batches && run.batches->clients > 0)
    line("batches      ", detail::words(run.batches->batches, " of ", run.batches->clients, " clients, ",
                                        run.batches->repeated, " repeated, ", run.batches->missing,
                                        " missing, ", run.batches->reused_keys, " keys used again"));
  for (const InspectedFile& file : run.files) {
    const bool is_whole = file.fault.empty();
    std::ostringstream row;
    row << std::left << std::setw(8) << (is_whole ? "ok" : "FAULTY") << std::right << std::setw(12)
        << file.bytes;
    line("", detail::words(row.str(), "  ", file.name, "  ", is_whole ? file.content : file.fault));
  }
  return text;
}

}  // namespace troop::durability
