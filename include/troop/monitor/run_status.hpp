/// @file
/// How a run goes: rates, history, alarms, and the texts in which all that is shown.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <troop/monitor/actor_table.hpp>
#include <troop/monitor/metrics.hpp>
#include <troop/replay/rate_limiter.hpp>
#include <troop/replay/replay_options.hpp>

namespace troop::monitor {

/// What a run had come to when this process went on with it.
struct RunBefore {
  std::uint64_t learner_steps = 0, environment_steps = 0, evaluations = 0;
};

/// What does not change in a run.
struct RunFacts {
  std::string environment = {};
  std::string role = {};
  std::uint64_t seed = 0;
  double target_return = std::nan("");  ///< that counts as solved; NaN: nothing does
  double least_epsilon = 0.0, greatest_epsilon = 0.0;
  std::uint64_t min_inserts = 0;
  std::size_t batch_size = 0;
  std::size_t planned_environments = 0;
  std::optional<RunBefore> before = {};  ///< of a run that goes on
};

/// What a learner's server counts.
struct ClusterSample {
  std::uint64_t clients = 0;  ///< connections
  std::uint64_t batches = 0, duplicates = 0, waits = 0, refused = 0, bytes_received = 0, bytes_sent = 0;
};

/// The metrics of a replay.
class ReplayMetrics {
 public:
  explicit ReplayMetrics(Metrics& metrics);
  void set(const ReplayStatistics& statistics);

 private:
  prometheus::Counter &inserts_, &samples_, &evictions_, &updates_, &stale_updates_;
  prometheus::Gauge &size_, &capacity_, &total_priority_;
};

/// Sets the metrics of a server, which are there with a server only.
void set_metrics(Metrics& metrics, const ClusterSample& sample);

/// How it stands with the checkpoints of a run that makes some.
struct CheckpointSample {
  std::string directory = {};
  std::uint64_t written = 0, failed = 0;  ///< by this process
  bool is_failing = false;                ///< the last attempt failed
  std::string trouble = {};               ///< with the run directory, in some words; empty when there is none
  std::uint64_t learner_steps = 0;        ///< of the newest one
  double age_seconds = std::nan("");      ///< of the newest one; NaN before the first
  double write_seconds = std::nan("");    ///< that it took
  std::uint64_t bytes = 0;                ///< of the newest one
  double interval_seconds = 0.0;          ///< that lies between two; 0 when there is one at the end only
};

/// A run at a moment, in the counts that its pieces keep.
struct RunSample {
  double seconds = 0.0;  ///< since the start
  std::uint64_t environment_steps = 0, learner_steps = 0, skipped_steps = 0, parameter_version = 0;
  double loss = 0.0, gradient_norm = 0.0, mean_q = 0.0;
  double mean_policy_lag = 0.0;
  ReplayStatistics replay = {};
  RateLimiterStatistics limiter = {};
  std::optional<ClusterSample> cluster = {};
  std::optional<CheckpointSample> checkpoints = {};
  std::uint64_t dropped_events = 0;  ///< that could not be written for TensorBoard
};

/// An evaluation of the greedy policy.
struct EvaluationPoint {
  double seconds = 0.0;
  std::uint64_t learner_steps = 0, environment_steps = 0;
  double mean = 0.0, deviation = 0.0, min = 0.0, max = 0.0;
  std::uint64_t episodes = 0;
};

/// Something that somebody should know or do.
struct Alarm {
  std::string name;   ///< always the same for the same trouble: "learner_stalled"
  bool is_serious;    ///< otherwise it is advice
  std::string what;   ///< a sentence
  std::string to_do;  ///< another
};

/// Collects a run's samples and says how it goes: rates over the last seconds, a history of bounded length,
/// alarms, metrics, the JSON of `/api/status`, and plain text.
///
/// Thread-safe; `observe` and `evaluated` are meant for one thread, a few times a second. Memory and the size
/// of the texts do not depend on how long the run lasts.
class RunStatus {
 public:
  static constexpr int kVersion = 1;  ///< of the JSON
  static constexpr std::size_t kMostPoints =
      240;  ///< of a history; when there are more, every second one goes

  RunStatus(const RunFacts& facts, Metrics& metrics, ActorTable& actors);
  ~RunStatus();

  void observe(const RunSample& sample);

  void evaluated(const EvaluationPoint& point);

  void set_histogram(PriorityHistogram histogram);

  void set_solved();

  std::vector<Alarm> alarms() const;

  /// The JSON of `/api/status`, as docs/monitoring.md describes it; without `whole` what changes, which is the
  /// event `status` of `/api/events`.
  std::string json(bool whole = true) const;

  /// The event `actors`: the table of actors alone.
  std::string actors_json() const;

  /// The run in some lines for a terminal.
  std::string summary() const;

  /// The actors as a table for a terminal, lost ones first.
  std::string actors_table() const;

  /// At most four characters and a letter: 950, 3.9k, 31k, 2.4M.
  static std::string count_text(double value);
  static std::string count_text(std::uint64_t value);

 private:
  class Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace troop::monitor
