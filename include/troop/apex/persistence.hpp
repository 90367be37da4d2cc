/// @file
/// How a run is kept in its directory, and goes on from there.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
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

std::vector<net::Session> sessions_of(std::span<const durability::ClientBatch> batches);

std::vector<durability::ClientBatch> batches_of(std::span<const net::Session> sessions);

/// The counts with which a rate limiter goes on. `size`: items that the replay has again; `inserts` and `samples`:
/// of the run so far. With too few items the learner waits for new ones as at the start of a run; else either side
/// is ahead by no more than the limiter allows, so that no burst of updates falls on old items.
RateLimiter::State resumed_state(const RateLimiterOptions& options, const ReplayOptions& replay,
                                 std::uint64_t size, RateLimiter::State state);

/// What the options say, a line each.
std::string options_text(const Options& options);

Clock::duration duration_of(double seconds);

/// A network to be played: one that was saved, a checkpoint, or the newest checkpoint of a run directory.
nn::LoadedNetwork load_to_play(const std::string& path, const Console& console = Console());

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
  KeptRun(const Options& options, KeptRunFacts facts, std::function<void(const std::string&)> log);

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
  void restore(RateLimiter& limiter, const ReplayOptions& replay, std::uint64_t size) const;

  /// A replay elsewhere has what it has: the counts go on.
  void restore(RateLimiter& limiter) const;

  /// Says a mean return, by which the best checkpoint is told.
  void evaluated(double mean_return);

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
  void priorities_if_due(double run_seconds);

  /// As people see it.
  monitor::CheckpointSample checkpoints() const;

  durability::CheckpointStatistics statistics() const;

  /// What people should know at once, in some words; empty when all is well.
  std::string alarm() const;

 private:
  void open(const Options& options, const RecordLayout& layout);

  void read_checkpoint();

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
void say_restored(const Console& console, const KeptRun& kept, std::size_t size);

}  // namespace detail

}  // namespace troop::apex
