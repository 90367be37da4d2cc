#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <troop/apex/persistence.hpp>

namespace troop::apex {

namespace detail {

std::vector<net::Session> sessions_of(std::span<const durability::ClientBatch> batches) {
  std::vector<net::Session> sessions;
  for (const durability::ClientBatch& batch : batches) sessions.push_back({batch.client, batch.number});
  return sessions;
}

std::vector<durability::ClientBatch> batches_of(std::span<const net::Session> sessions) {
  std::vector<durability::ClientBatch> batches;
  for (const net::Session& session : sessions) batches.push_back({session.client, session.last});
  return batches;
}

RateLimiter::State resumed_state(const RateLimiterOptions& options, const ReplayOptions& replay,
                                 std::uint64_t size, RateLimiter::State state) {
  const std::uint64_t held = replay.soft_capacity == 0 ? replay.capacity : replay.soft_capacity;
  if (size < std::min<std::uint64_t>(options.min_inserts, held)) return {.inserts = size};
  state.inserts = std::max(state.inserts, options.min_inserts);
  if (options.samples_per_insert == 0.0) return state;
  const double paid = static_cast<double>(state.inserts - options.min_inserts) * options.samples_per_insert;
  const double bound = options.tolerance * options.samples_per_insert;
  state.samples = static_cast<std::uint64_t>(
      std::clamp(static_cast<double>(state.samples), std::max(0.0, paid - bound), paid + bound));
  return state;
}

std::string options_text(const Options& options) {
  std::string text;
  for (const OptionValue& option : values_of(options)) {
    std::string name = option.name;
    std::replace(name.begin(), name.end(), '_', '-');
    text += name + " = " + option.value + "\n";
  }
  return text;
}

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

nn::LoadedNetwork load_to_play(const std::string& path, const Console& console) {
  const auto from = [](const durability::Checkpoint& checkpoint) {
    return nn::LoadedNetwork{nn::parse_network(checkpoint.info.network), checkpoint.online};
  };
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored)) {
    const durability::ObjectStore store(path, durability::StoreKind::disk);
    const auto found = durability::read_newest_checkpoint(store, console.warnings());
    if (!found) throw FileError(path, "holds no checkpoint");
    return from(found->checkpoint);
  }
  if (durability::is_checkpoint(path)) return from(durability::read_checkpoint(path));
  return nn::load_network(path);
}

}  // namespace detail

KeptRun::KeptRun(const Options& options, KeptRunFacts facts, std::function<void(const std::string&)> log)
    : keep_(options.keep) {
  if (keep_.run_dir.empty()) return;
  manifest_.environment = std::move(facts.environment);
  manifest_.network = std::move(facts.network);
  manifest_.options = detail::options_text(options);
  ByteWriter(manifest_.layout).layout(facts.layout);
  try {
    directory_.emplace(durability::RunDirectoryOptions{
        .path = keep_.run_dir, .store = keep_.store, .lease = {.log = std::move(log)}});
    open(options, facts.layout);
  } catch (const Error& error) {
    throw NotAdmitted(error.what());
  }
}

void KeptRun::restore(RateLimiter& limiter, const ReplayOptions& replay, std::uint64_t size) const {
  if (!is_resumed_) return;
  limiter.restore(detail::resumed_state(
      limiter.options(), replay, size,
      {.inserts = info_.limiter.inserts + inserted_since_, .samples = info_.limiter.samples}));
}

void KeptRun::restore(RateLimiter& limiter) const {
  if (has_checkpoint_) limiter.restore(info_.limiter);
}

void KeptRun::evaluated(double mean_return) {
  mean_return_.store(mean_return, std::memory_order_relaxed);
  evaluations_.fetch_add(1, std::memory_order_relaxed);
}

void KeptRun::priorities_if_due(double run_seconds) {
  if (!write_priorities_ || run_seconds < next_checkpoint_) return;
  next_checkpoint_ = run_seconds + 60.0 * keep_.checkpoint_every;
  write_priorities_();
}

