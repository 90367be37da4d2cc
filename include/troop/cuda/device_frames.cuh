/// @file
/// Frames in the device's memory, or where that is short in pinned memory that the device reads; and the
/// order of writes and training steps.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/cuda/batch.cuh>
#include <troop/cuda/device.cuh>
#include <troop/cuda/frame_memory.hpp>
#include <troop/cuda/kernel.cuh>
#include <troop/cuda/runtime.cuh>

namespace troop::cuda {

/// Copies bytes where the device can reach both: the runtime's copy from host to host would make its caller
/// wait.
__global__ inline void copy_bytes(const std::uint8_t* from, std::uint8_t* to, unsigned size) {
  for (std::size_t i = first_element(); i < size; i += element_step()) to[i] = from[i];
}

/// Writes go to a stream of their own, in the order of the calls. A training step waits for all writes before
/// it, and later writes wait for the step, so that a frame never changes under it.
class DeviceFrames final : public detail::FrameMemory {
 public:
  DeviceFrames(std::size_t frame_bytes, std::size_t most_frames, std::size_t slots,
               const FrameMemoryOptions& options)
      : FrameMemory(frame_bytes, slots, (detail::open_device(options.device), options.device)),
        options_(options),
        shift_(shift_of(frame_bytes, most_frames, options.chunk_bytes)),
        stream_(make_stream()),
        written_(make_event()),
        read_(make_event()),
        left_{make_event(), make_event()},
        host_table_((most_frames >> shift_) + 1, "table of frames"),
        table_(host_table_.size(), "table of frames", stream_.get()),
        staged_(2 * kStaged * frame_bytes, "frames"),
        back_(frame_bytes, "frame") {}

  ~DeviceFrames() override { cudaStreamSynchronize(stream_.get()); }

  void put(std::size_t number, const std::byte* frame) override {
    const std::lock_guard lock(mutex_);
    use_device();
    while (number >> shift_ >= chunks_.size()) add_chunk();
    if (next_ % kStaged == 0) turn_page();
    std::uint8_t* const from = staged_.data() + next_ * frame_bytes();
    next_ = (next_ + 1) % (2 * kStaged);
    std::memcpy(from, frame, frame_bytes());
    if (is_on_device(number)) {
      copy_to_device(place(number), from, frame_bytes(), stream_.get());
    } else {
      const auto size = static_cast<unsigned>(frame_bytes());
      launch("copy_bytes", copy_bytes, (size + kThreads - 1) / kThreads, kThreads, stream_.get(), from,
             place(number), size);
    }
  }

  void get(std::size_t number, std::byte* frame) override {
    const std::lock_guard lock(mutex_);
    use_device();
    const bool on_device = is_on_device(number);
    if (on_device) copy_to_host(back_.data(), place(number), frame_bytes(), stream_.get());
    synchronize(stream_.get());
    std::memcpy(frame, on_device ? back_.data() : place(number), frame_bytes());
  }

  FrameMemoryStatistics statistics() const override {
    const std::lock_guard lock(mutex_);
    FrameMemoryStatistics made;
    for (const Chunk& chunk : chunks_) {
      made.device_bytes += chunk.on_device.bytes();
      made.host_bytes += chunk.on_host.bytes();
    }
    made.overwritten = overwritten_;
    return made;
  }

  /// Stacks of frames whose numbers, from 0, or -1, lie at `indices` on the device.
  FrameStacks stacks(const std::int32_t* indices, Image image) const noexcept {
    return {table_.data(), shift_, indices, image};
  }

  /// `prepare(is_there)` for a step that reads frames, and `begin()`, which puts it on `stream`: nothing is
  /// written between the two. `is_there(slot, version)` tells whether a sampled item is still the same.
  template <class Prepare, class Begin>
  void read(cudaStream_t stream, const Prepare& prepare, const Begin& begin) {
    const std::lock_guard lock(mutex_);
    prepare([this](std::uint32_t slot, std::uint32_t expected) {
      const bool is_same = version(slot) == expected;
      overwritten_ += !is_same;
      return is_same;
    });
    order(written_, stream_.get(), stream);
    begin();
    order(read_, stream, stream_.get());
  }

 private:
  static constexpr std::size_t kStaged = 256;  // frames of each half of the staging memory

  struct Chunk {
    DeviceMemory<std::uint8_t> on_device;
    PinnedMemory<std::uint8_t> on_host;
  };

  // Frames of a chunk, a power of two.
  static unsigned shift_of(std::size_t frame_bytes, std::size_t most_frames, std::size_t chunk_bytes) {
    const std::size_t fit = std::max<std::size_t>(chunk_bytes / frame_bytes, 1);
    return static_cast<unsigned>(std::bit_width(std::min(std::bit_floor(fit), std::bit_ceil(most_frames))) -
                                 1);
  }

  void use_device() const { check(cudaSetDevice(static_cast<int>(device())), "cudaSetDevice"); }

  static std::uint8_t* first_of(const Chunk& chunk) {
    return chunk.on_device.size() > 0 ? chunk.on_device.data() : chunk.on_host.data();
  }
  bool is_on_device(std::size_t number) const { return chunks_[number >> shift_].on_device.size() > 0; }
  std::uint8_t* place(std::size_t number) const {
    return first_of(chunks_[number >> shift_]) + (number & ((std::size_t{1} << shift_) - 1)) * frame_bytes();
  }

  // Half of the staging memory is full: the other half must have left it.
  void turn_page() {
    const std::size_t page = next_ / kStaged;
    check(cudaEventRecord(left_[1 - page].get(), stream_.get()), "cudaEventRecord");
    check(cudaEventSynchronize(left_[page].get()), "cudaEventSynchronize");
  }

  void add_chunk() {
    const std::size_t bytes = frame_bytes() << shift_;
    Chunk chunk;
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (!is_short_ && free >= bytes && free - bytes >= options_.spare_bytes) {
      chunk.on_device = DeviceMemory<std::uint8_t>(bytes, "frames", stream_.get());
    } else {
      if (!std::exchange(is_short_, true) && options_.report)
        options_.report("the replay's frames have " + std::to_string(chunks_.size() * bytes) +
                        " bytes on GPU " + std::to_string(device()) + ", of which " + std::to_string(free) +
                        " of " + std::to_string(total) + " are free and " +
                        std::to_string(options_.spare_bytes) +
                        " are kept for networks: further frames lie in the host's memory");
      chunk.on_host = PinnedMemory<std::uint8_t>(bytes, "frames");
    }
    const std::size_t at = chunks_.size();
    host_table_.data()[at] = first_of(chunk);
    copy_to_device(table_.data() + at, host_table_.data() + at, sizeof(std::uint8_t*), stream_.get());
    chunks_.push_back(std::move(chunk));
  }

  FrameMemoryOptions options_;
  unsigned shift_;
  Stream stream_;
  Event written_, read_;
  Event left_[2];  // when all copies from a half of the staging memory were begun
  std::vector<Chunk> chunks_;
  PinnedMemory<const std::uint8_t*> host_table_;
  DeviceMemory<const std::uint8_t*> table_;
  PinnedMemory<std::uint8_t> staged_;
  std::size_t next_ = 0;
  PinnedMemory<std::uint8_t> back_;
  bool is_short_ = false;
  std::uint64_t overwritten_ = 0;
};

}  // namespace troop::cuda
