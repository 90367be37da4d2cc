/// @file
/// Thread blocks on the host: every thread of a block is a fiber. Barriers and warp operations that not all
/// threads reach, and shared memory that two threads touch without a barrier between, are errors that name
/// the kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fiber.hpp"

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT
  unsigned x, y, z;
};

// Of the thread that runs at the moment.
inline uint3 threadIdx{}, blockIdx{};
inline dim3 blockDim, gridDim;

namespace simt {

/// A mistake in a kernel: divergence at a barrier, a race in shared memory, a launch that no device takes.
class KernelError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// In which order blocks, and the threads between two barriers, take turns. Results must not depend on it.
enum class Order { forward, backward };
inline Order order = Order::forward;

inline constexpr unsigned kWarp = 32, kMaxThreads = 1024;

namespace detail {

inline std::string text(const uint3& at) {
  std::string made("(");  // joined piece by piece: GCC 12 sees an overlap in "(" + ... (GCC bug 105329)
  for (const unsigned part : {at.x, at.y, at.z}) made += std::to_string(part) + ",";
  made.back() = ')';
  return made;
}

/// The block that runs at the moment; there is one at a time.
class Block {
 public:
  void run_grid(const char* kernel, const std::function<void()>& body, dim3 grid, dim3 block) {
    const std::lock_guard lock(mutex_);
    kernel_ = kernel;
    body_ = &body;
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > kMaxThreads || std::uint64_t{grid.x} * grid.y * grid.z == 0 ||
        grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
      throw KernelError("kernel " + std::string(kernel) + ": a grid of " + text({grid.x, grid.y, grid.z}) +
                        " blocks of " + text({block.x, block.y, block.z}) + " threads");
    blockDim = block;
    gridDim = grid;
    resize(static_cast<unsigned>(threads));
    const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    for (std::uint64_t i = 0; i < blocks; ++i) {
      const std::uint64_t at = order == Order::forward ? i : blocks - 1 - i;
      blockIdx = {static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                  static_cast<unsigned>(at / grid.x / grid.y)};
      run_block();
    }
  }

  void sync_threads(const char* file, int line) { wait(State::block, "__syncthreads", file, line, ~0u); }

  void sync_warp(unsigned mask, const char* file, int line) {
    wait(State::warp, "__syncwarp", file, line, mask);
    ++thread().warp_phase;
  }

  /// Gives `bits` to the lanes of `mask` and returns those of `source`.
  std::uint64_t exchange(const char* what, std::uint64_t bits, unsigned source, unsigned mask,
                         const char* file, int line) {
    Thread& self = thread();
    const unsigned phase = self.exchanges++ % 2;  // a lane may be one exchange ahead of another
    self.offered[phase] = bits;
    wait(State::warp, what, file, line, mask);
    const unsigned other = at_ / kWarp * kWarp + source;
    if (other >= size_ || (mask >> source & 1u) == 0)
      fail(std::string(what) + " reads lane " + std::to_string(source) + ", which takes no part", file, line);
    return threads_[other].offered[phase];
  }

  [[noreturn]] void fail(const std::string& what, const char* file = nullptr, int line = 0) const {
    std::string sentence = "kernel " + std::string(kernel_) + ", block " + text(blockIdx) + ", thread " +
                           text(threadIdx) + ": " + what;
    if (file != nullptr) sentence += " at " + base_name(file) + ":" + std::to_string(line);
    throw KernelError(sentence);
  }

  unsigned at() const noexcept { return at_; }
  std::uint64_t block_phase() const noexcept { return block_phase_; }  ///< of all blocks there ever were
  std::uint64_t first_phase() const noexcept { return first_phase_; }  ///< of this block
  std::uint64_t warp_phase() const noexcept { return threads_[at_].warp_phase; }

 private:
  enum class State { ready, block, warp, ended };

  struct Thread {
    std::unique_ptr<Fiber> fiber;
    uint3 index{};
    State state = State::ended;
    const char *what = nullptr, *file = nullptr;
    int line = 0;
    unsigned mask = 0, exchanges = 0;
    std::uint64_t warp_phase = 0;
    std::array<std::uint64_t, 2> offered{};

    bool waits_as(const Thread& other) const noexcept {
      return state == other.state && what == other.what && line == other.line && mask == other.mask &&
             file == other.file;
    }
  };

  static std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

  Thread& thread() noexcept { return threads_[at_]; }

