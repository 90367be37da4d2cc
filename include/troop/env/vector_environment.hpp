/// @file
/// Many environments of one kind in one thread, stepped together and reset by themselves.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/core/view.hpp>
#include <troop/env/environment.hpp>

namespace troop::env {

/// What a VectorEnvironment is made of, besides the environments.
struct VectorOptions {
  std::size_t count = 1;               ///< environments, at least 1
  std::uint64_t seed = 0;              ///< of the run
  std::string stream = "environment";  ///< name of the random streams; give an evaluation one of its own
  std::uint64_t first_index = 0;       ///< index in the whole run of the first of these environments
};

/// `count` environments of type E as one VectorizedEnvironment, which see for what each call gives.
///
/// Environment i draws the seeds of its episodes from its own random stream (seed, stream, first_index + i).
/// Its episodes therefore depend on its index in the run and on its actions, not on how many others there are
/// or in which process they live.
///
/// An episode that has made spec().max_episode_steps steps is truncated and the next one started, whether the
/// environment itself says so or not; it may also end an episode earlier. (In Gymnasium this is the wrapper
/// TimeLimit.)
///
/// A reward or an element of a float observation that is NaN or infinite is refused with an InvalidArgument
/// that names the environment (its stream and its index in the run), the step of its episode and the element:
/// a network that has learnt from one is lost.
///
/// Memory: per environment E itself, two observations and about 70 bytes. `step` costs `count` steps of E and
/// some 2 ns of bookkeeping each, and a look at each float of the observations; a copy of one observation and
/// a reset come on top where an episode ends. It does not allocate and, given actions in range, does not
/// throw unless E does or gives such a number. An Error of E is passed on as an Error with the same place in
/// front of its message, other exceptions as they are. Any of them leaves the environments at different steps,
/// so `reset()` before going on. Not thread-safe: one thread at a time; for more threads, give each a vector of
/// its own with its own `first_index`.
///
///     troop::env::VectorEnvironment<CartPole> environments({.count = 8, .seed = 1});
///     choose(environments.observations(), actions);                        // [8, 4] -> [8]
///     environments.step(actions);   log(environments.finished_episodes());
template <class E>
class VectorEnvironment {
  static_assert(check_environment<E>());

 public:
  using Scalar = typename E::Scalar;

  /// Makes environment i as `make(first_index + i)`. Throws InvalidArgument for a count of 0, for a spec that
  /// is not valid or has not Scalar's dtype, and for environments of different observations, actions or
  /// limits of steps.
  template <std::invocable<std::uint64_t> Make>
  VectorEnvironment(const VectorOptions& options, Make make)
      : stream_(options.stream), first_index_(options.first_index) {
    require(options.count >= 1, "count", options.count, "at least 1");
    environments_.reserve(options.count);
    streams_.reserve(options.count);
    for (std::size_t i = 0; i < options.count; ++i) {
      environments_.push_back(make(options.first_index + i));
      streams_.emplace_back(options.seed, options.stream, options.first_index + i);
    }
    spec_ = environments_[0].spec();
    spec_.validate();
    require(spec_.observation_dtype == dtype_of<Scalar>(), spec_.name + ".observation_dtype",
            name_of(spec_.observation_dtype),
            std::string(name_of(dtype_of<Scalar>())) + ", the dtype of its Scalar");
    for (std::size_t i = 1; i < options.count; ++i) require_alike(environments_[i].spec(), i);

    columns_ = spec_.observation_size();
    observations_.resize(options.count * columns_);
    final_observations_.resize(observations_.size());
    rewards_.resize(options.count);
    terminated_.resize(options.count);
    truncated_.resize(options.count);
    returns_.resize(options.count);
    lengths_.resize(options.count);
    finished_.reserve(options.count);
    reset();
  }

  /// Makes all environments as `E()`.
  explicit VectorEnvironment(const VectorOptions& options) requires std::default_initializable<E>
      : VectorEnvironment(options, [](std::uint64_t) { return E(); }) {}

  std::size_t size() const noexcept { return environments_.size(); }
  const Spec& spec() const noexcept { return spec_; }

  /// Starts a new episode everywhere, with the next seed of each environment's stream. Not needed after
  /// construction, which has done it.
  void reset() {
    std::fill(rewards_.begin(), rewards_.end(), 0.0f);
    std::fill(terminated_.begin(), terminated_.end(), std::uint8_t{0});
    std::fill(truncated_.begin(), truncated_.end(), std::uint8_t{0});
    finished_.clear();
    for (std::size_t i = 0; i < size(); ++i) start_episode(i);
    require_finite();
  }

  /// One step of every environment, `actions[i]` in environment i. Throws InvalidArgument, before any
  /// environment has moved, unless there are size() actions and all are in [0, num_actions).
  void step(std::span<const std::int32_t> actions) {
    require_actions(actions, size(), spec_.num_actions);
    finished_.clear();
    for (std::size_t i = 0; i < environments_.size(); ++i) {
      const StepResult result =
          call(i, lengths_[i] + 1, [&](E& environment) { return environment.step(actions[i], row(i)); });
      rewards_[i] = result.reward;
      returns_[i] += static_cast<double>(result.reward);
      ++lengths_[i];
      const bool truncated =
          result.truncated || lengths_[i] == spec_.max_episode_steps;  // 0 is never reached
      terminated_[i] = result.terminated;
      truncated_[i] = truncated && !result.terminated;
      if (result.terminated || truncated) finish_episode(i);
    }
    require_finite();
  }

