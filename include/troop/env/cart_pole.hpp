/// @file
/// The cart-pole task, equal to Gymnasium's CartPole-v1.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include <troop/core/random.hpp>
#include <troop/env/environment.hpp>

namespace troop::env {

/// A pole on a cart, to be kept upright by pushing the cart left (action 0) or right (action 1).
///
/// The task of Barto, Sutton and Anderson (1983), with the dynamics, limits and rewards of Gymnasium's
/// CartPole-v1: explicit Euler steps of 20 ms in double precision; reward 1 for every step, the last one
/// included; terminated when the cart is more than 2.4 m from the middle or the pole more than 12 degrees
/// from upright; truncated after 500 steps. The start is uniform in [-0.05, 0.05) in all four numbers, but
/// from this library's own generator: a seed means another start than in Gymnasium.
///
/// An Environment; 40 bytes, no allocation; a step costs about 25 ns, most of it sine and cosine. Not
/// thread-safe: one thread at a time.
///
///     std::array<float, 4> observation;
///     troop::env::CartPole cart_pole;   cart_pole.reset(seed, observation);
///     auto [reward, terminated, truncated] = cart_pole.step(1, observation);
class CartPole {
 public:
  using Scalar = float;

  /// The observation is these four numbers in this order, rounded to float.
  struct State {
    double position = 0;          ///< of the cart, m
    double velocity = 0;          ///< of the cart, m/s
    double angle = 0;             ///< of the pole from upright, rad, positive to the right
    double angular_velocity = 0;  ///< of the pole, rad/s

    friend bool operator==(const State&, const State&) = default;
  };

  static constexpr double kPositionLimit = 2.4;                           ///< m
  static constexpr double kAngleLimit = 12 * 2 * std::numbers::pi / 360;  ///< rad
  static constexpr std::uint32_t kMaxEpisodeSteps = 500;

  const Spec& spec() const {
    static const Spec spec{.name = "CartPole-v1",
                           .observation_dtype = DType::f32,
                           .observation_shape = {4},
                           .num_actions = 2,
                           .max_episode_steps = kMaxEpisodeSteps,
                           .return_to_solve = 475};
    return spec;
  }

  /// Starts an episode from the state that the seed gives. `observation`: 4 elements.
  void reset(std::uint64_t seed, std::span<float> observation) noexcept {
    Random random(seed, "cart_pole");
    for (double* number : {&state_.position, &state_.velocity, &state_.angle, &state_.angular_velocity})
      *number = random.uniform(-0.05, 0.05);
    steps_ = 0;
    write(observation);
  }

  /// One step of 20 ms. Throws InvalidArgument, and changes nothing, for an action other than 0 and 1.
  StepResult step(std::int32_t action, std::span<float> observation) {
    require_action(action, 2);
    advance(action == 1 ? kForce : -kForce);
    ++steps_;
    write(observation);
    const bool terminated =
        std::abs(state_.position) > kPositionLimit || std::abs(state_.angle) > kAngleLimit;
    return {1, terminated, !terminated && steps_ >= kMaxEpisodeSteps};
  }

  /// The exact state, for rendering and tests.
  const State& state() const noexcept { return state_; }

  /// Puts cart and pole elsewhere within the running episode: the steps made so far still count.
  void set_state(const State& state) noexcept { state_ = state; }

  /// Steps made in the running episode.
  std::uint32_t steps() const noexcept { return steps_; }

 private:
  static constexpr double kGravity = 9.8;     // m/s^2
  static constexpr double kCartMass = 1.0;    // kg
  static constexpr double kPoleMass = 0.1;    // kg
  static constexpr double kHalfLength = 0.5;  // of the pole, m
  static constexpr double kForce = 10.0;      // N
  static constexpr double kTimeStep = 0.02;   // s
  static constexpr double kTotalMass = kPoleMass + kCartMass;
  static constexpr double kPoleMassLength = kPoleMass * kHalfLength;

  /// Equations of motion without friction (Florian 2007, "Correct equations for the dynamics of the cart-pole
  /// system"). The order of the operations is Gymnasium's, so that the results are its too.
  void advance(double force) noexcept {
    const double cosine = std::cos(state_.angle), sine = std::sin(state_.angle);
    const double common =
        (force + kPoleMassLength * (state_.angular_velocity * state_.angular_velocity) * sine) / kTotalMass;
    const double angular_acceleration =
        (kGravity * sine - cosine * common) /
        (kHalfLength * (4.0 / 3.0 - kPoleMass * (cosine * cosine) / kTotalMass));
    const double acceleration = common - kPoleMassLength * angular_acceleration * cosine / kTotalMass;
    state_.position += kTimeStep * state_.velocity;
    state_.velocity += kTimeStep * acceleration;
    state_.angle += kTimeStep * state_.angular_velocity;
    state_.angular_velocity += kTimeStep * angular_acceleration;
  }

  void write(std::span<float> observation) const noexcept {
    assert(observation.size() == 4);
    observation[0] = static_cast<float>(state_.position);
    observation[1] = static_cast<float>(state_.velocity);
    observation[2] = static_cast<float>(state_.angle);
    observation[3] = static_cast<float>(state_.angular_velocity);
  }

  State state_;
  std::uint32_t steps_ = 0;
};

}  // namespace troop::env
