/// @file
/// Which priorities a replay takes.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>

#include <troop/core/error.hpp>
#include <troop/replay/detail/power.hpp>

namespace troop::detail {

/// Throws InvalidArgument unless there is a priority for each of the things named.
inline void require_as_many(std::size_t priorities, std::size_t wanted, const char* of_what) {
  if (priorities == wanted) return;
  throw InvalidArgument("number of priorities", std::to_string(priorities),
                        std::to_string(wanted) + ", one for each of the " + of_what);
}

/// Throws InvalidArgument for the first priority that is not a finite number of at least 0, or whose power alpha is
/// not a finite float.
inline void check_priorities(std::span<const float> priorities, double alpha) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  // Powers of what is not above this are at most 2^126.
  const double safe = alpha > 0.0 ? std::exp2(126.0 / alpha) : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < priorities.size(); ++i) {
    const float priority = priorities[i];
    const bool allowed = priority >= 0.0f && priority <= kLargest;
    if (allowed && (static_cast<double>(priority) <= safe || power(priority, alpha) <= double{kLargest}))
      continue;
    throw InvalidArgument("priorities[" + std::to_string(i) + "]", to_text(priority),
                          allowed ? "a number whose power alpha is finite in single precision"
                                  : "a finite number that is not negative");
  }
}

}  // namespace troop::detail
