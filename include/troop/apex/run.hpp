/// @file
/// Ape-X in one process, or the learner of a cluster: the reference composition of troop's pieces, to be read,
/// copied and altered.
#pragma once

#include <chrono>
#include <cmath>
#include <concepts>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <troop/agent/actor.hpp>
#include <troop/agent/evaluator.hpp>
#include <troop/agent/learner.hpp>
#include <troop/apex/cluster.hpp>
#include <troop/apex/console.hpp>
#include <troop/apex/device.hpp>
#include <troop/apex/learner_network.hpp>
#include <troop/apex/monitoring.hpp>
#include <troop/apex/options.hpp>
#include <troop/apex/persistence.hpp>
#include <troop/apex/progress.hpp>
#include <troop/apex/signal.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/thread_group.hpp>
#include <troop/core/trace.hpp>
#include <troop/cuda/device_frame_storage.hpp>
#include <troop/cuda/network.hpp>
#include <troop/durability/checkpoint.hpp>
#include <troop/env/environment.hpp>
#include <troop/env/vector_environment.hpp>
#include <troop/net/actor_leases.hpp>
#include <troop/net/parameter_server.hpp>
#include <troop/net/remote_replay.hpp>
#include <troop/net/server.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/network_file.hpp>
#include <troop/replay/array_storage.hpp>
#include <troop/replay/frame_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace troop::apex {

/// How a training run ended.
struct RunResult {
  bool solved = false;
  double target_return = std::nan("");  ///< mean return that counts as solved; NaN: nothing does
  double mean_return = 0.0;             ///< of the last evaluation's greedy episodes
  std::size_t episodes = 0;             ///< of that evaluation
  double seconds = 0.0;                 ///< from start to end, those of earlier programs of the run included
  std::uint64_t environment_steps = 0;
  std::uint64_t learner_steps = 0;
  std::uint64_t seed = 0;
  double human_normalised = std::nan("");  ///< see env::Spec
  int signal = 0;                          ///< that ended it, or 0
  std::vector<float> parameters;  ///< those that the last evaluation played with; the newest if none ended
  /// The last line of a run that was finished before this one began, which then did nothing.
  std::string finished_before = {};
};

/// The last line of a run: `solved: mean_return=500.0 episodes=100 seconds=5.2 environment_steps=41000
/// learner_steps=5100 seed=7`. It begins with `finished` where there was no target.
std::string to_string(const RunResult& result);

/// A run that ended by an error, with what it had reached.
class RunFailed : public Error {
 public:
  RunFailed(const std::string& reason, RunResult result) : Error(reason), result_(std::move(result)) {}

  const RunResult& result() const noexcept { return result_; }

 private:
  RunResult result_;
};

