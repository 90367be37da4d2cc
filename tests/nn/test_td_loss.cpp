#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <troop/core/view.hpp>
#include <troop/nn/td_loss.hpp>

using namespace troop::nn;
using troop::MatrixView;

namespace {
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
}  // namespace

TEST_CASE("argmax takes the first of equal maxima and never a NaN after the first element") {
  CHECK(argmax(std::array{1.0f, 3.0f, 3.0f, 2.0f}) == 1);
  CHECK(argmax(std::array{5.0f}) == 0);
  CHECK(argmax(std::array{0.0f, -0.0f}) == 0);
  CHECK(argmax(std::array{1.0f, kNaN, 2.0f}) == 2);
  CHECK(argmax(std::array{-kInfinity, -kInfinity}) == 0);
}

TEST_CASE("the online network chooses the next action and the target network values it") {
  const std::array online{1.0f, 2.0f, 2.0f}, target{10.0f, 20.0f, 30.0f};
  CHECK(double_q_target(1.0f, 0.5f, online, target) == 11.0f);
  CHECK(double_q_target(1.0f, -0.5f, online, target) == -9.0f);
}

TEST_CASE("a terminated transition ignores the next values, even NaN and infinity") {
  const std::array online{kNaN, 2.0f}, target{kNaN, kInfinity};
  CHECK(double_q_target(1.5f, 0.0f, online, target) == 1.5f);
  CHECK(double_q_target(1.5f, -0.0f, online, target) == 1.5f);
  CHECK(std::isinf(double_q_target(1.5f, 0.1f, std::array{1.0f, 2.0f}, target)));
}

TEST_CASE("Huber is quadratic inside delta and linear outside, squared is quadratic") {
  CHECK(td_loss(Loss::huber, 1.0f, 0.5f) == 0.125f);
  CHECK(td_loss(Loss::huber, 1.0f, -3.0f) == 2.5f);
  CHECK(td_loss(Loss::huber, 2.0f, 3.0f) == 4.0f);
  CHECK(td_loss(Loss::squared, 1.0f, -3.0f) == 4.5f);
  CHECK(td_loss_gradient(Loss::huber, 1.0f, 0.5f) == 0.5f);
  CHECK(td_loss_gradient(Loss::huber, 1.0f, -3.0f) == -1.0f);
  CHECK(td_loss_gradient(Loss::huber, 2.0f, 3.0f) == 2.0f);
  CHECK(td_loss_gradient(Loss::squared, 1.0f, -3.0f) == -3.0f);
  for (const Loss loss : {Loss::huber, Loss::squared}) {
    CHECK(std::isnan(td_loss(loss, 1.0f, kNaN)));
    CHECK(std::isnan(td_loss_gradient(loss, 1.0f, kNaN)));
    CHECK(std::isinf(td_loss(loss, 1.0f, -kInfinity)));
    for (const float error : {-2.0f, -0.7f, 0.3f, 1.9f}) {
      const float h = 1e-2f;
      const float slope = (td_loss(loss, 1.0f, error + h) - td_loss(loss, 1.0f, error - h)) / (2 * h);
      CHECK(td_loss_gradient(loss, 1.0f, error) == doctest::Approx(slope).epsilon(1e-3));
    }
  }
}

TEST_CASE("a batch has the weighted mean loss, its gradient and the priorities") {
  const std::array<float, 2> x{}, reward{1.0f, 2.0f}, discount{0.5f, 0.0f};
  const std::array<std::int32_t, 2> action{1, 0};
  const MatrixView<const float> observations(x.data(), 2, 1);
  const TransitionBatch batch(observations, MatrixView<const std::int32_t>(action.data(), 2, 1),
                              MatrixView<const float>(reward.data(), 2, 1),
                              MatrixView<const float>(discount.data(), 2, 1), observations);
  const std::array q{0.0f, 1.0f, 5.0f, 0.0f}, online{1.0f, 0.0f, kNaN, kNaN}, target{3.0f, 9.0f, kNaN, kNaN};
  const auto matrix = [](const auto& values) { return MatrixView<const float>(values.data(), 2, 2); };
  std::array<float, 4> gradient{7, 7, 7, 7};
  std::array<float, 2> priorities{};
  const float loss =
      td_loss_reference(Loss::huber, 1.0f, batch, matrix(q), matrix(online), matrix(target),
                        std::array{0.5f, 0.25f}, MatrixView<float>(gradient.data(), 2, 2), priorities);
  // y = {1 + 0.5 * 3, 2}; errors {1.5, -3}; Huber {1, 2.5}
  CHECK(loss == doctest::Approx((0.5 * 1 + 0.25 * 2.5) / 2));
  CHECK(gradient == std::array{0.0f, -0.25f, 0.125f, 0.0f});
  CHECK(priorities == std::array{1.5f, 3.0f});
  CHECK(td_loss_reference(Loss::squared, 1.0f, batch, matrix(q), matrix(online), matrix(target), {}, {},
                          {}) == doctest::Approx((1.125 + 4.5) / 2));
}
