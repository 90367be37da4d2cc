/// @file
/// The processes of a cluster besides its learner: shards, actors and evaluators, and what they share with it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/agent/actor.hpp>
#include <troop/agent/evaluator.hpp>
#include <troop/apex/console.hpp>
#include <troop/apex/monitoring.hpp>
#include <troop/apex/options.hpp>
#include <troop/apex/persistence.hpp>
#include <troop/apex/progress.hpp>
#include <troop/apex/signal.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/thread_group.hpp>
#include <troop/core/view.hpp>
#include <troop/env/environment.hpp>
#include <troop/env/vector_environment.hpp>
#include <troop/net/client.hpp>
#include <troop/net/remote_replay.hpp>
#include <troop/net/server.hpp>
#include <troop/net/shard_service.hpp>
#include <troop/net/sharded_sink.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/nn/network.hpp>
#include <troop/replay/array_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>

namespace troop::apex {

namespace detail {

/// What actors and evaluations play: an Environment many times over, or a vector that is one already.
template <class Environment, class Make>
auto make_environments(const env::VectorOptions& options, const Make& make) {
  if constexpr (env::VectorizedEnvironment<Environment>) {
    return make(options);
  } else {
    return env::VectorEnvironment<Environment>(options, make);
  }
}

template <class Environment, class Make>
env::Spec spec_of(const Make& make) {
  if constexpr (env::VectorizedEnvironment<Environment>) {
    return make(env::VectorOptions{.count = 1}).spec();
  } else {
    return make(std::uint64_t{0}).spec();
  }
}

/// " human_normalised=87.1%", or nothing for NaN.
std::string human_text(double human_normalised);

template <class Environment, class Make>
auto make_evaluator(const Options& options, const nn::Network& network, const Make& make) {
  return agent::Evaluator(
      make_environments<Environment>(
          {.count = options.evaluation_episodes, .seed = options.seed, .stream = "evaluation"}, make),
      nn::EigenNetwork(network, options.seed), {.epsilon = options.evaluation_epsilon, .seed = options.seed});
}

net::Token token_of(const ClusterOptions& options);

std::optional<net::TlsOptions> tls_of(const ClusterOptions& o);

Console console_of(const Options& options);

std::size_t environments_of(const Options& options);
std::size_t planned_of(const Options& options);

net::ServerOptions server_options(const Options& options, const Console& console);

net::LeaseOptions lease_options(const Options& options);

/// `num_servers`: to which the process sends its items. An outbox must have room for two batches at least.
net::ClientOptions client_options(const Options& options, const Console& console, std::size_t record_bytes,
                                  std::size_t num_servers = 1);

/// How the learner reaches the shards of its replay.
net::RemoteReplayOptions remote_replay_options(const Options& options, const Console& console);

ShardsReport shards_report(const net::RemoteReplay& replay);

/// Where a process of actors sends its items: to the learner, or to the shards that the learner has named.
struct Destination {
  net::Client& learner;
  std::optional<net::ShardedSink> shards = {};

  Outcome insert(const BatchView& records, std::span<const float> priorities, Deadline deadline);

  Outcome stop(Deadline deadline);

  std::uint64_t dropped_items() const;
};

/// How long anything in a process beside the learner waits before it looks whether it has been told to end.
inline constexpr Clock::duration kSlice = std::chrono::milliseconds(50);

/// How long a process that was told to end waits for what was sent to be on the disk.
inline constexpr Clock::duration kFlush = std::chrono::seconds(3);

/// What a server takes for a shard goes into its log as well, and is acknowledged when it is on the disk.
template <class Shard, class Log>
void log_inserts(Shard& shard, Log& log, net::Services& services) {
  services.insert_from = [&](const BatchView& records, std::span<const float> priorities,
                             const net::Session& batch) {
    const Outcome outcome = log.await_room(Deadline::now());
    if (outcome != Outcome::ok) return outcome;
    return shard.insert(records.size(), [&] { log.add({batch.client, batch.last}, records, priorities); });
  };
  services.commits = &log.commits();
}

/// What a refusal means for this process: 0, if the learner has finished; else it throws.
int end_of(const net::RefusedError& error, bool was_working, const Console& console);

/// The actors of a process that still play. One whose environments fail hands over what is complete, tells its
/// error and ends; the others go on. Thread-safe.
class Playing {
 public:
  Playing(std::size_t num_actors, const Console& console) : left_(num_actors), console_(console) {}

  /// Calls `play`, in which `actor` plays. False when it failed; throws what it threw when nobody else plays any
  /// more, and what another process refused in any case.
  template <class Actor, class Play>
  bool operator()(Actor& actor, Play&& play) {
    try {
      play();
      return true;
    } catch (const net::RefusedError&) {
      throw;
    } catch (const std::exception& error) {
      try {
        actor.finish(Deadline::after(std::chrono::seconds(1)));
      } catch (const std::exception&) {  // the first error is the one to be told
      }
      const std::size_t left = left_.fetch_sub(1) - 1;
      if (left == 0) throw;
      console_.error("an actor has ended: %s; %zu %s on", error.what(), left, left == 1 ? "goes" : "go");
      return false;
    }
  }

