/// @file
/// The evaluator: plays whole episodes with the greedy policy, or nearly so.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/env/environment.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/nn/td_loss.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::agent {

/// Returns of the episodes of an evaluation.
struct EvaluationResult {
  std::vector<double> returns;       ///< undiscounted, one an episode
  std::uint64_t steps = 0;           ///< environment steps of those episodes
  std::vector<float> q_values = {};  ///< of the actions that were played, the first 10,000 at most

  double mean() const noexcept {
    return returns.empty()
               ? 0.0
               : std::accumulate(returns.begin(), returns.end(), 0.0) / static_cast<double>(returns.size());
  }
  double min() const noexcept {
    return returns.empty() ? 0.0 : *std::min_element(returns.begin(), returns.end());
  }
  double max() const noexcept {
    return returns.empty() ? 0.0 : *std::max_element(returns.begin(), returns.end());
  }

  /// Standard deviation of the episodes.
  double deviation() const noexcept {
    double sum = 0.0;
    for (const double value : returns) sum += (value - mean()) * (value - mean());
    return returns.size() < 2 ? 0.0 : std::sqrt(sum / static_cast<double>(returns.size() - 1));
  }
};

struct EvaluatorOptions {
  double epsilon = 0.0;  ///< probability of a random action, for each environment and step
  std::uint64_t seed = 0;

  void validate() const { require_between("evaluation_epsilon", epsilon, 0.0, 1.0); }
};

/// Plays greedily, or with a small epsilon, one batched evaluation a step.
///
/// Every environment plays the same number of episodes, and all of them count: to stop after the first n
/// episodes that end would favour the short ones. Give it environments with a random stream of their own
/// (`.stream = "evaluation"`), so that it neither disturbs nor repeats what the actors see.
///
/// Not thread-safe. `stop`, polled once a step, ends an evaluation early; its result then has the episodes
/// that ended.
///
///     Evaluator evaluator(VectorEnvironment<CartPole>({.count = 100, .seed = seed, .stream = "evaluation"}), EigenNetwork(network, seed));
///     evaluator.network().set_parameters(parameters);
///     double mean = evaluator.evaluate(1).mean();          // 100 episodes
template <env::VectorizedEnvironment Environments, nn::InferenceNetwork Network>
class Evaluator {
 public:
  Evaluator(Environments environments, Network network, const EvaluatorOptions& options = {})
      : options_((options.validate(), options)),
        environments_(std::move(environments)),
        network_(std::move(network)),
        random_(options.seed, "evaluation exploration") {}

  Network& network() noexcept { return network_; }
  decltype(auto) spec() const { return environments_.spec(); }
  std::size_t num_environments() const noexcept { return environments_.size(); }

  /// Plays `episodes_each` new episodes in every environment.
  EvaluationResult evaluate(std::size_t episodes_each) {
    return evaluate(episodes_each, [] { return false; });
  }

  template <class Stop>
  EvaluationResult evaluate(std::size_t episodes_each, Stop&& stop) {
    require(episodes_each >= 1, "episodes", episodes_each, "a positive integer");
    const std::size_t count = environments_.size();
    const auto num_actions = static_cast<std::size_t>(environments_.spec().num_actions);
    std::vector<float> q_values(count * num_actions);
    std::vector<std::int32_t> actions(count);
    std::vector<std::size_t> left(count, episodes_each);
    constexpr std::size_t kMostQValues = 10'000;
    EvaluationResult result;
    environments_.reset();
    for (std::size_t running = count; running > 0 && !stop();) {
      network_.evaluate(environments_.observations(), MatrixView<float>(q_values.data(), count, num_actions));
      for (std::size_t i = 0; i < count; ++i) {
        const auto values = std::span<const float>(q_values).subspan(i * num_actions, num_actions);
        actions[i] = static_cast<std::int32_t>(
            random_.uniform() < options_.epsilon ? random_.below(num_actions) : nn::argmax(values));
        if (left[i] > 0 && result.q_values.size() < kMostQValues)
          result.q_values.push_back(values[static_cast<std::size_t>(actions[i])]);
      }
      environments_.step(actions);
      for (const env::Episode& episode : environments_.finished_episodes()) {
        if (left[episode.index] == 0) continue;
        result.returns.push_back(episode.episode_return);
        result.steps += episode.length;
        if (--left[episode.index] == 0) --running;
      }
    }
    return result;
  }

 private:
  EvaluatorOptions options_;
  Environments environments_;
  Network network_;
  Random random_;
};

}  // namespace troop::agent
