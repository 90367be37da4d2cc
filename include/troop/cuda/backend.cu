// The one translation unit that nvcc compiles: cuda::Network's inside with NVIDIA's libraries behind the
// seam.
#include <cstdint>
#include <memory>
#include <vector>

#include <troop/cuda/device_network.cuh>
#include <troop/cuda/network.hpp>
#include <troop/cuda/nvidia_library.cuh>

namespace troop::cuda::detail {

std::unique_ptr<Backend> make_backend(const nn::Network& network, std::uint64_t seed,
                                      const nn::TrainOptions& options, const DeviceOptions& device) {
  return std::make_unique<DeviceNetwork<NvidiaLibrary>>(network, seed, options, device);
}

std::vector<DeviceInfo> list_devices() {
  return list_all_devices();
}

}  // namespace troop::cuda::detail
