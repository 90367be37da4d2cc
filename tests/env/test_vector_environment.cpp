#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/env/cart_pole.hpp>
#include <troop/env/environment.hpp>
#include <troop/env/vector_environment.hpp>

#include "allocation_counter.hpp"
#include "scripted_environment.hpp"

using namespace troop;
using env::CartPole;
using env::Episode;
using env::VectorEnvironment;
using env::VectorOptions;
using testing::Ending;
using testing::ScriptedEnvironment;
using testing::ScriptedEpisode;

namespace {

using Scripted = ScriptedEnvironment<float>;

/// A vector of scripted environments, all with the same script.
template <class S = float>
VectorEnvironment<ScriptedEnvironment<S>> scripted(std::size_t count,
                                                   const std::vector<ScriptedEpisode>& script) {
  return {VectorOptions{.count = count}, [&](std::uint64_t) { return ScriptedEnvironment<S>(script); }};
}

template <class S>
std::vector<S> to_vector(std::span<const S> values) {
  return {values.begin(), values.end()};
}

std::vector<float> to_vector(const Scripted::Observation& values) {
  return {values.begin(), values.end()};
}

/// All that a CartPole of index `index` in the run shows in `steps` steps, when `count` of them live in one
/// vector from `first_index` on.
std::vector<float> history(std::uint64_t seed, std::size_t count, std::uint64_t first_index,
                           std::uint64_t index, int steps, const std::string& stream = "environment") {
  VectorEnvironment<CartPole> environments(
      {.count = count, .seed = seed, .stream = stream, .first_index = first_index});
  std::vector<Random> policies;
  for (std::size_t i = 0; i < count; ++i) policies.emplace_back(0, "policy", first_index + i);
  std::vector<std::int32_t> actions(count);
  const std::size_t row = index - first_index;
  std::vector<float> history = to_vector(environments.observations().row_span(row));
  for (int t = 0; t < steps; ++t) {
    for (std::size_t i = 0; i < count; ++i) actions[i] = static_cast<std::int32_t>(policies[i].below(2));
    environments.step(actions);
    for (const float value : environments.observations().row_span(row)) history.push_back(value);
    for (const float value : environments.next_observation(row)) history.push_back(value);
    history.push_back(environments.terminated()[row]);
  }
  return history;
}

}  // namespace

TEST_CASE("after construction the first observations are there and nothing has happened") {
  VectorEnvironment<CartPole> environments({.count = 3, .seed = 1});
  CHECK(environments.size() == 3);
  CHECK(environments.spec().name == "CartPole-v1");
  REQUIRE(environments.observations().rows() == 3);
  REQUIRE(environments.observations().columns() == 4);
  CHECK(environments.observations().is_contiguous());
  CHECK(environments.finished_episodes().empty());
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(environments.observations()(i, 0) ==
          static_cast<float>(environments.environment(i).state().position));
    CHECK(environments.next_observation(i).data() == environments.observations().row(i));
    CHECK(environments.rewards()[i] == 0);
    CHECK(environments.terminated()[i] == 0);
    CHECK(environments.truncated()[i] == 0);
  }
  CHECK(environments.observations()(0, 0) != environments.observations()(1, 0));
}

