/// @file
/// The part of the CUDA runtime that troop uses, on the host: found in place of the toolkit's header by tests
/// that have no GPU. Device memory is memory of the host, filled with NaN; streams, events and graphs keep
/// the order that CUDA promises and no other: with Schedule::late an operation waits until something waits
/// for it, so that a synchronisation left out shows as a wrong result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "block.hpp"

#define TROOP_SIMT_EMULATION 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct alignas(16) float4 {
  float x, y, z, w;
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorIllegalAddress = 700,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureUnjoined = 904
};

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0;

struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};

struct cudaFuncAttributes {};

struct simtStream;

namespace simt {

enum class Schedule { early, late };
inline Schedule schedule = Schedule::early;

/// How many devices there are, and how large.
inline int num_devices = 1;
inline std::size_t device_bytes = std::size_t{1} << 30;
/// The newest CUDA that the driver knows; the toolkit is 13.0. 0: there is no driver.
inline int driver_version = 13000;

namespace detail {

struct Node {
  std::function<void()> run;
  std::vector<std::size_t> needs;  // earlier nodes of the same graph
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<simtStream*> streams;  // that take part in the capture
};

}  // namespace detail
}  // namespace simt

struct simtStream {
  std::deque<std::function<void()>> queue;
  std::uint64_t queued = 0, done = 0;
  // While capturing:
  std::shared_ptr<simt::detail::Graph> graph;
  bool is_origin = false;
  std::vector<std::size_t> last;  // nodes that the next one needs
};

struct simtEvent {
  simtStream* stream = nullptr;
  std::uint64_t position = 0;
  std::shared_ptr<simt::detail::Graph> graph;
  std::vector<std::size_t> last;
};

struct simtGraph {
  std::shared_ptr<simt::detail::Graph> graph;
};

using cudaStream_t = simtStream*;
using cudaEvent_t = simtEvent*;
using cudaGraph_t = simtGraph*;
using cudaGraphExec_t = simtGraph*;

namespace simt::detail {

/// The one process-wide state: what is allocated, what fails next.
struct Runtime {
  std::recursive_mutex mutex;
  std::map<const void*, std::size_t> device, host;
  std::size_t device_bytes = 0;
  std::set<const void*> handles;
  std::map<std::string, std::pair<int, cudaError_t>> failures;  // after how many calls, with what
  cudaError_t sticky = cudaSuccess;
  std::uint64_t allocations = 0, synchronizations = 0, launches = 0;
};

inline Runtime& runtime() {
  static Runtime instance;
  return instance;
}

/// What a call returns before it does anything.
inline cudaError_t begin(const char* call) {
  Runtime& r = runtime();
  if (r.sticky != cudaSuccess) return r.sticky;
  const auto failure = r.failures.find(call);
  if (failure == r.failures.end() || failure->second.first-- > 0) return cudaSuccess;
  const cudaError_t code = failure->second.second;
  r.failures.erase(failure);
  if (code == cudaErrorIllegalAddress) r.sticky = code;
  return code;
}

inline void drain(simtStream* stream, std::uint64_t position) {
  while (stream->done < position) {
    const auto run = std::move(stream->queue.front());
    stream->queue.pop_front();
    ++stream->done;
    run();
  }
}

/// Puts an operation into the stream, or into the graph that is being captured from it.
inline void enqueue(simtStream* stream, std::function<void()> run) {
  const std::lock_guard lock(runtime().mutex);
  if (stream->graph) {
    stream->graph->nodes.push_back({std::move(run), stream->last});
    stream->last = {stream->graph->nodes.size() - 1};
    return;
  }
  stream->queue.push_back(std::move(run));
  ++stream->queued;
  if (schedule == Schedule::early) drain(stream, stream->queued);
}

/// In the order of the capture, or with Schedule::late as much against it as the dependencies allow.
inline void run_graph(const Graph& graph) {
  std::vector<bool> done(graph.nodes.size());
  for (std::size_t count = 0; count < graph.nodes.size(); ++count) {
    std::size_t next = graph.nodes.size();
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      const auto& needs = graph.nodes[i].needs;
      if (done[i] || !std::ranges::all_of(needs, [&](std::size_t n) { return done[n]; })) continue;
      next = i;
      if (schedule == Schedule::early) break;
    }
    done[next] = true;
    graph.nodes[next].run();
  }
}

inline bool in_block(const std::map<const void*, std::size_t>& blocks, const void* at, std::size_t bytes) {
  auto next = blocks.upper_bound(at);
  if (next == blocks.begin()) return false;
  --next;
  return static_cast<const char*>(at) + bytes <= static_cast<const char*>(next->first) + next->second;
}

