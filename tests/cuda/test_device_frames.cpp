// What only the emulation can show of frames on the device.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <troop/core/dtype.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/cuda/device_frame_storage.hpp>
#include <troop/cuda/network.hpp>
#include <troop/nn/network.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "stacked_records.hpp"
#include "testing.hpp"

using troop::Random;
using troop::cuda::Network;
using troop::testing::error_of;
using troop::testing::stacked_layout;
using troop::testing::StackedRecords;

namespace {

using Replay = troop::PrioritizedReplay<troop::DynamicRecord, troop::cuda::DeviceFrameStorage>;

const troop::nn::Network kNetwork =
    troop::nn::parse_network("input(3,8,7) conv(5,3,2) relu dense(7) relu dueling(6,4)");

constexpr std::size_t kShort = 10'000, kEnough = 10'000'000;

/// Parameters after steps, two in flight, with frames written while they are; more frames than the staging
/// memory holds, some of them on the host where `on_device` bytes are not enough.
std::vector<float> trained(std::size_t on_device) {
  Random random(7, "test");  // seed 7
  StackedRecords source(4, random);
  const std::size_t free = simt::device_bytes - simt::detail::runtime().device_bytes;
  Replay replay({.capacity = 150}, stacked_layout(),
                {.storage = {.spare_bytes = free - on_device, .chunk_bytes = 1000, .report = {}}});
  const auto add = [&](std::size_t count) {
    replay.add(source.make(count).view(), std::vector<float>(count, 1.0f));
  };
  add(100);
  Network network(kNetwork, 3, {.optimizer = {.learning_rate = 1e-3}});
  std::vector<float> priorities(20);
  for (int i = 0; i < 12; ++i) {
    add(60);
    const auto batch = replay.sample(20, {}, random);
    network.begin_step(replay.storage().transitions(batch.view()), batch.weights);
    add(40);
    std::vector<std::byte> saved;
    const std::size_t slot = 0;
    replay.storage().save(std::span(&slot, 1), saved);  // waits for all writes
    if (network.pending_steps() == 2) network.finish_step(priorities);
  }
  network.finish_step(priorities);
  const auto statistics = replay.storage().memory_statistics();
  CHECK(statistics.device_bytes > 0);
  CHECK((statistics.host_bytes > 0) == (on_device == kShort));
  CHECK(statistics.overwritten == 0);
  return {network.parameters().begin(), network.parameters().end()};
}

}  // namespace

TEST_CASE("frames never change under a step, in every order that CUDA allows") {
  const std::size_t leaks = simt::num_leaks();
  const std::vector<float> expected = trained(kEnough);
  for (const simt::Schedule schedule : {simt::Schedule::early, simt::Schedule::late})
    for (const simt::Order order : {simt::Order::forward, simt::Order::backward}) {
      simt::schedule = schedule;
      simt::order = order;
      CHECK(trained(kEnough) == expected);
      CHECK(trained(kShort) == expected);
    }
  simt::schedule = simt::Schedule::early;
  simt::order = simt::Order::forward;
  CHECK(simt::num_leaks() == leaks);
}

TEST_CASE("an error of the device while a frame is written comes out of add, and nothing leaks") {
  const std::size_t leaks = simt::num_leaks();
  {
    Random random(8, "test");  // seed 8
    StackedRecords source(4, random);
    Replay replay({.capacity = 50}, stacked_layout(), {.storage = {.spare_bytes = 0, .report = {}}});
    const auto records = source.make(20);
    const std::vector<float> priorities(20, 1.0f);
    for (const char* call : {"cudaMalloc", "cudaMemcpyAsync", "cudaMemsetAsync"}) {
      simt::fail(call, cudaErrorMemoryAllocation);
      const std::string error = error_of([&] { replay.add(records.view(), priorities); });
      CHECK(error.find(std::string(call) + " ") != std::string::npos);
      simt::heal();
    }
    replay.add(records.view(), priorities);
    Network network(kNetwork);
    const auto batch = replay.sample(20, {}, random);
    CHECK(network.train_step(replay.storage().transitions(batch.view()), batch.weights, {}).applied);
  }
  CHECK(simt::num_leaks() == leaks);
}

TEST_CASE("threads that add while another trains never mix up frames") {
  // Every frame has one value v, Q is the sum of the pixels, and v's Q is the reward: a TD error that is not 0
  // means that a step saw other pixels than those of its transition.
  constexpr std::size_t kSide = 24, kBatch = 32;
  const troop::RecordLayout layout({{"observation", troop::DType::u8, {1, kSide, kSide}},
                                    {"action", troop::DType::i32, {}},
                                    {"reward", troop::DType::f32, {}},
                                    {"discount", troop::DType::f32, {}},
                                    {"next_observation", troop::DType::u8, {1, kSide, kSide}}});
  Network network(troop::nn::parse_network("input(1,24,24) output(1)"), 1,
                  {.optimizer = {.learning_rate = 1e-12}}, {.precision = troop::cuda::Precision::fp32});
  std::vector<float> parameters(network.parameters().size(), 1.0f);
  parameters.back() = 0.0f;  // the bias
  network.set_parameters(parameters);
  Replay replay({.capacity = 100}, layout,
                {.storage = {.spare_bytes = 0, .chunk_bytes = 8192, .report = {}}});
  const auto add = [&](std::uint64_t index, const auto& is_enough) {
    Random random(7, "adder", index);  // seed 7
    troop::RecordArray record(layout, 1);
    for (std::size_t i = 0; !is_enough(i); ++i) {
      const auto value = static_cast<std::uint8_t>(1 + random.below(255));
      std::memset(record.data(), 0, layout.size());
      std::memset(record.data() + layout.field("observation").offset, value, kSide * kSide);
      const float reward = static_cast<float>(kSide * kSide) * (static_cast<float>(value) / 255.0f);
      std::memcpy(record.data() + layout.field("reward").offset, &reward, sizeof reward);
      replay.add(record.view(), std::vector<float>{1.0f});
    }
  };
  add(0, [](std::size_t i) { return i == 100; });
  {
    std::vector<std::jthread> adders;
    for (const std::uint64_t index : {1, 2})
      adders.emplace_back([&add, index](const std::stop_token& stop) {
        add(index, [&](std::size_t) { return stop.stop_requested(); });
      });
    Random random(8, "test");  // seed 8
    std::vector<float> priorities(kBatch);
    troop::testing::Failures failures;
    std::uint64_t before = 0;
    for (int step = 0; step < 100 || (before < 50 && step < 10'000); ++step) {
      const auto batch = replay.sample(kBatch, {}, random);
      const auto result =
          network.train_step(replay.storage().transitions(batch.view()), batch.weights, priorities);
      if (!(result.loss < 1e-3f)) failures.add("loss " + std::to_string(result.loss));
      const auto other =
          std::count_if(priorities.begin(), priorities.end(), [](float p) { return p > 0.02f; });
      const auto overwritten = replay.storage().memory_statistics().overwritten;
      if (static_cast<std::uint64_t>(other) != overwritten - before)
        failures.add("step " + std::to_string(step));
      before = overwritten;
    }
    TROOP_CHECK_NONE(failures);
  }
  CHECK(replay.storage().memory_statistics().overwritten >= 50);
}
