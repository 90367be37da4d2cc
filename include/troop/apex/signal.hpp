/// @file
/// A clean stop on Ctrl-C and SIGTERM.
#pragma once

#include <csignal>

namespace troop::apex {

/// While it lives, the first SIGINT or SIGTERM is remembered instead of ending the process, so that the run
/// can stop and save; a second one ends it at once. One at a time in a process; handlers that were there
/// before come back at the end.
class StopSignal {
 public:
  StopSignal() {
    received_ = 0;
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
  static int received() noexcept { return received_; }

 private:
  static void handle(int signal) { received_ = signal; }

  static inline volatile std::sig_atomic_t received_ = 0;
  struct sigaction before_interrupt_ {};
  struct sigaction before_terminate_ {};
};

}  // namespace troop::apex