template <class T>
cudaError_t make_handle(const char* call, T** handle, T* made) {
  const std::lock_guard lock(runtime().mutex);
  std::unique_ptr<T> owner(made);
  if (const cudaError_t code = begin(call); code != cudaSuccess) return code;
  runtime().handles.insert(made);
  *handle = owner.release();
  return cudaSuccess;
}

template <class T>
cudaError_t drop_handle(T* handle) {
  const std::lock_guard lock(runtime().mutex);
  if (runtime().handles.erase(handle) == 0) return cudaErrorInvalidValue;
  delete handle;
  return cudaSuccess;
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
            Arguments... arguments) {
  ++runtime().launches;
  enqueue(stream, [=] {
    const std::function<void()> body = [&] { kernel(static_cast<Parameters>(arguments)...); };
    detail::block().run_grid(name, body, grid, block);
  });
}

}  // namespace simt::detail

namespace simt {

/// The `after`-th call of `call` from now on returns `code`; cudaErrorIllegalAddress from then on to every
/// call.
inline void fail(const std::string& call, cudaError_t code, int after = 0) {
  const std::lock_guard lock(detail::runtime().mutex);
  detail::runtime().failures[call] = {after, code};
}
inline void heal() {
  const std::lock_guard lock(detail::runtime().mutex);
  detail::runtime().failures.clear();
  detail::runtime().sticky = cudaSuccess;
}

/// Memory blocks, streams, events and graphs that were not given back.
inline std::size_t num_leaks() {
  const std::lock_guard lock(detail::runtime().mutex);
  return detail::runtime().device.size() + detail::runtime().host.size() + detail::runtime().handles.size();
}
inline std::uint64_t num_allocations() {
  return detail::runtime().allocations;
}
inline std::uint64_t num_launches() {
  return detail::runtime().launches;
}

}  // namespace simt

inline const char* cudaGetErrorName(cudaError_t code) {
  switch (code) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
  }
  return "unknown";
}
inline const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? "out of memory" : "an emulated error";
}
inline cudaError_t cudaGetLastError() {
  return simt::detail::runtime().sticky;
}

inline cudaError_t cudaGetDeviceCount(int* count) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (simt::driver_version < 13000) return cudaErrorInsufficientDriver;
  *count = simt::num_devices;
  return simt::num_devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (const cudaError_t code = simt::detail::begin("cudaSetDevice"); code != cudaSuccess) return code;
  return device >= 0 && device < simt::num_devices ? cudaSuccess : cudaErrorInvalidDevice;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= simt::num_devices) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated device");
  properties->totalGlobalMem = simt::device_bytes;
  properties->major = 9;
  properties->multiProcessorCount = 2;
  return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = simt::driver_version;
  return cudaSuccess;
}
inline cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  return simt::detail::begin("cudaFuncGetAttributes");
}
inline cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  *total = simt::device_bytes;
  *free = simt::device_bytes - simt::detail::runtime().device_bytes;
  return cudaSuccess;
}

