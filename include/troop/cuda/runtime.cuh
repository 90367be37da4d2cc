/// @file
/// Owners of what the CUDA runtime hands out: memory, streams, events, graphs; the check of every call; and
/// the launch of a kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <troop/core/error.hpp>

namespace troop::cuda {

namespace detail {

[[noreturn]] inline void throw_call_error(const std::string& call, int code, const std::string& name,
                                          const std::string& text, const std::string& sizes) {
  std::string sentence = call + " failed with code " + std::to_string(code) + " (" + name + ": " + text + ")";
  if (!sizes.empty()) sentence += "; " + sizes;
  throw Error(sentence);
}

}  // namespace detail

/// Throws Error with call, code, text and sizes unless the call succeeded.
inline void check(cudaError_t code, const char* call, const std::string& sizes = {}) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report it again, unless it is there to stay
  detail::throw_call_error("CUDA: " + std::string(call), static_cast<int>(code), cudaGetErrorName(code),
                           cudaGetErrorString(code), sizes);
}

/// As `check` for calls in hot loops, whose sizes are put into words only when there is an error.
template <class Sizes>
requires std::is_invocable_r_v<std::string, Sizes>
void check(cudaError_t code, const char* call, const Sizes& sizes) {
  if (code != cudaSuccess) check(code, call, sizes());
}

/// A memory block of T on the device or, pinned, on the host. Movable, not copyable.
template <class T, bool kOnDevice>
class Memory {
 public:
  Memory() = default;
  /// Device memory is zeroed on `stream`; pinned memory holds anything. Throws Error with the size and, on
  /// the device, what is free.
  explicit Memory(std::size_t size, const char* what, cudaStream_t stream = nullptr) : Memory() {
    size_ = size;
    void* memory = nullptr;
    if (size == 0) return;
    if constexpr (kOnDevice) {
      const cudaError_t code = cudaMalloc(&memory, bytes());
      if (code != cudaSuccess) {
        std::size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        check(code, "cudaMalloc",
              std::to_string(bytes()) + " bytes for " + what + ", " + std::to_string(free) + " of " +
                  std::to_string(total) + " are free");
      }
      data_ = static_cast<T*>(memory);
      check(cudaMemsetAsync(memory, 0, bytes(), stream), "cudaMemsetAsync",
            std::to_string(bytes()) + " bytes for " + what);
    } else {
      check(cudaHostAlloc(&memory, bytes(), cudaHostAllocDefault), "cudaHostAlloc",
            std::to_string(bytes()) + " pinned bytes for " + what);
      data_ = static_cast<T*>(memory);
    }
  }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }
  ~Memory() {
    if constexpr (kOnDevice) {
      cudaFree(data_);
    } else {
      cudaFreeHost(data_);
    }
  }

  T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return size_ * sizeof(T); }

 private:
  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
};

template <class T>
using DeviceMemory = Memory<T, true>;
template <class T>
using PinnedMemory = Memory<T, false>;

/// Owner of a handle of the runtime or a library.
template <class Handle, auto kDestroy>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) noexcept : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  Handle handle_ = nullptr;
};

using Stream = Owner<cudaStream_t, cudaStreamDestroy>;
using Event = Owner<cudaEvent_t, cudaEventDestroy>;
using Graph = Owner<cudaGraph_t, cudaGraphDestroy>;
using ExecutableGraph = Owner<cudaGraphExec_t, cudaGraphExecDestroy>;

inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

inline Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return Event(event);
}

/// What comes after on `later` waits for what came before on `earlier`. Inside a capture it draws an arrow.
inline void order(const Event& event, cudaStream_t earlier, cudaStream_t later) {
  check(cudaEventRecord(event.get(), earlier), "cudaEventRecord");
  check(cudaStreamWaitEvent(later, event.get(), 0), "cudaStreamWaitEvent");
}

/// Records what `body()` puts on `stream`, and on streams ordered after it, as a graph, without running it.
template <class Body>
ExecutableGraph capture(cudaStream_t stream, const Body& body) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t recorded = nullptr;
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(stream, &recorded);
    const Graph dropped(recorded);
    throw;
  }
  check(cudaStreamEndCapture(stream, &recorded), "cudaStreamEndCapture");
  const Graph graph(recorded);
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, recorded, 0), "cudaGraphInstantiate");
  return ExecutableGraph(executable);
}

/// Puts `kernel` on the stream. `name` is for errors.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
            Arguments... arguments) {
#if defined(__CUDACC__)
  kernel<<<grid, block, 0, stream>>>(arguments...);
  check(cudaGetLastError(), name, [&] {
    return "grid " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + ", block " +
           std::to_string(block.x) + " x " + std::to_string(block.y);
  });
#else
  simt::detail::launch(name, kernel, grid, block, stream, arguments...);
#endif
}

inline void copy_to_device(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync to the device",
        [&] { return std::to_string(bytes) + " bytes"; });
}
inline void copy_to_host(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync to the host",
        [&] { return std::to_string(bytes) + " bytes"; });
}
inline void copy_on_device(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync on the device",
        [&] { return std::to_string(bytes) + " bytes"; });
}
inline void synchronize(cudaStream_t stream) {
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace troop::cuda
