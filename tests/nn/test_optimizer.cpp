#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/nn/optimizer.hpp>

using namespace troop::nn;

namespace {

constexpr OptimizerOptions kAdam{.kind = OptimizerKind::adam, .learning_rate = 0.01};
constexpr OptimizerOptions kCentred{.kind = OptimizerKind::rmsprop, .learning_rate = 0.01};
constexpr OptimizerOptions kPlain{.kind = OptimizerKind::rmsprop, .learning_rate = 0.01, .centred = false};

std::vector<float> random_vector(std::size_t size, troop::Random& random) {
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

/// One parameter, in double, straight from the formulas.
struct Reference {
  OptimizerOptions o;
  double p = 0, m = 0, v = 0;
  int t = 0;
  void step(double g) {
    ++t;
    if (o.kind == OptimizerKind::adam) {
      m = o.beta1 * m + (1 - o.beta1) * g;
      v = o.beta2 * v + (1 - o.beta2) * g * g;
      p -= o.learning_rate * (m / (1 - std::pow(o.beta1, t))) /
           (std::sqrt(v / (1 - std::pow(o.beta2, t))) + o.epsilon);
      return;
    }
    v = o.decay * v + (1 - o.decay) * g * g;
    m = o.decay * m + (1 - o.decay) * g;
    p -= o.learning_rate * g / (std::sqrt(v - (o.centred ? m * m : 0)) + o.epsilon);
  }
};

}  // namespace

TEST_CASE("each parameter follows the formulas, whatever the size") {
  troop::Random random(5, "optimizer");  // seed 5
  for (const auto& options : {kAdam, kCentred, kPlain})
    for (const std::size_t size : {1, 3, 17, 255, 256, 257, 1000}) {
      Optimizer optimizer(options, size);
      std::vector<float> parameters = random_vector(size, random);
      std::vector<Reference> references(size, Reference{options});
      for (std::size_t i = 0; i < size; ++i) references[i].p = static_cast<double>(parameters[i]);
      for (int step = 0; step < 8; ++step) {
        const auto gradient = random_vector(size, random);
        optimizer.step(parameters, gradient, 0.5);
        for (std::size_t i = 0; i < size; ++i) references[i].step(0.5 * static_cast<double>(gradient[i]));
      }
      double worst = 0;
      for (std::size_t i = 0; i < size; ++i)
        worst = std::max(worst, std::abs(references[i].p - static_cast<double>(parameters[i])));
      CHECK(worst < 1e-5);
      CHECK(optimizer.steps() == 8);
    }
}

TEST_CASE("an update in parts is the update of the whole") {
  troop::Random random(6, "optimizer");  // seed 6
  for (const auto& options : {kAdam, kCentred, kPlain}) {
    const std::size_t size = 1001;
    Optimizer whole(options, size), parts(options, size);
    auto a = random_vector(size, random);
    auto b = a;
    for (int step = 0; step < 3; ++step) {
      const auto gradient = random_vector(size, random);
      whole.step(a, gradient, 0.25);
      parts.begin_step();
      parts.update(b, gradient, 0.25f, 512, 489);
      parts.update(b, gradient, 0.25f, 0, 512);
    }
    double difference = 0;
    for (std::size_t i = 0; i < size; ++i)
      difference = std::max(difference, std::abs(static_cast<double>(a[i] - b[i])));
    CHECK(difference < 1e-6);
  }
}

TEST_CASE("an optimizer continues from a saved state") {
  troop::Random random(7, "optimizer");  // seed 7
  for (const auto& options : {kAdam, kCentred, kPlain}) {
    Optimizer first(options, 40), second(options, 40);
    CHECK(first.state().size() == (options.kind == OptimizerKind::adam || options.centred ? 80u : 40u));
    auto a = random_vector(40, random);
    first.step(a, random_vector(40, random));
    auto b = a;
    second.set_state(first.steps(), first.state());
    const auto gradient = random_vector(40, random);
    first.step(a, gradient);
    second.step(b, gradient);
    CHECK(a == b);
    CHECK_THROWS_AS(second.set_state(1, std::vector<float>(3)), troop::InvalidArgument);
  }
}

TEST_CASE("a gradient that never changes makes no NaN in centred RMSProp") {
  Optimizer optimizer(kCentred, 20);
  std::vector<float> parameters(20), gradient(20);
  for (std::size_t i = 0; i < 20; ++i) gradient[i] = 0.1f * static_cast<float>(i) + 0.037f;
  for (int step = 0; step < 1000; ++step) optimizer.step(parameters, gradient);
  for (const float parameter : parameters) CHECK(std::isfinite(parameter));
}

TEST_CASE("a gradient of zero moves nothing") {
  for (const auto& options : {kAdam, kCentred, kPlain}) {
    Optimizer optimizer(options, 5);
    std::vector<float> parameters(5, 1.0f);
    optimizer.step(parameters, std::vector<float>(5));
    CHECK(parameters == std::vector<float>(5, 1.0f));
  }
}

TEST_CASE("the norm and its clipping") {
  CHECK(sum_of_squares({}) == 0);
  std::vector<float> values(37, 2.0f);
  CHECK(sum_of_squares(values) == 148);
  values[36] = std::numeric_limits<float>::max();
  CHECK(std::isfinite(sum_of_squares(values)));
  values[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(sum_of_squares(values)));
  CHECK(clip_factor(10, 40) == 1);
  CHECK(clip_factor(80, 40) == doctest::Approx(0.5));
  CHECK(clip_factor(1e30, 0) == 1);
}

TEST_CASE("an option that is not allowed is named") {
  const auto error = [](OptimizerOptions options) {
    try {
      options.validate();
    } catch (const troop::InvalidArgument& e) {
      return e.field();
    }
    return std::string("no error");
  };
  CHECK(error({}) == "no error");
  CHECK(error({.learning_rate = 0}) == "learning_rate");
  CHECK(error({.learning_rate = std::nan("")}) == "learning_rate");
  CHECK(error({.beta1 = 1}) == "beta1");
  CHECK(error({.beta2 = -0.1}) == "beta2");
  CHECK(error({.decay = 1.5}) == "decay");
  CHECK(error({.epsilon = 0}) == "epsilon");
  CHECK_THROWS_AS(Optimizer({.learning_rate = -1}, 3), troop::InvalidArgument);
}
