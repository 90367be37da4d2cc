/// @file
/// What a run shows of itself: event files, metrics, the status page.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
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
inline monitor::Metrics& metrics() {
  static monitor::Metrics metrics;
  return metrics;
}

/// Something that a process needs is not to be had, before it has done anything: a port that is taken, say.
class CannotBegin : public Error {
 public:
  using Error::Error;
};

namespace detail {

/// A server for `--http`, or none without it. Throws CannotBegin, naming that option.
inline std::unique_ptr<monitor::HttpServer> make_http(const Options& options, const net::Token& token,
                                                      monitor::HttpServices services,
                                                      const Console& console) {
  if (options.monitor.http.empty()) return nullptr;
  monitor::HttpOptions http{.listen = options.monitor.http,
                            .token = token,
                            .insecure = options.cluster.insecure,
                            .log = console.warnings()};
  try {
    return std::make_unique<monitor::HttpServer>(http, std::move(services));
  } catch (const InvalidArgument& error) {
    throw CannotBegin(InvalidArgument("--http", error.value(), error.expected()).what());
  } catch (const Error& error) {
    throw CannotBegin("--http: " + std::string(error.what()));
  }
}

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
inline monitor::ClusterSample cluster_sample(const net::ServerStatistics& s) {
  monitor::ClusterSample sample{.clients = s.connections,
                                .batches = s.batches,
                                .duplicates = s.duplicates,
                                .waits = s.waits,
                                .bytes_received = s.bytes_received,
                                .bytes_sent = s.bytes_sent};
  for (const std::uint64_t refused : s.refused) sample.refused += refused;
  return sample;
}

}  // namespace detail

/// Watches a learner's run for as long as it lives: takes samples twice a second, and feeds `--http` and
/// `--tensorboard` with them. Without these it only keeps the figures.
///
/// All but `take_report`, `take_sign_of_life` and `copy_network` is called by the thread that runs the run.
class RunMonitor {
 public:
  /// Throws CannotBegin, naming the option, where it cannot listen or write.
  RunMonitor(const Options& options, const net::Token& token, const monitor::RunFacts& facts,
             const Console& console)
      : monitor_(options.monitor),
        console_(console),
        has_readers_(!options.monitor.http.empty() || !options.monitor.tensorboard.empty()),
        actors_(table_options(options.cluster.lease_seconds)),
        status_(facts, metrics_, actors_) {
    metrics_.collect([] { return metrics().families(); });
    if (!options.monitor.tensorboard.empty()) {
      const auto open = [&](const std::string& directory, std::uint64_t monitor::RunBefore::*step) {
        monitor::EventFileOptions file{.directory = directory, .log = console.warnings()};
        if (facts.before) file.resumed_at = *facts.before.*step;
        return std::make_unique<monitor::EventFile>(file);
      };
      try {
        events_ = open(options.monitor.tensorboard, &monitor::RunBefore::learner_steps);
        // Beside the others: what a run that goes on takes back is told by a step, and these are other steps.
        events_by_environment_ = open(options.monitor.tensorboard + "/by_environment_steps",
                                      &monitor::RunBefore::environment_steps);
      } catch (const Error& error) {
        throw CannotBegin("--tensorboard: " + std::string(error.what()));
      }
      write_options(options, facts.before.value_or(monitor::RunBefore()).learner_steps);
    }
    http_ = detail::make_http(
        options, token,
        {.metrics = &metrics_,
         .status = [this] { return status_.json(); },
         .summary = [this] { return status_.summary(); },
         .actors = [this] { return status_.actors_table(); },
         .obstacle = [this]() -> std::string { return is_ready_.load() ? "" : "the run has not begun yet"; }},
        console);
  }

  RunMonitor(const RunMonitor&) = delete;
  RunMonitor& operator=(const RunMonitor&) = delete;

  /// Where the page is; empty without one.
  std::string address() const { return http_ ? net::to_string(http_->address()) : std::string(); }

