// include/troop/cuda/backend.cu for tests without a GPU: the same network with Eigen behind the seam.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <troop/cuda/device.cuh>
#include <troop/cuda/device_frames.cuh>
#include <troop/cuda/device_network.cuh>
#include <troop/cuda/frame_memory.hpp>
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

std::shared_ptr<FrameMemory> make_frame_memory(std::size_t frame_bytes, std::size_t most_frames,
                                               std::size_t slots, const FrameMemoryOptions& options) {
  return std::make_shared<DeviceFrames>(frame_bytes, most_frames, slots, options);
}

void try_device(std::size_t device) {
  open_device(device);
}

}  // namespace troop::cuda::detail
