/// @file
/// Deadlines for waiting calls.
#pragma once

#include <chrono>

namespace troop {

/// The clock of every duration and deadline in troop; never goes back.
using Clock = std::chrono::steady_clock;

/// A point in time after which a waiting call gives up with Outcome::timeout.
///
///     queue.push(batch, Deadline::after(std::chrono::seconds(5)));
class Deadline {
 public:
  static Deadline never() noexcept { return Deadline(Clock::time_point::max()); }
  static Deadline now() noexcept { return Deadline(Clock::time_point::min()); }

  /// `duration` from now; a duration too long for the clock means never, one that is negative or not a number
  /// has passed.
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> duration) {
    const auto start = Clock::now();
    const auto left = std::chrono::duration<double>(Clock::time_point::max() - start);
    const auto wanted = std::chrono::duration<double>(duration);
    if (!(wanted.count() > 0.0)) return Deadline(start);
    if (wanted >= left) return never();
    return Deadline(start + std::chrono::duration_cast<Clock::duration>(duration));
  }

  explicit Deadline(Clock::time_point time) noexcept : time_(time) {}

  Clock::time_point time() const noexcept { return time_; }
  bool is_never() const noexcept { return time_ == Clock::time_point::max(); }
  bool has_passed() const noexcept { return !is_never() && Clock::now() >= time_; }

  /// Waits on `condition` until `ready()` or until the deadline; returns the last `ready()`.
  template <class Condition, class Lock, class Ready>
  bool wait(Condition& condition, Lock& lock, Ready ready) const {
    if (is_never()) {  // wait_until(max) overflows in some standard libraries
      condition.wait(lock, ready);
      return true;
    }
    if (has_passed()) return ready();
    return condition.wait_until(lock, time_, ready);
  }

 private:
  Clock::time_point time_;
};

/// Seconds since `start`, as a floating-point number.
inline double seconds_since(Clock::time_point start) noexcept {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace troop
