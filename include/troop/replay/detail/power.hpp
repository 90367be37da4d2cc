/// @file
/// Powers of many positive numbers at once.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace troop::detail {

/// x^exponent for a positive, finite x, with a relative error below 1e-9; a result outside [2^-1000, 2^1000]
/// becomes the nearer of the two. For an x of 0 the result means nothing.
///
/// x is split into m 2^e with m in [sqrt(1/2), sqrt(2)); log2(m) is the series of 2 atanh((m - 1) / (m + 1))
/// / ln 2 to its sixth term; of exponent * log2(x) the whole part goes into the result's exponent bits and
/// the rest into the series of 2^f to its tenth term. Only additions, multiplications, a division and integer
/// operations, no branch: compilers turn a loop of these into vector instructions, several times as fast as
/// std::pow, which is one call a number.
inline double power(float x, double exponent) noexcept {
  constexpr std::uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;  // the bits of sqrt(1/2)
  constexpr std::uint64_t kMantissa = 0x000fffffffffffff;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(static_cast<double>(x)) - kSqrtHalf;
  const auto whole = static_cast<double>(static_cast<std::int64_t>(bits) >> 52);
  const auto m = std::bit_cast<double>((bits & kMantissa) + kSqrtHalf);
  const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  const double series =
      1.0 + s2 * (1.0 / 3 + s2 * (1.0 / 5 + s2 * (1.0 / 7 + s2 * (1.0 / 9 + s2 * (1.0 / 11)))));
  const double wanted = exponent * (whole + kTwoOverLn2 * s * series);
  const double y = wanted < -1000.0 ? -1000.0 : wanted > 1000.0 ? 1000.0 : wanted;

  // Adding 1.5 * 2^52 rounds to a whole number, which then stands in the lowest bits.
  constexpr double kRound = 6755399441055744.0;
  const double shifted = y + kRound;
  const double f = (y - (shifted - kRound)) * 0.69314718055994531;  // 2^f = e^(f ln 2), |f ln 2| <= 0.3466
  const double fraction =
      1.0 +
      f * (1.0 + f * (1.0 / 2 +
                      f * (1.0 / 6 +
                           f * (1.0 / 24 +
                                f * (1.0 / 120 + f * (1.0 / 720 + f * (1.0 / 5040 + f * (1.0 / 40320))))))));
  const std::uint64_t scale = std::bit_cast<std::uint64_t>(shifted) << 52;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(fraction) + scale);
}

/// power(x[i], exponent) for each i. A loop that stores anything but these doubles, floats made from them for
/// example, is not turned into vector instructions by GCC 12 and takes six times as long: convert in a second
/// loop.
inline void powers(std::span<const float> x, double exponent, double* __restrict out) noexcept {
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = power(x[i], exponent);
}

/// How many powers callers make at once, in memory on the stack.
inline constexpr std::size_t kPowersAtOnce = 64;

}  // namespace troop::detail
