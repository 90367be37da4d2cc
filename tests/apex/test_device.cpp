#include <troop/apex/device.hpp>

#include <string>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <troop/cuda/network.hpp>

#include "testing.hpp"

using troop::apex::choose_device;
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

TEST_CASE("auto takes the CPU where a GPU cannot be used, whatever the reason") {
  const auto falls_back = [](const std::string& reason) {
    const auto chosen = choose_device("auto", Precision::tf32, false);
    CHECK_FALSE(chosen.gpu.has_value());
    CHECK(chosen.note.starts_with("--device auto: the learner computes on the CPU; " + reason));
  };
  simt::driver_version = 12040;
  falls_back("no GPU can be used: cudaErrorInsufficientDriver");
  simt::driver_version = 13000;
  simt::fail("cudaFuncGetAttributes", cudaErrorNoKernelImageForDevice);
  falls_back("CUDA: cudaFuncGetAttributes failed with code 209 (cudaErrorNoKernelImageForDevice");
  simt::fail("cudaSetDevice", cudaErrorInvalidDevice);
  falls_back("CUDA: cudaSetDevice failed with code 101 (cudaErrorInvalidDevice");
  CHECK(choose_device("auto", Precision::tf32, false).gpu.has_value());
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
