/// @file
/// Which priorities a replay takes.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

/// values[i] = priorities[i]^alpha, at least the smallest normal float, or 0 for 0; `greatest` becomes the
/// greatest priority if it was less. False when a priority is not allowed; then the values mean nothing.
///
/// Many short loops, each over numbers of one size, for GCC 12 turns these into vector instructions.
inline bool raise_priorities(std::span<const float> priorities, double alpha, float* __restrict values,
                             float& greatest) noexcept {
  constexpr std::uint32_t kInfinity = 0x7f800000, kNegativeZero = 0x80000000;
  std::uint32_t refused = 0;
  float largest = greatest;
  double largest_power = 0.0, given[kPowersAtOnce], raised[kPowersAtOnce];
  for (std::size_t first = 0; first < priorities.size(); first += kPowersAtOnce) {
    const std::size_t count = std::min(kPowersAtOnce, priorities.size() - first);
    const float* priority = priorities.data() + first;
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(priority[i]);
      refused |=
          static_cast<std::uint32_t>(bits >= kInfinity) & static_cast<std::uint32_t>(bits != kNegativeZero);
    }
    for (std::size_t i = 0; i < count; ++i) largest = priority[i] > largest ? priority[i] : largest;
    for (std::size_t i = 0; i < count; ++i) given[i] = static_cast<double>(priority[i]);
    if (alpha == 1.0) {
      std::copy_n(given, count, raised);
    } else {
      powers(priorities.subspan(first, count), alpha, raised);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const double power = std::max(raised[i], double{std::numeric_limits<float>::min()});
      raised[i] = given[i] > 0.0 ? power : 0.0;
    }
    for (std::size_t i = 0; i < count; ++i)
      largest_power = raised[i] > largest_power ? raised[i] : largest_power;
    for (std::size_t i = 0; i < count; ++i) values[first + i] = static_cast<float>(raised[i]);
  }
  greatest = largest;
  return refused == 0 && largest_power <= double{std::numeric_limits<float>::max()};
}

/// Throws InvalidArgument for the first priority that is not a finite number of at least 0, or whose power
/// alpha is not a finite float.
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
