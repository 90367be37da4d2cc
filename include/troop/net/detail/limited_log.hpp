/// @file
/// A log that strangers cannot flood.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <troop/core/clock.hpp>

namespace troop::net::detail {

/// Passes on at most `kLines` lines in `kPeriod`, then says how many there were besides. What the callback
/// throws is ignored. Not thread-safe.
class LimitedLog {
 public:
  static constexpr int kLines = 10;
  static constexpr Clock::duration kPeriod = std::chrono::seconds(10);

  explicit LimitedLog(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  void say(const std::string& line, Clock::time_point now = Clock::now()) {
    catch_up(now);
    if (lines_ < kLines) {
      ++lines_;
      write(line);
    } else {
      ++left_out_;
    }
  }

  /// Says how many lines were left out if their period is over. To be called now and then.
  void catch_up(Clock::time_point now = Clock::now()) {
    if (now - start_ < kPeriod) return;
    start_ = now;
    lines_ = 0;
    if (left_out_ > 0) write(std::to_string(std::exchange(left_out_, 0)) + " more such lines were left out");
  }

 private:
  void write(const std::string& line) const noexcept {
    try {
      if (log_) log_(line);
    } catch (...) {
    }
  }

  std::function<void(const std::string&)> log_;
  Clock::time_point start_ = Clock::now();
  int lines_ = 0;
  std::uint64_t left_out_ = 0;
};

}  // namespace troop::net::detail
