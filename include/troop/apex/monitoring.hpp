/// @file
/// What a run shows of itself: event files, metrics, the status page.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/agent/actor.hpp>
#include <troop/agent/evaluator.hpp>
#include <troop/apex/console.hpp>
#include <troop/apex/options.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/trace.hpp>
#include <troop/env/environment.hpp>
#include <troop/monitor/actor_table.hpp>
#include <troop/monitor/event_file.hpp>
#include <troop/monitor/http.hpp>
#include <troop/monitor/metrics.hpp>
#include <troop/monitor/run_status.hpp>
#include <troop/net/authentication.hpp>
#include <troop/net/server.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/replay/replay_options.hpp>
#include <troop/serialization/cereal.hpp>

namespace troop::apex {

/// The metrics that a program adds of its own; whatever a run shows has them too. Of the process, so that an
/// environment deep inside a run can reach them.
///
///     troop::apex::metrics().gauge("lives", "Lives left when a game ends.").Set(3);
monitor::Metrics& metrics();

/// Something that a process needs is not to be had, before it has done anything: a port that is taken, say.
class CannotBegin : public Error {
 public:
  using Error::Error;
};

namespace detail {

/// A server for `--http`, or none without it. Throws CannotBegin, naming that option.
std::unique_ptr<monitor::HttpServer> make_http(const Options& options, const net::Token& token,
                                               monitor::HttpServices services, const Console& console);

/// The report of actors that share a ticket, from their statistics.
template <class Actors>
monitor::ActorReport report_of(const Actors& actors, std::uint64_t ticket, std::uint64_t first,
                               const std::string& name) {
  monitor::ActorReport report{.ticket = ticket,
                              .first = first,
                              .name = name,
                              .least_epsilon = 1.0,
                              .parameter_version = UINT64_MAX,
                              .time = monitor::ActorTable::unix_time()};
  for (const auto& actor : actors) {
    const agent::ActorStatistics s = actor->statistics();
    report.count += actor->num_environments();
    for (const double epsilon : actor->epsilons()) {
      report.least_epsilon = std::min(report.least_epsilon, epsilon);
      report.greatest_epsilon = std::max(report.greatest_epsilon, epsilon);
    }
    report.steps += s.steps;
    report.episodes += s.episodes;
    report.mean_return += s.mean_return / static_cast<double>(actors.size());
    report.last_return += s.last_return / static_cast<double>(actors.size());
    report.parameter_version = std::min(report.parameter_version, s.parameter_version);
  }
  return report;
}

/// A learner's network at a step of it.
struct NetworkCopy {
  nn::Network network;
  std::uint64_t step = 0;
  std::vector<float> parameters, gradient;
};

/// What a server counts, as people see it.
monitor::ClusterSample cluster_sample(const net::ServerStatistics& s);

}  // namespace detail

/// Watches a learner's run for as long as it lives: takes samples twice a second, and feeds `--http` and
/// `--tensorboard` with them. Without these it only keeps the figures.
///
/// All but `take_report`, `take_sign_of_life` and `copy_network` is called by the thread that runs the run.
class RunMonitor {
 public:
  /// Throws CannotBegin, naming the option, where it cannot listen or write.
  RunMonitor(const Options& options, const net::Token& token, const monitor::RunFacts& facts,
             const Console& console);

  RunMonitor(const RunMonitor&) = delete;
  RunMonitor& operator=(const RunMonitor&) = delete;

  /// Where the page is; empty without one.
  std::string address() const { return http_ ? net::to_string(http_->address()) : std::string(); }

  /// The run in some lines.
  std::string summary() const { return status_.summary(); }

  /// Takes the report of an actor elsewhere as it came over the wire. Called by the net::Server's thread.
  void take_report(std::span<const std::byte> bytes);

  /// An actor process elsewhere is there, though what it says must wait. Called by the net::Server's thread.
  void take_sign_of_life(const std::string& name) { actors_.heard(name); }

  /// Calls `take_sample(RunSample&)` when it is time for another sample; cheap when it is not. `actors`: those
  /// in this process. `histogram()`: of the replay's priorities, every ten seconds.
  template <class Actors, class TakeSample, class Histogram>
  void observe(double seconds, const Actors& actors, TakeSample take_sample, Histogram histogram) {
    is_ready_.store(true);
    if (seconds < next_sample_) return;
    if (!monitor_.profile.empty()) trace(seconds);
    next_sample_ = seconds + kSampleSeconds;
    monitor::RunSample sample{.seconds = seconds};
    if (events_) sample.dropped_events = events_->dropped() + events_by_environment_->dropped();
    take_sample(sample);
    if (!actors.empty()) {
      double lag = 0.0;
      for (std::size_t i = 0; i < actors.size(); ++i) {
        monitor::ActorReport report = detail::report_of(std::span(&actors[i], 1), i + 1, first_of(actors, i),
                                                        "thread " + std::to_string(i));
        lag += static_cast<double>(sample.parameter_version -
                                   std::min(sample.parameter_version, report.parameter_version));
        actors_.report(std::move(report));
      }
      sample.mean_policy_lag = lag / static_cast<double>(actors.size());
    }
    if (has_readers_ && seconds >= next_histogram_) {
      const PriorityHistogram bins = histogram();
      next_histogram_ = seconds + (bins.bins.empty() ? kStatusSeconds : kHistogramSeconds);
      if (events_) write_histogram(bins, sample.learner_steps);
      status_.set_histogram(bins);
    }
    status_.observe(sample);
    if (http_ && seconds >= next_status_) {
      next_status_ = seconds + kStatusSeconds;
      http_->publish("status", status_.json(false));
    }
    if (http_ && seconds >= next_actors_) {
      next_actors_ = seconds + kActorsSeconds;
      http_->publish("actors", status_.actors_json());
    }
    if (events_ && seconds >= next_event_) {
      next_event_ = seconds + kEventSeconds;
      events_->scalars(metrics_.scalars(), sample.learner_steps);
      events_->scalars(metrics().scalars(), sample.learner_steps);
      events_->flush();
      events_by_environment_->flush();
    }
    if (events_ && !is_copy_wanted_.load(std::memory_order_acquire)) {
      if (copied_.has_value()) write_network(*copied_);
      if (seconds >= next_copy_) {
        next_copy_ = seconds + kNetworkSeconds;
        is_copy_wanted_.store(true, std::memory_order_release);
      }
    }
  }

