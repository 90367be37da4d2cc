/// @file
/// Folds the steps of many environments into n-step transitions.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <troop/core/error.hpp>

namespace troop {

struct NStepOptions {
  std::size_t n = 3;    ///< longest horizon of a return, in steps
  double gamma = 0.99;  ///< discount of one step

  void validate() const {
    require(n >= 1 && n <= 1000, "n_step", n, "an integer from 1 to 1000");
    require_between("gamma", gamma, 0.0, 1.0);
  }
};

/// One step of one environment, in somebody else's memory.
template <class Scalar>
struct EnvironmentStep {
  std::span<const Scalar> observation;  ///< what was acted on
  std::int32_t action = 0;
  float reward = 0.0f;
  bool terminated = false;                   ///< the episode ended: nothing comes after it
  bool truncated = false;                    ///< the episode was cut off: something would have come after it
  std::span<const Scalar> next_observation;  ///< the successor; at an episode's end that episode's last
                                             ///< observation, never the next one's first
  float action_value =
      0.0f;  ///< Q(s, a) when the action was chosen; comes back with the item that begins at this step
};

/// An n-step transition. The spans are valid during the call that receives it.
template <class Scalar>
struct NStepItem {
  std::span<const Scalar> observation;
  std::int32_t action = 0;
  float reward = 0.0f;    ///< sum of gamma^k r_{t+k} for k < m, where m <= n steps were made
  float discount = 0.0f;  ///< gamma^m, or 0 where the episode terminated
  std::span<const Scalar> next_observation;  ///< the observation to bootstrap from, m steps later
  float action_value = 0.0f;
};

/// For each environment the last n steps. An item is emitted n steps after its first step; when the episode
/// ends all that are left are, each with the steps it has (m = n, n-1, ..., 1). So every step gives exactly
/// one item, in order, and no item crosses an episode's end. Where the episode terminated the discount is 0;
/// where it was truncated the item bootstraps from the episode's own last observation. Source: Sutton 1988;
/// as used by Horgan et al. 2018, section 3.
///
/// `add` costs O(n) additions and one copy of the observation; no allocation. Different environments may be
/// used from different threads.
///
///     NStep<float> n_step(num_environments, 4, {.n = 3, .gamma = 0.99});
///     n_step.add(i, step, [&](const NStepItem<float>& item) { ... });
template <class Scalar>
class NStep {
 public:
  static constexpr std::size_t kMaxObservation = std::size_t{1} << 30;  ///< elements

  NStep(std::size_t num_environments, std::size_t observation_size, const NStepOptions& options)
      : options_((options.validate(), options)), observation_size_(observation_size) {
    require(num_environments >= 1, "num_environments", num_environments, "a positive integer");
    require(observation_size >= 1 && observation_size <= kMaxObservation, "observation_size",
            observation_size, "an integer from 1 to 2^30");
    for (std::size_t m = 0; m <= options_.n; ++m)
      discounts_.push_back(std::pow(options_.gamma, static_cast<double>(m)));
    windows_.resize(num_environments);
    for (auto& window : windows_) {
      window.steps.resize(options_.n);
      window.observations.resize(options_.n * observation_size);
    }
  }

  std::size_t num_environments() const noexcept { return windows_.size(); }
  const NStepOptions& options() const noexcept { return options_; }

  /// Steps of environment `i` whose items are still to come.
  std::size_t pending(std::size_t i) const noexcept { return windows_[i].size; }

  /// Takes a step and calls `emit(const NStepItem<Scalar>&)` for each item that it completes. When `emit`
  /// throws, that item, and at an episode's end all that are left of the episode, are lost; nothing else is.
  template <class Emit>
  void add(std::size_t i, const EnvironmentStep<Scalar>& step, Emit&& emit) {
    assert(i < windows_.size());
    assert(step.observation.size() == observation_size_ && step.next_observation.size() == observation_size_);
    Window& window = windows_[i];
    const std::size_t place = (window.first + window.size) % options_.n;
    std::copy(step.observation.begin(), step.observation.end(),
              window.observations.begin() + static_cast<std::ptrdiff_t>(place * observation_size_));
    window.steps[place] = {step.action, step.reward, step.action_value};
    ++window.size;
    if (step.terminated || step.truncated) {
      const EndOfEpisode end{window};
      while (window.size > 0) emit_oldest(window, step, emit);
    } else if (window.size == options_.n) {
      emit_oldest(window, step, emit);
    }
  }

  /// Forgets the pending steps of environment `i`, as when it was reset in the middle of an episode.
  void clear(std::size_t i) noexcept { windows_[i].size = 0; }

 private:
  struct Step {
    std::int32_t action;
    float reward, action_value;
  };
  struct Window {
    std::vector<Step> steps;  // a ring of n
    std::vector<Scalar> observations;
    std::size_t first = 0, size = 0;
  };

  /// Leaves nothing of an episode to the next one, whatever happens.
  struct EndOfEpisode {
    Window& window;
    ~EndOfEpisode() { window.size = 0; }
  };

  template <class Emit>
  void emit_oldest(Window& window, const EnvironmentStep<Scalar>& last, Emit& emit) {
    double total = 0.0;
    for (std::size_t k = 0; k < window.size; ++k) {
      total += discounts_[k] * static_cast<double>(window.steps[(window.first + k) % options_.n].reward);
    }
    const Step& step = window.steps[window.first];
    const NStepItem<Scalar> item{
        .observation = std::span<const Scalar>(window.observations)
                           .subspan(window.first * observation_size_, observation_size_),
        .action = step.action,
        .reward = static_cast<float>(total),
        .discount = last.terminated ? 0.0f : static_cast<float>(discounts_[window.size]),
        .next_observation = last.next_observation,
        .action_value = step.action_value};
    window.first = (window.first + 1) % options_.n;
    --window.size;
    emit(item);
  }

  NStepOptions options_;
  std::size_t observation_size_;
  std::vector<double> discounts_;  // gamma^m
  std::vector<Window> windows_;
};

}  // namespace troop
