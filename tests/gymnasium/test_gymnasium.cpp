#include <troop/gymnasium/gymnasium.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <troop/env/cart_pole.hpp>
#include <troop/env/environment.hpp>
#include <troop/env/vector_environment.hpp>

#include "testing.hpp"

using namespace troop;
using env::Gymnasium;
using env::GymnasiumOptions;
using env::VectorEnvironment;
using testing::error_of;

namespace {

static_assert(env::check_environment<Gymnasium<float>>());
static_assert(env::check_environment<Gymnasium<std::uint8_t>>());

using Keywords = std::map<std::string, env::Keyword>;

const std::string kCount = "troop_tasks:troop/Count-v0";

/// Plays a vector of Counts of which number 5 does `what` in its third step.
template <class S = float>
std::string error_in_play(const std::string& what, const std::string& dtype = "float32") {
  return error_of([&] {
    VectorEnvironment<Gymnasium<S>> environments({.count = 3, .first_index = 4}, [&](std::uint64_t index) {
      Keywords keywords{{"dtype", dtype}};
      if (index == 5) keywords.insert({{"at", 3}, {"what", what}});
      return Gymnasium<S>({.id = kCount, .keywords = keywords});
    });
    for (int t = 0; t < 5; ++t) environments.step(std::array{0, 1, 2});
  });
}

}  // namespace

TEST_CASE("an environment is described as Gymnasium's registry has it") {
  const Gymnasium<float> cart_pole({.id = "CartPole-v1"});
  CHECK(cart_pole.spec().name == "CartPole-v1");
  CHECK(cart_pole.spec().observation_dtype == DType::f32);
  CHECK(cart_pole.spec().observation_shape == std::vector<std::size_t>{4});
  CHECK(cart_pole.spec().num_actions == 2);
  CHECK(cart_pole.spec().max_episode_steps == 500);
  CHECK(cart_pole.spec().return_to_solve == 475);

  const Gymnasium<std::uint8_t> pong({.id = "ALE/Pong-v5", .keywords = {{"frameskip", 2}}});
  CHECK(pong.spec().observation_shape == std::vector<std::size_t>{210, 160, 3});
  CHECK(pong.spec().num_actions == 6);
  CHECK(pong.spec().max_episode_steps == 0);
}

TEST_CASE("CartPole in Python goes the way of CartPole in C++") {
  Gymnasium<float> python({.id = "CartPole-v1"});
  env::CartPole native;
  std::array<float, 4> there{}, here{};
  python.reset(3, there);
  native.reset(3, here);
  native.set_state({static_cast<double>(there[0]), static_cast<double>(there[1]),
                    static_cast<double>(there[2]), static_cast<double>(there[3])});
  bool over = false;
  for (int t = 0; t < 8 && !over; ++t) {  // soon enough that the rounded start does not matter
    const auto a = python.step(t % 2, there), b = native.step(t % 2, here);
    CHECK(a == b);
    for (std::size_t k = 0; k < 4; ++k) CHECK(there[k] == doctest::Approx(here[k]).epsilon(1e-4));
    over = a.terminated;
  }
}

TEST_CASE("keywords arrive in Python with their types, actions with the space's first number") {
  Gymnasium<float> game(
      {.id = kCount, .keywords = {{"at", 4}, {"weight", 0.5}, {"name", "y"}, {"start", 10}, {"length", 3}}});
  CHECK(game.spec().max_episode_steps == 0);
  std::array<float, 3> observation{};
  game.reset(7, observation);
  CHECK(observation == std::array<float, 3>{0, 0, 7});
  CHECK(game.step(3, observation) == env::StepResult{.reward = 0.5f});
  CHECK(observation == std::array<float, 3>{1, 13, 7});
  CHECK(game.step(0, observation).reward == 1.0f);
  CHECK(game.step(0, observation).terminated);
  CHECK(error_of([&] { game.step(4, observation); }) ==
        "action: 4 is not allowed; expected an integer from 0 to 3");
}

