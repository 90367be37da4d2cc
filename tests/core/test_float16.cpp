#include <troop/core/float16.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <troop/core/random.hpp>

#include "testing.hpp"

using namespace troop;

TEST_CASE("every binary16 comes back from its float32") {
  testing::Failures failures;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = from_float16(half);
    const bool is_nan = (bits & 0x7fff) > 0x7c00;
    if (is_nan != std::isnan(value)) failures.add("bits " + std::to_string(bits));
    if (!is_nan && to_float16(value) != half) failures.add("bits " + std::to_string(bits));
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("values between two binary16 go to the nearer one, and to the even one from the middle") {
  testing::Failures failures;
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1);
    const float middle = (from_float16(low) + from_float16(high)) / 2;
    const std::uint16_t even = bits % 2 == 0 ? low : high;
    const bool is_right = to_float16(middle) == even && to_float16(-middle) == (even | 0x8000u) &&
                          to_float16(std::nextafter(middle, 0.0f)) == low &&
                          to_float16(std::nextafter(middle, 1e9f)) == high;
    if (!is_right) failures.add("above bits " + std::to_string(bits));
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("finite values beyond the range stay finite, the others stay what they are") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(from_float16(to_float16(65520.0f)) == 65504.0f);
  CHECK(from_float16(to_float16(-1e30f)) == -65504.0f);
  CHECK(from_float16(to_float16(kInfinity)) == kInfinity);
  CHECK(from_float16(to_float16(-kInfinity)) == -kInfinity);
  CHECK(std::isnan(from_float16(to_float16(std::nanf("")))));
  CHECK(std::signbit(from_float16(to_float16(-0.0f))));
}

TEST_CASE("arrays are converted as single values are, and the error is as stated") {
  Random random(testing::seed(), "float16");
  std::vector<float> values(1003);
  for (float& value : values)
    value = std::bit_cast<float>(static_cast<std::uint32_t>(random.below(std::uint64_t{1} << 32)));
  std::vector<std::uint16_t> halves(values.size());
  to_float16(values, halves);
  std::vector<float> back(values.size());
  from_float16(halves, back);
  testing::Failures failures;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    if (std::isnan(value) && std::isnan(back[i])) continue;
    const bool is_same = halves[i] == to_float16(value) && back[i] == from_float16(halves[i]);
    const double error = std::abs(static_cast<double>(back[i]) - value);
    const bool is_near = std::abs(value) > 65504.0f || error <= std::max(std::abs(value) * 0x1p-11, 0x1p-25);
    if (!is_same || !is_near) failures.add(std::to_string(value));
  }
  TROOP_CHECK_NONE(failures);
}
