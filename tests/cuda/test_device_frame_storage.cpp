// Through the public interface; the same file runs on the emulation and on a GPU.
#include <troop/cuda/device_frame_storage.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <troop/agent/actor.hpp>
#include <troop/agent/evaluator.hpp>
#include <troop/agent/item_sink.hpp>
#include <troop/agent/learner.hpp>
#include <troop/agent/parameter_store.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/random.hpp>
#include <troop/cuda/network.hpp>
#include <troop/env/catch.hpp>
#include <troop/env/vector_environment.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/transition_batch.hpp>
#include <troop/replay/frame_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>
#include <troop/replay/snapshot.hpp>

#include "stacked_records.hpp"
#include "temporary_directory.hpp"
#include "testing.hpp"

using troop::DType;
using troop::DynamicRecord;
using troop::FrameStorage;
using troop::PrioritizedReplay;
using troop::Random;
using troop::RecordLayout;
using troop::cuda::DeviceFrameStorage;
using troop::cuda::FrameMemoryOptions;
using troop::cuda::Network;
using troop::cuda::Precision;
using troop::testing::error_of;
using troop::testing::stacked_layout;
using troop::testing::StackedRecords;

namespace {

using HostReplay = PrioritizedReplay<DynamicRecord, FrameStorage<>>;
using DeviceReplay = PrioritizedReplay<DynamicRecord, DeviceFrameStorage>;

const troop::nn::Network kNetwork =
    troop::nn::parse_network("input(3,8,7) conv(5,3,2) relu conv(4,2,1) relu dense(7) relu dueling(6,4)");
const FrameMemoryOptions kSmall{.spare_bytes = 0, .chunk_bytes = 1000, .report = {}};
constexpr std::size_t kBatch = 33;

Network make_network() {
  return Network(kNetwork, 3, {.optimizer = {.learning_rate = 1e-3}},
                 {.precision = Precision::fp32, .deterministic = true});
}

template <class Replay>
void add(Replay& replay, const troop::RecordArray& records) {
  std::vector<float> priorities(records.size());
  for (std::size_t i = 0; i < priorities.size(); ++i) priorities[i] = 1.0f + static_cast<float>(i % 7);
  replay.add(records.view(), priorities);
}

}  // namespace

TEST_CASE("training from frames on the device is training from the same frames on the host, bit for bit") {
  for (const std::size_t spare :
       {std::size_t{0}, std::size_t{1} << 50}) {  // 2^50: nothing fits on the device
    CAPTURE(spare);
    Random random(troop::testing::seed());
    StackedRecords source(4, random);
    FrameMemoryOptions options(kSmall);
    options.spare_bytes = spare;
    std::vector<std::string> reports;
    options.report = [&](const std::string& line) { reports.push_back(line); };
    HostReplay host({.capacity = 100}, stacked_layout());
    DeviceReplay device({.capacity = 100}, stacked_layout(), {.storage = options});
    Network of_host = make_network(), of_device = make_network();
    Random host_random(5), device_random(5);
    std::vector<float> host_priorities(kBatch), device_priorities(kBatch);
    for (int step = 0; step < 8; ++step) {
      const auto records = source.make(60);
      add(host, records);
      add(device, records);
      const auto a = host.sample(kBatch, {.beta = 0.4}, host_random);
      const auto b = device.sample(kBatch, {.beta = 0.4}, device_random);
      CHECK(a.keys == b.keys);
      const auto x = of_host.train_step(troop::nn::TransitionBatch(a.view()), a.weights, host_priorities);
      const auto y =
          of_device.train_step(device.storage().transitions(b.view()), b.weights, device_priorities);
      CHECK(x.loss == y.loss);
      CHECK(x.gradient_norm == y.gradient_norm);
      CHECK(host_priorities == device_priorities);
      host.update(a.keys, host_priorities);
      device.update(b.keys, device_priorities);
    }
    CHECK(std::ranges::equal(of_host.parameters(), of_device.parameters()));
    CHECK(host.storage().statistics().frames == device.storage().statistics().frames);
    const auto statistics = device.storage().memory_statistics();
    CHECK(statistics.overwritten == 0);
    CHECK(reports.size() == (spare == 0 ? 0 : 1));
    CHECK((statistics.device_bytes > 0) == (spare == 0));
    CHECK((statistics.host_bytes > 0) == (spare != 0));
    if (spare != 0) {
      CHECK(reports.front().starts_with("the replay's frames have 0 bytes on GPU 0, of which "));
    }
  }
}

