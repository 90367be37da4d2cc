/// @file
/// The learner: samples, trains, writes priorities back, publishes parameters.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <troop/agent/parameter_store.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/queue.hpp>
#include <troop/core/random.hpp>
#include <troop/core/thread_group.hpp>
#include <troop/core/trace.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/nn/transition_batch.hpp>
#include <troop/replay/beta_schedule.hpp>
#include <troop/replay/rate_limiter.hpp>
#include <troop/replay/replay_options.hpp>

namespace troop::agent {

struct LearnerOptions {
  std::size_t batch_size = 512;
  BetaSchedule beta = {};
  std::uint64_t target_interval =
      2500;  ///< steps between two copies of the online network into the target network
  std::uint64_t trim_interval = 100;    ///< steps between two trims of the replay to its soft capacity
  std::uint64_t publish_interval = 10;  ///< steps between two publications of the parameters
  std::size_t prefetch = 2;             ///< batches sampled ahead of the step by `run`
  /// Added to every |TD error| when it becomes a priority, so that no item is out of reach.
  double priority_epsilon = 1e-6;
  /// Steps in a row with a non-finite loss or gradient, none of which is applied, after which training stops
  /// with an error.
  std::uint64_t max_skipped_steps = 100;
  std::uint64_t seed = 0;

  void validate() const {
    require(batch_size >= 1 && batch_size <= 65536, "batch_size", batch_size, "an integer from 1 to 65536");
    beta.validate();
    require(target_interval >= 1, "target_interval", target_interval, "a positive integer");
    require(trim_interval >= 1, "trim_interval", trim_interval, "a positive integer");
    require(publish_interval >= 1, "publish_interval", publish_interval, "a positive integer");
    require(prefetch >= 1 && prefetch <= 64, "prefetch", prefetch, "an integer from 1 to 64");
    require_between("priority_epsilon", priority_epsilon, 0.0, 1e3);
    require(max_skipped_steps >= 1, "max_skipped_steps", max_skipped_steps, "a positive integer");
  }
};

/// Counters since construction; the figures are moving means over about the last 100 steps.
struct LearnerStatistics {
  std::uint64_t steps = 0;
  std::uint64_t skipped_steps = 0;  ///< of these, with a non-finite loss or gradient
  double loss = 0.0;
  double gradient_norm = 0.0;
  double mean_q = 0.0;
};

/// What a checkpoint keeps of a learner, beside its network.
struct LearnerState {
  std::uint64_t steps = 0, skipped_steps = 0;
  Random::State random{1, 0, 0, 0};  ///< of the sampling

  friend bool operator==(const LearnerState&, const LearnerState&) = default;
};

/// Drinks from a replay through a rate limiter and trains a network by double Q-learning with n-step returns
/// (Horgan et al. 2018, algorithm 2).
///
/// `step()` does everything in the calling thread; the same seed and the same inserts give the same
/// parameters bit for bit. `run()` overlaps: one thread samples up to `prefetch` batches ahead, the calling
/// thread trains, a third writes priorities back; priorities are then up to `prefetch` + 2 steps late.
///
/// A replay whose `sample` takes a deadline and a stop token as well and returns an Outcome, as that of
/// shards on other machines does, may let the learner wait.
///
/// Not thread-safe, but for `statistics` and `steps`, which may be called from any thread.
///
///     Learner learner(network, replay, limiter, parameters, options);
///     while (learner.steps() < 10'000) learner.step();                  // or: learner.run(stop_token);
template <nn::QNetwork Network, class Replay, ParameterSink Parameters = ParameterStore>
class Learner {
  using Batch = typename Replay::SampledBatch;

 public:
  Learner(Network& network, Replay& replay, RateLimiter& limiter, Parameters& parameters,
          const LearnerOptions& options)
      : options_((options.validate(), options)),
        network_(network),
        replay_(replay),
        limiter_(limiter),
        parameters_(parameters),
        random_(options.seed, "learner") {
    parameters_.publish(network_.parameters());
  }

  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  /// One step in the calling thread. Waits for the limiter; anything but ok means that no step was made.
  Outcome step(Deadline deadline = Deadline::never()) {
    if (const Outcome outcome = sample(work_, deadline); outcome != Outcome::ok) return outcome;
    train(work_);
    write_back(work_);
    return Outcome::ok;
  }

