/// @file
/// An environment whose episodes are written down in advance, for tests of whatever is built on environments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/env/environment.hpp>

namespace troop::testing {

/// How a scripted episode ends. `both` is what a careless environment reports; it counts as terminated.
enum class Ending { terminated, truncated, both };

/// One line of the script.
struct ScriptedEpisode {
  std::uint32_t length = 1;  ///< steps, at least 1
  Ending ending = Ending::terminated;
};

/// Episodes of given lengths and endings, whose numbers say where they come from.
///
/// The first reset starts episode 0, the next one episode 1, and so on, also when the one before was left
/// early. Episode e follows line `e % script.size()` of the script. With steps counted from 1 within the
/// episode, and S = Scalar (a u8 holds the numbers modulo 256):
///
/// - the observation is {e, number of steps made, last action + 1, or 0 before the first}: see `observation`;
/// - the reward of step t of episode e is 100 e + t: see `reward`; exact in float, and no two are alike as
///   long as episodes are shorter than 100 steps;
/// - actions are 0, 1 and 2; they change nothing but the observation's third number.
///
/// It refuses, with an Error, what its caller must not do: to step before the first reset or after an end.
///
///     ScriptedEnvironment<float> environment{{.length = 3}, {.length = 2, .ending = Ending::truncated}};
///     environment.reset(seed, observation);                      // {0, 0, 0}
///     environment.step(2, observation);                          // {0, 1, 3}, reward 1
template <env::ObservationScalar S = float>
class ScriptedEnvironment {
 public:
  using Scalar = S;
  using Observation = std::array<S, 3>;

  static constexpr std::int32_t kNumActions = 3;
  static constexpr std::int32_t kNoAction = -1;

  explicit ScriptedEnvironment(std::vector<ScriptedEpisode> script) : script_(std::move(script)) {
    require(!script_.empty(), "script", "{}", "at least one episode");
    for (const auto& line : script_) require(line.length >= 1, "length", line.length, "at least 1");
    spec_.name = "Scripted";
    spec_.observation_dtype = dtype_of<S>();
    spec_.observation_shape = {3};
    spec_.num_actions = kNumActions;
  }

  ScriptedEnvironment(std::initializer_list<ScriptedEpisode> script)
      : ScriptedEnvironment(std::vector<ScriptedEpisode>(script)) {}

  /// The observation in episode `episode` after `steps` steps, the last of which was `action`.
  static Observation observation(std::size_t episode, std::size_t steps, std::int32_t action = kNoAction) {
    return {static_cast<S>(episode), static_cast<S>(steps), static_cast<S>(action + 1)};
  }

  /// The reward of step `step` (1, 2, ...) of episode `episode` (0, 1, ...).
  static float reward(std::size_t episode, std::size_t step) {
    return static_cast<float>(100 * episode + step);
  }

  const env::Spec& spec() const { return spec_; }

  void reset(std::uint64_t seed, std::span<S> out) {
    seeds_.push_back(seed);
    steps_ = 0;
    running_ = true;
    write(out, observation(episode(), 0));
  }

  env::StepResult step(std::int32_t action, std::span<S> out) {
    if (!running_) throw Error("step() of a scripted environment outside an episode");
    env::require_action(action, kNumActions);
    const ScriptedEpisode& line = script_[episode() % script_.size()];
    ++steps_;
    running_ = steps_ < line.length;
    write(out, observation(episode(), steps_, action));
    return {reward(episode(), steps_), !running_ && line.ending != Ending::truncated,
            !running_ && line.ending != Ending::terminated};
  }

  /// The seeds of all resets so far; seeds()[e] is that of episode e.
  const std::vector<std::uint64_t>& seeds() const { return seeds_; }

  /// Number of the running episode, or of the one that ended last.
  std::size_t episode() const { return seeds_.size() - 1; }

 private:
  static void write(std::span<S> out, const Observation& values) {
    require(out.size() == values.size(), "observation.size()", out.size(), "3");
    for (std::size_t i = 0; i < values.size(); ++i) out[i] = values[i];
  }

  env::Spec spec_;
  std::vector<ScriptedEpisode> script_;
  std::vector<std::uint64_t> seeds_;
  std::size_t steps_ = 0;
  bool running_ = false;
};

}  // namespace troop::testing