TEST_CASE("a transition that is overwritten between sample and step has no part in it, and is counted") {
  Random random(troop::testing::seed());
  StackedRecords source(4, random);
  HostReplay host({.capacity = 100}, stacked_layout());
  DeviceReplay device({.capacity = 100}, stacked_layout(), {.storage = kSmall});
  const auto records = source.make(100);
  add(host, records);
  add(device, records);
  Random host_random(5), device_random(5);
  auto a = host.sample(kBatch, {.beta = 0.4}, host_random);
  const auto b = device.sample(kBatch, {.beta = 0.4}, device_random);
  add(device, source.make(50));  // over the keys 0 to 49
  std::size_t overwritten = 0;
  for (std::size_t i = 0; i < kBatch; ++i) {
    if (a.keys[i] >= 50) continue;
    a.weights[i] = 0.0f;
    ++overwritten;
  }
  REQUIRE(overwritten > 0);
  REQUIRE(overwritten < kBatch);
  Network of_host = make_network(), of_device = make_network();
  std::vector<float> host_priorities(kBatch), device_priorities(kBatch);
  of_host.train_step(troop::nn::TransitionBatch(a.view()), a.weights, host_priorities);
  const auto result =
      of_device.train_step(device.storage().transitions(b.view()), b.weights, device_priorities);
  CHECK(result.applied);
  for (std::size_t i = 0; i < kBatch; ++i) {
    if (a.keys[i] >= 50) {
      CHECK(host_priorities[i] == device_priorities[i]);
    }
  }
  for (std::size_t i = 0; i < kNetwork.num_parameters(); ++i)
    REQUIRE(std::abs(of_host.parameters()[i] - of_device.parameters()[i]) < 1e-6f);
  CHECK(device.storage().memory_statistics().overwritten == overwritten);
  CHECK(device.update(b.keys, device_priorities) == overwritten);
}

TEST_CASE("snapshots go from the host to the device and back") {
  const troop::testing::TemporaryDirectory directory;
  Random random(troop::testing::seed());
  StackedRecords source(4, random);
  HostReplay host({.capacity = 100}, stacked_layout());
  add(host, source.make(130));
  troop::save_snapshot(directory.file("host"), host);
  DeviceReplay device({.capacity = 100}, stacked_layout(), {.storage = kSmall});
  add(device, source.make(90));
  troop::load_snapshot(directory.file("host"), device);
  troop::save_snapshot(directory.file("device"), device);
  HostReplay back({.capacity = 100}, stacked_layout());
  troop::load_snapshot(directory.file("device"), back);
  Random one(1), two(1);
  const auto a = host.sample(kBatch, {}, one), b = back.sample(kBatch, {}, two);
  CHECK(a.keys == b.keys);
  CHECK(std::ranges::equal(std::span(a.view().data(), kBatch * stacked_layout().size()),
                           std::span(b.view().data(), kBatch * stacked_layout().size())));
}