  /// Trains on a batch that the caller has sampled; `priorities()` are then those of its items, or empty when
  /// the step was not applied.
  void step(const Batch& batch) { train(batch, work_.priorities); }
  std::span<const float> priorities() const noexcept { return work_.priorities; }

  /// Makes steps until `stop` is requested, the limiter is closed, or `max_steps` were made in all; sampling,
  /// step and write-back overlap. A stop drops the batches that were sampled ahead. Every step's priorities
  /// are written back before it returns. Rethrows what any of its threads threw.
  void run(std::stop_token stop, std::uint64_t max_steps = std::numeric_limits<std::uint64_t>::max()) {
    sampled_ = steps();
    Pipeline pipeline(options_.prefetch);
    std::stop_source sampling;  // ends the sampling, which may be waiting for the limiter
    ThreadGroup threads([&] {
      sampling.request_stop();
      pipeline.close();
    });
    const std::stop_callback end_sampling(stop, [&] { sampling.request_stop(); });
    threads.start([&](const std::stop_token&) { sample_ahead(pipeline, sampling.get_token(), max_steps); });
    threads.start([&](const std::stop_token&) { write_back(pipeline); });
    while (!stop.stop_requested()) {
      auto work = [&] {
        const TraceSpan span("wait for a batch");
        return pipeline.sampled.pop();
      }();
      if (!work) break;
      train(**work);
      pipeline.trained.push(std::move(*work));
    }
    threads.request_stop();
    threads.join();
  }

  std::uint64_t steps() const noexcept { return steps_.load(std::memory_order_relaxed); }

  /// Calls `f()` after each step, in the training thread: the moment at which network and steps go together, for a
  /// checkpoint. To be set while no step is being made.
  void after_each_step(std::function<void()> f) { after_step_ = std::move(f); }

  /// May be called by the training thread, `after_each_step`'s function included, or while nobody makes steps.
  LearnerState state() const {
    const std::lock_guard lock(state_mutex_);
    return {steps(), skipped_.load(std::memory_order_relaxed), random_state_};
  }

  /// Goes on from a state: step counts, schedules, the stream of the sampling. The network is restored by itself.
  /// While nobody makes steps.
  void restore(const LearnerState& state) {
    random_.set_state(state.random);
    random_state_ = state.random;
    steps_.store(state.steps, std::memory_order_relaxed);
    skipped_.store(state.skipped_steps, std::memory_order_relaxed);
    sampled_ = state.steps;
  }

  LearnerStatistics statistics() const noexcept {
    return {steps(), skipped_.load(std::memory_order_relaxed), loss_.load(std::memory_order_relaxed),
            gradient_norm_.load(std::memory_order_relaxed), mean_q_.load(std::memory_order_relaxed)};
  }

 private:
  struct Work {
    Batch batch;
    std::vector<float> priorities;
  };

  /// The queues between the threads of `run`.
  struct Pipeline {
    explicit Pipeline(std::size_t prefetch) : free(prefetch + 2), sampled(prefetch), trained(prefetch + 2) {
      for (std::size_t i = 0; i < free.capacity(); ++i) free.push(std::make_unique<Work>());
    }

    /// Ends all waiting; what was trained on can still be popped.
    void close() {
      free.close();
      sampled.close();
      trained.close();
    }

    BoundedQueue<std::unique_ptr<Work>> free, sampled, trained;
  };

  Outcome sample(Work& work, Deadline deadline, const std::stop_token& stop = {}) {
    Outcome outcome = [&] {
      const TraceSpan span("wait for experience");
      return limiter_.await_sample(options_.batch_size, deadline, stop);
    }();
    if (outcome != Outcome::ok) return outcome;
    const TraceSpan span("sample");
    const SampleOptions options{.beta = options_.beta(sampled_)};
    if constexpr (requires { replay_.sample(1, options, random_, work.batch, deadline, stop); }) {
      outcome = replay_.sample(options_.batch_size, options, random_, work.batch, deadline, stop);
    } else {
      replay_.sample(options_.batch_size, options, random_, work.batch);
    }
    sampled_ += outcome == Outcome::ok;
    const std::lock_guard lock(state_mutex_);
    random_state_ = random_.state();
    return outcome;
  }

