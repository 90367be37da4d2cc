#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include <troop/durability/inspect.hpp>

namespace troop::durability {

std::size_t RunInspection::faults() const {
  return static_cast<std::size_t>(
      std::count_if(files.begin(), files.end(), [](const auto& file) { return !file.fault.empty(); }));
}

namespace detail {

void read_to_the_end(BlockReader& reader) {
  while (reader.left() > 0 && reader.next() != kEnd) {
  }
}

std::string describe(const CheckpointInfo& info) {
  const std::string text = words("learner step ", info.learner_steps, ", ", info.environment_steps,
                                 " environment steps, ", std::lround(info.seconds), " s");
  return std::isnan(info.mean_return) ? text : words(text, ", mean return ", info.mean_return);
}

void BatchCounter::begin(const SegmentHead& head) {
  if (std::exchange(has_begun_, true)) return;
  for (const ClientBatch& session : head.sessions) last_[session.client] = session.number;
}

void BatchCounter::see(const BatchHead& batch) {
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

BatchCount BatchCounter::count() const {
  BatchCount count = count_;
  count.clients = last_.size();
  return count;
}

}  // namespace detail

RunInspection inspect_run(const std::string& path, bool verify) {
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

std::string to_string(const RunInspection& run) {
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