TEST_CASE("episodes of every length begin, end and are reported as scripted") {
  const std::array<std::uint32_t, 5> lengths{1, 2, 3, 7, 20};
  const std::vector<ScriptedEpisode> script{{lengths[0], Ending::terminated},
                                            {lengths[1], Ending::truncated},
                                            {lengths[2], Ending::truncated},
                                            {lengths[3], Ending::terminated},
                                            {lengths[4], Ending::truncated}};
  auto environments = scripted(1, script);
  for (std::size_t episode = 0; episode < 2 * script.size(); ++episode) {
    const ScriptedEpisode& line = script[episode % script.size()];
    double sum = 0;
    for (std::size_t t = 1; t <= line.length; ++t) {
      CAPTURE(episode);
      CAPTURE(t);
      const bool last = t == line.length;
      const auto action = static_cast<std::int32_t>(t % 3);
      environments.step(std::array{action});
      sum += static_cast<double>(Scripted::reward(episode, t));

      REQUIRE(environments.rewards()[0] == Scripted::reward(episode, t));
      REQUIRE(environments.terminated()[0] == (last && line.ending == Ending::terminated));
      REQUIRE(environments.truncated()[0] == (last && line.ending == Ending::truncated));
      REQUIRE(to_vector(environments.next_observation(0)) ==
              to_vector(Scripted::observation(episode, t, action)));
      REQUIRE(to_vector(std::span<const float>(environments.observations().row_span(0))) ==
              to_vector(last ? Scripted::observation(episode + 1, 0)
                             : Scripted::observation(episode, t, action)));
      REQUIRE(environments.finished_episodes().size() == (last ? 1 : 0));
      if (last) REQUIRE(environments.finished_episodes()[0] == Episode{0, sum, line.length});
    }
  }
}

TEST_CASE("environments of one vector end at different steps and do not disturb each other") {
  const auto make = [](std::uint64_t index) {
    return Scripted{{.length = static_cast<std::uint32_t>(index)}};
  };
  VectorEnvironment<Scripted> environments({.count = 3, .first_index = 2}, make);  // lengths 2, 3 and 4
  for (std::size_t t = 1; t <= 24; ++t) {
    CAPTURE(t);
    environments.step(std::array<std::int32_t, 3>{0, 1, 2});
    std::vector<Episode> expected;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t length = i + 2, episode = (t - 1) / length, step = (t - 1) % length + 1;
      REQUIRE(environments.rewards()[i] == Scripted::reward(episode, step));
      REQUIRE(to_vector(environments.next_observation(i)) ==
              to_vector(Scripted::observation(episode, step, static_cast<std::int32_t>(i))));
      if (step != length) continue;
      double sum = 0;
      for (std::size_t k = 1; k <= length; ++k) sum += static_cast<double>(Scripted::reward(episode, k));
      expected.push_back({i, sum, length});
    }
    const auto finished = environments.finished_episodes();
    REQUIRE(std::vector<Episode>(finished.begin(), finished.end()) == expected);
  }
}

TEST_CASE("an episode both terminated and truncated counts as terminated") {
  auto environments = scripted(1, {{.length = 1, .ending = Ending::both}});
  environments.step(std::array{0});
  CHECK(environments.terminated()[0] == 1);
  CHECK(environments.truncated()[0] == 0);
  CHECK(environments.finished_episodes().size() == 1);
}

TEST_CASE("observations of bytes work like those of floats") {
  using Bytes = ScriptedEnvironment<std::uint8_t>;
  auto environments = scripted<std::uint8_t>(2, {{.length = 2, .ending = Ending::truncated}});
  environments.step(std::array{1, 2});
  CHECK(std::ranges::equal(environments.next_observation(1), Bytes::observation(0, 1, 2)));
  environments.step(std::array{1, 2});
  CHECK(std::ranges::equal(environments.next_observation(0), Bytes::observation(0, 2, 1)));
  CHECK(std::ranges::equal(environments.observations().row_span(0), Bytes::observation(1, 0)));
  CHECK(environments.truncated()[0] == 1);
  CHECK(environments.observations().is_contiguous());
}

TEST_CASE("reset abandons the running episodes without reporting them") {
  auto environments = scripted(2, {{.length = 3}});
  environments.step(std::array{0, 0});
  environments.reset();
  CHECK(environments.finished_episodes().empty());
  CHECK(environments.rewards()[0] == 0);
  CHECK(std::ranges::equal(environments.next_observation(1), Scripted::observation(1, 0)));
  for (int t = 0; t < 3; ++t) environments.step(std::array{0, 0});
  REQUIRE(environments.finished_episodes().size() == 2);
  CHECK(environments.finished_episodes()[0] == Episode{0, 101 + 102 + 103, 3});
  environments.reset();
  CHECK(environments.terminated()[0] == 0);
  CHECK(environments.next_observation(0).data() == environments.observations().row(0));
}

