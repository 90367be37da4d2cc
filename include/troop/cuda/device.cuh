/// @file
/// Which devices there are, and whether troop can use them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/cuda/network.hpp>
#include <troop/cuda/optimizer.cuh>
#include <troop/cuda/runtime.cuh>

namespace troop::cuda::detail {

/// How many GPUs there are. Throws Error, with the reason, when there is none or the driver is too old.
inline std::size_t count_devices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return static_cast<std::size_t>(count);
  cudaGetLastError();
  int driver = 0, toolkit = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&toolkit);
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  std::string sentence =
      "no GPU can be used: " + std::string(cudaGetErrorName(code)) + " (" + cudaGetErrorString(code) + ")";
  if (driver == 0) {
    sentence += "; there is no NVIDIA driver";
  } else if (driver < toolkit) {
    sentence += "; the driver knows CUDA " + version(driver) + ", troop was built with " + version(toolkit);
  }
  throw Error(sentence);
}

inline cudaDeviceProp properties_of(std::size_t device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, static_cast<int>(device)), "cudaGetDeviceProperties",
        "device " + std::to_string(device));
  return properties;
}

/// Makes a GPU the calling thread's and returns its properties. Throws as `count_devices`, for a number past
/// the last GPU, when the GPU lets nobody in, and when the kernels were not compiled for it.
inline cudaDeviceProp open_device(std::size_t device) {
  const std::size_t count = count_devices();
  require(device < count, "device", device, "a GPU from 0 to " + std::to_string(count - 1));
  const cudaDeviceProp properties = properties_of(device);
  const std::string name = "GPU " + std::to_string(device) + ", " + properties.name +
                           " of compute capability " + std::to_string(properties.major) + "." +
                           std::to_string(properties.minor);
  check(cudaSetDevice(static_cast<int>(device)), "cudaSetDevice", name);
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, gather_parameters<float>), "cudaFuncGetAttributes",
        name + "; troop is compiled for the GPUs that TROOP_CUDA_ARCHITECTURES names");
  return properties;
}

/// What `devices()` returns.
inline std::vector<DeviceInfo> list_all_devices() {
  std::vector<DeviceInfo> devices(count_devices());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const cudaDeviceProp properties = properties_of(i);
    devices[i] = {properties.name, properties.major, properties.minor, properties.totalGlobalMem};
  }
  return devices;
}

}  // namespace troop::cuda::detail