TEST_CASE("samples name frames and hold the other fields as they were added") {
  Random random(troop::testing::seed());
  StackedRecords source(4, random);
  DeviceReplay device({.capacity = 10}, stacked_layout(), {.storage = kSmall});
  const auto records = source.make(10);
  add(device, records);
  CHECK(device.sample_layout().describe() ==
        "frames u32[6], slot u32, version u32, action i32, reward f32, note u8[3], discount f32");
  CHECK(device.layout() == stacked_layout());
  const auto batch = device.sample(50, {}, random);
  const auto sampled = batch.view(), added = records.view();
  troop::testing::Failures failures;
  for (std::size_t i = 0; i < 50; ++i) {
    const std::size_t from = batch.keys[i];
    if (sampled.field<std::uint32_t>("slot")(i) != from) failures.add("slot");
    if (sampled.field<std::int32_t>("action")(i) != added.field<std::int32_t>("action")(from))
      failures.add("action");
    if (sampled.field<float>("reward")(i) != added.field<float>("reward")(from)) failures.add("reward");
    if (sampled.field<float>("discount")(i) != added.field<float>("discount")(from)) failures.add("discount");
    for (std::size_t j = 0; j < 3; ++j)
      if (sampled.field<std::uint8_t>("note")(i, j) != added.field<std::uint8_t>("note")(from, j))
        failures.add("note");
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("layouts without stacks, and batches that do not fit the network, are refused") {
  const auto make = [](std::vector<troop::Field> fields) {
    return error_of([&] { DeviceFrameStorage(10, RecordLayout(std::move(fields))); });
  };
  CHECK(make({{"action", DType::i32, {}}}).starts_with("field: \"observation\" is not allowed"));
  CHECK(make({{"observation", DType::f32, {2, 3}}, {"next_observation", DType::f32, {2, 3}}})
            .ends_with(
                "expected observation and then next_observation, stacks of u8 frames of the same shape"));
  CHECK(make({{"observation", DType::u8, {2, 3}}, {"next_observation", DType::u8, {3, 3}}})
            .starts_with("layout: "));
  CHECK(error_of([] { DeviceFrameStorage(10, stacked_layout(), {.chunk_bytes = 0}); }) ==
        "chunk_bytes: 0 is not allowed; expected a positive integer");

  Random random(troop::testing::seed());
  StackedRecords source(4, random);
  DeviceReplay device({.capacity = 10}, stacked_layout(), {.storage = kSmall});
  add(device, source.make(10));
  const auto batch = device.sample(5, {}, random);
  const auto train = [&](const char* description) {
    Network network(troop::nn::parse_network(description));
    return error_of([&] { network.train_step(device.storage().transitions(batch.view()), {}, {}); });
  };
  CHECK(train("input(2,8,7) conv(5,3,2) relu dueling(6,4)") ==
        "frames of an observation: 3 is not allowed; expected 2");
  CHECK(train("input(3,8,8) conv(5,3,2) relu dueling(6,4)") ==
        "elements of a frame: 56 is not allowed; expected 64");
}

TEST_CASE("Catch is learnt by convolutions from frames on the device") {
  using Environments = troop::env::VectorEnvironment<troop::env::Catch>;
  const std::uint64_t seed = 1;
  const troop::env::Catch task({.rows = 6, .columns = 5, .scale = 1});
  const auto make = [&](std::uint64_t) { return task; };
  const auto description = troop::nn::parse_network("input(1,6,5) conv(8,3,1) relu dueling(16,3)");
  DeviceReplay replay({.capacity = 4000, .alpha = 0.6}, troop::env::transition_layout(task.spec()),
                      {.storage = {.spare_bytes = 0}});
  troop::RateLimiter limiter({.min_inserts = 300, .samples_per_insert = 0.0});
  troop::agent::ParameterStore parameters;
  Network network(description, seed, {.optimizer = {.learning_rate = 2e-3}});
  troop::agent::Learner learner(network, replay, limiter, parameters,
                                {.batch_size = 32, .target_interval = 50, .seed = seed});
  troop::agent::LocalSink sink(replay, limiter);
  troop::agent::Actor<Environments, troop::nn::EigenNetwork, decltype(sink), troop::agent::ParameterStore>
      actor(Environments({.count = 8, .seed = seed}, make), troop::nn::EigenNetwork(description, seed), sink,
            parameters, {.num_environments = 8, .parameter_interval = 40, .seed = seed});
  troop::agent::Evaluator evaluator(Environments({.count = 20, .seed = seed, .stream = "evaluation"}, make),
                                    troop::nn::EigenNetwork(description, seed));
  double best = -1.0;
  while (learner.steps() < 2000 && best < 0.9) {
    actor.step(troop::Deadline::now());
    if (learner.step(troop::Deadline::now()) != troop::Outcome::ok || learner.steps() % 100 != 0) continue;
    evaluator.network().set_parameters(network.parameters());
    best = std::max(best, evaluator.evaluate(1, [] { return false; }).mean());
    MESSAGE("after " << learner.steps() << " steps: " << best);
  }
  CHECK(best >= 0.9);  // -0.3 is what chance earns
  CHECK(replay.storage().memory_statistics().host_bytes == 0);
}