namespace detail {

/// Makes every environment as `Environment()`.
template <class Environment>
struct MakeDefault {
  static_assert(
      std::default_initializable<Environment>,
      "a run makes its environments itself: give yours a default constructor, or give the run a "
      "function that makes one: run<Environment>(options, network, [](std::uint64_t index) { return "
      "Environment(...); }); for a vector of environments [](const troop::env::VectorOptions& options) { ... "
      "}");
  Environment operator()(std::uint64_t) const { return Environment(); }
};

double target_of(const Options& options, const env::Spec& spec);

/// More threads than cores make a learner step slower, and its result is the same for any number.
std::size_t useful_threads(std::size_t num_threads);

inline ChosenDevice device_of(const Options& options) {
  return choose_device(options.device, options.precision, options.deterministic);
}

/// Bytes of an item in the replay. Where frames are kept once that is one new frame and what finds it: at most the
/// frame as it is; packed, at least a thirtieth of it. More cannot be known before the frames are seen.
struct ItemBytes {
  std::size_t least, most;
};

/// What the sum tree and the keys take for each item.
inline constexpr std::size_t kIndexBytes = 16;

template <class Storage>
ItemBytes item_bytes(const env::Spec& spec) {
  const std::size_t record = env::transition_layout(spec).size();
  if constexpr (std::same_as<Storage, ArrayStorage>) {
    return {record, record};
  } else {
    const std::size_t frame =
        spec.observation_size() * size_of(spec.observation_dtype) / spec.observation_shape.front();
    constexpr std::size_t kAroundIt = 100;
    const bool packed = Storage::format() != FrameStorage<RawFrames>::format();
    return {(packed ? frame / 30 : frame) + kAroundIt, frame + kAroundIt};
  }
}

/// Whether this process holds the replay, or a shard of it.
bool has_replay(const Options& options);

/// Bytes that this process may take: a tenth is left to the rest of the machine.
std::size_t usable_memory();

/// What the user should know before the training begins, a sentence each.
template <class Storage = ArrayStorage>
std::vector<std::string> notes(const Options& options, const env::Spec& spec) {
  std::vector<std::string> sentences;
  const std::size_t threads = useful_threads(options.train.num_threads);
  if (std::isnan(target_of(options, spec)))
    sentences.push_back(spec.name + " states no return that counts as solved: the run lasts --max-seconds " +
                        troop::detail::to_text(options.max_seconds) +
                        "; --target-return X ends it at a mean return of X");
  if (spec.max_episode_steps == 0)
    sentences.push_back(spec.name +
                        " states no max_episode_steps: an evaluation lasts until all its episodes have ended "
                        "by themselves");
  const double most = static_cast<double>(options.replay.capacity) *
                      static_cast<double>(item_bytes<Storage>(spec).most + kIndexBytes);
  if (has_replay(options) && most > static_cast<double>(usable_memory())) {
    char text[128];
    std::snprintf(text, sizeof text, "%.1f GB if no frame can be packed, and there are %.1f", most / 1e9,
                  static_cast<double>(usable_memory()) / 1e9);
    sentences.push_back("--capacity " + std::to_string(options.replay.capacity) + " takes up to " + text);
  }
  if (options.frames_on_gpu && (std::same_as<Storage, ArrayStorage> || !device_of(options).gpu))
    sentences.push_back(
        std::string("--frames-on-gpu has no effect: ") +
        (std::same_as<Storage, ArrayStorage> ? "the replay holds no frames" : "the learner uses no GPU"));
  if (threads < options.train.num_threads)
    sentences.push_back("--num-threads " + std::to_string(options.train.num_threads) + ": this machine has " +
                        std::to_string(threads) + " cores, so " + std::to_string(threads) + " are used");
  if (std::error_code ignored; !options.output.empty() && std::filesystem::exists(options.output, ignored))
    sentences.push_back(
        options.output +
        " is there already: it will be kept, under another name, when this run saves its own");
  return sentences;
}

/// A replay that could not be filled is refused at the start rather than ended by the system later; so is a
/// fleet of environments that has no room.
template <class Storage>
void require_memory(const Options& options, const env::Spec& spec, std::size_t environment_bytes) {
  const std::size_t memory = usable_memory(), item = item_bytes<Storage>(spec).least,
                    record = env::transition_layout(spec).size();
  const std::size_t items = memory / (item + kIndexBytes);
  if (has_replay(options) && options.replay.capacity > items) {
    throw InvalidArgument("--capacity", std::to_string(options.replay.capacity),
                          "at most " + std::to_string(items) + " records of " + std::to_string(item) +
                              " bytes in the memory that there is");
  }
  // The n-step window, four more observations, and about half a kilobyte of everything else.
  const std::size_t bytes = environment_bytes + 512 + (options.actor.n_step.n + 4) * (record / 2 + 16);
  const std::size_t environments = memory / bytes / options.num_actors;
  if (options.environments_per_actor > environments) {
    throw InvalidArgument("--environments-per-actor", std::to_string(options.environments_per_actor),
                          "at most " + std::to_string(environments) + " for each of " +
                              std::to_string(options.num_actors) + " actors in the memory that there is");
  }
}

/// Refuses what can be refused before anything is begun. Returns the network as the environment needs it.
template <class Storage>
nn::Network check(const Options& options, const env::Spec& spec, std::size_t environment_bytes,
                  const nn::Network& architecture) {
  options.validate();
  spec.validate();
  require_memory<Storage>(options, spec, environment_bytes);
  return architecture.bind(spec.observation_shape, static_cast<std::size_t>(spec.num_actions));
}

void require_writable(const std::string& output);

monitor::RunFacts facts_of(const Options& options, const env::Spec& spec, const KeptRun& kept);

/// What the pieces of a run count at the moment.
template <class Learner, class Replay>
void take_sample(const Learner& learner, const Replay& replay, const RateLimiter& limiter,
                 const net::ParameterServer& parameters, const std::optional<net::Server>& server,
                 monitor::RunSample& sample) {
  const agent::LearnerStatistics learning = learner.statistics();
  sample.learner_steps = learning.steps, sample.skipped_steps = learning.skipped_steps;
  sample.loss = learning.loss, sample.gradient_norm = learning.gradient_norm, sample.mean_q = learning.mean_q;
  sample.parameter_version = parameters.version();
  sample.replay = replay.statistics();
  sample.limiter = limiter.statistics();
  if (!server) return;
  const net::ServerStatistics s = server->statistics();
  sample.mean_policy_lag = s.mean_policy_lag;
  sample.cluster = cluster_sample(s);
}

template <class Storage>
using LocalReplay = PrioritizedReplay<DynamicRecord, Storage>;

/// What a checkpoint keeps of the pieces of a run. On the boundary of a step, or when nobody makes steps.
template <class Learner, class Replay>
void copy_state(LearnerNetwork& network, const Learner& learner, const Replay& replay,
                const RateLimiter& limiter, const net::ParameterServer& parameters,
                const std::optional<net::Server>& server, durability::Checkpoint& checkpoint) {
  checkpoint.copy_later(network);
  durability::CheckpointInfo& info = checkpoint.info;
  const agent::LearnerState state = learner.state();
  info.learner_steps = state.steps;
  info.skipped_steps = state.skipped_steps;
  info.sampler = state.random;
  info.parameter_version = parameters.version();
  if constexpr (requires { replay.next_key(); }) info.next_key = replay.next_key();
  info.limiter = limiter.state();
  checkpoint.sessions.clear();
  if (server) checkpoint.sessions = batches_of(server->sessions());
}

/// What is known of a run that was finished before.
RunResult result_of(const KeptRun& kept, const Options& options, double target);

/// `train` with a replay that is here or in shards elsewhere. Into one elsewhere nothing goes by way of this
/// process: then `sink` is null.
template <class Environment, class Storage, class Replay, class Make>
RunResult train_from(Replay& replay, RateLimiter& limiter, LoggedSink<LocalReplay<Storage>>* sink,
                     const Options& options, double target, const nn::Network& network, const Make& make,
                     const StopSignal& signal, Clock::time_point start, const Console& console,
                     RunMonitor& monitor, KeptRun& kept) {
  constexpr bool kIsElsewhere = std::same_as<Replay, net::RemoteReplay>;

  // The learner.
  net::ParameterServer parameters(kept.info().parameter_version);
  nn::TrainOptions train_options = options.train;
  train_options.num_threads = useful_threads(options.train.num_threads);
  LearnerNetwork online(network, options.seed, train_options, device_of(options).gpu);
  kept.restore(online);
  agent::LearnerOptions learner_options = options.learner;
  learner_options.seed = options.seed;
  agent::Learner learner(online, replay, limiter, parameters, learner_options);
  kept.restore_learner(learner);

  // The actors: each a thread's worth of environments, all on one ladder of exploration rates. In a cluster
  // they are elsewhere, and a server takes their place.
  using Environments = decltype(make_environments<Environment>({}, make));
  using Actor =
      agent::Actor<Environments, nn::EigenNetwork, LoggedSink<LocalReplay<Storage>>, net::ParameterServer>;
  std::vector<std::unique_ptr<Actor>> actors;
  const bool is_head = options.cluster.role == Role::learner;
  for (std::size_t i = 0; i < options.num_actors && !is_head; ++i) {
    agent::ActorOptions actor_options = options.actor;
    actor_options.seed = options.seed;
    actor_options.first_index = i * options.environments_per_actor;
    actor_options.num_environments = planned_of(options);
    auto environments = make_environments<Environment>({.count = options.environments_per_actor,
                                                        .seed = options.seed,
                                                        .first_index = actor_options.first_index},
                                                       make);
    actors.push_back(std::make_unique<Actor>(std::move(environments), nn::EigenNetwork(network, options.seed),
                                             *sink, parameters, actor_options));
  }

  net::ActorLeases leases(lease_options(options));
  std::optional<net::Server> server;
  if (is_head) {
    net::Services services{.parameters = &parameters,
                           .leases = &leases,
                           .report = [&](std::span<const std::byte> report) { monitor.take_report(report); },
                           .held = [&](const std::string& name) { monitor.take_sign_of_life(name); }};
    if (sink != nullptr) sink->serve(services);
    server.emplace(server_options(options, console), replay.layout(), std::move(services), kept.sessions());
    console.info("listening on %s", net::to_string(server->address()).c_str());
  }

  // Evaluation and progress.
  auto evaluator = make_evaluator<Environment>(options, network, make);
  RunResult result;
  result.seed = options.seed;
  result.target_return = target;
  Progress progress(console);
  std::uint64_t next_evaluation = learner.steps() + options.evaluation_interval, version = 0;
  std::vector<float> played_parameters;
  const auto is_over = [&] {
    return result.solved || signal.received() != 0 || seconds_since(start) >= options.max_seconds;
  };
  const std::uint64_t inserts_before = limiter.inserts();
  const auto environment_steps = [&] {
    std::uint64_t steps = kept.environment_steps();
    if (server) steps += server->statistics().items;  // every step gives one item
    if constexpr (kIsElsewhere)
      steps += limiter.inserts() - inserts_before;  // of older items too, as far as min_inserts counts them
    for (const auto& actor : actors) steps += actor->statistics().steps;
    return steps;
  };
  const auto report = [&] {
    ProgressReport line{.seconds = seconds_since(start),
                        .environment_steps = environment_steps(),
                        .learner_steps = learner.steps(),
                        .replay_size = replay.size(),
                        .replay_capacity = replay.capacity(),
                        .least_epsilon = options.actor.epsilon(planned_of(options) - 1, planned_of(options)),
                        .greatest_epsilon = options.actor.epsilon(0, planned_of(options))};
    if (server) {
      const net::ServerStatistics statistics = server->statistics();
      line.clients = statistics.connections;
      line.policy_lag = statistics.mean_policy_lag;
    }
    if constexpr (kIsElsewhere) line.shards = shards_report(replay);
    line.alarm = kept.alarm();
    if (result.episodes > 0) line.greedy_return = result.mean_return;
    return line;
  };
  const auto show = [&] {
    monitor.observe(
        seconds_since(start), actors,
        [&](monitor::RunSample& sample) {
          take_sample(learner, replay, limiter, parameters, server, sample);
          sample.environment_steps = report().environment_steps;
          if (kept.is_kept()) sample.checkpoints = kept.checkpoints();
        },
        [&] { return replay.priority_histogram(); });
    if (progress.is_due(seconds_since(start))) progress.print(report(), monitor.summary());
  };
  const auto play = [&] {
    const TraceSpan span("evaluate");
    const agent::EvaluationResult played = evaluator.evaluate(1, [&] {
      show();
      return is_over();
    });
    if (played.returns.size() < options.evaluation_episodes) return false;  // stopped half-way
    result.parameters = played_parameters;
    result.mean_return = played.mean();
    result.episodes = played.returns.size();
    kept.evaluated(result.mean_return);
    result.human_normalised = evaluator.spec().human_normalised(result.mean_return);
    monitor.evaluated(played, seconds_since(start), learner.steps(), report().environment_steps);
    return result.mean_return >= target;
  };
  const auto evaluate = [&] {
    parameters.fetch(version, played_parameters);
    evaluator.network().set_parameters(played_parameters);
    result.solved = play() && play();
    if (result.solved) monitor.set_solved();
    next_evaluation = learner.steps() + options.evaluation_interval;
  };

  const auto copy = [&](durability::Checkpoint& checkpoint) {
    copy_state(online, learner, replay, limiter, parameters, server, checkpoint);
    checkpoint.info.environment_steps = environment_steps();
  };
  learner.after_each_step([&] {
    kept.checkpoint_if_due(seconds_since(start), copy);
    monitor.copy_network(online, learner.steps());
  });

  const auto train = [&] {
    Playing playing(actors.size(), console);
    if (options.deterministic) {
      std::vector<Actor*> players;
      for (const auto& actor : actors) players.push_back(actor.get());
      while (!is_over()) {
        std::erase_if(players, [&](Actor* actor) {
          return !is_over() && !playing(*actor, [&] { actor->step(Deadline::now()); });
        });
        while (!is_over() && learner.steps() < next_evaluation &&
               learner.step(Deadline::now()) == Outcome::ok) {
          show();
        }
        if (learner.steps() >= next_evaluation) evaluate();
        show();
      }
      return;
    }
    ThreadGroup threads([&] { sink != nullptr ? sink->close() : limiter.close(); });
    threads.start([&](const std::stop_token& stop) {
      Trace::name_thread("learner: steps");
      learner.run(stop);
    });
    for (const auto& actor : actors) {
      threads.start([&](const std::stop_token& stop) {
        Trace::name_thread("actor");
        playing(*actor, [&] {
          while (!stop.stop_requested() && actor->step() == Outcome::ok) {
          }
        });
      });
    }
    while (!is_over() && !threads.stop_requested()) {
      if constexpr (kIsElsewhere) replay.check();
      if (learner.steps() >= next_evaluation) evaluate();
      show();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (sink != nullptr && sink->log() != nullptr) sink->log()->flush(Deadline::after(kFlush));
    if (server)
      server->stop(Deadline::after(std::chrono::seconds(1)),
                   signal.received() == 0 ? net::Farewell::finished : net::Farewell::stopping);
    threads.request_stop();
    threads.join();
  };
  std::string failure;
  Trace::name_thread("run");
  try {
    train();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  monitor.finish();

  version = 0;
  if (result.parameters.empty()) parameters.fetch(version, result.parameters);
  const ProgressReport last = report();
  progress.print(last, monitor.summary());
  progress.finish();
  result.seconds = last.seconds;
  result.environment_steps = last.environment_steps;
  result.learner_steps = last.learner_steps;
  result.signal = signal.received();
  const bool is_finished = failure.empty() && (result.solved || result.seconds >= options.max_seconds);
  kept.finish(result.seconds, copy, is_finished ? to_string(result) : std::string());
  if (!failure.empty()) throw RunFailed(failure, std::move(result));
  return result;
}

}  // namespace detail

/// Trains until the greedy policy is as good as `target_return`, the time is over, or a signal comes to
/// `signal`. Solved means: the mean return of one evaluation's episodes reaches the target, and that of a
/// second evaluation of the same parameters, on new episodes, does so too; the second is the result. An
/// environment that states no return_to_solve is trained until the time is over, unless `target_return` is
/// given.
///
/// With a run directory the run goes on from what is there, if `resume` says so, and is kept there. Throws NotAdmitted
/// as KeptRun does, before anything is begun.
///
/// An actor whose environments raise an error or give what is not finite says so on stderr and ends, and the
/// others go on. What ends the run, as the error of the last actor or of an evaluation does, is thrown as
/// RunFailed, which has the result so far.
///
/// `make(index)` makes the environments, all of them in the calling thread: those of the actors with their
/// index in the run, from 0, and those of the evaluation, from 0 as well. Where `Environment` is a vector of
/// environments, it is `make(VectorOptions)`. `Storage` is the replay's: FrameStorage for stacks of frames.
template <class Environment, class Storage = ArrayStorage, class Make = detail::MakeDefault<Environment>>
RunResult train(const Options& options, const nn::Network& architecture, const Make& make = {},
                const StopSignal& signal = StopSignal()) {
  const env::Spec spec = detail::spec_of<Environment>(make);
  const nn::Network network = detail::check<Storage>(options, spec, sizeof(Environment), architecture);
  const double target = detail::target_of(options, spec);
  const RecordLayout layout = env::transition_layout(spec);
  const Console console = detail::console_of(options);
  KeptRun kept(options, {.environment = spec.name, .network = to_string(network), .layout = layout},
               console.warnings());
  if (kept.finished()) return detail::result_of(kept, options, target);
  const Clock::time_point start = Clock::now() - detail::duration_of(kept.info().seconds);
  RateLimiterOptions rate = options.rate;
  if (console.is_quiet() || console.format() != LogFormat::text) rate.report = console.warnings();
  RateLimiter limiter(rate);
  RunMonitor monitor(options, detail::token_of(options.cluster), detail::facts_of(options, spec, kept),
                     console);
  if (!monitor.address().empty()) console.info("status page at http://%s", monitor.address().c_str());
  const auto train_here = [&]<class S>(detail::LocalReplay<S>& replay) {
    const auto log = kept.open_log(replay);
    kept.restore(limiter, options.replay, replay.size());
    detail::say_restored(console, kept, replay.size());
    LoggedSink sink(replay, limiter, log.get());
    return detail::train_from<Environment, S>(replay, limiter, &sink, options, target, network, make, signal,
                                              start, console, monitor, kept);
  };
  if (options.cluster.shards.empty()) {
    if constexpr (cuda::is_built() && !std::same_as<Storage, ArrayStorage>) {
      if (const auto gpu = detail::device_of(options).gpu; gpu && options.frames_on_gpu) {
        using OnGpu = cuda::DeviceFrameStorage;
        detail::LocalReplay<OnGpu> replay(options.replay, layout, {.storage = {.device = gpu->device}});
        return train_here(replay);
      }
    }
    detail::LocalReplay<Storage> replay(options.replay, layout);
    return train_here(replay);
  }
  kept.restore(limiter);
  net::RemoteReplay replay(detail::remote_replay_options(options, console), layout, limiter);
  detail::say_restored(console, kept, replay.size());
  return detail::train_from<Environment, Storage>(replay, limiter, nullptr, options, target, network, make,
                                                  signal, start, console, monitor, kept);
}

/// Plays a saved network greedily and prints what it earned. Returns 0, or 1 when the time was over before
/// all episodes had ended.
template <class Environment, class Make = detail::MakeDefault<Environment>>
int evaluate(const Options& options, const Make& make = {}) {
  const Clock::time_point start = Clock::now();
  const Console console = detail::console_of(options);
  const nn::LoadedNetwork saved = detail::load_to_play(options.evaluate, console);
  const env::Spec spec = detail::spec_of<Environment>(make);
  spec.validate();
  const nn::Network expected =
      saved.network.bind(spec.observation_shape, static_cast<std::size_t>(spec.num_actions));
  if (saved.network != expected) {
    throw FileError(options.evaluate, "network " + to_string(saved.network) + " does not fit " + spec.name +
                                          ", which needs " + to_string(expected));
  }
  auto evaluator = detail::make_evaluator<Environment>(options, saved.network, make);
  evaluator.network().set_parameters(saved.parameters);
  const agent::EvaluationResult played =
      evaluator.evaluate(1, [&] { return seconds_since(start) >= options.max_seconds; });
  console.result(
      "evaluated: mean_return=%s episodes=%zu deviation=%s min=%s max=%s%s seconds=%.1f seed=%llu file=%s",
      return_text(played.mean()).c_str(), played.returns.size(), return_text(played.deviation()).c_str(),
      return_text(played.min()).c_str(), return_text(played.max()).c_str(),
      detail::human_text(spec.human_normalised(played.mean())).c_str(), seconds_since(start),
      static_cast<unsigned long long>(options.seed), options.evaluate.c_str());
  if (played.returns.size() == options.evaluation_episodes) return 0;
  console.error("%zu of %zu episodes did not end within --max-seconds %g",
                options.evaluation_episodes - played.returns.size(), options.evaluation_episodes,
                options.max_seconds);
  return 1;
}

/// The whole program: trains, or plays a saved network with `--evaluate`. Prints progress and, as the last
/// line, the result. `make` as in `train`.
///
/// Returns the exit code: 0 solved (or played, or trained for as long as asked where nothing counts as
/// solved); 1 not solved, or an error while running; 2 a bad option or file, before anything was begun; 128 +
/// n when signal n ended the run. Once the training has begun the network is saved in every case; a file that was
/// there is kept under another name.
///
///     int main(int argc, char** argv) {
///       const auto options = troop::apex::parse_options(argc, argv);
///       return troop::apex::run<troop::env::CartPole>(options, troop::nn::dueling_mlp({64, 64}));
///     }
template <class Environment, class Storage = ArrayStorage, class Make = detail::MakeDefault<Environment>>
int run(const Options& options, const nn::Network& architecture, const Make& make = {}) {
  if constexpr (!env::VectorizedEnvironment<Environment>)
    static_assert(env::check_environment<Environment>());
  const Console console = detail::console_of(options);
  bool started = false;
  try {
    options.validate();
    if (!options.evaluate.empty()) return evaluate<Environment>(options, make);
    const env::Spec spec = detail::spec_of<Environment>(make);
    const nn::Network network = detail::check<Storage>(options, spec, sizeof(Environment), architecture);
    const bool trains = options.cluster.role == Role::all || options.cluster.role == Role::learner;
    if (trains && !options.output.empty()) detail::require_writable(options.output);
    const ChosenDevice device = trains ? detail::device_of(options) : ChosenDevice{};
    if (trains) {
      if (!device.note.empty()) console.info("note: %s", device.note.c_str());
      for (const std::string& note : detail::notes<Storage>(options, spec))
        console.info("note: %s", note.c_str());
    }
    started = true;
    const StopSignal signal;  // until the network is saved
    if (options.cluster.role == Role::replay)
      return serve_shard<Storage>(options, env::transition_layout(spec), signal);
    if (options.cluster.role == Role::actor) return act<Environment>(options, network, make, signal);
    if (options.cluster.role == Role::evaluator)
      return evaluate_newest<Environment>(options, network, make, signal);
    const auto save = [&](const RunResult& result) {
      if (result.signal == SIGPIPE) console.use_only_stderr();
      const std::string last_line = to_string(result);
      if (!options.output.empty()) {
        std::string earlier;
        try {
          earlier = keep_earlier_file(options.output);
          nn::save_network(options.output, network, result.parameters);
        } catch (const Error&) {
          console.result("%s", last_line.c_str());
          throw;
        }
        if (!earlier.empty())
          console.info("kept the earlier %s as %s", options.output.c_str(), earlier.c_str());
        console.info("%ssaved the network to %s; play it with --evaluate %s",
                     result.signal ? "stopped by a signal: " : "", options.output.c_str(),
                     options.output.c_str());
      }
      console.result("%s", last_line.c_str());
    };
    RunResult result;
    try {
      result = train<Environment, Storage>(options, architecture, make, signal);
    } catch (const RunFailed& failed) {
      save(failed.result());
      throw;
    }
    if (!result.finished_before.empty()) {
      console.result("the run in %s was finished before: %s", options.keep.run_dir.c_str(),
                     result.finished_before.c_str());
      return result.solved || std::isnan(result.target_return) ? 0 : 1;
    }
    save(result);
    if (result.solved) return 0;
    if (result.signal != 0) return 128 + result.signal;
    return std::isnan(result.target_return) ? 0 : 1;
  } catch (const CannotBegin& error) {
    console.error("%s", error.what());
    return 2;
  } catch (const std::exception& error) {
    console.error("%s", error.what());
    return started ? 1 : 2;
  }
}

}  // namespace troop::apex
