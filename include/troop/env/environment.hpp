/// @file
/// What an environment is: its description, the concept for one, and the concept for many at once, which is
/// what actors run.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>

namespace troop::env {

/// What an environment says about itself: one observation of a fixed shape, and actions 0 to num_actions - 1.
struct Spec {
  std::string name;                            ///< "CartPole-v1"
  DType observation_dtype = DType::f32;        ///< f32, or u8 for images
  std::vector<std::size_t> observation_shape;  ///< row-major, outermost first: {4, 84, 84}
  std::int32_t num_actions = 0;                ///< at least 1
  /// VectorEnvironment truncates an episode after these steps, so that the environment need not; 0: never,
  /// and an evaluation lasts until every episode has ended by itself.
  std::uint64_t max_episode_steps = 0;
  double return_to_solve = std::numeric_limits<double>::quiet_NaN();  ///< mean return; NaN: not defined
  /// Mean returns of a random policy and of a person, for human-normalised scores; NaN: not known.
  double random_return = std::numeric_limits<double>::quiet_NaN();
  double human_return = std::numeric_limits<double>::quiet_NaN();

  /// 0 for a random policy, 1 for a person, NaN where these are not known (van Hasselt et al. 2016).
  double human_normalised(double mean_return) const noexcept {
    return (mean_return - random_return) / (human_return - random_return);
  }

  /// Elements of one observation: the product of its shape.
  std::size_t observation_size() const noexcept {
    return std::accumulate(observation_shape.begin(), observation_shape.end(), std::size_t{1},
                           std::multiplies<>());
  }

  /// Throws InvalidArgument, naming the field, unless the spec has a name, an observation of f32 or u8 with a
  /// non-empty shape of positive dimensions and at most 1 GiB, and at least one action.
  void validate() const {
    require(!name.empty(), "name", "\"\"", "a name that is not empty");
    require(observation_dtype == DType::f32 || observation_dtype == DType::u8, name + ".observation_dtype",
            is_valid(observation_dtype) ? name_of(observation_dtype) : "an unknown number", "f32 or u8");
    require(!observation_shape.empty(), name + ".observation_shape", "{}", "at least one dimension");
    std::size_t left = RecordLayout::kMaxRecordBytes / size_of(observation_dtype);
    for (const std::size_t dimension : observation_shape) {
      require(dimension > 0 && dimension <= left, name + ".observation_shape", dimension,
              "positive dimensions and at most 1 GiB");
      left /= dimension;
    }
    require(num_actions >= 1, name + ".num_actions", num_actions, "at least 1");
  }
};

/// Throws InvalidArgument, naming `field`, unless 0 <= action < num_actions. One comparison when it is so:
/// cheap enough for every step.
inline void require_action(std::int32_t action, std::int32_t num_actions, std::string_view field = "action") {
  if (static_cast<std::uint32_t>(action) < static_cast<std::uint32_t>(num_actions)) [[likely]]
    return;
  throw InvalidArgument(std::string(field), std::to_string(action),
                        "an integer from 0 to " + std::to_string(num_actions - 1));
}

/// Throws InvalidArgument unless there is one action for each of `count` environments and all are in [0,
/// num_actions). One pass when it is so.
inline void require_actions(std::span<const std::int32_t> actions, std::size_t count,
                            std::int32_t num_actions) {
  if (actions.size() != count) [[unlikely]]
    throw InvalidArgument("actions.size()", std::to_string(actions.size()),
                          "the number of environments, " + std::to_string(count));
  std::uint32_t largest = 0;  // a negative action becomes one that is too large
  for (const std::int32_t action : actions) largest = std::max(largest, static_cast<std::uint32_t>(action));
  if (largest < static_cast<std::uint32_t>(num_actions)) [[likely]]
    return;
  for (std::size_t i = 0; i < count; ++i)
    require_action(actions[i], num_actions, "actions[" + std::to_string(i) + "]");
}

/// The record of one (n-step) transition in an environment: observation, action, reward (n-step return),
/// discount (gamma^n, or 0 where the episode terminated), next_observation. 44 bytes for CartPole. Throws
/// InvalidArgument as `validate` does.
inline RecordLayout transition_layout(const Spec& spec) {
  spec.validate();
  return RecordLayout({{"observation", spec.observation_dtype, spec.observation_shape},
                       {"action", DType::i32, {}},
                       {"reward", DType::f32, {}},
                       {"discount", DType::f32, {}},
                       {"next_observation", spec.observation_dtype, spec.observation_shape}});
}

/// What one step gave, besides the observation.
///
/// `terminated`: the task itself ended (the pole fell), nothing can be earned after it, discount 0.
/// `truncated`: the episode was cut off from outside (a time limit) although it could have gone on; learning
/// bootstraps from its last observation. An episode ends by one of the two. An environment that sets both is
/// understood as terminated.
struct StepResult {
  float reward = 0;
  bool terminated = false;
  bool truncated = false;

