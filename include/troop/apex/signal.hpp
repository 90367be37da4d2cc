/// @file
/// A clean stop on Ctrl-C and SIGTERM.
#pragma once

#include <atomic>
#include <csignal>

namespace troop::apex {

/// While it lives, the first SIGINT or SIGTERM is remembered instead of ending the process, so that the run
/// can stop and save; a second one ends it at once. One at a time in a process; handlers that were there
/// before come back at the end.
class StopSignal {
 public:
  StopSignal() {
    received_.store(0, std::memory_order_relaxed);
    struct sigaction action {};
    action.sa_handler = &handle;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
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
  static void handle(int signal) { received_.store(signal, std::memory_order_relaxed); }

  // Not sig_atomic_t: any thread may be the one that is interrupted.
  static inline std::atomic<int> received_{0};
  static_assert(std::atomic<int>::is_always_lock_free);
  struct sigaction before_interrupt_ {};
  struct sigaction before_terminate_ {};
};

}  // namespace troop::apex
