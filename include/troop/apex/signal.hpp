/// @file
/// A clean stop on Ctrl-C and SIGTERM.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace troop::apex {

/// While it lives, the first SIGINT or SIGTERM is remembered instead of ending the process, so that the run
/// can stop and save. A further one ends it at once if it comes half a second later or more: `timeout` and
/// some supervisors send the first one twice. One at a time in a process; handlers that were there before
/// come back at the end.
class StopSignal {
 public:
  StopSignal() {
    received_.store(0, std::memory_order_relaxed);
    first_.store(0, std::memory_order_relaxed);
    struct sigaction action {};
    action.sa_handler = &handle;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_interrupt_);
    sigaction(SIGTERM, &action, &before_terminate_);
  }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal() {
    sigaction(SIGINT, &before_interrupt_, nullptr);
    sigaction(SIGTERM, &before_terminate_, nullptr);
  }

  /// The number of the signal that came, or 0.
  static int received() noexcept { return received_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::int64_t kRepeat = 500'000'000;  // ns within which a further signal is the same one

  // Only what a signal handler may do.
  static void handle(int signal) {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    const std::int64_t now = std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
    std::int64_t first = 0;
    if (first_.compare_exchange_strong(first, now, std::memory_order_relaxed)) {
      received_.store(signal, std::memory_order_relaxed);
    } else if (now - first >= kRepeat) {
      struct sigaction action {};
      action.sa_handler = SIG_DFL;
      sigaction(signal, &action, nullptr);
      raise(signal);  // it arrives when this handler returns
    }
  }

  // Not sig_atomic_t: any thread may be the one that is interrupted.
  static inline std::atomic<int> received_{0};
  static inline std::atomic<std::int64_t> first_{0};  // when the first one came; 0: none has
  static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);
  struct sigaction before_interrupt_ {};
  struct sigaction before_terminate_ {};
};

}  // namespace troop::apex
