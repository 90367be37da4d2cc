#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <troop/core/record.hpp>
#include <troop/env/cart_pole.hpp>
#include <troop/env/environment.hpp>
#include <troop/env/vector_environment.hpp>

#include "scripted_environment.hpp"

using namespace troop;
using env::Spec;
using testing::Ending;
using testing::ScriptedEnvironment;

struct Transition {
  std::array<float, 4> observation;
  std::int32_t action;
  float reward;
  float discount;
  std::array<float, 4> next_observation;
};

namespace {

Spec image_spec() {
  return {
      .name = "Image", .observation_dtype = DType::u8, .observation_shape = {84, 84, 4}, .num_actions = 6};
}

struct NoScalar {
  const Spec& spec() const;
  void reset(std::uint64_t, std::span<float>);
  env::StepResult step(std::int32_t, std::span<float>);
};

struct DoubleScalar : NoScalar {
  using Scalar = double;
};

struct NoStep {
  using Scalar = float;
  const Spec& spec() const;
  void reset(std::uint64_t, std::span<float>);
};

struct SpecByValue {
  using Scalar = std::uint8_t;
  Spec spec() const;
  void reset(std::uint64_t, std::span<std::uint8_t>);
  env::StepResult step(std::int32_t, std::span<std::uint8_t>);
};

static_assert(env::check_environment<env::CartPole>());
static_assert(env::check_environment<ScriptedEnvironment<float>>());
static_assert(env::check_environment<ScriptedEnvironment<std::uint8_t>>());
static_assert(env::Environment<SpecByValue>);
static_assert(!env::Environment<NoScalar>);
static_assert(!env::Environment<DoubleScalar>);
static_assert(!env::Environment<NoStep>);
static_assert(!env::Environment<int>);

static_assert(env::check_vectorized_environment<env::VectorEnvironment<env::CartPole>>());
static_assert(env::check_vectorized_environment<env::VectorEnvironment<ScriptedEnvironment<std::uint8_t>>>());
static_assert(!env::VectorizedEnvironment<env::CartPole>);
static_assert(!env::Environment<env::VectorEnvironment<env::CartPole>>);

/// What the message of the InvalidArgument that `call` throws says; empty when it throws none.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("the size of an observation is the product of its shape") {
  CHECK(image_spec().observation_size() == 84 * 84 * 4);
  CHECK(env::CartPole().spec().observation_size() == 4);
}

TEST_CASE("a spec without a limit or a goal says so") {
  CHECK(image_spec().max_episode_steps == 0);
  CHECK(std::isnan(image_spec().return_to_solve));
  CHECK(refusal([] { image_spec().validate(); }).empty());
}

TEST_CASE("a spec that cannot be is refused with the name of its field") {
  Spec spec = image_spec();
  SUBCASE("without a name") {
    spec.name.clear();
    CHECK(refusal([&] { spec.validate(); }) ==
          "name: \"\" is not allowed; expected a name that is not empty");
  }
  SUBCASE("of another dtype") {
    spec.observation_dtype = DType::f64;
    CHECK(refusal([&] { spec.validate(); }) ==
          "Image.observation_dtype: f64 is not allowed; expected f32 or u8");
  }
  SUBCASE("of a dtype that does not exist") {
    spec.observation_dtype = static_cast<DType>(77);
    CHECK(refusal([&] { spec.validate(); }) ==
          "Image.observation_dtype: an unknown number is not allowed; expected f32 or u8");
  }
  SUBCASE("without a dimension") {
    spec.observation_shape.clear();
    CHECK(refusal([&] { spec.validate(); }).starts_with("Image.observation_shape: {}"));
  }
  SUBCASE("with a dimension of 0") {
    spec.observation_shape = {84, 0};
    CHECK(refusal([&] { spec.validate(); }).starts_with("Image.observation_shape: 0 "));
  }
  SUBCASE("so large that its size overflows") {
    spec.observation_shape = {std::size_t{1} << 33, std::size_t{1} << 33};
    CHECK(refusal([&] { spec.validate(); }).starts_with("Image.observation_shape: 8589934592 "));
  }
  SUBCASE("without an action") {
    spec.num_actions = 0;
    CHECK(refusal([&] { spec.validate(); }) == "Image.num_actions: 0 is not allowed; expected at least 1");
  }
  CHECK_THROWS_AS(env::transition_layout(spec), InvalidArgument);
}

TEST_CASE("actions from 0 to num_actions - 1 are accepted and all others refused") {
  for (const std::int32_t action : {0, 1, 2}) CHECK_NOTHROW(env::require_action(action, 3));
  for (const std::int32_t action : {-1, 3, INT32_MIN, INT32_MAX})
    CHECK_THROWS_AS(env::require_action(action, 3), InvalidArgument);
  CHECK(refusal([] { env::require_action(-1, 3); }) ==
        "action: -1 is not allowed; expected an integer from 0 to 2");
  CHECK(refusal([] { env::require_action(3, 3, "actions[7]"); }).starts_with("actions[7]: 3 "));
}

TEST_CASE("the transitions of CartPole are 44 bytes and equal to an aggregate of the same fields") {
  const RecordLayout layout = env::transition_layout(env::CartPole().spec());
  CHECK(layout.size() == 44);
  CHECK(layout.difference(RecordLayout::of<Transition>()) == "");
}

TEST_CASE("the transitions of an image environment keep the image's dtype and shape") {
  const RecordLayout layout = env::transition_layout(image_spec());
  CHECK(layout.describe() ==
        "observation u8[84,84,4], action i32, reward f32, discount f32, next_observation u8[84,84,4]");
  CHECK(layout.size() == 2 * 84 * 84 * 4 + 12);
}

TEST_CASE("a scripted environment says in its numbers which step of which episode they are of") {
  using Scripted = ScriptedEnvironment<float>;
  Scripted environment{{.length = 2}, {.length = 1, .ending = Ending::truncated}};
  Scripted::Observation observation{};

  environment.reset(7, observation);
  CHECK(observation == Scripted::observation(0, 0));
  CHECK(environment.step(2, observation) == env::StepResult{1, false, false});
  CHECK(observation == Scripted::Observation{0, 1, 3});
  CHECK(environment.step(0, observation) == env::StepResult{2, true, false});
  CHECK(observation == Scripted::observation(0, 2, 0));

  environment.reset(8, observation);
  CHECK(environment.step(1, observation) == env::StepResult{101, false, true});
  environment.reset(9, observation);
  CHECK(observation == Scripted::observation(2, 0));
  CHECK(environment.step(1, observation) == env::StepResult{201, false, false});
  CHECK(environment.seeds() == std::vector<std::uint64_t>{7, 8, 9});
}

TEST_CASE("a scripted environment refuses what must not be done to it") {
  ScriptedEnvironment<float> environment{{.length = 1}};
  ScriptedEnvironment<float>::Observation observation{};
  CHECK_THROWS_AS(environment.step(0, observation), Error);
  environment.reset(0, observation);
  CHECK_THROWS_AS(environment.step(3, observation), InvalidArgument);
  environment.step(0, observation);
  CHECK_THROWS_AS(environment.step(0, observation), Error);
  CHECK_THROWS_AS(ScriptedEnvironment<float>(std::vector<testing::ScriptedEpisode>{}), InvalidArgument);
  CHECK_THROWS_AS((ScriptedEnvironment<float>{{.length = 0}}), InvalidArgument);
}
