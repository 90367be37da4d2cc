/// @file
/// A mutex that knows how long its users waited for it.
#pragma once

#include <cstdint>
#include <mutex>

#include <troop/core/clock.hpp>

namespace troop::detail {

/// Taking it when it is free costs what a std::mutex costs; the clock is read only by those that wait.
class TimedMutex {
 public:
  void lock() {
    if (mutex_.try_lock()) return;
    const auto start = Clock::now();
    mutex_.lock();
    ++waits_;
    waited_ += Clock::now() - start;
  }
  void unlock() { mutex_.unlock(); }

  /// Both are read under the mutex.
  std::uint64_t waits() const noexcept { return waits_; }
  double wait_seconds() const noexcept { return std::chrono::duration<double>(waited_).count(); }

 private:
  std::mutex mutex_;
  std::uint64_t waits_ = 0;
  Clock::duration waited_{};
};

}  // namespace troop::detail
