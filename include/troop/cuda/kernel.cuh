/// @file
/// What all kernels share: shared memory, sums over a block, the last block of a grid, and the launch.
/// Nothing here or in the other .cuh files includes Eigen, Cereal or Asio.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace troop::cuda {

/// Threads of a block in every kernel: eight warps.
inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kWarpSize = 32;

/// An array in shared memory, `__shared__ Shared<float, 8> sums;`. Where the kernels run on the host, it is
/// an array whose reads and writes are watched for races.
#if defined(__CUDACC__)
template <class T, unsigned kSize>
using Shared = T[kSize];
#else
using simt::Shared;
#endif

/// The sum of `value` over the block, in an order that depends on the block's size only; valid in thread 0.
/// Every thread of the block must call it.
template <class T>
__device__ inline T block_sum(T value, Shared<T, kThreads / kWarpSize>& warps) {
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (unsigned lanes = kWarpSize / 2; lanes > 0; lanes /= 2) value += __shfl_down_sync(~0u, value, lanes);
  __syncthreads();  // the array may have been read just before
  if (thread % kWarpSize == 0) warps[thread / kWarpSize] = value;
  __syncthreads();
  T sum = 0;
  if (thread == 0)
    for (unsigned warp = 0; warp < kThreads / kWarpSize; ++warp) sum += warps[warp];
  return sum;
}

/// True in every thread of the block that calls it last of `num_blocks`; that block then sees what the others
/// wrote to global memory before. `counter` must be 0 at first and is 0 again afterwards.
__device__ inline bool is_last_block(unsigned* counter, unsigned num_blocks, Shared<unsigned, 1>& ticket) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) ticket[0] = atomicAdd(counter, 1u);
  __syncthreads();
  if (ticket[0] != num_blocks - 1) return false;
  if (threadIdx.x == 0 && threadIdx.y == 0) *counter = 0;
  __threadfence();
  return true;
}

/// Index of this thread in a one-dimensional grid, and how many threads there are: the bounds of a loop over
/// any number of elements.
__device__ inline std::size_t first_element() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t element_step() {
  return std::size_t{gridDim.x} * blockDim.x;
}

/// Blocks for a loop over `elements`: enough to fill the device, and never more than there is work.
inline unsigned num_blocks(std::size_t elements, unsigned multiprocessors) {
  const std::size_t wanted = (elements + kThreads - 1) / kThreads, most = std::size_t{8} * multiprocessors;
  return static_cast<unsigned>(wanted < 1 ? 1 : (wanted < most ? wanted : most));
}

}  // namespace troop::cuda
