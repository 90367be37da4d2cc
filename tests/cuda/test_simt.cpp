// The emulation itself: what it must find, it finds; what is right, it runs.
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <troop/cuda/kernel.cuh>
#include <troop/cuda/runtime.cuh>

namespace {

using troop::cuda::block_sum;
using troop::cuda::DeviceMemory;
using troop::cuda::PinnedMemory;
using troop::cuda::Shared;

__global__ void sum(const float* values, unsigned size, float* result) {
  __shared__ Shared<float, 8> warps;
  float mine = 0;
  for (unsigned i = threadIdx.x; i < size; i += blockDim.x) mine += values[i];
  const float total = block_sum(mine, warps);
  if (threadIdx.x == 0) result[blockIdx.x] = total;
}

__global__ void rotate(unsigned* values, bool barrier) {
  __shared__ Shared<unsigned, 64> shared;
  shared[threadIdx.x] = values[threadIdx.x];
  if (barrier) __syncthreads();
  values[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

__global__ void rotate_within_warps(unsigned* values, bool barrier) {
  __shared__ Shared<unsigned, 64> shared;
  shared[threadIdx.x] = values[threadIdx.x];
  if (barrier) __syncwarp();
  values[threadIdx.x] = shared[threadIdx.x / 32 * 32 + (threadIdx.x + 1) % 32];
}

__global__ void overwrite_what_others_read(unsigned* values, bool barrier) {
  __shared__ Shared<unsigned, 1> shared;
  if (threadIdx.x == 0) shared[0] = 1;
  __syncthreads();
  values[threadIdx.x] = shared[0];
  if (barrier) __syncthreads();
  if (threadIdx.x == 40) shared[0] = 2;
}

__global__ void read_what_nobody_wrote(unsigned* values) {
  __shared__ Shared<unsigned, 4> shared;
  if (blockIdx.x == 0) shared[threadIdx.x] = 7;
  __syncthreads();
  values[threadIdx.x] = shared[threadIdx.x];
}

__global__ void barrier_for_some(unsigned below) {
  if (threadIdx.x < below) __syncthreads();
}

__global__ void barriers_at_two_places() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void shuffle_of_few(unsigned* values) {
  if (threadIdx.x < 20) values[threadIdx.x] = __shfl_xor_sync(~0u, threadIdx.x, 1);
}

__global__ void shuffles(unsigned* values) {
  const unsigned lane = threadIdx.x % 32, base = threadIdx.x - lane;
  values[threadIdx.x] = __shfl_xor_sync(~0u, threadIdx.x, 3) == base + (lane ^ 3u) &&
                        __shfl_sync(~0u, threadIdx.x, 5) == base + 5 &&
                        __shfl_down_sync(~0u, threadIdx.x, 16) == base + (lane < 16 ? lane + 16 : lane);
}

__global__ void out_of_bounds() {
  __shared__ Shared<float, 8> shared;
  shared[threadIdx.x] = 1.0f;
}

__global__ void add_to(float* values, float addend) {
  values[threadIdx.x] += addend;
}

/// What the emulation says about a kernel of one block.
template <class... Parameters, class... Arguments>
std::string error_of(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                     Arguments... arguments) {
  const auto stream = troop::cuda::make_stream();
  try {
    troop::cuda::launch("probe", kernel, dim3(blocks), dim3(threads), stream.get(), arguments...);
    troop::cuda::synchronize(stream.get());
  } catch (const simt::KernelError& error) {
    return error.what();
  }
  return "no error";
}

/// Runs `test` in both orders of threads and blocks.
template <class Test>
void in_both_orders(Test test) {
  for (const simt::Order order : {simt::Order::forward, simt::Order::backward}) {
    simt::order = order;
    test();
  }
  simt::order = simt::Order::forward;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a reduction over many blocks is right in any order of threads") {
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 1.0f);
  std::vector<float> result(3);
  in_both_orders([&] {
    CHECK(error_of(sum, 3, 256, values.data(), 1000u, result.data()) == "no error");
    for (const float total : result) CHECK(total == 500500.0f);
  });
}

TEST_CASE("shuffles give the values of other lanes") {
  std::vector<unsigned> right(96);
  in_both_orders([&] {
    CHECK(error_of(shuffles, 1, 96, right.data()) == "no error");
    CHECK(std::accumulate(right.begin(), right.end(), 0u) == 96);
  });
}

TEST_CASE("a missing barrier is reported with kernel, block and both places") {
  std::vector<unsigned> values(64);
  CHECK(error_of(rotate, 1, 64, values.data(), true) == "no error");
  const std::string error = error_of(rotate, 1, 64, values.data(), false);
  CHECK(contains(error, "kernel probe, block (0,0,0)"));
  CHECK(contains(error, "shared memory"));
  CHECK(contains(error, "test_simt.cpp:"));
  CHECK(error_of(rotate, 1, 64, values.data(), true) == "no error");  // none of it is left over
}

TEST_CASE("a barrier of the warp orders the lanes of a warp and nothing else") {
  std::vector<unsigned> values(64);
  in_both_orders([&] {
    CHECK(error_of(rotate_within_warps, 1, 64, values.data(), true) == "no error");
    CHECK(contains(error_of(rotate_within_warps, 1, 64, values.data(), false), "shared memory"));
  });
}

TEST_CASE("a write after other threads' reads needs a barrier") {
  std::vector<unsigned> values(64);
  in_both_orders([&] {
    CHECK(error_of(overwrite_what_others_read, 1, 64, values.data(), true) == "no error");
    CHECK(contains(error_of(overwrite_what_others_read, 1, 64, values.data(), false), "without a barrier"));
  });
}

TEST_CASE("shared memory does not outlive its block") {
  std::vector<unsigned> values(4);
  CHECK(error_of(read_what_nobody_wrote, 1, 4, values.data()) == "no error");
  CHECK(contains(error_of(read_what_nobody_wrote, 2, 4, values.data()), "that nobody has written"));
}

TEST_CASE("divergence at a barrier is reported") {
  CHECK(error_of(barrier_for_some, 1, 64, 64u) == "no error");
  const std::string error = error_of(barrier_for_some, 1, 64, 40u);
  CHECK(contains(error,
                 "kernel probe, block (0,0,0): thread (0,0,0) waits in __syncthreads at test_simt.cpp:"));
  CHECK(contains(error, "but thread (40,0,0) has ended"));
  CHECK(contains(error_of(barriers_at_two_places, 1, 64), "but thread (1,0,0) in __syncthreads"));
  std::vector<unsigned> values(32);
  CHECK(contains(error_of(shuffle_of_few, 1, 32, values.data()), "waits in __shfl_xor_sync"));
}

TEST_CASE("an index beyond a shared array and impossible launches are reported") {
  CHECK(error_of(out_of_bounds, 1, 8) == "no error");
  CHECK(contains(error_of(out_of_bounds, 1, 9), "element 8 of a shared array of 8"));
  CHECK(contains(error_of(out_of_bounds, 1, 1025), "1025"));
  CHECK(contains(error_of(out_of_bounds, 0, 8), "grid"));
}

TEST_CASE("with Schedule::late nothing happens before it is waited for") {
  const std::size_t leaks = simt::num_leaks();
  {
    simt::schedule = simt::Schedule::late;
    const auto first = troop::cuda::make_stream(), second = troop::cuda::make_stream();
    const auto event = troop::cuda::make_event();
    const DeviceMemory<float> device(4, "test", first.get());
    const PinnedMemory<float> host(4, "test");
    host.data()[0] = 5;
    troop::cuda::copy_to_device(device.data(), host.data(), 16, first.get());
    troop::cuda::launch("add_to", add_to, 1, 4, first.get(), device.data(), 2.0f);
    host.data()[0] = 100;  // too early: the copy has not been made
    CHECK(std::isnan(device.data()[0]));
    troop::cuda::order(event, first.get(), second.get());
    troop::cuda::copy_to_host(host.data(), device.data(), 16, second.get());
    CHECK(host.data()[0] == 100);
    troop::cuda::synchronize(second.get());
    CHECK(host.data()[0] == 102);
    simt::schedule = simt::Schedule::early;
  }
  CHECK(simt::num_leaks() == leaks);
}

TEST_CASE("a graph replays what was captured, branches included, and refuses what CUDA refuses") {
  const std::size_t leaks = simt::num_leaks();
  for (const simt::Schedule schedule : {simt::Schedule::early, simt::Schedule::late}) {
    simt::schedule = schedule;
    const auto main = troop::cuda::make_stream(), side = troop::cuda::make_stream();
    const auto fork = troop::cuda::make_event(), join = troop::cuda::make_event();
    const DeviceMemory<float> a(4, "test", main.get()), b(4, "test", main.get());
    const PinnedMemory<float> host(4, "test");
    troop::cuda::synchronize(main.get());
    const auto graph = troop::cuda::capture(main.get(), [&] {
      troop::cuda::launch("add_to", add_to, 1, 4, main.get(), a.data(), 1.0f);
      troop::cuda::order(fork, main.get(), side.get());
      troop::cuda::copy_on_device(b.data(), a.data(), 16, side.get());
      troop::cuda::launch("add_to", add_to, 1, 4, side.get(), b.data(), 10.0f);
      troop::cuda::order(join, side.get(), main.get());
      troop::cuda::copy_to_host(host.data(), b.data(), 16, main.get());
    });
    CHECK(a.data()[0] == 0.0f);
    for (int i = 0; i < 3; ++i) CHECK(cudaGraphLaunch(graph.get(), main.get()) == cudaSuccess);
    troop::cuda::synchronize(main.get());
    CHECK(host.data()[0] == 13.0f);

    const auto says = [&](auto body) {
      try {
        troop::cuda::capture(main.get(), body);
      } catch (const troop::Error& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    CHECK(contains(says([&] { troop::cuda::synchronize(main.get()); }), "cudaErrorStreamCaptureUnsupported"));
    CHECK(contains(says([&] {
                     troop::cuda::launch("add_to", add_to, 1, 4, main.get(), a.data(), 1.0f);
                     troop::cuda::order(fork, main.get(), side.get());
                     troop::cuda::launch("add_to", add_to, 1, 4, side.get(), b.data(), 1.0f);
                   }),
                   "cudaErrorStreamCaptureUnjoined"));
    troop::cuda::synchronize(side.get());  // has left the capture
  }
  simt::schedule = simt::Schedule::early;
  CHECK(simt::num_leaks() == leaks);
}

TEST_CASE("a failed call is reported with call, code, text and sizes, and nothing leaks") {
  const std::size_t leaks = simt::num_leaks();
  const auto says = [](auto body) {
    try {
      body();
    } catch (const troop::Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK(says([] { DeviceMemory<float>(std::size_t{1} << 40, "frames"); }) ==
        "CUDA: cudaMalloc failed with code 2 (cudaErrorMemoryAllocation: out of memory); 4398046511104 bytes "
        "for "
        "frames, 1073741824 of 1073741824 are free");
  simt::fail("cudaStreamCreateWithFlags", cudaErrorMemoryAllocation);
  CHECK(contains(says([] { troop::cuda::make_stream(); }), "cudaStreamCreateWithFlags failed with code 2"));
  simt::fail("cudaMemcpyAsync", cudaErrorIllegalAddress);
  const auto stream = troop::cuda::make_stream();
  const DeviceMemory<float> device(4, "test", stream.get());
  const PinnedMemory<float> host(4, "test");
  const auto copy = [&] { troop::cuda::copy_to_device(device.data(), host.data(), 16, stream.get()); };
  CHECK(contains(says(copy), "cudaErrorIllegalAddress"));
  CHECK(contains(says(copy), "16 bytes"));  // sticky
  simt::heal();
  CHECK(says(copy) == "no error");
  CHECK(contains(says([&] { troop::cuda::copy_to_device(device.data(), host.data(), 17, stream.get()); }),
                 "cudaErrorInvalidValue"));
  CHECK(simt::num_leaks() == leaks + 3);
}