TEST_CASE("bytes come as bytes, float64 is rounded, and any shape keeps its order") {
  Gymnasium<std::uint8_t> bytes({.id = kCount, .keywords = {{"dtype", "uint8"}, {"shape", 5}}});
  std::array<std::uint8_t, 5> five{9, 9, 9, 9, 9};
  bytes.reset(250, five);
  bytes.step(2, five);
  CHECK(five == std::array<std::uint8_t, 5>{1, 2, 50, 0, 0});
  Gymnasium<float> doubles({.id = kCount, .keywords = {{"dtype", "float64"}}});
  std::array<float, 3> three{};
  doubles.reset(1, three);
  doubles.step(1, three);
  CHECK(three == std::array<float, 3>{1, 1, 1});
}

TEST_CASE("Gymnasium's limit of steps truncates, and the vector reports the episode") {
  VectorEnvironment<Gymnasium<float>> environments(
      {.count = 2}, [](std::uint64_t) { return Gymnasium<float>({.id = "troop_tasks:troop/Short-v0"}); });
  CHECK(environments.spec().max_episode_steps == 5);
  CHECK(environments.spec().return_to_solve == 12.5);
  for (int t = 1; t <= 10; ++t) {
    environments.step(std::array{1, 1});
    CHECK(environments.truncated()[1] == (t % 5 == 0));
    CHECK(environments.terminated()[1] == 0);
    CHECK(environments.next_observation(1)[0] == static_cast<float>((t - 1) % 5 + 1));
    if (t % 5 == 0) CHECK(environments.finished_episodes()[1] == env::Episode{1, 1 + 2 + 3 + 4 + 5, 5});
  }
}

TEST_CASE("arrays that are not contiguous, lists of numbers: all that numpy understands is understood") {
  CHECK(error_in_play("strided") == "no error");
  CHECK(error_in_play("list") == "no error");
  CHECK(error_in_play<std::uint8_t>("strided", "uint8") == "no error");
  CHECK(error_in_play("strided", "float64") == "no error");
}

TEST_CASE("what goes wrong in the middle of a run is one line with environment and step") {
  const std::string place = kCount + ", environment 5, step 3 of its episode: ";
  const std::string file = "troop_tasks.py:";
  const std::string raised = error_in_play("raise");
  CHECK(raised.starts_with(place + "ValueError: the engine has stopped (" + file));
  CHECK(raised.ends_with(" in step)"));
  CHECK(error_in_play("nan") == place + "observation[1]: nan is not allowed; expected a finite number");
  CHECK(error_in_play("nan", "float64") ==
        place + "observation[1]: nan is not allowed; expected a finite number");
  CHECK(error_in_play("reward") == place + "reward: inf is not allowed; expected a finite number");
  CHECK(error_in_play("shape") == place + "observation of shape: [2] is not allowed; expected [3]");
  CHECK(error_in_play<std::uint8_t>("shape", "uint8") ==
        place + "observation of shape: [2] is not allowed; expected [3]");
  CHECK(error_in_play<std::uint8_t>("dtype", "uint8") ==
        place + "observation of dtype: float32 is not allowed; expected uint8");
  CHECK(error_in_play("string") == place + "observation of dtype: <U3 is not allowed; expected float32");
  CHECK(error_in_play("tuple") ==
        place + "step() returned: a tuple of 4 is not allowed; expected a tuple of 5");
  CHECK(error_in_play("text") == place + "TypeError: must be real number, not str");
  const std::string at_start = error_of([] {
    VectorEnvironment<Gymnasium<float>>({.count = 1}, [](std::uint64_t) {
      return Gymnasium<float>({.id = kCount, .keywords = {{"what", "reset"}}});
    });
  });
  CHECK(
      at_start.starts_with(kCount + ", environment 0, step 0 of its episode: KeyError: 'no level' (" + file));
}

