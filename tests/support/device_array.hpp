/// @file
/// An array on the device for tests of kernels, and a stream for them; the same on the emulation and on a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <troop/cuda/runtime.cuh>

namespace troop::testing {

inline cudaStream_t stream() {
  static const cuda::Stream instance = cuda::make_stream();
  return instance.get();
}

template <class T>
class DeviceArray {
 public:
  /// Zeros.
  explicit DeviceArray(std::size_t size)
      : device_(std::max<std::size_t>(size, 1), "test", stream()), size_(size) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { set(values); }

  T* data() const { return device_.data(); }
  std::size_t size() const { return size_; }

  void set(const std::vector<T>& values) {
    const cuda::PinnedMemory<T> pinned(values.size(), "test");
    std::copy(values.begin(), values.end(), pinned.data());
    if (!values.empty()) cuda::copy_to_device(data(), pinned.data(), pinned.bytes(), stream());
    cuda::synchronize(stream());
  }
  std::vector<T> get() const {
    const cuda::PinnedMemory<T> pinned(size_, "test");
    if (size_ > 0) cuda::copy_to_host(pinned.data(), data(), pinned.bytes(), stream());
    cuda::synchronize(stream());
    return std::vector<T>(pinned.data(), pinned.data() + size_);
  }

 private:
  cuda::DeviceMemory<T> device_;
  std::size_t size_;
};

}  // namespace troop::testing
