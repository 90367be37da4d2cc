/// @file
/// Double-Q targets, TD errors and their loss, one transition at a time: what every backend computes, and the
/// reference that the fast ones are compared with.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <troop/core/error.hpp>
#include <troop/core/view.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::nn {

/// Loss of one TD error e = y - Q.
enum class Loss {
  huber,   ///< e^2 / 2 where |e| <= delta, else delta (|e| - delta / 2)   (Huber 1964; Mnih et al. 2015)
  squared  ///< e^2 / 2   (Horgan et al. 2018, section 3)
};

/// The first of the largest elements; a NaN is never larger. `values` must not be empty.
inline std::size_t argmax(std::span<const float> values) noexcept {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i)
    if (values[i] > values[best]) best = i;
  return best;
}

/// y = R_n + discount * Q_target(s', argmax_a Q_online(s', a))   (van Hasselt, Guez and Silver 2016,
/// 1509.06461, with the n-step return of Horgan et al. 2018). With discount 0 the target is the reward, even
/// where the next Q-values are NaN or infinite: an episode that terminated has no next state.
inline float double_q_target(float reward, float discount, std::span<const float> next_online,
                             std::span<const float> next_target) noexcept {
  if (discount == 0.0f) return reward;
  return reward + discount * next_target[argmax(next_online)];
}

/// Loss of the TD error; `huber_delta` is not used by Loss::squared.
inline float td_loss(Loss loss, float huber_delta, float td_error) noexcept {
  const float size = std::abs(td_error);
  if (loss == Loss::huber && size > huber_delta) return huber_delta * (size - 0.5f * huber_delta);
  return 0.5f * td_error * td_error;
}

/// Derivative of `td_loss` with respect to the TD error; with respect to Q it is the negative. NaN stays NaN.
inline float td_loss_gradient(Loss loss, float huber_delta, float td_error) noexcept {
  if (loss == Loss::huber && td_error > huber_delta) return huber_delta;
  if (loss == Loss::huber && td_error < -huber_delta) return -huber_delta;
  return td_error;
}

/// Loss of a batch, loss = mean_i w_i l(y_i - Q(s_i, a_i)), with its gradient and the new priorities.
///
/// `q`, `next_online` and `next_target` are [batch, actions]: online network at s, online and target network
/// at s'. `weights` are the importance-sampling weights w_i (Schaul et al. 2015, 1511.05952); empty means 1
/// for all. Written, where not empty: `q_gradient` [batch, actions], dloss/dq; `priorities` [batch], |TD
/// error|. Actions must be in range. Returns the loss, summed in double.
inline float td_loss_reference(Loss loss, float huber_delta, const TransitionBatch& batch,
                               MatrixView<const float> q, MatrixView<const float> next_online,
                               MatrixView<const float> next_target, std::span<const float> weights,
                               MatrixView<float> q_gradient, std::span<float> priorities) {
  const auto size = static_cast<float>(batch.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto action = static_cast<std::size_t>(batch.action(i));
    const float weight = weights.empty() ? 1.0f : weights[i];
    const float target =
        double_q_target(batch.reward(i), batch.discount(i), next_online.row_span(i), next_target.row_span(i));
    const float td_error = target - q(i, action);
    sum += static_cast<double>(weight) * static_cast<double>(td_loss(loss, huber_delta, td_error));
    if (q_gradient.rows() > 0) {
      for (float& element : q_gradient.row_span(i)) element = 0.0f;
      q_gradient(i, action) = -weight * td_loss_gradient(loss, huber_delta, td_error) / size;
    }
    if (!priorities.empty()) priorities[i] = std::abs(td_error);
  }
  return static_cast<float>(sum / static_cast<double>(batch.size()));
}

}  // namespace troop::nn