TEST_CASE("each environment draws its seeds from the stream of its index in the run") {
  auto environments =
      VectorEnvironment<Scripted>({.count = 2, .seed = 9, .stream = "evaluation", .first_index = 4},
                                  [](std::uint64_t) { return Scripted{{.length = 1}}; });
  for (int t = 0; t < 3; ++t) environments.step(std::array{0, 0});
  for (std::size_t i = 0; i < 2; ++i) {
    Random stream(9, "evaluation", 4 + i);
    for (const std::uint64_t seed : environments.environment(i).seeds()) CHECK(seed == stream());
    CHECK(environments.environment(i).seeds().size() == 4);
  }
}

TEST_CASE("what an environment does depends on its index, not on how many others there are") {
  const auto alone = history(3, 1, 5, 5, 200);
  CHECK(alone == history(3, 1, 5, 5, 200));
  CHECK(alone == history(3, 6, 0, 5, 200));
  CHECK(alone == history(3, 256, 0, 5, 200));
  CHECK(alone == history(3, 3, 4, 5, 200));
}

TEST_CASE("another seed, another stream and another index each give another run") {
  const auto run = history(3, 1, 0, 0, 50);
  CHECK(run != history(4, 1, 0, 0, 50));
  CHECK(run != history(3, 1, 0, 0, 50, "evaluation"));
  CHECK(run != history(3, 2, 0, 1, 50));
}

TEST_CASE("a vector of CartPoles is the same as CartPoles stepped and reset by hand") {
  VectorEnvironment<CartPole> environments({.count = 4, .seed = 2});
  std::array<CartPole, 4> by_hand;
  std::array<std::array<float, 4>, 4> observations{};
  std::vector<Random> streams;
  for (std::size_t i = 0; i < 4; ++i) {
    streams.emplace_back(2, "environment", i);
    by_hand[i].reset(streams[i](), observations[i]);
  }
  Random policy(1);
  std::size_t finished = 0;
  for (int t = 0; t < 300; ++t) {
    std::array<std::int32_t, 4> actions{};
    for (auto& action : actions) action = static_cast<std::int32_t>(policy.below(2));
    environments.step(actions);
    finished += environments.finished_episodes().size();
    for (std::size_t i = 0; i < 4; ++i) {
      const auto result = by_hand[i].step(actions[i], observations[i]);
      REQUIRE(std::ranges::equal(environments.next_observation(i), observations[i]));
      REQUIRE(environments.terminated()[i] == result.terminated);
      if (result.terminated) by_hand[i].reset(streams[i](), observations[i]);
      REQUIRE(std::ranges::equal(environments.observations().row_span(i), observations[i]));
    }
  }
  CHECK(finished > 20);
}

TEST_CASE("an episode is truncated after the spec's most steps although its environment would go on") {
  struct Limited : Scripted {
    using Scripted::Scripted;
    env::Spec spec() const {
      env::Spec spec = Scripted::spec();
      spec.max_episode_steps = 5;
      return spec;
    }
  };
  const auto make = [](std::uint64_t) {
    return Limited{{.length = 1000},  // cut off
                   {.length = 3, .ending = Ending::truncated},
                   {.length = 5, .ending = Ending::terminated},  // an end of its own in the last step counts
                   {.length = 5, .ending = Ending::truncated}};  // truncated by both, once
  };
  VectorEnvironment<Limited> environments({.count = 1}, make);
  const std::array<std::size_t, 4> lengths{5, 3, 5, 5};
  for (std::size_t episode = 0; episode < 8; ++episode) {
    for (std::size_t t = 1; t <= lengths[episode % 4]; ++t) {
      CAPTURE(episode);
      CAPTURE(t);
      environments.step(std::array{1});
      const bool last = t == lengths[episode % 4], terminated = last && episode % 4 == 2;
      REQUIRE(environments.terminated()[0] == terminated);
      REQUIRE(environments.truncated()[0] == (last && !terminated));
      REQUIRE(std::ranges::equal(environments.next_observation(0), Scripted::observation(episode, t, 1)));
      if (!last) continue;
      REQUIRE(environments.finished_episodes().size() == 1);
      REQUIRE(environments.finished_episodes()[0].length == t);
      REQUIRE(
          std::ranges::equal(environments.observations().row_span(0), Scripted::observation(episode + 1, 0)));
    }
  }
}