  /// The run in some lines.
  std::string summary() const { return status_.summary(); }

  /// Takes the report of an actor elsewhere as it came over the wire. Called by the net::Server's thread.
  void take_report(std::span<const std::byte> bytes) {
    actors_.report(from_bytes<monitor::ActorReport>(bytes, {.max_bytes = net::kMaxControlBytes}));
  }

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
                 std::uint64_t environment_steps) {
    const monitor::EvaluationPoint point{.seconds = seconds,
                                         .learner_steps = learner_steps,
                                         .environment_steps = environment_steps,
                                         .mean = played.mean(),
                                         .deviation = played.deviation(),
                                         .min = played.min(),
                                         .max = played.max(),
                                         .episodes = played.returns.size()};
    status_.evaluated(point);
    if (!events_) return;
    events_->scalar("evaluation/mean_return", point.mean, learner_steps);
    events_by_environment_->scalar("evaluation/mean_return_by_environment_steps", point.mean,
                                   environment_steps);
    const std::vector<float> returns(played.returns.begin(), played.returns.end());
    events_->histogram("evaluation/returns", monitor::EventHistogram::of(returns), learner_steps);
    events_->histogram("evaluation/q_values", monitor::EventHistogram::of(played.q_values), learner_steps);
  }

  void set_solved() { status_.set_solved(); }

  /// The run has ended, and all its threads.
  void finish() { end_trace(); }

 private:
  static constexpr double kSampleSeconds = 0.5, kStatusSeconds = 1.0, kActorsSeconds = 3.0,
                          kHistogramSeconds = 10.0, kEventSeconds = 5.0, kNetworkSeconds = 15.0;

  /// Silence is judged by the lease's time.
  static monitor::ActorTableOptions table_options(double lease_seconds) {
    const auto lease =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(lease_seconds));
    return {.lost_after = std::max<Clock::duration>(std::chrono::seconds(5), lease / 2),
            .forget_after = std::max<Clock::duration>(std::chrono::seconds(10), lease)};
  }

  /// Begins the trace and ends it when it is time.
  void trace(double seconds) {
    if (!trace_begin_) trace_begin_ = seconds + monitor_.profile_after;
    if (trace_ && seconds >= *trace_begin_ + monitor_.profile_seconds) end_trace();
    if (trace_ || is_traced_ || seconds < *trace_begin_) return;
    trace_.emplace().start();
  }

  /// The spans that are under way still go into it: it is kept for as long as the run.
  void end_trace() {
    if (!trace_ || std::exchange(is_traced_, true)) return;
    trace_->stop();
    try {
      trace_->write(monitor_.profile);
      console_.info("wrote a trace of %zu spans to %s; open it in https://ui.perfetto.dev", trace_->size(),
                    monitor_.profile.c_str());
    } catch (const Error& error) {
      console_.error("--profile: %s", error.what());
    }
  }

  template <class Actors>
  static std::uint64_t first_of(const Actors& actors, std::size_t i) {
    return i * actors[i]->num_environments();
  }

  void write_options(const Options& options, std::uint64_t step) {
    Options copy(options);
    const detail::OptionTable table(copy);
    std::string text = "| option | value |\n| --- | --- |\n";
    std::vector<monitor::HyperParameter> parameters;
    for (const detail::OptionEntry& entry : table.entries()) {
      text += "| " + entry.name + " | " + entry.initial + " |\n";
      if (entry.type == "INT" || entry.type == "NUMBER") {
        parameters.push_back({entry.name, std::strtod(entry.initial.c_str(), nullptr)});
      } else if (entry.type == "WORD") {
        parameters.push_back({entry.name, entry.initial});
      }
    }
    const std::vector<std::string> goals{"evaluation/mean_return"};
    events_->text("options", text, step);
    events_->hyper_parameters(parameters, goals);
    events_->flush();
  }

  /// Weights by layer, and the norms of their gradients: of the means that the optimizer keeps of them.
  void write_network(const detail::NetworkCopy& copy) {
    for (const nn::ParameterBlock& block : copy.network.parameter_blocks()) {
      const auto part = [&](const std::vector<float>& of) {
        return std::span(of).subspan(block.offset, block.size());
      };
      events_->histogram("weights/" + block.name, monitor::EventHistogram::of(part(copy.parameters)),
                         copy.step);
      if (copy.gradient.empty()) continue;
      double squares = 0.0;
      for (const float g : part(copy.gradient)) squares += static_cast<double>(g) * static_cast<double>(g);
      events_->scalar("gradient_norm/" + block.name, std::sqrt(squares), copy.step);
    }
    copied_.reset();
  }

  /// Powers of two as TensorBoard's buckets.
  void write_histogram(const PriorityHistogram& bins, std::uint64_t step) {
    monitor::EventHistogram h;
    for (const auto& bin : bins.bins) {
      const double low = std::ldexp(1.0, bin.exponent), count = static_cast<double>(bin.count);
      if (h.limits.empty()) h.min = low;
      h.max = 2.0 * low;
      h.limits.push_back(2.0 * low);
      h.counts.push_back(count);
      h.sum += 1.5 * low * count;
      h.sum_squares += 2.25 * low * low * count;
    }
    if (!h.limits.empty()) events_->histogram("replay/priorities", h, step);
  }

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
  ActorMonitor(const Options& options, const net::Token& token, const Console& console)
      : steps_(metrics_.counter("troop_process_steps_total", "Environment steps of this process.")),
        dropped_(
            metrics_.counter("troop_process_dropped_items_total", "Items that the outbox had no room for.")),
        mean_return_(metrics_.gauge("troop_process_mean_return", "Mean return of its last episodes.")),
        connected_(metrics_.gauge("troop_process_connected", "1 while it is connected to the learner.")),
        version_(metrics_.gauge("troop_process_parameter_version", "Version of the parameters that act.")) {
    metrics_.collect([] { return metrics().families(); });
    http_ = detail::make_http(
        options, token,
        {.metrics = &metrics_,
         .obstacle = [this]() -> std::string { return is_acting_.load() ? "" : "nothing acts yet"; }},
        console);
  }

  /// Where the server is; empty without one.
  std::string address() const { return http_ ? net::to_string(http_->address()) : std::string(); }

  /// The report to be sent when it is time for another one, empty when it is not.
  std::vector<std::byte> observe(double seconds, const monitor::ActorReport& report, bool is_connected) {
    monitor::raise_to(steps_, static_cast<double>(report.steps));
    monitor::raise_to(dropped_, static_cast<double>(report.dropped));
    mean_return_.Set(report.mean_return);
    connected_.Set(is_connected ? 1.0 : 0.0);
    version_.Set(static_cast<double>(report.parameter_version));
    is_acting_.store(report.steps > 0 && is_connected);
    if (!report.is_last && seconds < next_report_) return {};
    next_report_ = seconds + 1.0;
    return to_bytes(report);
  }

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
  ShardMonitor(const Options& options, const net::Token& token, const Console& console) {
    metrics_.collect([] { return metrics().families(); });
    http_ = detail::make_http(options, token,
                              {.metrics = &metrics_,
                               .obstacle = [this]() -> std::string {
                                 return is_listening_.load() ? "" : "the replay is being filled";
                               }},
                              console);
  }

  /// Where the server is; empty without one.
  std::string address() const { return http_ ? net::to_string(http_->address()) : std::string(); }

  /// From when on it listens.
  void observe(const ReplayStatistics& replay, const net::ServerStatistics& server) {
    replay_.set(replay);
    monitor::set_metrics(metrics_, detail::cluster_sample(server));
    is_listening_.store(true);
  }

 private:
  monitor::Metrics metrics_;
  monitor::ReplayMetrics replay_{metrics_};
  std::atomic<bool> is_listening_{false};
  std::unique_ptr<monitor::HttpServer> http_;
};

}  // namespace troop::apex
