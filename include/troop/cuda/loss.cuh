/// @file
/// Double-Q targets, TD errors, loss, priorities and the gradient at the network's end, in one kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include <troop/cuda/kernel.cuh>

namespace troop::cuda {

/// A batch on the device. `weights` may be null for 1.
struct LossBatch {
  const float *q, *next_online, *next_target;  ///< [rows, actions]: online at s, online and target at s'
  const std::int32_t* actions;
  const float *rewards, *discounts, *weights;
  unsigned rows, num_actions;
};

/// Where the kernel writes. With `dvalue` null, `dq` [rows, actions] receives dloss/dQ; else dloss/dA, and
/// `dvalue` [rows] dloss/dV, of Q = V + A - mean(A). `sums` holds two numbers for each block: loss, and Q(s,
/// a).
struct LossOutput {
  float *dq, *dvalue, *priorities;
  double* sums;
};

/// nn::td_loss and nn::td_loss_gradient.
template <bool kHuber>
__device__ inline float loss_of(float td_error, float delta) {
  const float size = td_error < 0.0f ? -td_error : td_error;
  if (kHuber && size > delta) return delta * (size - 0.5f * delta);
  return 0.5f * td_error * td_error;
}
template <bool kHuber>
__device__ inline float loss_gradient_of(float td_error, float delta) {
  if (kHuber && td_error > delta) return delta;
  if (kHuber && td_error < -delta) return -delta;
  return td_error;
}

/// As nn::td_loss_reference: y = R_n + discount * Q_target(s', argmax_a Q_online(s', a)) (van Hasselt et al.
/// 2016), loss = mean_i w_i l(y_i - Q(s_i, a_i)). A thread takes a transition; actions must be in range.
template <bool kHuber>
__global__ void double_q_loss(LossBatch batch, float delta, LossOutput out) {
  __shared__ Shared<double, kThreads / kWarpSize> warps;
  const unsigned row = blockIdx.x * blockDim.x + threadIdx.x, actions = batch.num_actions;
  double loss = 0.0, sum_q = 0.0;
  if (row < batch.rows) {
    const std::size_t first = std::size_t{row} * actions;
    float target = batch.rewards[row];
    if (const float discount = batch.discounts[row]; discount != 0.0f) {
      unsigned best = 0;
      float largest = batch.next_online[first];
      for (unsigned j = 1; j < actions; ++j) {
        const float value = batch.next_online[first + j];
        if (value > largest) {
          largest = value;
          best = j;
        }
      }
      target += discount * batch.next_target[first + best];
    }
    const auto action = static_cast<unsigned>(batch.actions[row]);
    const float q = batch.q[first + action];
    const float td_error = target - q;
    const float weight = batch.weights == nullptr ? 1.0f : batch.weights[row];
    loss = static_cast<double>(weight) * static_cast<double>(loss_of<kHuber>(td_error, delta));
    sum_q = static_cast<double>(q);
    out.priorities[row] = td_error < 0.0f ? -td_error : td_error;
    const float gradient =
        -weight * loss_gradient_of<kHuber>(td_error, delta) / static_cast<float>(batch.rows);
    const float share = out.dvalue == nullptr ? 0.0f : gradient / static_cast<float>(actions);
    for (unsigned j = 0; j < actions; ++j) out.dq[first + j] = (j == action ? gradient : 0.0f) - share;
    if (out.dvalue != nullptr) out.dvalue[row] = gradient;
  }
  const double block_loss = block_sum(loss, warps), block_q = block_sum(sum_q, warps);
  if (threadIdx.x == 0) {
    out.sums[2 * blockIdx.x] = block_loss;
    out.sums[2 * blockIdx.x + 1] = block_q;
  }
}

}  // namespace troop::cuda