TEST_CASE("a CartPole that is held upright is truncated every 500 steps, and once each time") {
  VectorEnvironment<CartPole> environments({.count = 1});
  for (int t = 1; t <= 2000; ++t) {
    environments.environment(0).set_state({});
    environments.step(std::array{t % 2});
    REQUIRE(environments.truncated()[0] == (t % 500 == 0));
    REQUIRE(environments.environment(0).steps() == static_cast<std::uint32_t>(t % 500));
  }
}

TEST_CASE("numbers that are not finite are refused with environment, step and place") {
  struct Broken : CartPole {
    env::StepResult step(std::int32_t action, std::span<float> observation) {
      env::StepResult result = CartPole::step(action, observation);
      if (steps() == at) result.terminated = ending;
      if (steps() == at) *(in_reward ? &result.reward : &observation[2]) = value;
      return result;
    }
    void reset(std::uint64_t seed, std::span<float> observation) {
      CartPole::reset(seed, observation);
      if (at == 0) observation[3] = value;
    }
    std::uint32_t at = 3;
    bool in_reward = false, ending = false;
    float value = std::numeric_limits<float>::quiet_NaN();
  };
  Broken broken;
  const auto make = [&](std::uint64_t index) { return index == 11 ? broken : Broken{{}, 99}; };
  const auto play = [&](const char* stream) {
    VectorEnvironment<Broken> environments({.count = 4, .stream = stream, .first_index = 8}, make);
    for (int t = 0; t < 8; ++t) environments.step(std::array{0, 0, 0, t % 2});
  };
  CHECK_THROWS_WITH_AS(play("environment"),
                       "CartPole-v1, environment 11, step 3 of its episode: observation[2]: nan is not "
                       "allowed; expected a finite number",
                       InvalidArgument);
  broken.value = -std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH_AS(play("evaluation"),
                       "CartPole-v1, evaluation 11, step 3 of its episode: observation[2]: -inf is not "
                       "allowed; expected a finite number",
                       InvalidArgument);
  broken.in_reward = true;
  CHECK_THROWS_WITH_AS(play("environment"),
                       "CartPole-v1, environment 11, step 3 of its episode: reward: -inf is not allowed; "
                       "expected a finite number",
                       InvalidArgument);
  broken.ending = true;
  CHECK_THROWS_WITH_AS(play("environment"),
                       "CartPole-v1, environment 11, step 3 of its episode: reward: -inf is not allowed; "
                       "expected a finite number",
                       InvalidArgument);
  broken.in_reward = false;
  CHECK_THROWS_WITH_AS(play("environment"),
                       "CartPole-v1, environment 11, step 3 of its episode: observation[2]: -inf is not "
                       "allowed; expected a finite number",
                       InvalidArgument);
  broken.at = 0;
  CHECK_THROWS_WITH_AS(play("environment"),
                       "CartPole-v1, environment 11, step 0 of its episode: observation[3]: -inf is not "
                       "allowed; expected a finite number",
                       InvalidArgument);
  broken = {{}, 3, false, false, std::numeric_limits<float>::max()};
  CHECK_NOTHROW(play("environment"));
}

