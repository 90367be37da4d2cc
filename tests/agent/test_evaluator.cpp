#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <troop/agent/evaluator.hpp>
#include <troop/env/catch.hpp>
#include <troop/env/vector_environment.hpp>

#include "scripted_environment.hpp"
#include "table_network.hpp"

namespace {

using troop::agent::Evaluator;
using troop::testing::ScriptedEnvironment;
using troop::testing::TableNetwork;
using Environments = troop::env::VectorEnvironment<ScriptedEnvironment<float>>;

/// Environment i plays episodes of i + 1 steps.
Environments lengths(std::size_t count) {
  return Environments({.count = count}, [](std::uint64_t i) {
    return ScriptedEnvironment<float>{{static_cast<std::uint32_t>(i + 1)}};
  });
}

/// Values every action alike.
class Indifferent {
 public:
  const troop::nn::Network& network() const { return network_; }
  void evaluate(troop::nn::ObservationsView, troop::MatrixView<float> q) {
    for (std::size_t i = 0; i < q.rows(); ++i) std::ranges::fill(q.row_span(i), 0.0f);
  }
  std::span<const float> parameters() const { return {}; }
  void set_parameters(std::span<const float>) {}

 private:
  troop::nn::Network network_ = troop::nn::mlp({});
};

}  // namespace

TEST_CASE("every environment plays the same number of episodes, however short they are") {
  Evaluator evaluator(lengths(5), TableNetwork());
  const auto result = evaluator.evaluate(3);
  CHECK(result.returns.size() == 15);
  CHECK(result.steps == 3 * (1 + 2 + 3 + 4 + 5));
  CHECK(result.q_values.size() == result.steps);
}

TEST_CASE("the Q-values of an evaluation are those of the actions that it played, and bounded in number") {
  Evaluator evaluator(lengths(3), Indifferent());
  auto result = evaluator.evaluate(1);
  CHECK(result.q_values == std::vector<float>(1 + 2 + 3, 0.0f));
  CHECK(evaluator.evaluate(10'000).q_values.size() == 10'000);
}

TEST_CASE("returns are those of whole episodes, and their figures are right") {
  Evaluator evaluator(lengths(2), TableNetwork());
  auto result =
      evaluator.evaluate(1);  // the evaluator begins with a reset: episode 1 of each, rewards 100 + t
  CHECK(result.returns == std::vector<double>{101.0, 101.0 + 102.0});
  CHECK(result.mean() == 152.0);
  CHECK(result.min() == 101.0);
  CHECK(result.max() == 203.0);
  CHECK(result.deviation() == doctest::Approx(102.0 / std::sqrt(2.0)));
}

TEST_CASE("an evaluation can be stopped and then has the episodes that ended") {
  Evaluator evaluator(lengths(4), TableNetwork());
  int polls = 0;
  const auto result = evaluator.evaluate(1, [&] { return ++polls > 2; });
  CHECK(result.returns.size() == 2);
  CHECK(evaluator.evaluate(1).returns.size() == 4);
}

TEST_CASE(
    "an evaluation with an epsilon chooses at random as often as that, the same way for the same seed") {
  const auto choices = [](double epsilon, std::uint64_t seed) {
    using Catches = troop::env::VectorEnvironment<troop::env::Catch>;
    Evaluator evaluator(Catches({.count = 200, .seed = 1}), Indifferent(),
                        {.epsilon = epsilon, .seed = seed});
    return evaluator.evaluate(1).returns;
  };
  CHECK(choices(0.0, 1) == choices(0.0, 2));
  CHECK(choices(0.5, 1) == choices(0.5, 1));
  CHECK(choices(0.5, 1) != choices(0.5, 2));
  CHECK(choices(0.5, 1) != choices(0.0, 1));
  CHECK_THROWS_WITH_AS(choices(1.5, 1),
                       "evaluation_epsilon: 1.5 is not allowed; expected a number from 0 to 1",
                       troop::InvalidArgument);
}

TEST_CASE("no episodes are refused, and figures of none are zero") {
  Evaluator evaluator(lengths(1), TableNetwork());
  CHECK_THROWS_AS(evaluator.evaluate(0), troop::InvalidArgument);
  const troop::agent::EvaluationResult none;
  CHECK(none.mean() == 0.0);
  CHECK(none.deviation() == 0.0);
}
