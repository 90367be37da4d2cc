#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <troop/agent/actor.hpp>
#include <troop/env/vector_environment.hpp>

#include "scripted_environment.hpp"
#include "table_network.hpp"

namespace {

using troop::Outcome;
using troop::agent::Actor;
using troop::agent::ActorOptions;
using troop::agent::ParameterStore;
using troop::testing::Ending;
using troop::testing::ScriptedEnvironment;
using troop::testing::ScriptedEpisode;
using troop::testing::TableNetwork;
using Environments = troop::env::VectorEnvironment<ScriptedEnvironment<float>>;

struct Transition {
  std::array<float, 3> observation;
  std::int32_t action;
  float reward;
  float discount;
  std::array<float, 3> next_observation;
};

/// Keeps everything, and can refuse.
struct RecordingSink {
  Outcome insert(const troop::BatchView& records, std::span<const float> given, troop::Deadline) {
    if (answer != Outcome::ok) return answer;
    records.layout().require_equal(troop::RecordLayout::of<Transition>());
    batches.push_back(records.size());
    const auto* first = reinterpret_cast<const Transition*>(records.data());
    items.insert(items.end(), first, first + records.size());
    priorities.insert(priorities.end(), given.begin(), given.end());
    return Outcome::ok;
  }
  Outcome answer = Outcome::ok;
  std::vector<std::size_t> batches;
  std::vector<Transition> items;
  std::vector<float> priorities;
};

Environments scripted(std::vector<ScriptedEpisode> script, std::size_t count = 1) {
  return Environments({.count = count},
                      [script](std::uint64_t) { return ScriptedEnvironment<float>(script); });
}

/// The script of the n-step contract: lengths 1, 2, 3, 7, 20, each terminated and truncated.
std::vector<ScriptedEpisode> all_lengths() {
  std::vector<ScriptedEpisode> script;
  for (const Ending ending : {Ending::terminated, Ending::truncated, Ending::both}) {
    for (const std::uint32_t length : {1u, 2u, 3u, 7u, 20u}) script.push_back({length, ending});
  }
  return script;
}

struct Expected {
  Transition item;
  float priority;
};

/// What an actor must make of `steps` steps of the script, from the definition: for each step of each episode
/// one item. `action_at(e, t)` is what was done in step t (from 1) of episode e. Items whose bootstrap
/// observation was not reached within the steps are left out.
template <class ActionAt>
std::vector<Expected> expected_items(const std::vector<ScriptedEpisode>& script, std::size_t steps,
                                     std::size_t n, double gamma, ActionAt action_at) {
  using Scripted = ScriptedEnvironment<float>;
  std::vector<Expected> result;
  for (std::size_t e = 0, made = 0; made < steps; made += script[e % script.size()].length, ++e) {
    const ScriptedEpisode& line = script[e % script.size()];
    const auto observation = [&](std::size_t t) {
      return t == 0 ? Scripted::observation(e, 0) : Scripted::observation(e, t, action_at(e, t));
    };
    const std::size_t lived = std::min<std::size_t>(line.length, steps - made);
    for (std::size_t t = 1; t <= lived; ++t) {
      const std::size_t last = std::min<std::size_t>(t + n - 1, line.length);
      if (last > lived) continue;
      const bool terminated = last == line.length && line.ending != Ending::truncated;
      double total = 0.0;
      for (std::size_t k = t; k <= last; ++k)
        total += std::pow(gamma, static_cast<double>(k - t)) * static_cast<double>(Scripted::reward(e, k));
      const std::int32_t action = action_at(e, t);
      const Transition item{
          observation(t - 1), action, static_cast<float>(total),
          terminated ? 0.0f : static_cast<float>(std::pow(gamma, static_cast<double>(last - t + 1))),
          observation(last)};
      const float q = TableNetwork::value(item.observation, static_cast<std::size_t>(action));
      const float bootstrap =
          terminated ? 0.0f : item.discount * TableNetwork::largest(item.next_observation);
      result.push_back({item, std::abs(item.reward + bootstrap - q)});
    }
  }
  return result;
}

std::int32_t greedy_action(std::size_t, std::size_t t) {
  const std::size_t s = t - 1;  // steps made before
  for (std::int32_t a = 0; a < 3; ++a) {
    if ((s + static_cast<std::size_t>(a)) % 3 == 2) return a;
  }
  return -1;
}

void check_equal(const Transition& a, const Transition& b) {
  CHECK(a.observation == b.observation);
  CHECK(a.action == b.action);
  CHECK(a.reward == doctest::Approx(b.reward).epsilon(1e-6));
  CHECK(a.discount == doctest::Approx(b.discount).epsilon(1e-6));
  CHECK(a.next_observation == b.next_observation);
}

}  // namespace

