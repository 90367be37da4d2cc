#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/apex/monitoring.hpp>

namespace troop::apex {

monitor::Metrics& metrics() {
  static monitor::Metrics metrics;
  return metrics;
}

namespace detail {

std::unique_ptr<monitor::HttpServer> make_http(const Options& options, const net::Token& token,
                                               monitor::HttpServices services, const Console& console) {
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

monitor::ClusterSample cluster_sample(const net::ServerStatistics& s) {
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

RunMonitor::RunMonitor(const Options& options, const net::Token& token, const monitor::RunFacts& facts,
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
      events_by_environment_ =
          open(options.monitor.tensorboard + "/by_environment_steps", &monitor::RunBefore::environment_steps);
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

void RunMonitor::take_report(std::span<const std::byte> bytes) {
  actors_.report(from_bytes<monitor::ActorReport>(bytes, {.max_bytes = net::kMaxControlBytes}));
}

void RunMonitor::evaluated(const agent::EvaluationResult& played, double seconds, std::uint64_t learner_steps,
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

monitor::ActorTableOptions RunMonitor::table_options(double lease_seconds) {
  const auto lease =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(lease_seconds));
  return {.lost_after = std::max<Clock::duration>(std::chrono::seconds(5), lease / 2),
          .forget_after = std::max<Clock::duration>(std::chrono::seconds(10), lease)};
}

void RunMonitor::trace(double seconds) {
  if (!trace_begin_) trace_begin_ = seconds + monitor_.profile_after;
  if (trace_ && seconds >= *trace_begin_ + monitor_.profile_seconds) end_trace();
  if (trace_ || is_traced_ || seconds < *trace_begin_) return;
  trace_.emplace().start();
}

void RunMonitor::end_trace() {
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

void RunMonitor::write_options(const Options& options, std::uint64_t step) {
  std::string text = "| option | value |\n| --- | --- |\n";
  std::vector<monitor::HyperParameter> parameters;
  for (const auto& [name, type, value] : detail::values_of(options)) {
    text += "| " + name + " | " + value + " |\n";
    if (type == "INT" || type == "NUMBER") {
      parameters.push_back({name, std::strtod(value.c_str(), nullptr)});
    } else if (type == "WORD") {
      parameters.push_back({name, value});
    }
  }
  const std::vector<std::string> goals{"evaluation/mean_return"};
  events_->text("options", text, step);
  events_->hyper_parameters(parameters, goals);
  events_->flush();
}

void RunMonitor::write_network(const detail::NetworkCopy& copy) {
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

void RunMonitor::write_histogram(const PriorityHistogram& bins, std::uint64_t step) {
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

ActorMonitor::ActorMonitor(const Options& options, const net::Token& token, const Console& console)
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

std::vector<std::byte> ActorMonitor::observe(double seconds, const monitor::ActorReport& report,
                                             bool is_connected) {
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

ShardMonitor::ShardMonitor(const Options& options, const net::Token& token, const Console& console) {
  metrics_.collect([] { return metrics().families(); });
  http_ = detail::make_http(options, token,
                            {.metrics = &metrics_,
                             .obstacle = [this]() -> std::string {
                               return is_listening_.load() ? "" : "the replay is being filled";
                             }},
                            console);
}

void ShardMonitor::observe(const ReplayStatistics& replay, const net::ServerStatistics& server) {
  replay_.set(replay);
  monitor::set_metrics(metrics_, detail::cluster_sample(server));
  is_listening_.store(true);
}

}  // namespace troop::apex
