#include <cmath>

#include <doctest/doctest.h>

#include <troop/agent/epsilon_ladder.hpp>

using troop::agent::EpsilonLadder;

TEST_CASE("the ladder goes from base to base^(1 + alpha)") {
  const EpsilonLadder ladder;
  CHECK(ladder(0, 360) == doctest::Approx(0.4));
  CHECK(ladder(359, 360) == doctest::Approx(std::pow(0.4, 8.0)));
  CHECK(ladder(100, 360) == doctest::Approx(std::pow(0.4, 1.0 + 700.0 / 359.0)));
}

TEST_CASE("every rung is below the one before") {
  const EpsilonLadder ladder;
  for (std::size_t i = 1; i < 16; ++i) CHECK(ladder(i, 16) < ladder(i - 1, 16));
}

TEST_CASE("a lone environment gets the middle of the ladder") {
  CHECK(EpsilonLadder{}(0, 1) == doctest::Approx(std::pow(0.4, 4.5)));
}

TEST_CASE("bases and exponents out of range are refused by name") {
  CHECK_THROWS_WITH_AS((EpsilonLadder{.base = 1.5}.validate()),
                       "epsilon_base: 1.5 is not allowed; expected a number from 0 to 1",
                       troop::InvalidArgument);
  CHECK_THROWS_AS((EpsilonLadder{.alpha = std::nan("")}.validate()), troop::InvalidArgument);
}
