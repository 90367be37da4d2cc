/// serve_run PORT ACTORS SEED: a run that only seems to be one, behind its real monitor; with TROOP_TOKEN in the
/// environment on all addresses, guarded by it. Says where the page is, then takes lines: `evaluate MEAN`, `skip N`
/// (steps that are not finite), `lose TICKET` (that actor falls silent). Ends with its input.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <troop/apex/monitoring.hpp>

namespace {

using namespace troop;

/// None is in this process; the monitor wants to know of what kind they would be.
struct NoActor {
  std::size_t num_environments() const { return 0; }
  std::vector<double> epsilons() const { return {}; }
  agent::ActorStatistics statistics() const { return {}; }
};

/// What a page must bear: what an actor calls itself is up to the actor.
std::string name_of(std::uint64_t ticket) {
  if (ticket == 1) return "<img src=x onerror=alert(1)><script>alert(2)</script>";
  if (ticket == 2) return "\x1b[31mred\n\"'&amp;" + std::string(10'000, 'x');
  return "worker-" + std::to_string(ticket) + ".example:" + std::to_string(1000 + ticket);
}

struct Fleet {
  std::uint64_t count;
  std::set<std::uint64_t> lost = {};

  void report(apex::RunMonitor& monitor, double seconds) const {
    for (std::uint64_t ticket = 1; ticket <= count; ++ticket) {
      if (lost.contains(ticket)) continue;
      const double part = static_cast<double>(ticket - 1) / static_cast<double>(count);
      const monitor::ActorReport report{
          .ticket = ticket,
          .first = 4 * (ticket - 1),
          .count = 4,
          .name = name_of(ticket),
          .least_epsilon = std::pow(0.4, 1.0 + 7.0 * part),
          .greatest_epsilon = std::pow(0.4, 1.0 + 6.9 * part),
          .steps = static_cast<std::uint64_t>(seconds * (100.0 + static_cast<double>(ticket))),
          .episodes = 1 + static_cast<std::uint64_t>(seconds),
          .last_return = 100.0 * part + 10.0 * std::sin(seconds),
          .mean_return = 100.0 * part,
          .parameter_version = static_cast<std::uint64_t>(30.0 * seconds),
          .time = monitor::ActorTable::unix_time()};
      monitor.take_report(to_bytes(report));
    }
  }
};

void fill(monitor::RunSample& sample, double seconds, std::uint64_t skipped) {
  sample.environment_steps = static_cast<std::uint64_t>(40'000.0 * seconds);
  sample.learner_steps = static_cast<std::uint64_t>(300.0 * seconds);
  sample.skipped_steps = skipped;
  sample.parameter_version = static_cast<std::uint64_t>(30.0 * seconds) + 2;
  sample.loss = 0.2 + std::exp(-seconds / 10.0);
  sample.gradient_norm = 0.9;
  sample.mean_q = 42.0;
  sample.mean_policy_lag = 2.0;
  sample.replay.inserts = sample.limiter.inserts = sample.environment_steps;
  sample.replay.size = std::min<std::size_t>(1'000'000, sample.environment_steps);
  sample.replay.capacity = 1'000'000;
  sample.replay.samples = sample.limiter.samples = 512 * sample.learner_steps;
  sample.cluster = monitor::ClusterSample{.clients = 300, .batches = sample.environment_steps / 50};
  sample.checkpoints = monitor::CheckpointSample{.directory = "runs/pong",
                                                 .written = 3,
                                                 .learner_steps = 12'000,
                                                 .age_seconds = 42.0,
                                                 .write_seconds = 0.7,
                                                 .bytes = 31'000'000,
                                                 .interval_seconds = 60.0};
}

monitor::RunFacts facts(std::uint64_t seed) {
  return {.environment = "Pong-v5",
          .role = "learner",
          .seed = seed,
          .target_return = 90.0,
          .least_epsilon = 0.0007,
          .greatest_epsilon = 0.4,
          .min_inserts = 1000,
          .batch_size = 512,
          .planned_environments = 1200};
}

}  // namespace

int main(int, char** words) {
  apex::Options options;
  const bool has_token = std::getenv("TROOP_TOKEN") != nullptr;
  const net::Token token = has_token ? net::Token::from_environment("TROOP_TOKEN") : net::Token();
  options.monitor.http = std::string(has_token ? "0.0.0.0:" : "127.0.0.1:") + words[1];
  Fleet fleet{std::strtoull(words[2], nullptr, 10)};
  apex::RunMonitor monitor(options, token, facts(std::strtoull(words[3], nullptr, 10)), apex::Console());
  std::printf("http://%s/\n", monitor.address().c_str());
  std::fflush(stdout);
  const PriorityHistogram histogram{
      .bins = {{-4, 100'000}, {-3, 300'000}, {-2, 500'000}, {-1, 90'000}, {0, 10'000}}};
  const Clock::time_point start = Clock::now();
  std::uint64_t skipped = 0;
  double next_report = 0.0;
  for (pollfd input{STDIN_FILENO, POLLIN, 0};;) {
    const double seconds = seconds_since(start);
    if (seconds >= next_report) {
      next_report = seconds + 1.0;
      fleet.report(monitor, seconds);
    }
    monitor.observe(
        seconds, std::vector<NoActor*>(), [&](monitor::RunSample& sample) { fill(sample, seconds, skipped); },
        [&] { return histogram; });
    if (::poll(&input, 1, 20) <= 0) continue;
    char lines[256];
    const ssize_t length = ::read(STDIN_FILENO, lines, sizeof lines);
    if (length <= 0) return 0;
    std::istringstream orders(std::string(lines, static_cast<std::size_t>(length)));
    std::string verb;
    double value = 0.0;
    while (orders >> verb >> value) {
      if (verb == "skip") skipped += static_cast<std::uint64_t>(value);
      if (verb == "lose") fleet.lost.insert(static_cast<std::uint64_t>(value));
      if (verb != "evaluate") continue;
      const agent::EvaluationResult played{.returns = {value - 1.0, value + 1.0}};
      monitor.evaluated(played, seconds, static_cast<std::uint64_t>(300.0 * seconds),
                        static_cast<std::uint64_t>(40'000.0 * seconds));
    }
  }
}