  void resize(unsigned size) {
    size_ = size;
    if (threads_.size() < size) threads_.resize(size);
    for (unsigned i = 0; i < size; ++i)
      threads_[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
  }

  void run_block() {
    first_phase_ = ++block_phase_;
    for (unsigned i = 0; i < size_; ++i) threads_[i].state = State::ready;
    while (true) {
      const unsigned warps = (size_ + kWarp - 1) / kWarp;
      for (unsigned i = 0; i < warps; ++i) run_warp(order == Order::forward ? i : warps - 1 - i);
      if (!release_block()) return;
    }
  }

  // Runs the lanes of a warp until each has ended or waits for other warps.
  void run_warp(unsigned warp) {
    const unsigned first = warp * kWarp, count = std::min(kWarp, size_ - first);
    bool again = true;
    while (again) {
      for (unsigned i = 0; i < count; ++i) {
        const unsigned at = first + (order == Order::forward ? i : count - 1 - i);
        if (threads_[at].state == State::ready) resume(at);
      }
      again = release_warp(first, count);
    }
  }

  void resume(unsigned at) {
    at_ = at;
    Thread& thread = threads_[at];
    threadIdx = thread.index;
    if (!thread.fiber) thread.fiber = std::make_unique<Fiber>([this] { live(); });
    thread.fiber->resume();
    if (error_.empty()) return;
    for (Thread& other : threads_) other.fiber.reset();  // stopped in the middle
    throw KernelError(std::exchange(error_, {}));
  }

  // A fiber: one thread of a block after another.
  void live() {
    while (true) {
      try {
        (*body_)();
      } catch (const std::exception& error) {
        error_ = error.what();
      }
      thread().state = State::ended;
      thread().fiber->suspend();
    }
  }

  void wait(State state, const char* what, const char* file, int line, unsigned mask) {
    Thread& self = thread();
    if (state == State::warp && (mask >> at_ % kWarp & 1u) == 0)
      fail(std::string(what) + " with a mask that leaves the caller out", file, line);
    self.state = state;
    self.what = what;
    self.file = file;
    self.line = line;
    self.mask = mask;
    self.fiber->suspend();
  }

  // Lets lanes go whose whole mask has arrived at the same operation.
  bool release_warp(unsigned first, unsigned count) {
    bool released = false;
    for (unsigned i = 0; i < count; ++i) {
      const Thread waiting = {nullptr,
                              {},
                              threads_[first + i].state,
                              threads_[first + i].what,
                              threads_[first + i].file,
                              threads_[first + i].line,
                              threads_[first + i].mask};
      if (waiting.state != State::warp) continue;
      bool complete = true;
      for (unsigned j = 0; j < count; ++j)
        if ((waiting.mask >> j & 1u) != 0 && !threads_[first + j].waits_as(waiting)) complete = false;
      if (!complete) continue;
      for (unsigned j = 0; j < count; ++j)
        if ((waiting.mask >> j & 1u) != 0) threads_[first + j].state = State::ready;
      released = true;
    }
    return released;
  }

  // False when all threads have ended. Reports those that wait for others in vain.
  bool release_block() {
    unsigned ended = 0, arrived = 0;
    const Thread* first = nullptr;
    for (unsigned i = 0; i < size_; ++i) {
      if (threads_[i].state == State::ended) {
        ++ended;
        continue;
      }
      if (first == nullptr) first = &threads_[i];
      if (threads_[i].state == State::block && threads_[i].waits_as(*first)) ++arrived;
    }
    if (ended == size_) return false;
    if (arrived == size_) {
      ++block_phase_;
      for (unsigned i = 0; i < size_; ++i) threads_[i].state = State::ready;
      return true;
    }
    std::string sentence = "kernel " + std::string(kernel_) + ", block " + text(blockIdx) + ": thread " +
                           text(first->index) + " waits in " + first->what + " at " + base_name(first->file) +
                           ":" + std::to_string(first->line);
    for (unsigned i = 0; i < size_; ++i) {
      const Thread& other = threads_[i];
      if (other.waits_as(*first)) continue;
      sentence += ", but thread " + text(other.index);
      sentence += other.state == State::ended ? " has ended"
                                              : " in " + std::string(other.what) + " at " +
                                                    base_name(other.file) + ":" + std::to_string(other.line);
      break;
    }
    for (Thread& other : threads_) other.fiber.reset();
    throw KernelError(sentence);
  }

  std::mutex mutex_;
  const char* kernel_ = "";
  const std::function<void()>* body_ = nullptr;
  std::vector<Thread> threads_;
  unsigned size_ = 0, at_ = 0;
  std::uint64_t block_phase_ = 0, first_phase_ = 0;
  std::string error_;
};

inline Block& block() {
  static Block instance;
  return instance;
}

/// Who touched an element of shared memory last, and when.
class Trace {
 public:
  void on_read(const char* file, int line) {
    const Block& now = block();
    if (write_.block_phase < now.first_phase())
      now.fail("reads shared memory that nobody has written", file, line);
    if (conflicts(write_)) report("reads", write_, "written", file, line);
    if (read_.block_phase == now.block_phase() && read_.thread != now.at()) is_read_by_many_ = true;
    if (read_.block_phase != now.block_phase()) is_read_by_many_ = false;
    read_ = mark(file, line);
  }