  void sample_ahead(Pipeline& pipeline, const std::stop_token& stop, std::uint64_t max_steps) {
    Trace::name_thread("learner: samples");
    while (!stop.stop_requested() && sampled_ < max_steps) {
      auto work = pipeline.free.pop();
      if (!work) break;
      if (sample(**work, Deadline::never(), stop) != Outcome::ok) break;
      if (pipeline.sampled.push(std::move(*work)) != Outcome::ok) break;
    }
    pipeline.sampled.close();
  }

  void write_back(Pipeline& pipeline) {
    Trace::name_thread("learner: writes back");
    while (auto work = pipeline.trained.pop()) {
      write_back(**work);
      pipeline.free.push(std::move(*work));
    }
  }

  void write_back(const Work& work) {
    const TraceSpan span("write back");
    if (!work.priorities.empty()) replay_.update(work.batch.keys, work.priorities);
  }

  void train(Work& work) { train(work.batch, work.priorities); }

  /// One step of the network and what is due after it. Leaves no priorities when the step was not applied.
  void train(const Batch& batch, std::vector<float>& priorities) {
    const TraceSpan span("step");
    priorities.resize(batch.size());
    const nn::TrainResult result = network_.train_step(transitions(batch), batch.weights, priorities);
    const std::uint64_t step = steps() + 1;
    if (result.applied) {
      skipped_in_a_row_ = 0;
      average(loss_, result.loss, step);
      average(gradient_norm_, result.gradient_norm, step);
      average(mean_q_, result.mean_q, step);
      for (float& priority : priorities) priority += static_cast<float>(options_.priority_epsilon);
    } else {
      priorities.clear();
      skipped_.fetch_add(1, std::memory_order_relaxed);
      if (++skipped_in_a_row_ >= options_.max_skipped_steps) {
        throw Error("training has diverged: loss or gradient was not finite in " +
                    std::to_string(skipped_in_a_row_) + " steps in a row, up to step " +
                    std::to_string(step) + "; before them the mean loss was " +
                    troop::detail::to_text(loss_.load()) + " and the mean gradient norm " +
                    troop::detail::to_text(gradient_norm_.load()));
      }
    }
    steps_.store(step, std::memory_order_relaxed);
    if (step % options_.target_interval == 0) network_.sync_target();
    if (step % options_.publish_interval == 0) parameters_.publish(network_.parameters());
    if (step % options_.trim_interval == 0) replay_.trim();
    if (after_step_) after_step_();
  }

  /// A replay whose storage keeps observations elsewhere says itself what its records mean.
  auto transitions(const Batch& batch) const {
    if constexpr (requires { replay_.storage().transitions(batch.view()); }) {
      return replay_.storage().transitions(batch.view());
    } else {
      return nn::TransitionBatch(batch.view());
    }
  }

  static void average(std::atomic<double>& mean, double value, std::uint64_t step) {
    const double before = mean.load(std::memory_order_relaxed);
    mean.store(before + (value - before) / static_cast<double>(std::min<std::uint64_t>(step, 100)),
               std::memory_order_relaxed);
  }

  LearnerOptions options_;
  Network& network_;
  Replay& replay_;
  RateLimiter& limiter_;
  Parameters& parameters_;
  mutable std::mutex state_mutex_;  // of random_state_
  Random random_;
  Random::State random_state_ = random_.state();  // as it is after the last batch that was sampled
  std::function<void()> after_step_;
  Work work_;
  std::uint64_t sampled_ = 0;  // batches to be trained on, by whichever thread samples
  std::uint64_t skipped_in_a_row_ = 0;
  std::atomic<std::uint64_t> steps_{0}, skipped_{0};
  std::atomic<double> loss_{0.0}, gradient_norm_{0.0}, mean_q_{0.0};
};

}  // namespace troop::agent