monitor::CheckpointSample KeptRun::checkpoints() const {
  const durability::CheckpointStatistics s = statistics();
  return {.directory = keep_.run_dir,
          .written = s.written,
          .failed = s.failures,
          .is_failing = s.is_failing,
          .trouble = s.is_failing ? std::string() : alarm(),
          .learner_steps = s.written > 0 ? s.learner_steps : info_.learner_steps,
          .age_seconds = s.age_seconds,
          .write_seconds = s.written > 0 ? s.write_seconds : std::nan(""),
          .bytes = s.bytes,
          .interval_seconds = keep_.durability == Durability::none ? 0.0 : 60.0 * keep_.checkpoint_every};
}

durability::CheckpointStatistics KeptRun::statistics() const {
  return writer_ ? writer_->statistics() : durability::CheckpointStatistics{};
}

std::string KeptRun::alarm() const {
  if (!directory_) return {};
  if (directory_->is_lost()) return "run directory lost";
  if (statistics().is_failing) return "no checkpoint";
  if (!log_statistics_) return {};
  const durability::ReplayLogStatistics log = log_statistics_();
  if (log.has_given_up) return "log given up";
  if (log.is_failing) return "log waits for the disk";
  return log.waits == 0 ? std::string() : "disk waits " + std::to_string(log.waits);
}

void KeptRun::open(const Options& options, const RecordLayout& layout) {
  const auto& before = directory_->manifest();
  is_resumed_ = directory_->generation() > 1;
  if (is_resumed_ && !keep_.resume)
    throw Error(keep_.run_dir + ": holds a run already; --resume goes on with it");
  if (before) {
    const auto require_same = [&](const char* what, const std::string& theirs, const std::string& mine) {
      if (theirs != mine)
        throw LayoutMismatch(keep_.run_dir + ": is a run of " + what + " \"" + theirs + "\", expected \"" +
                             mine + "\"");
    };
    require_same("the environment", before->environment, manifest_.environment);
    require_same("the network", before->network, manifest_.network);
    if (before->layout != manifest_.layout)
      throw LayoutMismatch(keep_.run_dir + ": record layouts differ: " +
                           ByteReader(before->layout).layout().difference(layout));
  }
  if (!manifest_.network.empty()) read_checkpoint();
  if (before && before->is_finished &&
      (before->result.starts_with("solved") || info_.seconds >= options.max_seconds)) {
    finished_ = before->result;
    return;
  }
  directory_->write_manifest(manifest_);
  if (!manifest_.network.empty())
    writer_.emplace(*directory_, durability::CheckpointOptions{.keep = keep_.keep_checkpoints});
  next_checkpoint_ = info_.seconds + 60.0 * keep_.checkpoint_every;
}

void KeptRun::read_checkpoint() {
  auto found = durability::read_newest_checkpoint(
      directory_->store(), [&](const std::string& sentence) { directory_->say(sentence); });
  if (!found) return;
  if (found->checkpoint.info.network != manifest_.network)
    throw LayoutMismatch(directory_->store().path(found->name) + ": is of the network " +
                         found->checkpoint.info.network + ", expected " + manifest_.network);
  checkpoint_ = std::move(found->checkpoint);
  info_ = checkpoint_->info;
  info_sessions_ = checkpoint_->sessions;
  has_checkpoint_ = true;
  mean_return_ = info_.mean_return;
  evaluations_ = info_.evaluations;
}

namespace detail {

void say_restored(const Console& console, const KeptRun& kept, std::size_t size) {
  if (!kept.is_resumed()) return;
  console.info("resumed %s: learner step %llu, %zu items in the replay", kept.path().c_str(),
               static_cast<unsigned long long>(kept.info().learner_steps), size);
}

}  // namespace detail

}  // namespace troop::apex
