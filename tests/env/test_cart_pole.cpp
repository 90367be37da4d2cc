#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/env/cart_pole.hpp>
#include <troop/env/environment.hpp>

using namespace troop;
using env::CartPole;

namespace {

using Observation = std::array<float, 4>;

std::array<double, 4> numbers(const CartPole::State& state) {
  return {state.position, state.velocity, state.angle, state.angular_velocity};
}

/// An episode of Gymnasium's CartPole-v1; see tests/golden/make_cart_pole.py.
struct GoldenStep {
  std::int32_t action = 0;
  env::StepResult result;
  CartPole::State state;
  Observation observation{};
};

struct GoldenEpisode {
  std::string name;
  CartPole::State start;
  Observation observation{};
  std::vector<GoldenStep> steps;
};

void read(std::istream& in, CartPole::State& state, Observation& observation) {
  in >> state.position >> state.velocity >> state.angle >> state.angular_velocity;
  for (float& number : observation) in >> number;
}

std::vector<GoldenEpisode> golden_episodes() {
  std::ifstream in(TROOP_GOLDEN_DIR "/cart_pole.txt");
  std::string line, word;
  REQUIRE(std::getline(in, line));  // a comment
  std::vector<GoldenEpisode> episodes;
  while (in >> word) {
    GoldenEpisode& episode = episodes.emplace_back();
    std::uint64_t seed = 0;
    std::size_t steps = 0;
    in >> episode.name >> seed >> steps >> word;
    REQUIRE(word == "start");
    read(in, episode.start, episode.observation);
    episode.steps.resize(steps);
    for (GoldenStep& step : episode.steps) {
      in >> step.action >> step.result.reward >> step.result.terminated >> step.result.truncated;
      read(in, step.state, step.observation);
    }
    REQUIRE(in);
  }
  return episodes;
}

/// The difference in units in the last place of numbers of about the size of `scale`.
double ulps(double a, double b, double scale) {
  return std::abs(a - b) / (std::numeric_limits<double>::epsilon() * scale);
}

}  // namespace

TEST_CASE("every step of the recorded episodes is Gymnasium's") {
  // Each step starts from the recorded state. A pole upright is unstable: a difference in the last bit of a
  // double, as between two versions of sine or from a fused multiply-add, grows e-fold every 13 steps, and
  // after 500 steps of recorded actions nothing would be left of the episode.
  double worst = 0;
  std::size_t steps = 0;
  for (const GoldenEpisode& episode : golden_episodes()) {
    CAPTURE(episode.name);
    CartPole cart_pole;
    Observation observation{};
    cart_pole.reset(0, observation);
    cart_pole.set_state(episode.start);
    for (std::size_t t = 0; t < episode.steps.size(); ++t) {
      CAPTURE(t);
      const GoldenStep& golden = episode.steps[t];
      REQUIRE(cart_pole.step(golden.action, observation) == golden.result);
      REQUIRE(observation == golden.observation);
      const auto ours = numbers(cart_pole.state()), theirs = numbers(golden.state);
      for (std::size_t k = 0; k < 4; ++k)
        worst = std::max(worst, ulps(ours[k], theirs[k], std::max(std::abs(theirs[k]), 0.25)));
      cart_pole.set_state(golden.state);
      ++steps;
    }
  }
  CHECK(steps > 900);
  CHECK(worst <= 4);
  MESSAGE(steps << " steps; the states differ by at most " << worst << " ulps");
}

TEST_CASE("short episodes are Gymnasium's from the start to the end, without a look at the states between") {
  std::size_t episodes = 0;
  for (const GoldenEpisode& episode : golden_episodes()) {
    if (episode.steps.size() > 50) continue;
    CAPTURE(episode.name);
    CartPole cart_pole;
    Observation observation{};
    cart_pole.reset(0, observation);
    cart_pole.set_state(episode.start);
    for (const GoldenStep& golden : episode.steps) {
      REQUIRE(cart_pole.step(golden.action, observation) == golden.result);
      REQUIRE(observation == golden.observation);
    }
    ++episodes;
  }
  CHECK(episodes == 8);
}

TEST_CASE("the recorded episodes end in every way there is") {
  bool right_of_track = false, left_of_track = false, fell_right = false, fell_left = false,
       truncated = false;
  for (const GoldenEpisode& episode : golden_episodes()) {
    const GoldenStep& last = episode.steps.back();
    right_of_track |= last.state.position > CartPole::kPositionLimit;
    left_of_track |= last.state.position < -CartPole::kPositionLimit;
    fell_right |= last.state.angle > CartPole::kAngleLimit;
    fell_left |= last.state.angle < -CartPole::kAngleLimit;
    truncated |= last.result.truncated && episode.steps.size() == CartPole::kMaxEpisodeSteps;
  }
  CHECK(right_of_track);
  CHECK(left_of_track);
  CHECK(fell_right);
  CHECK(fell_left);
  CHECK(truncated);
}

