/// @file
/// Elementwise parts of the layers: bias and ReLU, their gradient, and the dueling head.
#pragma once

#include <cstddef>
#include <cstdint>

#include <troop/cuda/kernel.cuh>

namespace troop::cuda {

template <bool kRelu>
__device__ inline float with_bias(float y, float bias) {
  const float value = y + bias;
  return kRelu && value < 0.0f ? 0.0f : value;  // a NaN stays one
}

/// y = max(y + bias, 0) or y + bias, in place; y is [rows, columns]. For what comes out of a convolution;
/// matrix products do it in their epilogue. Both begin at 16 bytes.
template <bool kRelu>
__global__ void add_bias(float* y, const float* bias, std::size_t rows, unsigned columns) {
  const bool by_four = columns % 4 == 0;
  const unsigned groups = by_four ? columns / 4 : columns;
  const std::size_t total = rows * groups, step = element_step();
  const auto jump = static_cast<unsigned>(step % groups);
  auto group = static_cast<unsigned>(first_element() % groups);
  for (std::size_t i = first_element(); i < total; i += step) {
    if (by_four) {
      float4 four = reinterpret_cast<const float4*>(y)[i];
      const float4 added = reinterpret_cast<const float4*>(bias)[group];
      four.x = with_bias<kRelu>(four.x, added.x);
      four.y = with_bias<kRelu>(four.y, added.y);
      four.z = with_bias<kRelu>(four.z, added.z);
      four.w = with_bias<kRelu>(four.w, added.w);
      reinterpret_cast<float4*>(y)[i] = four;
    } else {
      y[i] = with_bias<kRelu>(y[i], bias[group]);
    }
    group += jump;
    if (group >= groups) group -= groups;
  }
}

/// Rows that one block of `bias_gradient` adds up, and into how many parts it cuts the rows.
inline constexpr unsigned kBiasRows = 32, kMaxBiasParts = 256;
inline unsigned num_bias_parts(std::size_t rows) {
  const std::size_t parts = (rows + kBiasRows - 1) / kBiasRows;
  return static_cast<unsigned>(parts < kMaxBiasParts ? parts : kMaxBiasParts);
}
inline dim3 bias_gradient_grid(std::size_t rows, unsigned columns) {
  return {(columns + kWarpSize - 1) / kWarpSize, num_bias_parts(rows), 1};
}
inline constexpr unsigned kBiasLanes = kThreads / kWarpSize;
inline dim3 bias_gradient_block() {
  return {kWarpSize, kBiasLanes, 1};
}

/// Turns dloss/dy into the derivative before the ReLU, in place (y > 0 lets it through), and writes its sum
/// over the rows, the bias's gradient. y and dy are [rows, columns]; y is not read unless kRelu.
///
/// Launch: `bias_gradient_grid`, `bias_gradient_block`. `partial` holds num_bias_parts * columns floats,
/// `counters` a zero for each 32 columns. The sum's order depends on the sizes only.
template <bool kRelu>
__global__ void bias_gradient(const float* y, float* dy, float* dbias, float* partial, unsigned* counters,
                              std::size_t rows, unsigned columns) {
  __shared__ Shared<float, kThreads> lanes;
  __shared__ Shared<unsigned, 1> ticket;
  const unsigned column = blockIdx.x * kWarpSize + threadIdx.x;
  const std::size_t step = std::size_t{gridDim.y} * kBiasLanes;
  float sum = 0.0f;
  if (column < columns) {
    for (std::size_t row = std::size_t{blockIdx.y} * kBiasLanes + threadIdx.y; row < rows; row += step) {
      const std::size_t at = row * columns + column;
      float gradient = dy[at];
      if (kRelu && !(y[at] > 0.0f)) {
        gradient = 0.0f;
        dy[at] = gradient;
      }
      sum += gradient;
    }
  }
  lanes[threadIdx.y * kWarpSize + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    float total = 0.0f;
    for (unsigned lane = 0; lane < kBiasLanes; ++lane) total += lanes[lane * kWarpSize + threadIdx.x];
    if (gridDim.y == 1) {
      dbias[column] = total;
    } else {
      partial[std::size_t{blockIdx.y} * columns + column] = total;
    }
  }
  if (gridDim.y == 1) return;
  if (!is_last_block(counters + blockIdx.x, gridDim.y, ticket)) return;
  sum = 0.0f;
  if (column < columns)
    for (unsigned part = threadIdx.y; part < gridDim.y; part += kBiasLanes)
      sum += partial[std::size_t{part} * columns + column];
  lanes[threadIdx.y * kWarpSize + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    float total = 0.0f;
    for (unsigned lane = 0; lane < kBiasLanes; ++lane) total += lanes[lane * kWarpSize + threadIdx.x];
    dbias[column] = total;
  }
}

/// Q = V + A - mean(A) (Wang et al. 2015, 1511.06581, equation 9). `value` [rows], `advantage` and `q` [rows,
/// actions].
template <class Real>
__global__ void combine_dueling(const Real* value, const Real* advantage, Real* q, std::size_t rows,
                                unsigned actions) {
  for (std::size_t row = first_element(); row < rows; row += element_step()) {
    const Real* const a = advantage + row * actions;
    Real mean = 0;
    for (unsigned j = 0; j < actions; ++j) mean += a[j];
    const Real base = value[row] - mean / static_cast<Real>(actions);
    for (unsigned j = 0; j < actions; ++j) q[row * actions + j] = base + a[j];
  }
}

}  // namespace troop::cuda
