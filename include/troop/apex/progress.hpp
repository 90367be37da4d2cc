/// @file
/// The progress of a run: one live line on a terminal, plain lines elsewhere.
#pragma once

#include <unistd.h>

#include <algorithm>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include <troop/core/clock.hpp>

namespace troop::apex {

/// What a progress line shows.
struct ProgressReport {
  double seconds = 0.0;  ///< since the start
  std::uint64_t environment_steps = 0;
  std::uint64_t learner_steps = 0;
  std::size_t replay_size = 0;
  std::size_t replay_capacity = 0;
  double least_epsilon = 0.0, greatest_epsilon = 0.0;
  double actor_return = 0.0;            ///< moving mean over the exploring actors' episodes
  double greedy_return = std::nan("");  ///< mean of the last evaluation; NaN before the first
};

/// Prints reports to a stream. On a terminal one line that is written over, at most ten times a second;
/// otherwise a line a second.
class Progress {
 public:
  explicit Progress(bool quiet, std::FILE* stream = stdout)
      : stream_(stream),
        quiet_(quiet),
        terminal_(isatty(fileno(stream)) == 1),
        interval_(terminal_ ? 0.1 : 1.0) {}

  /// Whether it is time for another line.
  bool is_due(double seconds) const noexcept { return !quiet_ && seconds - last_.seconds >= interval_; }

  void print(const ProgressReport& report) {
    if (quiet_) return;
    const std::string line = text(report);
    std::fprintf(stream_, terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
    std::fflush(stream_);
    open_line_ = terminal_;
    last_ = report;
  }

  /// Ends the live line, so that other output begins on a line of its own.
  void finish() {
    if (open_line_) std::fprintf(stream_, "\n");
    std::fflush(stream_);
    open_line_ = false;
  }

 private:
  static std::string count(double value) {
    char text[32];
    if (value < 10'000) {
      std::snprintf(text, sizeof text, "%.0f", value);
    } else if (value < 10'000'000) {
      std::snprintf(text, sizeof text, "%.0fk", value / 1e3);
    } else {
      std::snprintf(text, sizeof text, "%.1fM", value / 1e6);
    }
    return text;
  }

  /// Rates are those since the line before.
  std::string text(const ProgressReport& now) const {
    const double passed = std::max(1e-9, now.seconds - last_.seconds);
    const auto rate = [&](std::uint64_t a, std::uint64_t b) {
      return count(static_cast<double>(a - b) / passed);
    };
    const double fill =
        100.0 * static_cast<double>(now.replay_size) / static_cast<double>(now.replay_capacity);
    char greedy[32] = "-";
    if (!std::isnan(now.greedy_return)) std::snprintf(greedy, sizeof greedy, "%.1f", now.greedy_return);
    char line[320];
    std::snprintf(line, sizeof line,
                  "%5.1fs  steps %s (%s/s)  updates %s (%s/s)  replay %.0f%%  epsilon %.4f..%.2f  actors' "
                  "return %.0f  greedy return %s",
                  now.seconds, count(static_cast<double>(now.environment_steps)).c_str(),
                  rate(now.environment_steps, last_.environment_steps).c_str(),
                  count(static_cast<double>(now.learner_steps)).c_str(),
                  rate(now.learner_steps, last_.learner_steps).c_str(), fill, now.least_epsilon,
                  now.greatest_epsilon, now.actor_return, greedy);
    return line;
  }

  std::FILE* stream_;
  bool quiet_, terminal_;
  bool open_line_ = false;
  double interval_;
  ProgressReport last_;
};

}  // namespace troop::apex
