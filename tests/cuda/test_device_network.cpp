// What only the emulation shows: every order that CUDA allows, calls that fail, memory, and a whole training.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <troop/agent/actor.hpp>
#include <troop/agent/evaluator.hpp>
#include <troop/agent/item_sink.hpp>
#include <troop/agent/learner.hpp>
#include <troop/core/random.hpp>
#include <troop/cuda/network.hpp>
#include <troop/env/cart_pole.hpp>
#include <troop/env/vector_environment.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/nn/network.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>

#include "testing.hpp"
#include "transition_columns.hpp"

using troop::Random;
using troop::cuda::Network;
using troop::nn::parse_network;
using troop::testing::error_of;
using troop::testing::TransitionColumns;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Parameters after five steps, two in flight, of a network with every kind of layer.
std::vector<float> trained() {
  Random random(7, "test");  // seed 7
  const auto description =
      parse_network("input(3,9,8) conv(5,3,2) relu conv(4,2,1) relu dense(7) relu dueling(6,3)");
  Network network(description, 3, {.optimizer = {.learning_rate = 1e-3}});
  std::vector<float> priorities(33);
  for (int i = 0; i < 5; ++i) {
    const TransitionColumns<std::uint8_t> columns(description, 33, random);
    network.begin_step(columns.batch(), columns.weights);
    if (network.pending_steps() == 2) network.finish_step(priorities);
    if (i == 2) network.sync_target();
  }
  network.finish_step(priorities);
  return {network.parameters().begin(), network.parameters().end()};
}

}  // namespace

TEST_CASE("the result is the same bit for bit in every order that CUDA allows") {
  const std::size_t leaks = simt::num_leaks();
  const std::vector<float> expected = trained();
  for (const simt::Schedule schedule : {simt::Schedule::early, simt::Schedule::late})
    for (const simt::Order order : {simt::Order::forward, simt::Order::backward}) {
      simt::schedule = schedule;
      simt::order = order;
      CHECK(trained() == expected);
    }
  simt::schedule = simt::Schedule::early;
  simt::order = simt::Order::forward;
  CHECK(simt::num_leaks() == leaks);
}

TEST_CASE("a step that was made before neither allocates nor waits before its end") {
  Random random(8, "test");  // seed 8
  const auto description = parse_network("input(4) dense(8) relu dueling(8,2)");
  Network network(description, 3);
  const TransitionColumns<float> columns(description, 33, random);
  network.train_step(columns.batch(), {}, {});
  const auto allocations = simt::num_allocations();
  const auto synchronizations = simt::detail::runtime().synchronizations;
  for (int i = 0; i < 3; ++i) network.train_step(columns.batch(), {}, {});
  CHECK(simt::num_allocations() == allocations);
  CHECK(simt::detail::runtime().synchronizations == synchronizations + 3);
  network.begin_step(columns.batch(), {});
  network.sync_target();
  CHECK(simt::detail::runtime().synchronizations == synchronizations + 3);
  network.finish_step({});
}