TEST_CASE(
    "every step of every episode gives one item with the right return, discount, bootstrap observation and "
    "priority") {
  const auto script = all_lengths();
  std::size_t steps = 0;
  for (const auto& line : script) steps += line.length;
  for (const std::size_t n : {1u, 3u, 5u}) {
    CAPTURE(n);
    RecordingSink sink;
    ParameterStore parameters;
    Actor actor(scripted(script), TableNetwork(), sink, parameters,
                ActorOptions{.n_step = {.n = n, .gamma = 0.9},
                             .epsilon = {.base = 0.0},
                             .batch_size = 7,
                             .priority_epsilon = 0.0});
    for (std::size_t k = 0; k < steps; ++k) REQUIRE(actor.step() == Outcome::ok);
    REQUIRE(actor.finish() == Outcome::ok);
    const auto expected = expected_items(script, steps, n, 0.9, greedy_action);
    REQUIRE(expected.size() == steps);
    REQUIRE(sink.items.size() == steps);
    for (std::size_t i = 0; i < steps; ++i) {
      CAPTURE(i);
      check_equal(sink.items[i], expected[i].item);
      CHECK(sink.priorities[i] == doctest::Approx(expected[i].priority).epsilon(1e-5));
    }
    CHECK(actor.statistics().steps == steps);
    CHECK(actor.statistics().items == steps);
    CHECK(actor.statistics().episodes == script.size());
  }
}

TEST_CASE("items of several environments carry each environment's own history") {
  const std::vector<ScriptedEpisode> script{{3}, {2, Ending::truncated}, {5}};
  RecordingSink sink;
  ParameterStore parameters;
  Actor actor(scripted(script, 4), TableNetwork(), sink, parameters,
              ActorOptions{
                  .epsilon = {.base = 0.0}, .num_environments = 4, .batch_size = 1, .priority_epsilon = 0.0});
  for (int k = 0; k < 10; ++k) REQUIRE(actor.step() == Outcome::ok);
  REQUIRE(actor.finish() == Outcome::ok);
  const auto expected = expected_items(script, 10, 3, 0.99, greedy_action);
  REQUIRE(sink.items.size() == 4 * expected.size());
  for (const Expected& wanted : expected) {  // each stands there once for each of the four
    CHECK(std::count_if(sink.items.begin(), sink.items.end(), [&](const Transition& item) {
            return item.observation == wanted.item.observation &&
                   item.next_observation == wanted.item.next_observation;
          }) == 4);
  }
}

TEST_CASE("full batches are handed over as soon as their priorities are known") {
  RecordingSink sink;
  ParameterStore parameters;
  Actor actor(scripted({{1000}}), TableNetwork(), sink, parameters, ActorOptions{.batch_size = 10});
  for (int k = 0; k < 12; ++k) actor.step();
  CHECK(sink.batches.empty());  // the tenth item's bootstrap value is not there yet
  actor.step();
  CHECK(sink.batches == std::vector<std::size_t>{10});
  for (int k = 0; k < 15; ++k) actor.step();
  CHECK(sink.batches == std::vector<std::size_t>{10, 10});
  actor.finish();
  CHECK(sink.batches == std::vector<std::size_t>{10, 10, 6});
}

TEST_CASE("a sink that asks for patience stops the actor without losing anything") {
  RecordingSink sink;
  ParameterStore parameters;
  Actor actor(scripted({{4}, {3, Ending::truncated}}), TableNetwork(), sink, parameters,
              ActorOptions{.epsilon = {.base = 0.0}, .batch_size = 5});
  std::size_t steps = 0;
  for (int k = 0; k < 200; ++k) {
    sink.answer = k % 3 == 0 ? Outcome::ok : Outcome::timeout;
    steps += actor.step() == Outcome::ok;
  }
  sink.answer = Outcome::ok;
  REQUIRE(actor.finish() == Outcome::ok);
  CHECK(actor.statistics().steps == steps);
  const auto expected = expected_items({{4}, {3, Ending::truncated}}, steps, 3, 0.99, greedy_action);
  REQUIRE(sink.items.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) check_equal(sink.items[i], expected[i].item);
}

TEST_CASE("the observations on which nobody acts, and only these, are evaluated for their own sake") {
  RecordingSink sink;
  ParameterStore parameters;
  troop::testing::TableNetwork network;
  for (const auto& [ending, extra] : {std::pair{Ending::terminated, 0u}, std::pair{Ending::truncated, 30u}}) {
    Actor actor(scripted({{3, ending}}), network, sink, parameters, ActorOptions{});
    for (int k = 0; k < 30; ++k) actor.step();
    CHECK(actor.network().rows_evaluated ==
          30 + extra);  // three items bootstrap from each of ten last observations
  }
}

TEST_CASE("each environment explores at its own rate") {
  RecordingSink sink;
  ParameterStore parameters;
  Actor actor(
      scripted({{50}}, 2), TableNetwork(), sink, parameters,
      ActorOptions{
          .epsilon = {.base = 1.0, .alpha = 0.0}, .first_index = 3, .num_environments = 8, .seed = 5});
  CHECK(actor.epsilons()[0] == 1.0);
  constexpr int kSteps = 3000;
  for (int k = 0; k < kSteps; ++k) actor.step();
  actor.finish();
  std::array<int, 3> counts{};
  for (const auto& item : sink.items) ++counts[static_cast<std::size_t>(item.action)];
  // Epsilon 1 is the uniform policy: each count is binomial, and five deviations are 5 * sqrt(6000 * 2 / 9) <
  // 190.
  for (const int count : counts) CHECK(std::abs(count - static_cast<int>(sink.items.size()) / 3) < 190);
}