  MatrixView<const Scalar> observations() const noexcept { return {observations_.data(), size(), columns_}; }

  std::span<const Scalar> next_observation(std::size_t i) const noexcept {
    assert(i < size());
    const bool ended = terminated_[i] != 0 || truncated_[i] != 0;
    return {(ended ? final_observations_ : observations_).data() + i * columns_, columns_};
  }

  std::span<const float> rewards() const noexcept { return rewards_; }
  std::span<const std::uint8_t> terminated() const noexcept { return terminated_; }
  std::span<const std::uint8_t> truncated() const noexcept { return truncated_; }
  std::span<const Episode> finished_episodes() const noexcept { return finished_; }

  /// Environment i itself, for rendering and tests. To reset or step it by hand breaks the bookkeeping.
  const E& environment(std::size_t i) const noexcept {
    assert(i < size());
    return environments_[i];
  }
  E& environment(std::size_t i) noexcept {
    assert(i < size());
    return environments_[i];
  }

 private:
  std::span<Scalar> row(std::size_t i) noexcept { return {observations_.data() + i * columns_, columns_}; }

  void start_episode(std::size_t i) {
    returns_[i] = 0;
    lengths_[i] = 0;
    call(i, 0, [&](E& environment) { environment.reset(streams_[i](), row(i)); });
  }

  /// Calls environment i; an Error of its own is passed on with its name and step in front.
  template <class F>
  auto call(std::size_t i, std::uint64_t step, F&& f) {
    try {
      return f(environments_[i]);
    } catch (const Error& error) {
      throw Error(place(i, step) + error.what());
    }
  }

  std::string place(std::size_t i, std::uint64_t step) const {
    return spec_.name + ", " + stream_ + " " + std::to_string(first_index_ + i) + ", step " +
           std::to_string(step) + " of its episode: ";
  }

  void finish_episode(std::size_t i) {
    require_finite(i);
    finished_.push_back({i, returns_[i], lengths_[i]});
    std::ranges::copy(row(i), final_observations_.begin() + static_cast<std::ptrdiff_t>(i * columns_));
    start_episode(i);
  }

  /// Looks at the bits, so that whole vectors are compared at once.
  static bool all_finite(std::span<const float> values) noexcept {
    constexpr std::uint32_t exponent = 0x7f800000u;
    std::uint32_t found = 0;
    for (const float value : values)
      found |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & exponent) == exponent);
    return found == 0;
  }
  static bool all_finite(std::span<const std::uint8_t>) noexcept { return true; }

  /// Throws unless all rewards and observations are finite. One pass over all of them is cheaper than one
  /// over each row.
  void require_finite() const {
    if (all_finite(rewards()) && all_finite(std::span<const Scalar>(observations_))) [[likely]]
      return;
    for (std::size_t i = 0; i < size(); ++i) require_finite(i);
  }

  void require_finite(std::size_t i) const {
    if (!std::isfinite(rewards_[i])) refuse(i, "reward", rewards_[i]);
    const std::span<const Scalar> values = observations().row_span(i);
    if (all_finite(values)) return;
    std::size_t k = 0;
    while (all_finite(values.subspan(k, 1))) ++k;
    refuse(i, "observation[" + std::to_string(k) + "]", static_cast<float>(values[k]));
  }

  [[noreturn]] void refuse(std::size_t i, const std::string& what, float value) const {
    throw InvalidArgument(place(i, lengths_[i]) + what, std::isnan(value) ? "nan" : std::to_string(value),
                          "a finite number");
  }

  void require_alike(const Spec& other, std::size_t i) const {
    const std::string field = "environments[" + std::to_string(i) + "].spec";
    require(other.observation_dtype == spec_.observation_dtype &&
                other.observation_shape == spec_.observation_shape,
            field, to_string(Field{"observation", other.observation_dtype, other.observation_shape}),
            to_string(Field{"observation", spec_.observation_dtype, spec_.observation_shape}) +
                ", as in environments[0]");
    require(other.num_actions == spec_.num_actions, field + ".num_actions", other.num_actions,
            std::to_string(spec_.num_actions) + ", as in environments[0]");
    require(other.max_episode_steps == spec_.max_episode_steps, field + ".max_episode_steps",
            other.max_episode_steps, std::to_string(spec_.max_episode_steps) + ", as in environments[0]");
  }

  std::string stream_;
  std::uint64_t first_index_ = 0;
  std::vector<E> environments_;
  std::vector<Random> streams_;
  Spec spec_;
  std::size_t columns_ = 0;
  std::vector<Scalar> observations_, final_observations_;
  std::vector<float> rewards_;
  std::vector<std::uint8_t> terminated_, truncated_;
  std::vector<double> returns_;
  std::vector<std::uint64_t> lengths_;
  std::vector<Episode> finished_;
};

}  // namespace troop::env