TEST_CASE("no device, an unknown device and too little memory are reported, and nothing leaks") {
  const std::size_t leaks = simt::num_leaks();
  const auto description = parse_network("input(4) dense(64) relu dueling(64,2)");
  const auto make = [&] { Network network(description, 1); };
  simt::num_devices = 0;
  CHECK(contains(error_of(make), "no GPU can be used: cudaErrorNoDevice"));
  CHECK(contains(error_of([] { troop::cuda::devices(); }), "no GPU can be used"));
  simt::num_devices = 1;
  simt::driver_version = 12080;
  CHECK(error_of(make) ==
        "no GPU can be used: cudaErrorInsufficientDriver (an emulated error); the driver knows CUDA 12.8, "
        "troop "
        "was built with 13.0");
  simt::driver_version = 0;
  CHECK(contains(error_of(make), "; there is no NVIDIA driver"));
  simt::driver_version = 13000;
  simt::fail("cudaFuncGetAttributes", cudaErrorNoKernelImageForDevice);
  CHECK(contains(error_of(make),
                 "; GPU 0, emulated device of compute capability 9.0; troop is compiled for the GPUs that "
                 "TROOP_CUDA_ARCHITECTURES names"));
  CHECK(troop::cuda::devices().at(0).name == "emulated device");
  CHECK(error_of([&] { Network network(description, 1, {}, {.device = 1}); }) ==
        "device: 1 is not allowed; expected a GPU from 0 to 0");
  simt::device_bytes = 1000;
  CHECK(contains(error_of(make), "cudaMalloc failed with code 2 (cudaErrorMemoryAllocation: out of memory)"));
  simt::device_bytes = std::size_t{1} << 30;
  CHECK(error_of(make) == "no error");
  CHECK(simt::num_leaks() == leaks);

  // Whatever call of the first step fails, the error comes out, nothing leaks, and the parameters are there.
  Random random(9, "test");  // seed 9
  const TransitionColumns<float> columns(description, 33, random);
  for (const char* call :
       {"cudaMalloc", "cudaHostAlloc", "cudaMemsetAsync", "cudaEventCreateWithFlags",
        "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch",
        "cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventSynchronize"})
    for (int after = 0; after < 40; ++after) {
      CAPTURE(call);
      CAPTURE(after);
      Network network(description, 1);
      simt::fail(call, cudaErrorMemoryAllocation, after);
      const std::string error = error_of([&] { network.train_step(columns.batch(), {}, {}); });
      simt::heal();
      if (error == "no error") break;
      CHECK(contains(error, std::string(call) + " "));
    }
  CHECK(simt::num_leaks() == leaks);
}

TEST_CASE("an error that stays is reported by every call after it, and destruction is quiet") {
  Random random(10, "test");  // seed 10
  const std::size_t leaks = simt::num_leaks();
  const auto description = parse_network("input(4) dense(8) relu dueling(8,2)");
  {
    Network network(description, 1);
    const TransitionColumns<float> columns(description, 33, random);
    network.train_step(columns.batch(), {}, {});
    simt::fail("cudaEventSynchronize", cudaErrorIllegalAddress);
    CHECK(error_of([&] { network.train_step(columns.batch(), {}, {}); }) ==
          "CUDA: cudaEventSynchronize failed with code 700 (cudaErrorIllegalAddress: an emulated error); a "
          "training "
          "step of 33 transitions");
    CHECK(contains(error_of([&] { network.parameters(); }), "cudaErrorIllegalAddress"));
  }
  simt::heal();
  CHECK(simt::num_leaks() == leaks);
}

TEST_CASE("CartPole is learnt by agent::Learner with the CUDA network") {
  using Environments = troop::env::VectorEnvironment<troop::env::CartPole>;
  const std::uint64_t seed = 1;
  const auto description = troop::nn::dueling_mlp({32, 32}).bind({4}, 2);
  troop::PrioritizedReplay<troop::DynamicRecord> replay(
      {.capacity = 20000, .alpha = 0.6}, troop::env::transition_layout(troop::env::CartPole().spec()));
  troop::RateLimiter limiter({.min_inserts = 500, .samples_per_insert = 0.0});
  troop::agent::ParameterStore parameters;
  Network network(description, seed, {.optimizer = {.learning_rate = 1e-3}});
  troop::agent::Learner learner(network, replay, limiter, parameters,
                                {.batch_size = 64, .target_interval = 100, .seed = seed});
  troop::agent::LocalSink sink(replay, limiter);
  troop::agent::Actor<Environments, troop::nn::EigenNetwork, decltype(sink), troop::agent::ParameterStore>
      actor(Environments({.count = 8, .seed = seed}), troop::nn::EigenNetwork(description, seed), sink,
            parameters, {.num_environments = 8, .parameter_interval = 40, .seed = seed});
  troop::agent::Evaluator evaluator(Environments({.count = 10, .seed = seed, .stream = "evaluation"}),
                                    troop::nn::EigenNetwork(description, seed));
  double best = 0;
  while (learner.steps() < 4000 && best < 100) {
    actor.step(troop::Deadline::now());
    if (learner.step(troop::Deadline::now()) != troop::Outcome::ok || learner.steps() % 250 != 0) continue;
    evaluator.network().set_parameters(network.parameters());
    best = std::max(best, evaluator.evaluate(1, [] { return false; }).mean());
    MESSAGE("after " << learner.steps() << " steps: " << best);
  }
  CHECK(best >= 100);  // greedy play begins at about 10, and 22 is what chance earns
  CHECK(network.num_skipped_steps() == 0);
}