  friend bool operator==(const StepResult&, const StepResult&) = default;
};

/// An episode that has ended in a vector of environments.
struct Episode {
  std::size_t index = 0;      ///< row of its environment in the vector
  double episode_return = 0;  ///< undiscounted sum of the rewards
  std::uint64_t length = 0;   ///< steps

  friend bool operator==(const Episode&, const Episode&) = default;
};

/// The element types that observations may have.
template <class T>
concept ObservationScalar = std::same_as<T, float> || std::same_as<T, std::uint8_t>;

/// The parts of `Environment`; `check_environment` says in words what each asks for.
namespace part {

template <class E>
concept HasScalar = requires {
  typename E::Scalar;
}
&&ObservationScalar<typename E::Scalar>;

template <class E>
concept HasSpec = requires(const E& environment) {
  { environment.spec() } -> std::convertible_to<Spec>;
};

template <class E>
concept HasReset = requires(E& environment, std::uint64_t seed, std::span<typename E::Scalar> observation) {
  environment.reset(seed, observation);
};

template <class E>
concept HasStep = requires(E& environment, std::int32_t action, std::span<typename E::Scalar> observation) {
  { environment.step(action, observation) } -> std::same_as<StepResult>;
};

}  // namespace part

/// One environment, as a user writes it: a class with
///
///     using Scalar = float;                                                       // or std::uint8_t
///     const Spec& spec() const;
///     void reset(std::uint64_t seed, std::span<float> observation);
///     StepResult step(std::int32_t action, std::span<float> observation);
///
/// - `spec()` never changes, and its observation_dtype is that of Scalar.
/// - `reset` starts an episode and writes its first observation. It may be called at any time. The seed alone
///   decides the whole episode, given the actions: nothing is left over from the episode before.
/// - `step` makes one step and writes the observation *after* it, also when the episode ended by it: that
///   final observation is what a truncated episode bootstraps from. It does not reset by itself; nobody calls
///   it before the first `reset` or after an end. An action out of range throws InvalidArgument. Rewards and
///   observations are finite numbers.
/// - `observation` holds spec().observation_size() elements, row-major, and belongs to the caller; all of it
///   is written, and none of it is read.
///
/// An environment need not be thread-safe: one thread at a time uses it. Derive from nothing.
template <class E>
concept Environment = part::HasScalar<E> && part::HasSpec<E> && part::HasReset<E> && part::HasStep<E>;

/// True for an Environment; for anything else the compilation ends with a sentence on what is missing. Write
/// it below your class while you work on it:
///
///     static_assert(troop::env::check_environment<MyEnvironment>());
template <class E>
consteval bool check_environment() {
  static_assert(
      part::HasScalar<E>,
      "an environment needs the type of its observations' elements: write `using Scalar = float;` or "
      "`using Scalar = std::uint8_t;` in its public part");
  if constexpr (part::HasScalar<E>) {
    static_assert(part::HasSpec<E>,
                  "an environment needs its description: write `const troop::env::Spec& spec() const`");
    static_assert(part::HasReset<E>,
                  "an environment must start an episode: write `void reset(std::uint64_t seed, "
                  "std::span<Scalar> observation)`, which writes the first observation");
    static_assert(part::HasStep<E>,
                  "an environment must make a step: write `troop::env::StepResult step(std::int32_t action, "
                  "std::span<Scalar> observation)`, which writes the observation after the step");
  }
  return true;
}

/// The parts of `VectorizedEnvironment`; `check_vectorized_environment` says in words what each asks for.
namespace part {

template <class V>
concept HasSize = requires(const V& environments) {
  { environments.size() } -> std::convertible_to<std::size_t>;
};

template <class V>
concept HasVectorReset = requires(V& environments) {
  environments.reset();
};

template <class V>
concept HasVectorStep = requires(V& environments, std::span<const std::int32_t> actions) {
  environments.step(actions);
};

template <class V>
concept HasObservations = requires(const V& environments, std::size_t i) {
  { environments.observations() } -> std::convertible_to<MatrixView<const typename V::Scalar>>;
  { environments.next_observation(i) } -> std::convertible_to<std::span<const typename V::Scalar>>;
};

template <class V>
concept HasOutcomes = requires(const V& environments) {
  { environments.rewards() } -> std::convertible_to<std::span<const float>>;
  { environments.terminated() } -> std::convertible_to<std::span<const std::uint8_t>>;
  { environments.truncated() } -> std::convertible_to<std::span<const std::uint8_t>>;
};

template <class V>
concept HasEpisodes = requires(const V& environments) {
  { environments.finished_episodes() } -> std::convertible_to<std::span<const Episode>>;
};

}  // namespace part

/// N environments of one kind that step together and reset by themselves. What actors run;
/// `VectorEnvironment` makes one of any Environment.
///
/// `step(actions)`, with one action for each environment, makes one step everywhere. Where an episode ends by
/// that step, the next one starts within the same step, so that every step is a transition and none is spent
/// on a reset. (This is what Gymnasium calls same-step autoreset.) Of the last step, then:
///
/// | call | shape | meaning | | --- | --- | --- | | `observations()` | [N, size] | what to act on next: where
/// an episode ended, the next one's first observation | | `next_observation(i)` | [size] | what the step led
/// to: an episode's final observation, else row i of the above | | `rewards()` | [N] | of the step | |
/// `terminated()`, `truncated()` | [N] | 0 or 1, at most one of the two is 1; both 0 while the episode goes
/// on | | `finished_episodes()` | [0..N] | the episodes that ended by it, by ascending index |
///
/// - The transition of environment i is therefore: row i of `observations()` *before* the step (copied, for
///   it will be overwritten), the action, and after the step its reward, its flags and `next_observation(i)`.
/// - After construction, and after `reset()`, which abandons all running episodes without reporting them and
///   starts new ones: observations() holds first observations, next_observation(i) equals its row i, rewards
///   and flags are 0, no episode is finished.
/// - All views stay valid until the next `step` or `reset`.
/// - Wrong numbers of actions and actions out of range throw InvalidArgument.
template <class V>
concept VectorizedEnvironment =
    part::HasScalar<V> && part::HasSize<V> && part::HasSpec<V> && part::HasVectorReset<V> &&
    part::HasVectorStep<V> && part::HasObservations<V> && part::HasOutcomes<V> && part::HasEpisodes<V>;

/// True for a VectorizedEnvironment; for anything else the compilation ends with a sentence on what is
/// missing.
template <class V>
consteval bool check_vectorized_environment() {
  static_assert(
      part::HasScalar<V>,
      "a vector of environments needs the type of its observations' elements: write `using Scalar = "
      "float;` or `using Scalar = std::uint8_t;` in its public part");
  if constexpr (part::HasScalar<V>) {
    static_assert(part::HasSize<V>,
                  "a vector of environments needs their number: write `std::size_t size() const`");
    static_assert(part::HasSpec<V>,
                  "a vector of environments needs the description that they share: write `const "
                  "troop::env::Spec& spec() const`");
    static_assert(part::HasVectorReset<V>,
                  "a vector of environments must start new episodes everywhere: write `void reset()`");
    static_assert(part::HasVectorStep<V>,
                  "a vector of environments must make a step everywhere: write `void step(std::span<const "
                  "std::int32_t> actions)`");
    static_assert(
        part::HasObservations<V>,
        "a vector of environments must show observations: write `troop::MatrixView<const Scalar> "
        "observations() const` and `std::span<const Scalar> next_observation(std::size_t i) const`");
    static_assert(part::HasOutcomes<V>,
                  "a vector of environments must show what the last step gave: write `std::span<const float> "
                  "rewards() const`, and `terminated() const` and `truncated() const` that return "
                  "`std::span<const std::uint8_t>`");
    static_assert(part::HasEpisodes<V>,
                  "a vector of environments must report episodes: write `std::span<const "
                  "troop::env::Episode> finished_episodes() const`");
  }
  return true;
}

}  // namespace troop::env
