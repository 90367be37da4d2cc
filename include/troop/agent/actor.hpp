/// @file
/// The actor: plays many environments with one network and turns their steps into prioritized items.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <troop/agent/epsilon_ladder.hpp>
#include <troop/agent/item_sink.hpp>
#include <troop/agent/parameter_store.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>
#include <troop/env/environment.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/nn/td_loss.hpp>
#include <troop/nn/transition_batch.hpp>
#include <troop/replay/n_step.hpp>

namespace troop::agent {

struct ActorOptions {
  NStepOptions n_step = {};
  EpsilonLadder epsilon = {};
  /// Index in the whole fleet of the actor's first environment, and the number of environments that the ladder
  /// is made for: they choose the rungs. Environments beyond that number share the rungs from the first one on.
  std::size_t first_index = 0;
  std::size_t num_environments = 1;
  std::size_t batch_size = 50;  ///< items a batch
  std::size_t parameter_interval =
      400;  ///< environment steps of this actor between two looks for new parameters
  /// Added to every |TD error|, so that no item is out of reach.
  double priority_epsilon = 1e-6;
  std::uint64_t seed = 0;

  void validate() const {
    n_step.validate();
    epsilon.validate();
    require(num_environments >= 1, "num_environments", num_environments, "a positive integer");
    require(batch_size >= 1 && batch_size <= 65536, "actor_batch_size", batch_size,
            "an integer from 1 to 65536");
    require(parameter_interval >= 1, "parameter_interval", parameter_interval, "a positive integer");
    require_between("priority_epsilon", priority_epsilon, 0.0, 1e3);
  }
};

/// Counters since construction.
struct ActorStatistics {
  std::uint64_t steps = 0;  ///< environment steps
  std::uint64_t items = 0;  ///< items handed to the sink
  std::uint64_t episodes = 0;
  double mean_return = 0.0;             ///< moving mean over about the last 100 episodes
  double last_return = 0.0;             ///< of the last episode
  std::uint64_t parameter_version = 0;  ///< the version that acts
};

/// Steps N environments with one batched evaluation a step: epsilon-greedy with a rate for each environment,
/// n-step items, initial priorities from its own Q-values, batches to a sink (Horgan et al. 2018, algorithm
/// 1).
///
/// The priority of an item is |R + discount max_a Q(s', a) - Q(s, a)| + priority_epsilon, both Q-values from
/// the evaluations that chose the actions: Q(s') is known when the environment stands at s', one step after
/// the item is complete. Only the last observations of truncated episodes, on which nobody acts, are
/// evaluated for their own sake.
///
/// Every step gives exactly one item; `finish` completes and hands over what a stop leaves behind. Same seed,
/// same parameters: same items.
///
/// Not thread-safe: one thread at a time (`statistics` may be called from any). Allocates nothing after the
/// first steps.
///
///     Actor actor(VectorEnvironment<CartPole>({.count = 16}), EigenNetwork(network, seed), sink, parameters, options);
///     while (actor.step() == Outcome::ok) {}
template <env::VectorizedEnvironment Environments, nn::InferenceNetwork Network, ItemSink Sink,
          ParameterSource Parameters>
class Actor {
  using Scalar = typename Environments::Scalar;

 public:
  Actor(Environments environments, Network network, Sink& sink, Parameters& parameters,
        const ActorOptions& options)
      : options_((options.validate(), options)),
        environments_(std::move(environments)),
        network_(std::move(network)),
        sink_(sink),
        parameter_source_(parameters),
        n_step_(environments_.size(), environments_.spec().observation_size(), options.n_step),
        items_(env::transition_layout(environments_.spec())),
        writer_(items_.layout()),
        waiting_(environments_.size(), kNone),
        before_(environments_.size() * environments_.spec().observation_size()),
        actions_(environments_.size()),
        action_values_(environments_.size()),
        q_values_(environments_.size() * num_actions()) {
    for (std::size_t i = 0; i < environments_.size(); ++i) {
      const std::size_t index = options.first_index + i;
      epsilons_.push_back(options.epsilon(index % options.num_environments, options.num_environments));
      randoms_.emplace_back(options.seed, "exploration", index);
    }
    refresh_parameters();
  }

  std::size_t num_environments() const noexcept { return environments_.size(); }
  std::span<const double> epsilons() const noexcept { return epsilons_; }
  const Network& network() const noexcept { return network_; }
  const Environments& environments() const noexcept { return environments_; }

