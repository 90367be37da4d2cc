/// @file
/// How a run is kept in its directory, and goes on from there.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <troop/agent/learner.hpp>
#include <troop/apex/console.hpp>
#include <troop/apex/monitoring.hpp>
#include <troop/apex/options.hpp>
#include <troop/core/bytes.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/trace.hpp>
#include <troop/core/view.hpp>
#include <troop/durability/checkpoint.hpp>
#include <troop/durability/replay_log.hpp>
#include <troop/durability/run_directory.hpp>
#include <troop/net/server.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/network_file.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace troop::apex {

/// This process was refused before it had done anything: its token is wrong, say, or its run directory is somebody
/// else's.
class NotAdmitted : public CannotBegin {
 public:
  using CannotBegin::CannotBegin;
};

namespace detail {

inline std::vector<net::Session> sessions_of(std::span<const durability::ClientBatch> batches) {
  std::vector<net::Session> sessions;
  for (const durability::ClientBatch& batch : batches) sessions.push_back({batch.client, batch.number});
  return sessions;
}

inline std::vector<durability::ClientBatch> batches_of(std::span<const net::Session> sessions) {
  std::vector<durability::ClientBatch> batches;
  for (const net::Session& session : sessions) batches.push_back({session.client, session.last});
  return batches;
}

/// The counts with which a rate limiter goes on. `size`: items that the replay has again; `inserts` and `samples`:
/// of the run so far. With too few items the learner waits for new ones as at the start of a run; else either side
/// is ahead by no more than the limiter allows, so that no burst of updates falls on old items.
inline RateLimiter::State resumed_state(const RateLimiterOptions& options, const ReplayOptions& replay,
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

/// What the options say, a line each.
inline std::string options_text(const Options& options) {
  Options copy = options;
  const OptionTable table(copy);
  std::string text;
  for (const OptionEntry& entry : table.entries())
    text += flag_of(entry.name).substr(2) + " = " + entry.initial + "\n";
  return text;
}

inline Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// A network to be played: one that was saved, a checkpoint, or the newest checkpoint of a run directory.
inline nn::LoadedNetwork load_to_play(const std::string& path, const Console& console = Console()) {
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

/// The replay of this process, behind its rate limiter and, where there is one, its log. Thread-safe.
template <class Replay>
class LoggedSink {
 public:
  using Log = durability::ReplayLog<Replay>;

  /// `log`: null where nothing is logged.
  LoggedSink(Replay& replay, RateLimiter& limiter, Log* log)
      : replay_(replay), limiter_(limiter), log_(log) {}

  Log* log() const noexcept { return log_; }

  /// As agent::LocalSink; waits for the disk, too. `from`: the client and its number of the batch, if it has any.
  Outcome insert(const BatchView& records, std::span<const float> priorities,
                 Deadline deadline = Deadline::never(), const durability::ClientBatch& from = {}) {
    const TraceSpan span("insert");
    if (log_ == nullptr)
      return limiter_.insert(records.size(), deadline, [&] { replay_.add(records, priorities); });
    const Outcome outcome = log_->await_room(deadline);
    if (outcome != Outcome::ok) return outcome;
    return limiter_.insert(records.size(), deadline, [&] { log_->add(from, records, priorities); });
  }

  /// Ends all waiting.
  void close() {
    limiter_.close();
    if (log_ != nullptr) log_->close();
  }

  /// For a server: batches go in if they can at once, and are acknowledged when they are in the log.
  void serve(net::Services& services) {
    services.insert_from = [this](const BatchView& records, std::span<const float> priorities,
                                  const net::Session& batch) {
      return insert(records, priorities, Deadline::now(), {batch.client, batch.last});
    };
    if (log_ != nullptr) services.commits = &log_->commits();
  }

 private:
  Replay& replay_;
  RateLimiter& limiter_;
  Log* log_;
};

/// What a run directory is asked for, besides the options.
struct KeptRunFacts {
  std::string environment;  ///< its name
  std::string network;      ///< canonical text, bound; empty for a shard
  RecordLayout layout;
};

/// A run that is kept in its directory; without `--run-dir` nothing of this does anything.
///
/// A checkpoint is taken between two learner steps, every `checkpoint_every` minutes, and at the end. What the disk
/// refuses is said, counted and shown (`alarm`), and the run goes on.
///
/// Not thread-safe, but for `statistics`, `alarm` and `evaluated`; `checkpoint_if_due` belongs to the thread that makes
/// the learner's steps.
class KeptRun {
 public:
  /// Opens the directory and reads the newest checkpoint in it. Throws NotAdmitted when somebody else writes there, when
  /// it holds a run and `resume` is not set, when it is about something else, or cannot be read or written.
  KeptRun(const Options& options, KeptRunFacts facts, std::function<void(const std::string&)> log)
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

  bool is_kept() const noexcept { return directory_.has_value(); }
  const std::string& path() const noexcept { return keep_.run_dir; }

  /// Whether somebody has worked on the run before.
  bool is_resumed() const noexcept { return is_resumed_; }

  /// The last line of the run, if it was finished before: then there is nothing to do.
  const std::optional<std::string>& finished() const noexcept { return finished_; }

  /// Counters of the checkpoint that the run goes on from; those of a new run where there is none.
  const durability::CheckpointInfo& info() const noexcept { return info_; }
  /// The networks of that checkpoint, until `restore` of a network has taken them.
  const std::optional<durability::Checkpoint>& checkpoint() const noexcept { return checkpoint_; }

  /// The log of `replay`, which it fills; null where none is kept.
  template <class Replay>
  std::unique_ptr<durability::ReplayLog<Replay>> open_log(Replay& replay) {
    if (!directory_ || keep_.durability != Durability::log) return nullptr;
    auto log = std::make_unique<durability::ReplayLog<Replay>>(
        *directory_, replay, durability::ReplayLogOptions{.slow_disk = keep_.slow_disk});
    log_statistics_ = [log = log.get()] { return log->statistics(); };
    write_priorities_ = [log = log.get()] { log->write_priorities(); };
    if (!log->restored().sessions.empty()) info_sessions_ = log->restored().sessions;
    inserted_since_ = replay.next_key() - std::min<Key>(info_.next_key, replay.next_key());
    return log;
  }

  /// Environment steps of the run before this process.
  std::uint64_t environment_steps() const noexcept { return info_.environment_steps + inserted_since_; }

  /// What its clients had sent.
  std::vector<net::Session> sessions() const { return detail::sessions_of(info_sessions_); }

  template <nn::QNetwork Network>
  void restore(Network& network) {
    if (!checkpoint_) return;
    checkpoint_->copy_to(network);
    checkpoint_.reset();
  }

  template <class Learner>
  void restore_learner(Learner& learner) const {
    if (!has_checkpoint_) return;
    learner.restore(
        {.steps = info_.learner_steps, .skipped_steps = info_.skipped_steps, .random = info_.sampler});
  }

  /// After the replay was filled; `size`: of it.
  void restore(RateLimiter& limiter, const ReplayOptions& replay, std::uint64_t size) const {
    if (!is_resumed_) return;
    limiter.restore(detail::resumed_state(
        limiter.options(), replay, size,
        {.inserts = info_.limiter.inserts + inserted_since_, .samples = info_.limiter.samples}));
  }

  /// A replay elsewhere has what it has: the counts go on.
  void restore(RateLimiter& limiter) const {
    if (has_checkpoint_) limiter.restore(info_.limiter);
  }

  /// Says a mean return, by which the best checkpoint is told.
  void evaluated(double mean_return) {
    mean_return_.store(mean_return, std::memory_order_relaxed);
    evaluations_.fetch_add(1, std::memory_order_relaxed);
  }

  /// Calls `fill(checkpoint)` and has it written if it is time for a checkpoint.
  template <class Fill>
  void checkpoint_if_due(double run_seconds, Fill&& fill) {
    if (!writer_ || keep_.durability == Durability::none || run_seconds < next_checkpoint_) return;
    if (!take(run_seconds, fill)) return;
    next_checkpoint_ = run_seconds + 60.0 * keep_.checkpoint_every;
    if (write_priorities_) write_priorities_();
  }

  /// Writes the last checkpoint, and with a `result`, the last line of a run that has come to its end, that it has.
  /// Returns within some seconds, whatever the disk does.
  template <class Fill>
  void finish(double run_seconds, Fill&& fill, const std::string& result) {
    if (!writer_) return;
    const Deadline deadline = Deadline::after(std::chrono::seconds(4));
    writer_->flush(deadline);
    take(run_seconds, fill);
    if (write_priorities_) write_priorities_();
    const bool is_written = writer_->flush(deadline);
    if (!is_written)
      directory_->say("the last checkpoint is that of learner step " +
                      std::to_string(statistics().learner_steps));
    if (result.empty() || !is_written) return;
    manifest_.is_finished = true;
    manifest_.result = result;
    try {
      directory_->write_manifest(manifest_);
    } catch (const Error& error) {
      directory_->say(std::string("it was not noted that the run is finished: ") + error.what());
    }
  }

  /// Has the priorities of a shard written when it is time.
  void priorities_if_due(double run_seconds) {
    if (!write_priorities_ || run_seconds < next_checkpoint_) return;
    next_checkpoint_ = run_seconds + 60.0 * keep_.checkpoint_every;
    write_priorities_();
  }

  /// As people see it.
  monitor::CheckpointSample checkpoints() const {
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

  durability::CheckpointStatistics statistics() const {
    return writer_ ? writer_->statistics() : durability::CheckpointStatistics{};
  }

  /// What people should know at once, in some words; empty when all is well.
  std::string alarm() const {
    if (!directory_) return {};
    if (directory_->is_lost()) return "run directory lost";
    if (statistics().is_failing) return "no checkpoint";
    if (!log_statistics_) return {};
    const durability::ReplayLogStatistics log = log_statistics_();
    if (log.has_given_up) return "log given up";
    if (log.is_failing) return "log waits for the disk";
    return log.waits == 0 ? std::string() : "disk waits " + std::to_string(log.waits);
  }

 private:
  void open(const Options& options, const RecordLayout& layout) {
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

  void read_checkpoint() {
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

  template <class Fill>
  bool take(double run_seconds, Fill& fill) {
    const TraceSpan span("copy for a checkpoint");
    return writer_->take([&](durability::Checkpoint& checkpoint) {
      fill(checkpoint);
      checkpoint.info.seconds = run_seconds;
      checkpoint.info.mean_return = mean_return_.load(std::memory_order_relaxed);
      checkpoint.info.evaluations = evaluations_.load(std::memory_order_relaxed);
    });
  }

  const KeepOptions keep_;
  durability::Manifest manifest_;
  std::optional<durability::RunDirectory> directory_;
  std::optional<durability::Checkpoint> checkpoint_;
  durability::CheckpointInfo info_;
  std::vector<durability::ClientBatch> info_sessions_;
  bool is_resumed_ = false, has_checkpoint_ = false;
  std::optional<std::string> finished_;
  std::optional<durability::CheckpointWriter> writer_;
  std::function<durability::ReplayLogStatistics()> log_statistics_;
  std::function<void()> write_priorities_;
  std::uint64_t inserted_since_ = 0;  // the checkpoint, by the programs before
  double next_checkpoint_ = 0.0;      // seconds of the run
  std::atomic<double> mean_return_{std::numeric_limits<double>::quiet_NaN()};
  std::atomic<std::uint64_t> evaluations_{0};
};

namespace detail {

/// Says in a line what a run goes on with. `size`: items in the replay.
inline void say_restored(const Console& console, const KeptRun& kept, std::size_t size) {
  if (!kept.is_resumed()) return;
  console.info("resumed %s: learner step %llu, %zu items in the replay", kept.path().c_str(),
               static_cast<unsigned long long>(kept.info().learner_steps), size);
}

}  // namespace detail

}  // namespace troop::apex