TEST_CASE("what an environment does depends on its index in the fleet, not on its neighbours") {
  const auto play = [](std::size_t first, std::size_t count) {
    RecordingSink sink;
    ParameterStore parameters;
    Actor actor(
        scripted({{9}}, count), TableNetwork(), sink, parameters,
        ActorOptions{
            .n_step = {.n = 1}, .first_index = first, .num_environments = 4, .batch_size = 1, .seed = 11});
    for (int k = 0; k < 200; ++k) actor.step();
    std::vector<std::int32_t> actions;  // of the fleet's environment 2
    for (std::size_t i = 2 - first; i < sink.items.size(); i += count)
      actions.push_back(sink.items[i].action);
    return actions;
  };
  const auto in_company = play(0, 4), alone = play(2, 1);
  CHECK(std::equal(alone.begin(), alone.begin() + 150, in_company.begin()));
}

TEST_CASE("new parameters are taken every parameter_interval steps") {
  RecordingSink sink;
  ParameterStore parameters;
  Actor actor(scripted({{1000}}, 2), TableNetwork(), sink, parameters,
              ActorOptions{.num_environments = 2, .parameter_interval = 10});
  CHECK(actor.statistics().parameter_version == 0);
  parameters.publish(std::vector<float>{2.0f});
  for (int k = 0; k < 4; ++k) actor.step();
  CHECK(actor.statistics().parameter_version == 0);
  actor.step();
  CHECK(actor.statistics().parameter_version == 1);
  CHECK(actor.network().parameters()[0] == 2.0f);
}

TEST_CASE("a network that gives no numbers does not stop the actor") {
  RecordingSink sink;
  ParameterStore parameters;
  Actor actor(scripted({{4}}), TableNetwork(std::nanf("")), sink, parameters, ActorOptions{.batch_size = 1});
  for (int k = 0; k < 20; ++k) REQUIRE(actor.step() == Outcome::ok);
  REQUIRE_FALSE(sink.priorities.empty());
  for (const float priority : sink.priorities) CHECK(std::isfinite(priority));
}

TEST_CASE("environments beyond those that the ladder is made for share its rungs from the first one on") {
  RecordingSink sink;
  ParameterStore parameters;
  const Actor within(scripted({{4}}, 2), TableNetwork(), sink, parameters, {.num_environments = 2});
  const Actor beyond(scripted({{4}}, 2), TableNetwork(), sink, parameters,
                     {.first_index = 3, .num_environments = 2});
  CHECK(beyond.epsilons()[0] == within.epsilons()[1]);
  CHECK(beyond.epsilons()[1] == within.epsilons()[0]);
}

TEST_CASE("after an environment has failed the items that are complete can still be handed over") {
  struct Failing : ScriptedEnvironment<float> {
    explicit Failing(int good) : ScriptedEnvironment<float>({{50}}), steps_left(good) {}
    troop::env::StepResult step(std::int32_t action, std::span<float> observation) {
      if (steps_left-- == 0) throw troop::Error("out of order");
      return ScriptedEnvironment<float>::step(action, observation);
    }
    int steps_left;
  };
  RecordingSink sink, reference;
  ParameterStore parameters;
  using Vector = troop::env::VectorEnvironment<Failing>;
  const auto make = [&](RecordingSink& to, int good) {
    return Actor(Vector({.count = 2}, [=](std::uint64_t index) { return Failing(index == 1 ? good : 1000); }),
                 TableNetwork(), to, parameters, ActorOptions{.num_environments = 2});
  };
  auto failing = make(sink, 10), other = make(reference, 1000);
  for (int k = 0; k < 10; ++k) {
    failing.step();
    other.step();
  }
  CHECK_THROWS_WITH_AS(failing.step(), "Scripted, environment 1, step 11 of its episode: out of order",
                       troop::Error);
  CHECK(failing.finish() == Outcome::ok);
  other.finish();
  CHECK(sink.items.size() == 2 * (10 - 2));
  CHECK(sink.priorities == reference.priorities);
  REQUIRE(reference.items.size() == sink.items.size());
  for (std::size_t k = 0; k < sink.items.size(); ++k) {
    CHECK(sink.items[k].observation == reference.items[k].observation);
    CHECK(sink.items[k].reward == reference.items[k].reward);
  }
}

TEST_CASE("bad options are refused by name") {
  RecordingSink sink;
  ParameterStore parameters;
  const auto make = [&](const ActorOptions& options) {
    Actor actor(scripted({{4}}, 2), TableNetwork(), sink, parameters, options);
  };
  CHECK_THROWS_WITH(make({.num_environments = 2, .batch_size = 0}),
                    "actor_batch_size: 0 is not allowed; expected an integer from 1 to 65536");
  CHECK_THROWS_WITH(make({.n_step = {.n = 0}, .num_environments = 2}),
                    "n_step: 0 is not allowed; expected an integer from 1 to 1000");
  CHECK_THROWS_AS(make({.num_environments = 2, .parameter_interval = 0}), troop::InvalidArgument);
}
