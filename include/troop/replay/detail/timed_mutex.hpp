/// @file
/// A mutex for short sections that knows how long its users waited for it.
#pragma once

#include <cstdint>
#include <mutex>

#include <troop/core/clock.hpp>

namespace troop::detail {

/// Taking it when it is free costs what a std::mutex costs; the clock is read only by those that wait. They
/// try again for some microseconds before they sleep: a replay's lock is held for about as long, and a thread
/// that slept takes longer to wake.
class TimedMutex {
 public:
  void lock() {
    if (mutex_.try_lock()) return;
    const auto start = Clock::now();
    if (!try_for_a_while()) mutex_.lock();
    ++waits_;
    waited_ += Clock::now() - start;
  }
  void unlock() { mutex_.unlock(); }

  /// Both are read under the mutex.
  std::uint64_t waits() const noexcept { return waits_; }
  double wait_seconds() const noexcept { return std::chrono::duration<double>(waited_).count(); }

 private:
  /// Pauses grow, so that many waiting threads do not keep the holder from its cache line.
  bool try_for_a_while() {
    constexpr int kTries = 8;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      for (int i = 0; i < 8 << attempt; ++i) pause();
      if (mutex_.try_lock()) return true;
    }
    return false;
  }

  static void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  std::mutex mutex_;
  std::uint64_t waits_ = 0;
  Clock::duration waited_{};
};

}  // namespace troop::detail
