#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <troop/core/random.hpp>
#include <troop/core/view.hpp>
#include <troop/cuda/loss.cuh>
#include <troop/cuda/runtime.cuh>
#include <troop/nn/td_loss.hpp>
#include <troop/nn/transition_batch.hpp>

#include "device_array.hpp"
#include "testing.hpp"

namespace {

using namespace troop::cuda;
using troop::MatrixView;
using troop::testing::DeviceArray;
using troop::testing::Failures;
using troop::testing::stream;

struct Case {
  Case(unsigned rows_, unsigned actions_, troop::Random& random) : rows(rows_), actions(actions_) {
    for (auto* values : {&q, &online, &target})
      for (unsigned i = 0; i < rows * actions; ++i)
        values->push_back(static_cast<float>(random.below(9)) - 4.0f);  // ties among them
    for (unsigned i = 0; i < rows; ++i) {
      chosen.push_back(static_cast<std::int32_t>(random.below(actions)));
      rewards.push_back(static_cast<float>(random.normal()));
      discounts.push_back(random.below(4) == 0 ? 0.0f : 0.97f);
      weights.push_back(static_cast<float>(random.uniform(0.1, 1.0)));
    }
  }

  unsigned rows, actions;
  std::vector<float> q, online, target, rewards, discounts, weights;
  std::vector<std::int32_t> chosen;
};

struct Result {
  double loss = 0, mean_q = 0;
  std::vector<float> dq, dvalue, priorities;
};

Result on_device(const Case& c, bool huber, float delta, bool weighted, bool dueling) {
  const DeviceArray<float> q(c.q), online(c.online), target(c.target), rewards(c.rewards),
      discounts(c.discounts), weights(c.weights), dq(c.q.size()), dvalue(c.rows), priorities(c.rows);
  const DeviceArray<std::int32_t> actions(c.chosen);
  const unsigned blocks = (c.rows + kThreads - 1) / kThreads;
  const DeviceArray<double> sums(2 * blocks);
  const LossBatch batch{q.data(),
                        online.data(),
                        target.data(),
                        actions.data(),
                        rewards.data(),
                        discounts.data(),
                        weighted ? weights.data() : nullptr,
                        c.rows,
                        c.actions};
  const LossOutput out{dq.data(), dueling ? dvalue.data() : nullptr, priorities.data(), sums.data()};
  launch("double_q_loss", huber ? double_q_loss<true> : double_q_loss<false>, blocks, kThreads, stream(),
         batch, delta, out);
  Result result{0, 0, dq.get(), dvalue.get(), priorities.get()};
  const auto parts = sums.get();
  for (unsigned i = 0; i < blocks; ++i) {
    result.loss += parts[2 * i] / c.rows;
    result.mean_q += parts[2 * i + 1] / c.rows;
  }
  return result;
}

bool is_near(float value, float expected, float scale = 1.0f) {
  return std::abs(value - expected) <= 1e-6f * (std::abs(expected) + scale) ||
         (std::isnan(value) && std::isnan(expected));
}

}  // namespace

TEST_CASE("loss, priorities and gradient are those of the reference") {
  troop::Random random(troop::testing::seed());
  for (const unsigned rows : {1u, 31u, 33u, 512u, 1000u})
    for (const unsigned actions : {1u, 2u, 18u})
      for (const bool huber : {false, true})
        for (const bool weighted : {false, true}) {
          CAPTURE(rows);
          CAPTURE(actions);
          Case c(rows, actions, random);
          if (rows > 1) {  // an episode that terminated has no next state
            c.discounts[1] = 0.0f;
            c.online[actions] = c.target[actions] = std::numeric_limits<float>::quiet_NaN();
          }
          const auto result = on_device(c, huber, 0.75f, weighted, false);
          const float nothing = 0;
          const troop::nn::TransitionBatch batch(MatrixView<const float>(&nothing, rows, 0, 0),
                                                 MatrixView<const std::int32_t>(c.chosen.data(), rows, 1),
                                                 MatrixView<const float>(c.rewards.data(), rows, 1),
                                                 MatrixView<const float>(c.discounts.data(), rows, 1),
                                                 MatrixView<const float>(&nothing, rows, 0, 0));
          std::vector<float> dq(c.q.size()), priorities(rows), none;
          const auto matrix = [&](const std::vector<float>& v) {
            return MatrixView<const float>(v.data(), rows, actions);
          };
          const float loss = troop::nn::td_loss_reference(
              huber ? troop::nn::Loss::huber : troop::nn::Loss::squared, 0.75f, batch, matrix(c.q),
              matrix(c.online), matrix(c.target), weighted ? c.weights : none,
              MatrixView<float>(dq.data(), rows, actions), priorities);
          CHECK(result.loss == doctest::Approx(static_cast<double>(loss)).epsilon(1e-6));
          Failures failures;
          double mean_q = 0;
          for (unsigned i = 0; i < rows; ++i) {
            mean_q += static_cast<double>(c.q[i * actions + static_cast<unsigned>(c.chosen[i])]) / rows;
            if (!is_near(result.priorities[i], priorities[i])) failures.add("priority " + std::to_string(i));
          }
          for (unsigned i = 0; i < rows * actions; ++i)
            if (!is_near(result.dq[i], dq[i], 1.0f / static_cast<float>(rows)))
              failures.add("gradient " + std::to_string(i));
          TROOP_CHECK_NONE(failures);
          CHECK(result.mean_q == doctest::Approx(mean_q));

          const auto dueling = on_device(c, huber, 0.75f, weighted, true);
          for (unsigned i = 0; i < rows; ++i) {
            float sum = 0;
            for (unsigned j = 0; j < actions; ++j) sum += dq[i * actions + j];
            if (!is_near(dueling.dvalue[i], sum, 1.0f / static_cast<float>(rows))) failures.add("dvalue");
            for (unsigned j = 0; j < actions; ++j)
              if (!is_near(dueling.dq[i * actions + j],
                           dq[i * actions + j] - sum / static_cast<float>(actions),
                           1.0f / static_cast<float>(rows)))
                failures.add("dadvantage");
          }
          TROOP_CHECK_NONE(failures);
        }
}

TEST_CASE("a NaN among the Q-values reaches loss and priorities") {
  troop::Random random(troop::testing::seed());
  Case c(3, 2, random);
  c.q[2] = std::numeric_limits<float>::quiet_NaN();
  c.chosen[1] = 0;
  const auto result = on_device(c, true, 1.0f, true, true);
  CHECK(std::isnan(result.loss));
  CHECK(std::isnan(result.priorities[1]));
  CHECK(std::isfinite(result.priorities[0]));
}