TEST_CASE("an environment's own error is passed on with environment and step, in a step and in a reset") {
  struct Failing : CartPole {
    env::StepResult step(std::int32_t action, std::span<float> observation) {
      if (steps() == 2) throw Error("the motor is broken");
      return CartPole::step(action, observation);
    }
    void reset(std::uint64_t seed, std::span<float> observation) {
      if (broken) throw Error("the cart is gone");
      CartPole::reset(seed, observation);
    }
    bool broken = false;
  };
  VectorEnvironment<Failing> environments({.count = 2, .first_index = 4});
  environments.environment(0).broken = true;
  CHECK_THROWS_WITH_AS(environments.reset(),
                       "CartPole-v1, environment 4, step 0 of its episode: the cart is gone", Error);
  environments.environment(0).broken = false;
  environments.reset();
  environments.step(std::array{0, 0});
  environments.step(std::array{0, 0});
  CHECK_THROWS_WITH_AS(environments.step(std::array{0, 0}),
                       "CartPole-v1, environment 4, step 3 of its episode: the motor is broken", Error);
}

TEST_CASE("wrong actions are refused before any environment has moved") {
  auto environments = scripted(3, {{.length = 5}});
  CHECK_THROWS_WITH(environments.step(std::array<std::int32_t, 3>{0, 1, 3}),
                    "actions[2]: 3 is not allowed; expected an integer from 0 to 2");
  CHECK_THROWS_WITH(environments.step(std::array<std::int32_t, 3>{0, -1, 7}),
                    "actions[1]: -1 is not allowed; expected an integer from 0 to 2");
  CHECK_THROWS_WITH(environments.step(std::array<std::int32_t, 2>{0, 1}),
                    "actions.size(): 2 is not allowed; expected the number of environments, 3");
  CHECK_THROWS_AS(environments.step({}), InvalidArgument);
  environments.step(std::array<std::int32_t, 3>{0, 1, 2});
  for (std::size_t i = 0; i < 3; ++i) CHECK(environments.rewards()[i] == Scripted::reward(0, 1));
}

TEST_CASE("a vector without environments is refused") {
  CHECK_THROWS_WITH(VectorEnvironment<CartPole>({.count = 0}),
                    "count: 0 is not allowed; expected at least 1");
}

TEST_CASE("a spec that contradicts the environment's type is refused") {
  struct Liar : CartPole {
    env::Spec description;
    const env::Spec& spec() const { return description; }
  };
  Liar liar;
  liar.description = liar.CartPole::spec();
  const auto make = [&](std::uint64_t index) {
    Liar copy = liar;
    if (index == 1) copy.description.observation_shape = {1, 4};
    if (index == 7) copy.description.max_episode_steps = 9;
    return copy;
  };
  CHECK_THROWS_WITH(
      VectorEnvironment<Liar>({.count = 2}, make),
      "environments[1].spec: observation f32[1,4] is not allowed; expected observation f32[4], as in "
      "environments[0]");
  CHECK_THROWS_WITH(
      VectorEnvironment<Liar>({.count = 2, .first_index = 6}, make),
      "environments[1].spec.max_episode_steps: 9 is not allowed; expected 500, as in environments[0]");
  CHECK_NOTHROW(VectorEnvironment<Liar>({.count = 1}, make));
  liar.description.observation_dtype = DType::u8;
  CHECK_THROWS_WITH(
      VectorEnvironment<Liar>({.count = 1}, make),
      "CartPole-v1.observation_dtype: u8 is not allowed; expected f32, the dtype of its Scalar");
  liar.description.observation_dtype = DType::f32;
  liar.description.observation_shape = {4, 0};
  CHECK_THROWS_AS(VectorEnvironment<Liar>({.count = 1}, make), InvalidArgument);
}

TEST_CASE("step does not allocate, also where episodes end") {
  VectorEnvironment<CartPole> environments({.count = 16, .seed = 1});
  const std::vector<std::int32_t> actions(16, 1);
  std::size_t finished = 0;
  const std::size_t allocations = testing::allocations_in([&] {
    for (int t = 0; t < 100; ++t) {
      environments.step(actions);
      finished += environments.finished_episodes().size();
    }
  });
  CHECK(allocations == 0);
  CHECK(finished > 100);
}