  void on_write(const char* file, int line) {
    if (conflicts(write_)) report("writes", write_, "written", file, line);
    const bool same_warp = read_.thread / kWarp == block().at() / kWarp;
    if (conflicts(read_) || (is_read_by_many_ && read_.block_phase == block().block_phase() &&
                             !(same_warp && read_.warp_phase != block().warp_phase())))
      report("writes", read_, "read", file, line);
    write_ = mark(file, line);
  }

 private:
  struct Access {
    std::uint64_t block_phase = 0, warp_phase = 0;
    unsigned thread = 0;
    const char* file = nullptr;
    int line = 0;
  };

  static Access mark(const char* file, int line) {
    return {block().block_phase(), block().warp_phase(), block().at(), file, line};
  }

  // By another thread, and no barrier since.
  static bool conflicts(const Access& before) {
    const Block& now = block();
    if (before.block_phase != now.block_phase() || before.thread == now.at()) return false;
    return before.thread / kWarp != now.at() / kWarp || before.warp_phase == now.warp_phase();
  }

  static void report(const char* what, const Access& before, const char* done, const char* file, int line) {
    std::string place = before.file;
    place = place.substr(place.rfind('/') + 1) + ":" + std::to_string(before.line);
    block().fail(std::string(what) + " shared memory that thread " + std::to_string(before.thread) + " has " +
                     done + " at " + place + " without a barrier between",
                 file, line);
  }

  Access write_, read_;
  bool is_read_by_many_ = false;
};

template <class T>
std::uint64_t to_bits(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace detail

/// An array in shared memory whose reads and writes are watched. Kernels see it as troop::cuda::Shared, which
/// nvcc takes for a plain array.
template <class T, unsigned kSize>
class Shared {
 public:
  class Element {
   public:
    Element(Shared& array, unsigned at, const char* file, int line)
        : array_(array), at_(at), file_(file), line_(line) {}
    Element(const Element&) = default;

    operator T() const {  // NOLINT(google-explicit-constructor): reads like the element itself
      array_.traces_[at_].on_read(file_, line_);
      return array_.values_[at_];
    }
    Element& operator=(T value) {
      array_.traces_[at_].on_write(file_, line_);
      array_.values_[at_] = value;
      return *this;
    }
    Element& operator=(const Element& other) { return *this = static_cast<T>(other); }
    Element& operator+=(T value) { return *this = static_cast<T>(*this) + value; }

   private:
    Shared& array_;
    unsigned at_;
    const char* file_;
    int line_;
  };

  /// Converts an index, and knows from where.
  struct Index {
    template <class I>
    Index(I at, const char* file_ = __builtin_FILE(), int line_ = __builtin_LINE())  // NOLINT
        : value(static_cast<unsigned>(at)), file(file_), line(line_) {}
    unsigned value;
    const char* file;
    int line;
  };

  Element operator[](Index index) {
    if (index.value >= kSize)
      detail::block().fail(
          "element " + std::to_string(index.value) + " of a shared array of " + std::to_string(kSize),
          index.file, index.line);
    return {*this, index.value, index.file, index.line};
  }

 private:
  std::array<T, kSize> values_{};
  std::array<detail::Trace, kSize> traces_{};
};

}  // namespace simt

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  simt::detail::block().sync_threads(file, line);
}

inline void __syncwarp(unsigned mask = ~0u, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  simt::detail::block().sync_warp(mask, file, line);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return simt::detail::from_bits<T>(
      simt::detail::block().exchange("__shfl_sync", simt::detail::to_bits(value),
                                     static_cast<unsigned>(source) % simt::kWarp, mask, file, line));
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const unsigned lane = simt::detail::block().at() % simt::kWarp;
  return simt::detail::from_bits<T>(
      simt::detail::block().exchange("__shfl_xor_sync", simt::detail::to_bits(value),
                                     (lane ^ static_cast<unsigned>(lanes)) % simt::kWarp, mask, file, line));
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const unsigned lane = simt::detail::block().at() % simt::kWarp;
  const unsigned source = lane + by < simt::kWarp ? lane + by : lane;  // beyond the warp: one's own value
  return simt::detail::from_bits<T>(simt::detail::block().exchange(
      "__shfl_down_sync", simt::detail::to_bits(value), source, mask, file, line));
}

/// Blocks run one after another, so nothing has to be made visible.
inline void __threadfence() {}

/// Threads switch at barriers only, so a plain sum is atomic.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = before + value;
  return before;
}
