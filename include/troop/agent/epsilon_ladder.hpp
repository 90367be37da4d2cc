/// @file
/// The exploration rates of a fleet of actors.
#pragma once

#include <cmath>
#include <cstddef>

#include <troop/core/error.hpp>

namespace troop::agent {

/// The ladder of exploration rates of Horgan et al. 2018, section 4.1: epsilon_i = base^(1 + alpha i / (N -
/// 1)).
struct EpsilonLadder {
  double base = 0.4;
  double alpha = 7.0;

  void validate() const {
    require_between("epsilon_base", base, 0.0, 1.0);
    require_between("epsilon_alpha", alpha, 0.0, 100.0);
  }

  /// The rate of environment `index` of `count`; a lone one gets the middle of the ladder.
  double operator()(std::size_t index, std::size_t count) const noexcept {
    const double place = count > 1 ? static_cast<double>(index) / static_cast<double>(count - 1) : 0.5;
    return std::pow(base, 1.0 + alpha * place);
  }
};

}  // namespace troop::agent
