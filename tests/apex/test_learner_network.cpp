#include <troop/apex/learner_network.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <troop/apex/device.hpp>
#include <troop/apex/options.hpp>
#include <troop/apex/run.hpp>
#include <troop/core/random.hpp>
#include <troop/cuda/network.hpp>
#include <troop/env/cart_pole.hpp>
#include <troop/env/catch.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/network_file.hpp>
#include <troop/replay/frame_storage.hpp>

#include "temporary_directory.hpp"
#include "testing.hpp"
#include "transition_columns.hpp"

using troop::apex::choose_device;
using troop::apex::LearnerNetwork;
using troop::cuda::Precision;
using troop::env::CartPole;
using troop::env::Catch;
using troop::testing::error_of;

namespace {

const troop::nn::Network kNetwork = troop::nn::dueling_mlp({16, 16});

/// A short run whose learner computes on the emulated GPU.
troop::apex::Options on_gpu() {
  troop::apex::Options options;
  options.device = "cuda";
  options.quiet = true;
  options.output = "";
  options.num_actors = 1;
  options.environments_per_actor = 8;
  options.rate.min_inserts = 200;
  options.learner.batch_size = 32;
  options.evaluation_interval = 50;
  options.evaluation_episodes = 5;
  options.target_return = 40.0;  // what chance earns is 22
  options.max_seconds = 600.0;
  return options;
}

std::string content(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("a learner's network computes on the device that was chosen, and both agree") {
  troop::Random random(troop::testing::seed());
  const auto description = troop::nn::dueling_mlp({8, 8}).bind({4}, 2);
  const troop::nn::TrainOptions options{.optimizer = {.learning_rate = 1e-3}};
  LearnerNetwork cpu(description, 3, options, std::nullopt);
  const auto launches = simt::num_launches();
  LearnerNetwork gpu(description, 3, options, choose_device("cuda", Precision::fp32, true).gpu);
  CHECK(simt::num_launches() > launches);
  CHECK(std::ranges::equal(cpu.parameters(), gpu.parameters()));
  const troop::testing::TransitionColumns<float> columns(description, 33, random);
  std::vector<float> cpu_priorities(33), gpu_priorities(33);
  const auto near = [](auto a, auto b) { return std::abs(a - b) < 1e-5f; };
  for (int i = 0; i < 3; ++i) {
    const auto a = cpu.train_step(columns.batch(), columns.weights, cpu_priorities);
    const auto b = gpu.train_step(columns.batch(), columns.weights, gpu_priorities);
    CHECK(near(a.loss, b.loss));
    CHECK(std::ranges::equal(cpu_priorities, gpu_priorities, near));
    cpu.sync_target();
    gpu.sync_target();
  }
  CHECK(std::ranges::equal(cpu.parameters(), gpu.parameters(), near));
  CHECK(std::ranges::equal(cpu.target_parameters(), gpu.target_parameters(), near));
  CHECK(std::ranges::equal(cpu.optimizer_state(), gpu.optimizer_state(), near));

  // A checkpoint goes from one to the other.
  LearnerNetwork restored(description, 4, options, std::nullopt);
  restored.set_parameters(gpu.parameters());
  restored.set_target_parameters(gpu.target_parameters());
  restored.set_optimizer_state(gpu.optimizer_steps(), gpu.optimizer_state());
  CHECK(restored.optimizer_steps() == 3);
  restored.train_step(columns.batch(), columns.weights, {});
  gpu.train_step(columns.batch(), columns.weights, {});
  CHECK(std::ranges::equal(restored.parameters(), gpu.parameters(), near));
  CHECK(gpu.network() == restored.network());
}

TEST_CASE("a deterministic run on a GPU gives the same parameters bit for bit") {
  auto options = on_gpu();
  options.deterministic = true;
  const auto launches = simt::num_launches();
  const auto first = troop::apex::train<CartPole>(options, kNetwork);
  CHECK(simt::num_launches() > launches);
  const auto second = troop::apex::train<CartPole>(options, kNetwork);
  CHECK(first.solved);
  CHECK(first.learner_steps == second.learner_steps);
  CHECK(first.parameters == second.parameters);
}

TEST_CASE("an error of the GPU in the middle of training ends the run, and the file of before is kept") {
  const troop::testing::TemporaryDirectory directory;
  auto options = on_gpu();
  options.output = directory.file("network.troop");
  options.device = "cpu";
  options.max_seconds = 0.2;
  troop::apex::run<CartPole>(options, kNetwork);
  const std::string before = content(options.output);
  REQUIRE_FALSE(before.empty());

  options.device = "cuda";
  options.max_seconds = 60.0;
  options.target_return = 500.0;
  for (const bool deterministic : {false, true}) {
    options.deterministic = deterministic;
    simt::fail("cudaEventSynchronize", cudaErrorIllegalAddress, 20);
    CHECK(error_of([&] { troop::apex::train<CartPole>(options, kNetwork); }) ==
          "CUDA: cudaEventSynchronize failed with code 700 (cudaErrorIllegalAddress: an emulated error); a "
          "training step of 32 transitions");
    simt::heal();
    simt::fail("cudaEventSynchronize", cudaErrorIllegalAddress, 20);
    CHECK(troop::apex::run<CartPole>(options, kNetwork) == 1);
    simt::heal();
  }
  simt::device_bytes = 20'000;
  CHECK(error_of([&] {
          troop::apex::train<CartPole>(options, kNetwork);
        }).starts_with("CUDA: cudaMalloc failed with code 2 (cudaErrorMemoryAllocation: out of memory); "));
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 1);
  simt::device_bytes = std::size_t{1} << 30;
  // What the failed runs had learnt is saved, and what was there before has another name now.
  CHECK(troop::nn::load_network(options.output).network == kNetwork.bind({4}, 2));
  bool is_kept = false;
  for (const auto& file : std::filesystem::directory_iterator(directory.path()))
    is_kept |= content(file.path().string()) == before;
  CHECK(is_kept);
}

TEST_CASE("a run on a GPU that diverges stops with a report") {
  auto options = on_gpu();
  options.deterministic = true;
  options.train.optimizer.learning_rate = 1e30;
  options.learner.max_skipped_steps = 5;
  const std::string error = error_of([&] { troop::apex::train<CartPole>(options, kNetwork); });
  CAPTURE(error);
  CHECK(error.starts_with(
      "training has diverged: loss or gradient was not finite in 5 steps in a row, up to step "));
}

TEST_CASE("a run that keeps its frames on the GPU is the run that keeps them on the host, bit for bit") {
  auto options = on_gpu();
  options.deterministic = true;
  options.target_return = 0.5;  // chance earns -0.3
  const auto make = [](std::uint64_t) { return Catch({.rows = 6, .columns = 5, .scale = 1}); };
  const auto network = troop::nn::parse_network("conv(8,3,1) relu dueling(16)");
  const auto train = [&] { return troop::apex::train<Catch, troop::FrameStorage<>>(options, network, make); };
  const auto on_host = train();
  options.frames_on_gpu = true;
  const auto allocations = simt::num_allocations();
  const auto frames_on_gpu = train();
  CHECK(simt::num_allocations() > allocations);
  CHECK(on_host.solved);
  CHECK(frames_on_gpu.learner_steps == on_host.learner_steps);
  CHECK(frames_on_gpu.parameters == on_host.parameters);
  const auto notes = [&](const auto& spec) {
    return troop::apex::detail::notes<troop::FrameStorage<>>(options, spec);
  };
  const auto spec = make(0).spec();
  CHECK(notes(spec).empty());
  options.device = "cpu";
  CHECK(notes(spec) == std::vector<std::string>{"--frames-on-gpu has no effect: the learner uses no GPU"});
}