  /// Between two steps of the learner: copies its network when it is time to write about it. By the learner's thread.
  template <nn::QNetwork Network>
  void copy_network(Network& network, std::uint64_t learner_steps) {
    if (!is_copy_wanted_.load(std::memory_order_acquire)) return;
    const auto parameters = network.parameters();
    detail::NetworkCopy copy{network.network(), learner_steps, {parameters.begin(), parameters.end()}, {}};
    // The first of the means that the optimizer keeps is that of the gradient, unless there is only one.
    const auto state = network.optimizer_state();
    if (state.size() == 2 * parameters.size())
      copy.gradient.assign(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(parameters.size()));
    copied_.emplace(std::move(copy));
    is_copy_wanted_.store(false, std::memory_order_release);
  }

  /// An evaluation of the greedy policy has ended.
  void evaluated(const agent::EvaluationResult& played, double seconds, std::uint64_t learner_steps,
                 std::uint64_t environment_steps);

  void set_solved() { status_.set_solved(); }

  /// The run has ended, and all its threads.
  void finish() { end_trace(); }

 private:
  static constexpr double kSampleSeconds = 0.5, kStatusSeconds = 1.0, kActorsSeconds = 3.0,
                          kHistogramSeconds = 10.0, kEventSeconds = 5.0, kNetworkSeconds = 15.0;

  /// Silence is judged by the lease's time.
  static monitor::ActorTableOptions table_options(double lease_seconds);

  /// Begins the trace and ends it when it is time.
  void trace(double seconds);

  /// The spans that are under way still go into it: it is kept for as long as the run.
  void end_trace();

  template <class Actors>
  static std::uint64_t first_of(const Actors& actors, std::size_t i) {
    return i * actors[i]->num_environments();
  }

  void write_options(const Options& options, std::uint64_t step);

  /// Weights by layer, and the norms of their gradients: of the means that the optimizer keeps of them.
  void write_network(const detail::NetworkCopy& copy);

  /// Powers of two as TensorBoard's buckets.
  void write_histogram(const PriorityHistogram& bins, std::uint64_t step);

  const MonitorOptions monitor_;
  const Console console_;
  const bool has_readers_;
  monitor::Metrics metrics_;
  monitor::ActorTable actors_;
  monitor::RunStatus status_;
  std::unique_ptr<monitor::EventFile> events_, events_by_environment_;
  std::atomic<bool> is_copy_wanted_{false};  // while it is set, the following is the learner's thread's
  std::optional<detail::NetworkCopy> copied_;
  double next_copy_ = 0.0;
  std::optional<Trace> trace_;
  std::optional<double> trace_begin_;
  bool is_traced_ = false;
  std::atomic<bool> is_ready_{false};
  double next_sample_ = 0.0, next_histogram_ = 0.0, next_status_ = 0.0, next_actors_ = 0.0, next_event_ = 0.0;
  std::unique_ptr<monitor::HttpServer> http_;  // last: it asks the others
};

/// Watches an actor process: probes and metrics with `--http`, reports to the learner.
class ActorMonitor {
 public:
  ActorMonitor(const Options& options, const net::Token& token, const Console& console);

  /// Where the server is; empty without one.
  std::string address() const { return http_ ? net::to_string(http_->address()) : std::string(); }

  /// The report to be sent when it is time for another one, empty when it is not.
  std::vector<std::byte> observe(double seconds, const monitor::ActorReport& report, bool is_connected);

 private:
  monitor::Metrics metrics_;
  prometheus::Counter &steps_, &dropped_;
  prometheus::Gauge &mean_return_, &connected_, &version_;
  std::atomic<bool> is_acting_{false};
  double next_report_ = 0.0;
  std::unique_ptr<monitor::HttpServer> http_;
};

/// Watches a shard: probes and metrics with `--http`.
class ShardMonitor {
 public:
  ShardMonitor(const Options& options, const net::Token& token, const Console& console);

  /// Where the server is; empty without one.
  std::string address() const { return http_ ? net::to_string(http_->address()) : std::string(); }

  /// From when on it listens.
  void observe(const ReplayStatistics& replay, const net::ServerStatistics& server);

 private:
  monitor::Metrics metrics_;
  monitor::ReplayMetrics replay_{metrics_};
  std::atomic<bool> is_listening_{false};
  std::unique_ptr<monitor::HttpServer> http_;
};

}  // namespace troop::apex
