// include/troop/cuda/backend.cu for tests without a GPU: the same network with Eigen behind the seam.
#include <memory>
#include <vector>

#include <troop/cuda/device_network.cuh>
#include <troop/cuda/network.hpp>

#include "eigen_library.hpp"

namespace troop::cuda::detail {

std::unique_ptr<Backend> make_backend(const nn::Network& network, std::uint64_t seed,
                                      const nn::TrainOptions& options, const DeviceOptions& device) {
  return std::make_unique<DeviceNetwork<simt::EigenLibrary>>(network, seed, options, device);
}

std::vector<DeviceInfo> list_devices() {
  return list_all_devices();
}

}  // namespace troop::cuda::detail