  /// One step in every environment, after handing full batches to the sink. Anything but ok comes from the
  /// sink: no environment was stepped, nothing is lost, and the call can be repeated.
  Outcome step(Deadline deadline = Deadline::never()) {
    evaluate();
    if (const Outcome outcome = send(options_.batch_size, deadline); outcome != Outcome::ok) return outcome;
    choose_actions();
    const auto observations = environments_.observations();
    std::copy_n(observations.row(0), before_.size(), before_.data());
    environments_.step(actions_);
    collect();
    evaluated_ = false;
    count_step();
    return Outcome::ok;
  }

  /// Completes the items that wait for an evaluation and hands over everything that is complete. The steps in
  /// the n-step windows, at most n - 1 an environment, stay there.
  Outcome finish(Deadline deadline = Deadline::never()) {
    evaluate();
    return send(1, deadline);
  }

  ActorStatistics statistics() const noexcept {
    return {steps_.load(std::memory_order_relaxed),       items_sent_.load(std::memory_order_relaxed),
            episodes_.load(std::memory_order_relaxed),    mean_return_.load(std::memory_order_relaxed),
            last_return_.load(std::memory_order_relaxed), acting_version_.load(std::memory_order_relaxed)};
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  /// Writes items into records of the transition layout.
  class Writer {
   public:
    explicit Writer(const RecordLayout& layout)
        : observation_(layout.field("observation").offset),
          action_(layout.field("action").offset),
          reward_(layout.field("reward").offset),
          discount_(layout.field("discount").offset),
          next_observation_(layout.field("next_observation").offset) {}

    void write(const NStepItem<Scalar>& item, std::byte* record) const noexcept {
      std::memcpy(record + observation_, item.observation.data(), item.observation.size_bytes());
      std::memcpy(record + action_, &item.action, sizeof(item.action));
      std::memcpy(record + reward_, &item.reward, sizeof(item.reward));
      std::memcpy(record + discount_, &item.discount, sizeof(item.discount));
      std::memcpy(record + next_observation_, item.next_observation.data(),
                  item.next_observation.size_bytes());
    }

   private:
    std::size_t observation_, action_, reward_, discount_, next_observation_;
  };

  /// An item in `items_` whose priority is still R - Q(s, a), and what Q(s') is to be multiplied with.
  struct Unfinished {
    std::size_t item;
    float discount;
  };

  std::size_t num_actions() const { return static_cast<std::size_t>(environments_.spec().num_actions); }

  static float largest(std::span<const float> values) noexcept {
    return *std::max_element(values.begin(), values.end());
  }
  std::span<const float> q_values(std::size_t i) const {
    return std::span(q_values_).subspan(i * num_actions(), num_actions());
  }

  /// Q-values of what the environments stand at; with them the items that ended there get their priorities.
  /// Once a step.
  void evaluate() {
    if (evaluated_) return;
    network_.evaluate(environments_.observations(),
                      MatrixView<float>(q_values_.data(), environments_.size(), num_actions()));
    for (std::size_t i = 0; i < environments_.size(); ++i) {
      if (waiting_[i] == kNone) continue;
      complete(waiting_[i], waiting_discount_ * largest(q_values(i)));
      waiting_[i] = kNone;
    }
    evaluated_ = true;
  }

  void complete(std::size_t item, float bootstrap) noexcept {
    const float error = std::abs(priorities_[item] + bootstrap);
    const float priority = error + static_cast<float>(options_.priority_epsilon);
    priorities_[item] =
        std::isfinite(priority) ? priority : 1.0f;  // a network that diverged does not stop the actors
  }

  void choose_actions() {
    for (std::size_t i = 0; i < environments_.size(); ++i) {
      const auto values = q_values(i);
      if (randoms_[i].uniform() < epsilons_[i]) {
        actions_[i] = static_cast<std::int32_t>(randoms_[i].below(values.size()));
      } else {
        actions_[i] = static_cast<std::int32_t>(nn::argmax(values));
      }
      action_values_[i] = values[static_cast<std::size_t>(actions_[i])];
    }
  }

  /// Turns the step just made into items.
  void collect() {
    const std::size_t size = before_.size() / environments_.size();
    truncated_.clear();
    for (std::size_t i = 0; i < environments_.size(); ++i) {
      const bool terminated = environments_.terminated()[i] != 0,
                 truncated = environments_.truncated()[i] != 0;
      const EnvironmentStep<Scalar> step{
          .observation = std::span<const Scalar>(before_).subspan(i * size, size),
          .action = actions_[i],
          .reward = environments_.rewards()[i],
          .terminated = terminated,
          .truncated = truncated,
          .next_observation = environments_.next_observation(i),
          .action_value = action_values_[i]};
      n_step_.add(i, step, [&](const NStepItem<Scalar>& item) {
        const std::size_t place = items_.size();
        items_.resize(place + 1);
        writer_.write(item, items_.record(place));
        priorities_.push_back(item.reward - item.action_value);
        if (terminated) {
          complete(place, 0.0f);
        } else if (truncated) {
          truncated_.push_back({place, item.discount});
          final_observations_.insert(final_observations_.end(), item.next_observation.begin(),
                                     item.next_observation.end());
        } else {
          waiting_[i] = place;
          waiting_discount_ = item.discount;  // gamma^n for all of them
        }
      });
    }
    complete_truncated(size);
    for (const env::Episode& episode : environments_.finished_episodes())
      count_episode(episode.episode_return);
  }

  void complete_truncated(std::size_t size) {
    if (truncated_.empty()) return;
    final_q_values_.resize(truncated_.size() * num_actions());
    network_.evaluate(MatrixView<const Scalar>(final_observations_.data(), truncated_.size(), size),
                      MatrixView<float>(final_q_values_.data(), truncated_.size(), num_actions()));
    for (std::size_t k = 0; k < truncated_.size(); ++k) {
      const auto values = std::span<const float>(final_q_values_).subspan(k * num_actions(), num_actions());
      complete(truncated_[k].item, truncated_[k].discount * largest(values));
    }
    final_observations_.clear();
  }

  /// Hands over batches of `batch_size` items, a last one of fewer when `at_least` allows it, and moves the
  /// rest to the front. All items must be complete.
  Outcome send(std::size_t at_least, Deadline deadline) {
    std::size_t sent = 0;
    Outcome outcome = Outcome::ok;
    while (outcome == Outcome::ok && items_.size() - sent >= std::max<std::size_t>(at_least, 1)) {
      const std::size_t count = std::min(options_.batch_size, items_.size() - sent);
      outcome = sink_.insert(items_.view().records(sent, count),
                             std::span<const float>(priorities_).subspan(sent, count), deadline);
      if (outcome == Outcome::ok) sent += count;
    }
    if (sent > 0) {
      const std::size_t left = items_.size() - sent;
      if (left > 0)
        std::memmove(items_.data(), items_.data() + sent * items_.layout().size(),
                     left * items_.layout().size());
      items_.resize(left);
      priorities_.erase(priorities_.begin(), priorities_.begin() + static_cast<std::ptrdiff_t>(sent));
      items_sent_.fetch_add(sent, std::memory_order_relaxed);
    }
    return outcome;
  }

  void count_step() {
    steps_.fetch_add(environments_.size(), std::memory_order_relaxed);
    since_refresh_ += environments_.size();
    if (since_refresh_ >= options_.parameter_interval) refresh_parameters();
  }

  void count_episode(double episode_return) {
    last_return_.store(episode_return, std::memory_order_relaxed);
    const std::uint64_t n = episodes_.fetch_add(1, std::memory_order_relaxed) + 1;
    const double mean = mean_return_.load(std::memory_order_relaxed);
    mean_return_.store(mean + (episode_return - mean) / static_cast<double>(std::min<std::uint64_t>(n, 100)),
                       std::memory_order_relaxed);
  }

  void refresh_parameters() {
    since_refresh_ = 0;
    if (!parameter_source_.fetch(version_, parameters_)) return;
    network_.set_parameters(parameters_);
    acting_version_.store(version_, std::memory_order_relaxed);
    evaluated_ = false;
  }

  ActorOptions options_;
  Environments environments_;
  Network network_;
  Sink& sink_;
  Parameters& parameter_source_;
  std::vector<double> epsilons_;
  std::vector<Random> randoms_;

  NStep<Scalar> n_step_;
  RecordArray items_;              // those not yet handed over
  std::vector<float> priorities_;  // of items_; for those that wait: R - Q(s, a)
  Writer writer_;
  std::vector<std::size_t> waiting_;  // for each environment the item that bootstraps from where it stands
  float waiting_discount_ = 0.0f;
  std::vector<Unfinished> truncated_;
  std::vector<Scalar> final_observations_;
  std::vector<float> final_q_values_;

  std::vector<Scalar> before_;  // observations acted on
  std::vector<std::int32_t> actions_;
  std::vector<float> action_values_, q_values_;
  bool evaluated_ = false;

  std::vector<float> parameters_;
  std::uint64_t version_ = 0;
  std::size_t since_refresh_ = 0;

  std::atomic<std::uint64_t> steps_{0}, items_sent_{0}, episodes_{0}, acting_version_{0};
  std::atomic<double> mean_return_{0.0}, last_return_{0.0};
};

}  // namespace troop::agent
