/// @file
/// How beta, the exponent of the importance-sampling weights, changes with the learner's steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <troop/core/error.hpp>

namespace troop {

/// beta in a straight line from `initial` at step 0 to `final` at step `steps`, and exactly `final` from
/// there on. Prioritized draws bias the gradient, which matters most near the end of training; so beta rises
/// to 1 there (Schaul et al. 2015, section 3.4: from 0.4 or 0.5). Horgan et al. 2018 stay at 0.4:
/// `constant(0.4)`.
///
///     const BetaSchedule beta{.initial = 0.4, .steps = 100'000};
///     replay.sample(512, {.beta = beta(learner.steps())}, random, batch);
struct BetaSchedule {
  double initial = 0.4;
  double final = 1.0;
  std::uint64_t steps = 100'000;

  static constexpr BetaSchedule constant(double beta) noexcept { return {.initial = beta, .final = beta}; }

  void validate() const {
    require_between("beta_initial", initial, 0.0, 1.0);
    require_between("beta_final", final, 0.0, 1.0);
    require(steps >= 1, "beta_steps", steps, "a positive integer");
  }

  double operator()(std::uint64_t step) const noexcept {
    return std::lerp(initial, final, std::min(1.0, static_cast<double>(step) / static_cast<double>(steps)));
  }
};

}  // namespace troop