TEST_CASE("the spec of CartPole is that of CartPole-v1") {
  const env::Spec& spec = CartPole().spec();
  CHECK(spec.name == "CartPole-v1");
  CHECK(spec.observation_dtype == DType::f32);
  CHECK(spec.observation_shape == std::vector<std::size_t>{4});
  CHECK(spec.num_actions == 2);
  CHECK(spec.max_episode_steps == 500);
  CHECK(spec.return_to_solve == 475);
}

TEST_CASE("a seed gives the same start always, and another seed another one") {
  CartPole a, b;
  Observation from_a{}, from_b{};
  a.reset(5, from_a);
  b.reset(4, from_b);
  CHECK(from_a != from_b);
  b.step(1, from_b);
  b.reset(5, from_b);
  CHECK(from_a == from_b);
  CHECK(a.state() == b.state());
  CHECK(b.steps() == 0);
}

TEST_CASE("starts are uniform in [-0.05, 0.05) in all four numbers") {
  constexpr int kStarts = 20'000;
  CartPole cart_pole;
  Observation observation{};
  std::array<double, 4> sum{}, sum_of_squares{}, low{}, high{};
  for (std::uint64_t seed = 0; seed < kStarts; ++seed) {
    cart_pole.reset(seed, observation);
    const auto state = numbers(cart_pole.state());
    for (std::size_t k = 0; k < 4; ++k) {
      REQUIRE(observation[k] == static_cast<float>(state[k]));
      sum[k] += state[k];
      sum_of_squares[k] += state[k] * state[k];
      low[k] = std::min(low[k], state[k]);
      high[k] = std::max(high[k], state[k]);
    }
  }
  const double variance = 0.1 * 0.1 / 12;
  for (std::size_t k = 0; k < 4; ++k) {
    CAPTURE(k);
    CHECK(std::abs(sum[k] / kStarts) < 5 * std::sqrt(variance / kStarts));
    CHECK(std::abs(sum_of_squares[k] / kStarts / variance - 1) < 0.04);  // 6 standard errors
    CHECK(low[k] >= -0.05);
    CHECK(low[k] < -0.0499);
    CHECK(high[k] < 0.05);
    CHECK(high[k] > 0.0499);
  }
}

TEST_CASE("the limits themselves are still allowed, anything beyond them terminates with the reward of 1") {
  CartPole cart_pole;
  Observation observation{};
  cart_pole.reset(0, observation);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double sign : {-1.0, 1.0}) {
    const double position = sign * CartPole::kPositionLimit, angle = sign * CartPole::kAngleLimit;
    // Without velocity, a step changes neither position nor angle.
    cart_pole.set_state({.position = position});
    CHECK(cart_pole.step(0, observation) == env::StepResult{1, false, false});
    cart_pole.set_state({.position = std::nextafter(position, sign * kInfinity)});
    CHECK(cart_pole.step(0, observation) == env::StepResult{1, true, false});
    cart_pole.set_state({.angle = angle});
    CHECK(cart_pole.step(0, observation) == env::StepResult{1, false, false});
    cart_pole.set_state({.angle = std::nextafter(angle, sign * kInfinity)});
    CHECK(cart_pole.step(0, observation) == env::StepResult{1, true, false});
  }
}

TEST_CASE("step 500 truncates, unless it terminates") {
  for (const bool falls : {false, true}) {
    CAPTURE(falls);
    CartPole cart_pole;
    Observation observation{};
    cart_pole.reset(0, observation);
    for (int t = 1; t < 500; ++t) {
      cart_pole.set_state({});
      REQUIRE(cart_pole.step(t % 2, observation) == env::StepResult{1, false, false});
    }
    cart_pole.set_state({.angle = falls ? 1.0 : 0.0});
    CHECK(cart_pole.step(0, observation) == env::StepResult{1, falls, !falls});
    CHECK(cart_pole.steps() == 500);
    cart_pole.reset(1, observation);
    CHECK(cart_pole.step(0, observation) == env::StepResult{1, false, false});
  }
}

TEST_CASE("an action other than 0 and 1 is refused and changes nothing") {
  CartPole cart_pole;
  Observation observation{}, before{};
  cart_pole.reset(3, observation);
  before = observation;
  const CartPole::State state = cart_pole.state();
  for (const std::int32_t action : {-1, 2, INT32_MIN, INT32_MAX})
    CHECK_THROWS_AS(cart_pole.step(action, observation), InvalidArgument);
  CHECK(observation == before);
  CHECK(cart_pole.state() == state);
  CHECK(cart_pole.steps() == 0);
  CHECK_THROWS_WITH(cart_pole.step(2, observation),
                    "action: 2 is not allowed; expected an integer from 0 to 1");
}
