/// @file
/// The end of a step over all parameters at once: gradient norm, clipping, Adam or centred RMSProp, the guard
/// against numbers that are not finite; and parameters in the order and precision in which they are sent.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <troop/cuda/kernel.cuh>

namespace troop::cuda {

/// Which of nn::Optimizer's formulas.
enum class UpdateRule { adam, centred_rmsprop, rmsprop };

/// Constants of training, as the kernels need them.
struct StepOptions {
  double decay1 = 0.0, decay2 = 0.0;  ///< adam: beta1, beta2; rmsprop: decay, decay
  double learning_rate = 0.0, max_gradient_norm = 0.0;
  float epsilon = 0.0f;
  bool correct_bias = false;  ///< adam
};

/// Counters that stay on the device, and the constants of the step in progress.
struct StepState {
  std::uint64_t steps, num_skipped;
  float factor, rate, root;
};

/// What a step tells the host.
struct StepReport {
  float loss, gradient_norm, mean_q;
  std::uint32_t applied;
  std::uint64_t steps, num_skipped;
};

__device__ inline bool is_finite(float value) {
  return fabsf(value) <= 3.402823466e38f;  // false for NaN
}

/// The global norm of `gradient`, the mean loss and Q-value from the sums of `double_q_loss`, and whether the
/// step is to be applied: only when loss and norm are finite. Squares are added in double, in an order that
/// depends on the size and the grid only.
///
/// `partial` holds a double for each block, `counter` a zero. The last block prepares `state` for
/// `update_parameters` and fills in the report.
template <class Real>
__global__ void prepare_update(const Real* gradient, std::size_t size, double* partial, unsigned* counter,
                               const double* loss_sums, unsigned num_loss_blocks, unsigned rows,
                               StepOptions options, StepState* state, StepReport* report) {
  __shared__ Shared<double, kThreads / kWarpSize> warps;
  __shared__ Shared<unsigned, 1> ticket;
  double squares = 0.0;
  for (std::size_t i = first_element(); i < size; i += element_step()) {
    const auto value = static_cast<double>(gradient[i]);
    squares += value * value;
  }
  const double of_block = block_sum(squares, warps);
  if (threadIdx.x == 0) partial[blockIdx.x] = of_block;
  if (!is_last_block(counter, gridDim.x, ticket)) return;

  double share = 0.0, loss = 0.0, sum_q = 0.0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) share += partial[i];
  for (unsigned i = threadIdx.x; i < num_loss_blocks; i += blockDim.x) {
    loss += loss_sums[2 * i];
    sum_q += loss_sums[2 * i + 1];
  }
  squares = block_sum(share, warps);
  loss = block_sum(loss, warps);
  sum_q = block_sum(sum_q, warps);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(squares);
  report->loss = static_cast<float>(loss / rows);
  report->mean_q = static_cast<float>(sum_q / rows);
  report->gradient_norm = static_cast<float>(norm);
  report->applied = is_finite(report->loss) && is_finite(report->gradient_norm) ? 1u : 0u;
  if (report->applied == 0) {
    ++state->num_skipped;
  } else {
    const auto step = static_cast<double>(++state->steps);
    const double bias1 = options.correct_bias ? 1.0 - pow(options.decay1, step) : 1.0;
    const double bias2 = options.correct_bias ? 1.0 - pow(options.decay2, step) : 1.0;
    const double factor = options.max_gradient_norm / (norm + 1e-6);
    state->factor = options.max_gradient_norm > 0.0 && factor < 1.0 ? static_cast<float>(factor) : 1.0f;
    state->rate = static_cast<float>(options.learning_rate / bias1);
    state->root = static_cast<float>(1.0 / sqrt(bias2));
  }
  report->steps = state->steps;
  report->num_skipped = state->num_skipped;
}

/// One step of nn::Optimizer (formulas there) over all parameters, unless `prepare_update` forbade it.
/// `first` and `second` are the means: adam m, v; rmsprop s, a (`second` is not used without centring).
template <UpdateRule kRule>
__global__ void update_parameters(float* parameters, const float* gradient, float* first, float* second,
                                  std::size_t size, StepOptions options, const StepState* state,
                                  const StepReport* report) {
  if (report->applied == 0) return;
  const auto keep1 = static_cast<float>(options.decay1), take1 = static_cast<float>(1.0 - options.decay1);
  const auto keep2 = static_cast<float>(options.decay2), take2 = static_cast<float>(1.0 - options.decay2);
  const float factor = state->factor, rate = state->rate, root = state->root, epsilon = options.epsilon;
  for (std::size_t i = first_element(); i < size; i += element_step()) {
    const float g = factor * gradient[i];
    if constexpr (kRule == UpdateRule::adam) {
      const float m = first[i] + take1 * (g - first[i]);
      const float v = keep2 * second[i] + take2 * (g * g);
      first[i] = m;
      second[i] = v;
      parameters[i] -= rate * (m / (sqrtf(v) * root + epsilon));
    } else {
      const float s = keep1 * first[i] + take1 * (g * g);
      first[i] = s;
      float variance = s;
      if constexpr (kRule == UpdateRule::centred_rmsprop) {
        const float a = second[i] + take1 * (g - second[i]);
        second[i] = a;
        variance = s - a * a;
        if (!(variance > 0.0f)) variance = 0.0f;
      }
      parameters[i] -= rate * (g / (sqrtf(variance) + epsilon));
    }
  }
}

/// A number as it is sent: itself, or the bits of the nearest binary16 as by troop::to_float16 (a finite one
/// too large becomes 65504).
__device__ inline void store(float* to, float value) {
  *to = value;
}
__device__ inline void store(std::uint16_t* to, float value) {
  float bounded = value;
  if (is_finite(value) && value > 65504.0f) bounded = 65504.0f;
  if (is_finite(value) && value < -65504.0f) bounded = -65504.0f;
  *to = __half_as_ushort(__float2half_rn(bounded));
}

/// flat[i] = values[positions[i]]: from the device's places to the order that nn::Network documents.
template <class Out>
__global__ void gather_parameters(const float* values, const std::uint32_t* positions, std::size_t size,
                                  Out* flat) {
  for (std::size_t i = first_element(); i < size; i += element_step()) store(flat + i, values[positions[i]]);
}

/// values[positions[i]] = flat[i].
template <class Real>
__global__ void scatter_parameters(const Real* flat, const std::uint32_t* positions, std::size_t size,
                                   Real* values) {
  for (std::size_t i = first_element(); i < size; i += element_step()) values[positions[i]] = flat[i];
}

}  // namespace troop::cuda
