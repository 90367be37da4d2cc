#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <troop/core/random.hpp>
#include <troop/replay/detail/power.hpp>

#include "testing.hpp"

using troop::detail::power;

TEST_CASE("powers agree with the standard library's to a relative error of 1e-9, denormal bases included") {
  troop::testing::Failures failures;
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  troop::Random random(seed, "powers");
  for (int round = 0; round < 200'000; ++round) {
    const auto x = static_cast<float>(std::exp2(random.uniform(-149.0, 128.0)));
    const double exponent = random.uniform(-6.0, 6.0);
    if (!(x > 0.0f) || !std::isfinite(x)) continue;
    const double expected = std::pow(static_cast<double>(x), exponent);
    if (!(std::abs(power(x, exponent) - expected) <= 1e-9 * expected)) {
      failures.add(std::to_string(x) + " ^ " + std::to_string(exponent));
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("the exponent 0 gives exactly 1, and the base 1 too") {
  for (const float x :
       {std::numeric_limits<float>::denorm_min(), 0.3f, 1.0f, 7.0f, std::numeric_limits<float>::max()}) {
    CHECK(power(x, 0.0) == 1.0);
    CHECK(power(1.0f, static_cast<double>(x > 10.0f ? 10.0f : x)) == doctest::Approx(1.0).epsilon(1e-12));
  }
}

TEST_CASE("what is out of range becomes the nearest power of two that is allowed") {
  CHECK(power(std::numeric_limits<float>::max(), 10.0) == std::exp2(1000.0));
  CHECK(power(std::numeric_limits<float>::max(), -10.0) == std::exp2(-1000.0));
  CHECK(power(std::numeric_limits<float>::denorm_min(), 10.0) == std::exp2(-1000.0));
}

TEST_CASE("a greater base never has a smaller power beyond rounding") {
  float x = 1e-3f;
  double before = power(x, 0.6);
  for (int i = 0; i < 100'000; ++i) {
    x = std::nextafter(x, 1.0f);
    const double now = power(x, 0.6);
    if (!(now >= before * (1.0 - 1e-9))) {
      CAPTURE(x);
      CHECK(now >= before);
    }
    before = now;
  }
}
