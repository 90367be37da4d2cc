#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/n_step.hpp>

#include "testing.hpp"

using troop::EnvironmentStep;
using troop::NStep;
using troop::NStepItem;
using troop::NStepOptions;
using troop::Random;

namespace {

enum class End { terminated, truncated, both };

struct Item {
  std::vector<int> observation, next_observation;
  std::int32_t action;
  float reward, discount, action_value;
};

/// An episode whose every number tells environment, episode and step apart.
struct Episode {
  Episode(int environment_index, int number, std::size_t num_steps, End ends_by, Random& random)
      : environment(environment_index), episode(number), length(num_steps), end(ends_by) {
    for (std::size_t t = 0; t < length; ++t) rewards.push_back(static_cast<float>(random.uniform(-2.0, 2.0)));
  }

  std::vector<int> observation(std::size_t t) const { return {environment, episode, static_cast<int>(t)}; }
  std::int32_t action(std::size_t t) const {
    return environment * 10000 + episode * 100 + static_cast<int>(t);
  }
  float action_value(std::size_t t) const { return static_cast<float>(action(t)) + 0.5f; }

  int environment, episode;
  std::size_t length;
  End end;
  std::vector<float> rewards;
};

class Collector {
 public:
  Collector(NStep<int>& n_step, std::size_t num_environments) : items(num_environments), n_step_(n_step) {}

  /// Step `t` of an episode, from memory that is overwritten afterwards.
  void step(const Episode& episode, std::size_t t) {
    auto now = episode.observation(t), next = episode.observation(t + 1);
    const bool last = t + 1 == episode.length;
    EnvironmentStep<int> step;
    step.observation = now;
    step.action = episode.action(t);
    step.reward = episode.rewards[t];
    step.terminated = last && episode.end != End::truncated;
    step.truncated = last && episode.end != End::terminated;
    step.next_observation = next;
    step.action_value = episode.action_value(t);
    const auto index = static_cast<std::size_t>(episode.environment);
    n_step_.add(index, step, [&](const NStepItem<int>& item) {
      items[index].push_back({{item.observation.begin(), item.observation.end()},
                              {item.next_observation.begin(), item.next_observation.end()},
                              item.action,
                              item.reward,
                              item.discount,
                              item.action_value});
    });
    std::fill(now.begin(), now.end(), -1);
    std::fill(next.begin(), next.end(), -1);
  }

  std::vector<std::vector<Item>> items;

 private:
  NStep<int>& n_step_;
};

/// The item that begins at step `t`, from its definition.
void check_item(const Item& item, const Episode& episode, std::size_t t, std::size_t n, double gamma) {
  CAPTURE(t);
  const std::size_t steps = std::min(n, episode.length - t);
  double total = 0.0;
  for (std::size_t k = 0; k < steps; ++k)
    total += std::pow(gamma, static_cast<double>(k)) * static_cast<double>(episode.rewards[t + k]);
  const bool reaches_end = t + steps == episode.length;
  const double discount =
      reaches_end && episode.end != End::truncated ? 0.0 : std::pow(gamma, static_cast<double>(steps));
  CHECK(item.observation == episode.observation(t));
  CHECK(item.action == episode.action(t));
  CHECK(item.action_value == episode.action_value(t));
  CHECK(item.reward == doctest::Approx(total).epsilon(1e-6).scale(1.0));
  CHECK(item.discount == static_cast<float>(discount));
  CHECK(item.next_observation == episode.observation(t + steps));
}

EnvironmentStep<int> plain_step(const std::array<int, 1>& observation, const std::array<int, 1>& next) {
  EnvironmentStep<int> step;
  step.observation = observation;
  step.next_observation = next;
  step.reward = 1.0f;
  return step;
}

}  // namespace

TEST_CASE("every step of every episode gives one item, in order, with return, discount and bootstrap") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t n : {1u, 3u, 5u}) {
    for (const double gamma : {0.0, 0.9, 0.99, 1.0}) {
      for (const std::size_t length : {1u, 2u, 3u, 7u, 20u}) {
        for (const End end : {End::terminated, End::truncated, End::both}) {
          CAPTURE(n);
          CAPTURE(gamma);
          CAPTURE(length);
          CAPTURE(static_cast<int>(end));
          Random random(seed, "episodes", length);
          NStep<int> n_step(1, 3, {.n = n, .gamma = gamma});
          Collector collector(n_step, 1);
          for (int number = 0; number < 2; ++number) {  // the second must not see the first
            collector.items[0].clear();
            const Episode episode(0, number, length, end, random);
            for (std::size_t t = 0; t < length; ++t) {
              collector.step(episode, t);
              const std::size_t emitted = t + 1 == length ? length : t + 1 - std::min(n - 1, t + 1);
              CHECK(collector.items[0].size() == emitted);
              CHECK(n_step.pending(0) == t + 1 - emitted);
            }
            for (std::size_t t = 0; t < length; ++t) check_item(collector.items[0][t], episode, t, n, gamma);
          }
        }
      }
    }
  }
}

