/// @file
/// A clean stop on Ctrl-C, SIGTERM, a terminal that is closed and a reader that is gone.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>

namespace troop::apex {

/// While it lives, the first SIGINT, SIGTERM, SIGHUP or SIGPIPE is remembered instead of ending the process,
/// so that the run can stop and save. A further SIGINT, SIGTERM or SIGHUP ends it at once if it comes half a
/// second later or more: `timeout` and some supervisors send the first one twice. A further SIGPIPE never
/// does: every line that is written to a pipe without a reader brings one. SIGHUP and SIGPIPE stay ignored
/// where the caller ignores them, as `nohup` does. One at a time in a process; handlers that were there
/// before come back at the end.
class StopSignal {
 public:
  StopSignal() {
    received_.store(0, std::memory_order_relaxed);
    first_.store(0, std::memory_order_relaxed);
    struct sigaction action {};
    action.sa_handler = &handle;
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], nullptr, &before_[i]);
      const bool may_be_ignored = kSignals[i] == SIGHUP || kSignals[i] == SIGPIPE;
      if (may_be_ignored && before_[i].sa_handler == SIG_IGN) continue;
      sigaction(kSignals[i], &action, nullptr);
    }
  }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }

  /// The number of the signal that came, or 0.
  static int received() noexcept { return received_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::array<int, 4> kSignals{SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  static constexpr std::int64_t kRepeat = 500'000'000;  // ns within which a further signal is the same one

  // Only what a signal handler may do.
  static void handle(int signal) {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    const std::int64_t now = std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
    std::int64_t first = 0;
    if (first_.compare_exchange_strong(first, now, std::memory_order_relaxed)) {
      received_.store(signal, std::memory_order_relaxed);
    } else if (signal != SIGPIPE && now - first >= kRepeat) {
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
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace troop::apex