 private:
  std::atomic<std::size_t> left_;
  const Console console_;
};

int exit_code(const StopSignal& signal);

}  // namespace detail

/// A process full of actors: leases places on the ladder from the learner, then plays, sends what it sees and
/// fetches parameters, until the learner has finished or a signal comes. While the learner is away the actors
/// stand still; they go on by themselves with whichever learner is there next. An actor whose environments raise
/// an error says so and ends, and the others go on; the error of the last one is thrown, after everything that
/// was played has been sent.
///
/// Returns 0 when the learner has finished, or 128 + n for signal n. Throws NotAdmitted when the learner
/// refuses this process for good before it has begun, RefusedError when it or all shards do so later, Error
/// when the next learner has other shards.
template <class Environment, class Make>
int act(const Options& options, const nn::Network& network, const Make& make, const StopSignal& signal) {
  const Clock::time_point start = Clock::now();
  const env::Spec spec = detail::spec_of<Environment>(make);
  const RecordLayout layout = env::transition_layout(spec);
  const Console console = detail::console_of(options);
  ActorMonitor monitor(options, detail::token_of(options.cluster), console);
  if (!monitor.address().empty()) console.info("metrics at http://%s/metrics", monitor.address().c_str());
  const net::ClientOptions client_options = detail::client_options(options, console, layout.size());
  net::Client client(client_options, layout);
  std::atomic<bool> is_connected = false;
  detail::Destination destination{client};
  using Environments = decltype(detail::make_environments<Environment>({}, make));
  using Actor = agent::Actor<Environments, nn::EigenNetwork, detail::Destination, net::Client>;
  std::vector<std::unique_ptr<Actor>> actors;
  try {
    const auto count = static_cast<std::uint32_t>(detail::environments_of(options));
    std::optional<net::Leased> lease;
    while (!lease && signal.received() == 0) lease = client.lease(count, Deadline::after(detail::kSlice));
    if (!lease) return detail::exit_code(signal);
    if (!lease->replays.empty()) {
      const net::ClientOptions to_shard =
          detail::client_options(options, console, layout.size(), lease->replays.size());
      destination.shards.emplace(lease->replays, to_shard, layout);
    }
    console.set_index(lease->first);
    console.info("leased environments %llu to %llu of %llu", static_cast<unsigned long long>(lease->first),
                 static_cast<unsigned long long>(lease->first + count - 1),
                 static_cast<unsigned long long>(lease->planned));

    // The ticket is in the seed, so that nobody repeats the episodes of who had these places before.
    const std::uint64_t seed = Random(options.seed, "lease", lease->ticket)();
    for (std::size_t i = 0; i < options.num_actors; ++i) {
      agent::ActorOptions actor_options = options.actor;
      actor_options.seed = seed;
      actor_options.first_index = lease->first + i * options.environments_per_actor;
      actor_options.num_environments = lease->planned;
      auto environments = detail::make_environments<Environment>(
          {.count = options.environments_per_actor, .seed = seed, .first_index = actor_options.first_index},
          make);
      actors.push_back(std::make_unique<Actor>(std::move(environments),
                                               nn::EigenNetwork(network, options.seed), destination, client,
                                               actor_options));
    }

    detail::Playing playing(actors.size(), console);
    ThreadGroup threads([] {});
    for (const auto& actor : actors) {
      threads.start([&](const std::stop_token& stop) {
        playing(*actor, [&] {
          while (!stop.stop_requested()) {
            if (!is_connected) {
              std::this_thread::sleep_for(detail::kSlice);
            } else if (actor->step(Deadline::after(detail::kSlice)) == Outcome::closed) {
              return;
            }
          }
          if (is_connected) actor->finish(Deadline::after(std::chrono::seconds(1)));
        });
      });
    }
    const auto tell = [&](bool is_last) {
      const net::ClientStatistics connection = client.statistics();
      monitor::ActorReport report =
          detail::report_of(actors, lease->ticket, lease->first, client_options.name);
      report.dropped = destination.dropped_items();
      report.is_last = is_last;
      const auto bytes = monitor.observe(seconds_since(start), report, connection.is_connected);
      if (!bytes.empty()) client.report(bytes);
    };
    double last_line = 0.0;
    while (signal.received() == 0 && !threads.stop_requested()) {
      const net::ClientStatistics connection = client.statistics();
      is_connected = connection.is_connected;
      client.flush(Deadline::now());  // throws when the learner has refused this process
      tell(false);
      if (client.lease(count, Deadline::now())->replays != lease->replays)
        throw Error("the learner that is there now has its replay elsewhere: start this process anew");
      const double seconds = seconds_since(start);
      if (!console.is_quiet() && seconds - last_line >= 10.0) {
        last_line = seconds;
        const std::uint64_t dropped = destination.dropped_items();
        double mean_return = 0.0;
        std::uint64_t steps = 0;
        for (const auto& actor : actors) {
          steps += actor->statistics().steps;
          mean_return += actor->statistics().mean_return / static_cast<double>(actors.size());
        }
        console.info("%6.0fs  %llu steps  eps %.4f-%.2f  return %s  parameters %llu  %s%s", seconds,
                     static_cast<unsigned long long>(steps), actors.back()->epsilons().back(),
                     actors.front()->epsilons().front(), return_text(mean_return).c_str(),
                     static_cast<unsigned long long>(connection.parameter_version),
                     connection.is_connected ? "connected" : "not connected",
                     dropped == 0 ? "" : ("  dropped " + std::to_string(dropped)).c_str());
      }
      std::this_thread::sleep_for(detail::kSlice);
    }
    threads.request_stop();
    std::exception_ptr failure;
    try {
      threads.join();
    } catch (const net::RefusedError&) {
      throw;
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    tell(true);
    if (destination.stop(Deadline::after(std::chrono::seconds(2))) == Outcome::timeout)
      console.warning("%s did not take the last items in time: they are lost",
                      destination.shards ? "the shards" : "the learner");
    if (failure) std::rethrow_exception(failure);
  } catch (const net::RefusedError& error) {
    return detail::end_of(error, !actors.empty(), console);
  }
  return detail::exit_code(signal);
}

/// A shard on its own: holds items that actors send, and lets a learner draw from them, until a signal comes.
/// It stays when a learner has finished, and the next one finds its items. With `--run-dir` so does the next shard.
///
/// Returns 128 + n for signal n. Throws NotAdmitted as KeptRun does, CannotBegin when `--http` cannot be had.
template <class Storage = ArrayStorage>
int serve_shard(const Options& options, const RecordLayout& layout, const StopSignal& signal) {
  const Clock::time_point start = Clock::now();
  const Console console = detail::console_of(options);
  ShardMonitor monitor(options, detail::token_of(options.cluster), console);
  if (!monitor.address().empty()) console.info("metrics at http://%s/metrics", monitor.address().c_str());
  KeptRun kept(options, {.environment = "shard", .network = {}, .layout = layout}, console.warnings());
  PrioritizedReplay<DynamicRecord, Storage> replay(options.replay, layout);
  net::ShardService shard(replay);
  net::Services services = shard.services();
  const auto log = kept.open_log(replay);
  if (log) detail::log_inserts(shard, *log, services);
  net::Server server(detail::server_options(options, console), layout, services, kept.sessions());
  detail::say_restored(console, kept, replay.size());
  console.info("listening on %s", net::to_string(server.address()).c_str());
  double last_line = 0.0;
  const auto show = [&](double seconds) {
    last_line = seconds;
    const ReplayStatistics statistics = replay.statistics();
    console.info("%6.0fs  %zu of %zu items  inserts %llu  samples %llu  clients %llu%s", seconds,
                 statistics.size, statistics.capacity, static_cast<unsigned long long>(statistics.inserts),
                 static_cast<unsigned long long>(statistics.samples),
                 static_cast<unsigned long long>(server.statistics().connections),
                 detail::in_brackets(kept.alarm()).c_str());
  };
  while (signal.received() == 0) {
    std::this_thread::sleep_for(detail::kSlice);
    if (seconds_since(start) - last_line >= 10.0) show(seconds_since(start));
    monitor.observe(replay.statistics(), server.statistics());
    kept.priorities_if_due(seconds_since(start));
  }
  show(seconds_since(start));
  if (log) log->flush(Deadline::after(detail::kFlush));
  server.stop(Deadline::after(std::chrono::seconds(1)), net::Farewell::stopping);
  return detail::exit_code(signal);
}

/// A process that plays the learner's newest parameters greedily, again and again, and prints a line for each
/// evaluation, until the learner has finished, `max_seconds` are over or a signal comes. Returns and throws
/// as `act` does, and 0 when the time is over.
template <class Environment, class Make>
int evaluate_newest(const Options& options, const nn::Network& network, const Make& make,
                    const StopSignal& signal) {
  const Clock::time_point start = Clock::now();
  const auto is_over = [&] { return signal.received() != 0 || seconds_since(start) >= options.max_seconds; };
  const Console console = detail::console_of(options);
  net::Client client(detail::client_options(options, console, 0));
  auto evaluator = detail::make_evaluator<Environment>(options, network, make);
  std::uint64_t version = 0;
  std::vector<float> parameters;
  try {
    while (!is_over()) {
      if (client.await_parameters(version, Deadline::after(detail::kSlice)) != Outcome::ok) continue;
      client.fetch(version, parameters);
      evaluator.network().set_parameters(parameters);
      const agent::EvaluationResult played = evaluator.evaluate(1, is_over);
      if (played.returns.size() < options.evaluation_episodes) break;  // stopped half-way
      console.result("evaluated: parameters=%llu mean_return=%s episodes=%zu deviation=%s%s",
                     static_cast<unsigned long long>(version), return_text(played.mean()).c_str(),
                     played.returns.size(), return_text(played.deviation()).c_str(),
                     detail::human_text(evaluator.spec().human_normalised(played.mean())).c_str());
    }
  } catch (const net::RefusedError& error) {
    return detail::end_of(error, version != 0, console);
  }
  return detail::exit_code(signal);
}

}  // namespace troop::apex