TEST_CASE("interleaved environments do not see each other") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  constexpr std::size_t kEnvironments = 5, kLengths[] = {1, 2, 3, 7, 20};
  for (const std::size_t n : {1u, 3u, 5u}) {
    CAPTURE(n);
    Random random(seed, "interleaved", n);
    NStep<int> n_step(kEnvironments, 3, {.n = n, .gamma = 0.97});
    CHECK(n_step.num_environments() == kEnvironments);
    Collector collector(n_step, kEnvironments);
    std::vector<std::vector<Episode>> played(kEnvironments);
    std::vector<std::size_t> at(kEnvironments, 0);
    for (int step = 0; step < 600; ++step) {
      const std::size_t i = random.below(kEnvironments);
      if (played[i].empty() || at[i] == played[i].back().length) {
        played[i].emplace_back(static_cast<int>(i), static_cast<int>(played[i].size()),
                               kLengths[random.below(5)], static_cast<End>(random.below(3)), random);
        at[i] = 0;
      }
      collector.step(played[i].back(), at[i]++);
    }
    for (std::size_t i = 0; i < kEnvironments; ++i) {
      CAPTURE(i);
      std::size_t next = 0;
      for (std::size_t e = 0; e < played[i].size(); ++e) {
        const bool finished = e + 1 < played[i].size() || at[i] == played[i][e].length;
        const std::size_t items = finished ? played[i][e].length : at[i] - n_step.pending(i);
        for (std::size_t t = 0; t < items; ++t, ++next) {
          REQUIRE(next < collector.items[i].size());
          check_item(collector.items[i][next], played[i][e], t, n, 0.97);
        }
      }
      CHECK(next == collector.items[i].size());
    }
  }
}

TEST_CASE("clearing forgets the pending steps of one environment only") {
  Random random(1);
  NStep<int> n_step(2, 3, {.n = 3, .gamma = 0.5});
  Collector collector(n_step, 2);
  const Episode first(0, 0, 10, End::terminated, random), other(1, 0, 10, End::terminated, random);
  for (std::size_t t = 0; t < 2; ++t) {
    collector.step(first, t);
    collector.step(other, t);
  }
  n_step.clear(0);
  CHECK(n_step.pending(0) == 0);
  CHECK(n_step.pending(1) == 2);
  const Episode second(0, 1, 4, End::truncated, random);
  for (std::size_t t = 0; t < 4; ++t) collector.step(second, t);
  REQUIRE(collector.items[0].size() == 4);
  for (std::size_t t = 0; t < 4; ++t) check_item(collector.items[0][t], second, t, 3, 0.5);
  collector.step(other, 2);
  REQUIRE(collector.items[1].size() == 1);
  check_item(collector.items[1][0], other, 0, 3, 0.5);
}

TEST_CASE("an item whose receiver throws is lost, the others are not, and episodes stay apart") {
  const std::array<int, 1> a{1}, b{2};
  NStep<int> n_step(1, 1, {.n = 2, .gamma = 1.0});
  std::vector<float> returns;
  bool broken = false;
  const auto receive = [&](const NStepItem<int>& item) {
    if (broken) throw std::runtime_error("no room");
    returns.push_back(item.reward);
  };
  auto step = plain_step(a, b);
  n_step.add(0, step, receive);
  broken = true;
  CHECK_THROWS_AS(n_step.add(0, step, receive), std::runtime_error);
  CHECK(n_step.pending(0) == 1);
  broken = false;
  for (int i = 0; i < 5; ++i) n_step.add(0, step, receive);
  CHECK(returns == std::vector<float>(5, 2.0f));
  CHECK(n_step.pending(0) == 1);

  returns.clear();
  broken = true;
  step.terminated = true;
  CHECK_THROWS_AS(n_step.add(0, step, receive), std::runtime_error);
  CHECK(n_step.pending(0) == 0);
  broken = false;
  step.reward = 16.0f;
  n_step.add(0, step, receive);
  CHECK(returns == std::vector<float>{16.0f});
}

TEST_CASE("a long return is summed without losing small rewards") {
  const std::array<int, 1> a{1}, b{2};
  NStep<int> n_step(1, 1, {.n = 1000, .gamma = 1.0});
  auto step = plain_step(a, b);
  step.reward = 16777216.0f;  // to which a float cannot add 1
  std::vector<float> returns;
  const auto receive = [&](const NStepItem<int>& item) { returns.push_back(item.reward); };
  n_step.add(0, step, receive);
  step.reward = 1.0f;
  for (int i = 0; i < 999; ++i) n_step.add(0, step, receive);
  REQUIRE(returns.size() == 1);
  CHECK(returns[0] == static_cast<float>(16777216.0 + 999.0));
}

TEST_CASE("bad options are refused by name") {
  const auto message = [](const NStepOptions& options, std::size_t environments, std::size_t size) {
    try {
      const NStep<float> n_step(environments, size, options);
    } catch (const troop::InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  CHECK(message({.n = 0}, 1, 1) == "n_step: 0 is not allowed; expected an integer from 1 to 1000");
  CHECK(message({.n = 1001}, 1, 1) == "n_step: 1001 is not allowed; expected an integer from 1 to 1000");
  CHECK(message({.gamma = -0.1}, 1, 1) == "gamma: -0.1 is not allowed; expected a number from 0 to 1");
  CHECK(message({.gamma = 1.01}, 1, 1) == "gamma: 1.01 is not allowed; expected a number from 0 to 1");
  CHECK(message({.gamma = std::numeric_limits<double>::quiet_NaN()}, 1, 1) ==
        "gamma: nan is not allowed; expected a number from 0 to 1");
  CHECK(message({}, 0, 1) == "num_environments: 0 is not allowed; expected a positive integer");
  CHECK(message({}, 1, 0) == "observation_size: 0 is not allowed; expected an integer from 1 to 2^30");
  CHECK(message({}, 1, ~std::size_t{0}) ==
        "observation_size: 18446744073709551615 is not allowed; expected an integer from 1 to 2^30");
  CHECK(message({.n = 1000, .gamma = 0.0}, 1, 1) == "nothing was thrown");
}