TEST_CASE("other environments of the process go on after one has failed") {
  Gymnasium<float> good({.id = kCount});
  std::array<float, 3> observation{};
  good.reset(1, observation);
  CHECK(error_in_play("raise") != "no error");
  CHECK(good.step(1, observation).reward == 1.0f);
}

TEST_CASE("spaces that are not supported are refused by name") {
  const auto error = [](const std::string& space) {
    return error_of([&] {
      Gymnasium<float> game({.id = "troop_tasks:troop/Spaces-v0", .keywords = {{"space", space}}});
    });
  };
  const std::string id = "troop_tasks:troop/Spaces-v0: ";
  CHECK(error("dict") == id + "observation space: Dict('a': Box(0.0, 1.0, (2,), float32)) is not allowed; "
                              "expected a Box");
  CHECK(error("int64") == id + "observation space: Box(0, 9, (2,), int64) is not allowed; expected a Box of "
                               "uint8, float32 or float64");
  CHECK(error("continuous") ==
        id + "action space: Box(-1.0, 1.0, (2,), float32) is not allowed; expected Discrete");
  CHECK(error("multi") == id + "action space: MultiDiscrete([2 3]) is not allowed; expected Discrete");
  CHECK(error_of([] { Gymnasium<std::uint8_t> game({.id = "CartPole-v1"}); }) ==
        "CartPole-v1: observations of float32: Gymnasium<std::uint8_t> is not allowed; expected "
        "Gymnasium<float>");
  CHECK(error_of([] { Gymnasium<float> game({.id = "ALE/Pong-v5"}); }) ==
        "ALE/Pong-v5: observations of uint8: Gymnasium<float> is not allowed; expected "
        "Gymnasium<std::uint8_t>");
}

TEST_CASE("an unknown id is refused with Python's suggestion, an unknown module with its name") {
  const auto error = [](const std::string& id) {
    return error_of([&] { Gymnasium<float> game({.id = id}); });
  };
  CHECK(error("CartPol-v1")
            .starts_with("NameNotFound: Environment `CartPol` doesn't exist. Did you mean: `CartPole`? ("));
  CHECK(error("ALE/Pon-v5").find("Did you mean: `Pong`?") != std::string::npos);
  CHECK(error("no_such_module:X-v0").find("No module named 'no_such_module'") != std::string::npos);
  CHECK(error("") == "id: \"\" is not allowed; expected the id of a Gymnasium environment");
  CHECK(error_of([] {
          Gymnasium<float> game({.id = kCount, .keywords = {{"colour", "red"}}});
        }).find("unexpected keyword argument 'colour'") != std::string::npos);
}

TEST_CASE("environments in several threads take turns and do not disturb each other") {
  testing::Failures failures;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&failures, thread] {
      VectorEnvironment<Gymnasium<float>> environments(
          {.count = 2, .first_index = 2 * thread}, [](std::uint64_t) {
            return Gymnasium<float>({.id = kCount, .keywords = {{"length", 20}}});
          });
      for (int t = 1; t <= 200; ++t) {
        environments.step(std::array{0, 1});
        if (environments.next_observation(1)[0] != static_cast<float>((t - 1) % 20 + 1))
          failures.add("thread " + std::to_string(thread) + ", step " + std::to_string(t));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("an environment may be destroyed by another thread, also one that Python has never seen") {
  auto game = std::make_unique<Gymnasium<float>>(GymnasiumOptions{.id = kCount});
  std::thread([&game] { game.reset(); }).join();
  CHECK(game == nullptr);
}

TEST_CASE("the packages that are asked for are those that make atari-deps installs") {
  std::ifstream file(TROOP_PYTHON_REQUIREMENTS);
  std::stringstream text;
  text << file.rdbuf();
  CHECK(text.str().find(std::string("\n") + env::detail::kGymnasiumPackage + "\n") != std::string::npos);
  CHECK(text.str().find(std::string("\n") + env::detail::kAlePackage + "\n") != std::string::npos);
}
