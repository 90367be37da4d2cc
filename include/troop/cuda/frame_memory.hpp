/// @file
/// Frames in a GPU's memory, and batches of transitions that are made of them, in plain C++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/view.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace troop::cuda {

struct FrameMemoryOptions {
  std::size_t device = 0;  ///< number of the GPU
  /// Of the GPU's memory, left for networks and others. What finds no room besides lies in pinned memory of
  /// the host, where the GPU reads it over PCIe.
  std::size_t spare_bytes = std::size_t{1} << 30;
  std::size_t chunk_bytes = std::size_t{64} << 20;  ///< memory is taken in pieces of at most so much
  /// Is told, once, that the GPU's memory is short.
  std::function<void(const std::string&)> report = troop::detail::print_to_stderr;

  void validate() const { require(chunk_bytes >= 1, "chunk_bytes", chunk_bytes, "a positive integer"); }
};

/// What a DeviceFrameStorage has taken, and how often it was overtaken.
struct FrameMemoryStatistics {
  std::size_t device_bytes = 0;   ///< of the GPU
  std::size_t host_bytes = 0;     ///< pinned, because the GPU's memory was short
  std::uint64_t overwritten = 0;  ///< sampled transitions that were overwritten before their step began
};

namespace detail {

/// The frames of one storage. Written in backend.cu with CUDA. Thread-safe.
class FrameMemory {
 public:
  FrameMemory(std::size_t frame_bytes, std::size_t slots, std::size_t device)
      : frame_bytes_(frame_bytes),
        device_(device),
        versions_(Block::reserve(checked_bytes("capacity", slots, sizeof(std::uint32_t)))) {}
  virtual ~FrameMemory() = default;

  std::size_t frame_bytes() const noexcept { return frame_bytes_; }
  std::size_t device() const noexcept { return device_; }

  /// Keeps a copy of a frame under a number from 0. Steps that were begun before still see what was there.
  virtual void put(std::size_t number, const std::byte* frame) = 0;
  /// Copies a frame back. Waits.
  virtual void get(std::size_t number, std::byte* frame) = 0;
  virtual FrameMemoryStatistics statistics() const = 0;

  /// Before a slot's frames are let go: samples of it that are not in a step yet are of no use any more.
  void overwrite(std::size_t slot) {
    const std::lock_guard lock(mutex_);
    ++version(slot);
  }
  /// How often a slot was overwritten. The caller sees to it that it is not at the moment, or holds the lock.
  std::uint32_t& version(std::size_t slot) const noexcept { return versions_.as<std::uint32_t>()[slot]; }

 protected:
  mutable std::mutex mutex_;  // of what is begun on the device, and of the versions

 private:
  std::size_t frame_bytes_, device_;
  Block versions_;
};

#if defined(TROOP_WITH_CUDA)
std::shared_ptr<FrameMemory> make_frame_memory(std::size_t frame_bytes, std::size_t most_frames,
                                               std::size_t slots, const FrameMemoryOptions& options);
#else
inline std::shared_ptr<FrameMemory> make_frame_memory(std::size_t, std::size_t, std::size_t,
                                                      const FrameMemoryOptions&) {
  throw Error("frames cannot lie on a GPU: troop was built without CUDA; configure it with -DTROOP_CUDA=ON");
}
#endif

}  // namespace detail

/// A batch of transitions whose observations are stacks of frames in a GPU's memory: what
/// DeviceFrameStorage::transitions makes of a sample, for cuda::Network's `train_step`. Cheap to copy; valid
/// as long as the sample is.
class FrameBatch {
 public:
  FrameBatch(std::shared_ptr<detail::FrameMemory> memory, const BatchView& sample)
      : memory_(std::move(memory)),
        frames_(sample.field<std::uint32_t>("frames")),
        slots_(sample.field<std::uint32_t>("slot")),
        versions_(sample.field<std::uint32_t>("version")),
        actions_(sample.field<std::int32_t>("action")),
        rewards_(sample.field<float>("reward")),
        discounts_(sample.field<float>("discount")) {}

  const std::shared_ptr<detail::FrameMemory>& memory() const noexcept { return memory_; }
  std::size_t size() const noexcept { return frames_.rows(); }
  std::size_t channels() const noexcept { return frames_.columns() / 2; }  ///< frames of an observation
  /// Numbers of the frames, from 1, of the observation and then of the next one; 0: a frame of zeros.
  const std::uint32_t* frames(std::size_t i) const noexcept { return frames_.row(i); }
  std::uint32_t slot(std::size_t i) const noexcept { return slots_(i); }
  std::uint32_t version(std::size_t i) const noexcept { return versions_(i); }
  std::int32_t action(std::size_t i) const noexcept { return actions_(i); }
  float reward(std::size_t i) const noexcept { return rewards_(i); }
  float discount(std::size_t i) const noexcept { return discounts_(i); }

 private:
  std::shared_ptr<detail::FrameMemory> memory_;
  MatrixView<const std::uint32_t> frames_, slots_, versions_;
  MatrixView<const std::int32_t> actions_;
  MatrixView<const float> rewards_, discounts_;
};

}  // namespace troop::cuda
