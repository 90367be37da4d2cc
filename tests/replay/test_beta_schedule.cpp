#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

#include <troop/core/error.hpp>
#include <troop/replay/beta_schedule.hpp>

using troop::BetaSchedule;

TEST_CASE("beta rises in a straight line and stays") {
  const BetaSchedule beta{.initial = 0.4, .final = 1.0, .steps = 100};
  CHECK(beta(0) == 0.4);
  CHECK(beta(50) == doctest::Approx(0.7));
  CHECK(beta(99) < 1.0);
  CHECK(beta(100) == 1.0);
  CHECK(beta(std::numeric_limits<std::uint64_t>::max()) == 1.0);
}

TEST_CASE("beta never turns back, and its last value is exact") {
  for (const BetaSchedule beta : {BetaSchedule{.initial = 0.1, .final = 0.7, .steps = 977},
                                  BetaSchedule{.initial = 0.0, .final = 0.3, .steps = 977}}) {
    bool grows = true;
    for (std::uint64_t step = 1; step < 1200; ++step) grows = grows && beta(step) >= beta(step - 1);
    CHECK(grows);
    CHECK(beta(977) == beta.final);
  }
  const BetaSchedule falling{.initial = 0.9, .final = 0.2, .steps = 10};
  CHECK(falling(5) == doctest::Approx(0.55));
  CHECK(falling(10) == 0.2);
}

TEST_CASE("a constant beta is the same at every step") {
  const BetaSchedule beta = BetaSchedule::constant(0.4);
  beta.validate();
  for (const std::uint64_t step : {0u, 1u, 12345u, 4000000000u}) CHECK(beta(step) == 0.4);
}

TEST_CASE("bad options are refused by name") {
  CHECK_THROWS_WITH_AS((BetaSchedule{.initial = 1.5}.validate()),
                       "beta_initial: 1.5 is not allowed; expected a number from 0 to 1",
                       troop::InvalidArgument);
  CHECK_THROWS_WITH_AS((BetaSchedule{.final = std::numeric_limits<double>::quiet_NaN()}.validate()),
                       "beta_final: nan is not allowed; expected a number from 0 to 1",
                       troop::InvalidArgument);
  CHECK_THROWS_WITH_AS((BetaSchedule{.steps = 0}.validate()),
                       "beta_steps: 0 is not allowed; expected a positive integer", troop::InvalidArgument);
  CHECK_THROWS_AS(BetaSchedule::constant(-0.1).validate(), troop::InvalidArgument);
}