inline cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  auto& r = simt::detail::runtime();
  const std::lock_guard lock(r.mutex);
  if (const cudaError_t code = simt::detail::begin("cudaMalloc"); code != cudaSuccess) return code;
  if (bytes > simt::device_bytes - std::min(r.device_bytes, simt::device_bytes))
    return cudaErrorMemoryAllocation;
  *pointer = ::operator new (bytes, std::align_val_t{256});
  std::memset(*pointer, 0xff, bytes);  // as floats: NaN
  r.device[*pointer] = bytes;
  r.device_bytes += bytes;
  ++r.allocations;
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* pointer) {
  auto& r = simt::detail::runtime();
  const std::lock_guard lock(r.mutex);
  if (pointer == nullptr) return cudaSuccess;
  const auto block = r.device.find(pointer);
  if (block == r.device.end()) return cudaErrorInvalidValue;
  r.device_bytes -= block->second;
  r.device.erase(block);
  ::operator delete (pointer, std::align_val_t{256});
  return cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  auto& r = simt::detail::runtime();
  const std::lock_guard lock(r.mutex);
  if (const cudaError_t code = simt::detail::begin("cudaHostAlloc"); code != cudaSuccess) return code;
  *pointer = ::operator new (bytes, std::align_val_t{256});
  std::memset(*pointer, 0xff, bytes);
  r.host[*pointer] = bytes;
  ++r.allocations;
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* pointer) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (pointer == nullptr) return cudaSuccess;
  if (simt::detail::runtime().host.erase(pointer) == 0) return cudaErrorInvalidValue;
  ::operator delete (pointer, std::align_val_t{256});
  return cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  auto& r = simt::detail::runtime();
  const std::lock_guard lock(r.mutex);
  if (const cudaError_t code = simt::detail::begin("cudaMemcpyAsync"); code != cudaSuccess) return code;
  const bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
  if (bytes > 0 && (simt::detail::in_block(to_device ? r.device : r.host, to, bytes) == false ||
                    simt::detail::in_block(from_device ? r.device : r.host, from, bytes) == false))
    return cudaErrorInvalidValue;  // host memory must be pinned: else the copy would not be asynchronous
  simt::detail::enqueue(stream, [=] {
    if (bytes > 0) std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  auto& r = simt::detail::runtime();
  const std::lock_guard lock(r.mutex);
  if (const cudaError_t code = simt::detail::begin("cudaMemsetAsync"); code != cudaSuccess) return code;
  if (bytes > 0 && !simt::detail::in_block(r.device, to, bytes)) return cudaErrorInvalidValue;
  simt::detail::enqueue(stream, [=] {
    if (bytes > 0) std::memset(to, value, bytes);
  });
  return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return simt::detail::make_handle("cudaStreamCreateWithFlags", stream, new simtStream);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return simt::detail::drop_handle(stream);
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (const cudaError_t code = simt::detail::begin("cudaStreamSynchronize"); code != cudaSuccess) return code;
  if (stream->graph) return cudaErrorStreamCaptureUnsupported;
  ++simt::detail::runtime().synchronizations;
  simt::detail::drain(stream, stream->queued);
  return cudaSuccess;
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return simt::detail::make_handle("cudaEventCreateWithFlags", event, new simtEvent);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return simt::detail::drop_handle(event);
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (const cudaError_t code = simt::detail::begin("cudaEventRecord"); code != cudaSuccess) return code;
  event->stream = stream;
  event->position = stream->queued;
  event->graph = stream->graph;
  event->last = stream->last;
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (const cudaError_t code = simt::detail::begin("cudaEventSynchronize"); code != cudaSuccess) return code;
  if (event->graph) return cudaErrorStreamCaptureUnsupported;
  ++simt::detail::runtime().synchronizations;
  if (event->stream != nullptr) simt::detail::drain(event->stream, event->position);
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (const cudaError_t code = simt::detail::begin("cudaStreamWaitEvent"); code != cudaSuccess) return code;
  if (event->graph) {  // the stream joins the capture
    if (stream->graph && stream->graph != event->graph) return cudaErrorStreamCaptureUnsupported;
    if (!stream->graph) event->graph->streams.push_back(stream);
    stream->graph = event->graph;
    stream->last.insert(stream->last.end(), event->last.begin(), event->last.end());
    return cudaSuccess;
  }
  if (stream->graph) return cudaErrorStreamCaptureUnsupported;  // waits for something outside the capture
  if (event->stream != nullptr)
    simt::detail::enqueue(
        stream, [from = event->stream, position = event->position] { simt::detail::drain(from, position); });
  return cudaSuccess;
}

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (const cudaError_t code = simt::detail::begin("cudaStreamBeginCapture"); code != cudaSuccess)
    return code;
  if (stream->graph) return cudaErrorStreamCaptureUnsupported;
  stream->graph = std::make_shared<simt::detail::Graph>();
  stream->graph->streams = {stream};
  stream->is_origin = true;
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (!stream->graph || !stream->is_origin) return cudaErrorInvalidValue;
  const auto captured = stream->graph;
  stream->is_origin = false;
  // Every node must come before the end of the stream that the capture began with.
  std::vector<bool> joined(captured->nodes.size());
  for (const std::size_t node : stream->last) joined[node] = true;
  for (simtStream* const member : captured->streams) {
    member->graph = nullptr;
    member->last.clear();
  }
  for (std::size_t i = captured->nodes.size(); i-- > 0;)
    if (joined[i])
      for (const std::size_t need : captured->nodes[i].needs) joined[need] = true;
  if (!std::ranges::all_of(joined, [](bool is_joined) { return is_joined; }))
    return cudaErrorStreamCaptureUnjoined;
  return simt::detail::make_handle("cudaStreamEndCapture", graph, new simtGraph{captured});
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return simt::detail::make_handle("cudaGraphInstantiate", executable, new simtGraph(*graph));
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return simt::detail::drop_handle(graph);
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return simt::detail::drop_handle(graph);
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const std::lock_guard lock(simt::detail::runtime().mutex);
  if (const cudaError_t code = simt::detail::begin("cudaGraphLaunch"); code != cudaSuccess) return code;
  simt::detail::enqueue(stream, [captured = graph->graph] { simt::detail::run_graph(*captured); });
  return cudaSuccess;
}
