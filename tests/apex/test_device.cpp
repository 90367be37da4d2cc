#include <troop/apex/device.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <troop/apex/learner_network.hpp>
#include <troop/core/random.hpp>
#include <troop/cuda/network.hpp>
#include <troop/nn/network.hpp>

#include "testing.hpp"
#include "transition_columns.hpp"

using troop::apex::choose_device;
using troop::apex::LearnerNetwork;
using troop::apex::parse_device;
using troop::cuda::Precision;
using troop::testing::error_of;

TEST_CASE("--device is auto, cpu, cuda or cuda and a number") {
  CHECK((parse_device("auto").cpu && parse_device("auto").gpu));
  CHECK((parse_device("cpu").cpu && !parse_device("cpu").gpu));
  CHECK((!parse_device("cuda").cpu && parse_device("cuda").gpu && parse_device("cuda").index == 0));
  CHECK((!parse_device("cuda:3").cpu && parse_device("cuda:3").gpu && parse_device("cuda:3").index == 3));
  for (const char* text :
       {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:1 ", "cuda:x", "cuda:99999999999999999999"})
    CHECK(error_of([&] { parse_device(text); }) ==
          "device: \"" + std::string(text) + "\" is not allowed; expected auto or cpu or cuda or cuda:N");
}

TEST_CASE("a GPU is used where there is one, and its number is checked") {
  simt::num_devices = 2;
  const auto chosen = choose_device("cuda:1", Precision::bf16, true);
  REQUIRE(chosen.gpu.has_value());
  CHECK(chosen.gpu->device == 1);
  CHECK(chosen.gpu->precision == Precision::bf16);
  CHECK(chosen.gpu->deterministic);
  CHECK(chosen.note == "the learner computes on GPU 1, emulated device");
  CHECK(choose_device("auto", Precision::tf32, false).gpu.has_value());
  CHECK_FALSE(choose_device("cpu", Precision::tf32, false).gpu.has_value());
  CHECK(error_of([] { choose_device("cuda:2", Precision::tf32, false); }) ==
        "--device: cuda:2 is not allowed; expected a GPU from cuda:0 to cuda:1");
  simt::num_devices = 1;
}

TEST_CASE("without a GPU auto falls back to the CPU and says so, and cuda is an error") {
  simt::num_devices = 0;
  const std::string reason =
      "no GPU can be used: cudaErrorNoDevice (an emulated error)";  // the driver is there, a device is not
  const auto chosen = choose_device("auto", Precision::tf32, false);
  CHECK_FALSE(chosen.gpu.has_value());
  CHECK(chosen.note == "--device auto: the learner computes on the CPU; " + reason);
  CHECK(choose_device("cpu", Precision::tf32, false).note.empty());
  CHECK(error_of([] { choose_device("cuda", Precision::tf32, false); }) == "--device cuda: " + reason);
  simt::num_devices = 1;
}

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
