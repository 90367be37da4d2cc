/// @file
/// The progress of a run: one live line on a terminal, plain lines elsewhere.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>

#include <troop/core/clock.hpp>

namespace troop::apex {

/// A return as people read it: 500.0, 21.35 and 0.743, for there are tasks whose returns lie between 0 and 1.
inline std::string return_text(double value) {
  const double size = std::abs(value);
  char text[48];
  std::snprintf(text, sizeof text, size < 1e15 ? "%.*f" : "%.*e",
                size < 9.9995   ? 3
                : size < 99.995 ? 2
                                : 1,
                value);
  return text;
}

/// How it stands with a replay's shards.
struct ShardsReport {
  std::size_t num_there = 0, count = 0;
  std::uint64_t losses = 0;  ///< times that one was there and then was not
};

/// What a progress line shows.
struct ProgressReport {
  double seconds = 0.0;  ///< since the start
  std::uint64_t environment_steps = 0;
  std::uint64_t learner_steps = 0;
  std::size_t replay_size = 0;
  std::size_t replay_capacity = 0;  ///< 0: not known yet
  double least_epsilon = 0.0, greatest_epsilon = 0.0;
  double greedy_return = std::nan("");        ///< mean of the last evaluation; NaN before the first
  std::optional<std::uint64_t> clients = {};  ///< of a learner with actors elsewhere: connections
  double policy_lag = 0.0;                    ///< of their items, in versions of the parameters
  std::optional<ShardsReport> shards = {};    ///< then no policy lag is known
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

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { finish(); }

  /// Whether it is time for another line.
  bool is_due(double seconds) const noexcept { return !quiet_ && seconds - last_.seconds >= interval_; }

  void print(const ProgressReport& report) {
    if (quiet_) return;
    std::string line = text(report);
    if (terminal_)
      line.resize(std::min(line.size(), columns() - 1));  // a line that wraps cannot be written over
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
  /// Columns of the terminal.
  std::size_t columns() const {
    winsize size{};
    return ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
  }

  /// At most four characters and a letter: 950, 3.9k, 31k, 2.4M.
  static std::string count(double value) {
    const char* unit = "";
    for (const char* larger : {"k", "M", "G"}) {
      if (value < 999.5) break;
      value /= 1000.0;
      unit = larger;
    }
    char text[32];
    std::snprintf(text, sizeof text, *unit != '\0' && value < 9.95 ? "%.1f%s" : "%.0f%s", value, unit);
    return text;
  }

  /// Within 80 columns. Rates are those since the line before.
  std::string text(const ProgressReport& now) const {
    const double passed = std::max(1e-9, now.seconds - last_.seconds);
    const auto rate = [passed](std::uint64_t a, std::uint64_t b) {
      return count(static_cast<double>(a - b) / passed);
    };
    const double fill = 100.0 * static_cast<double>(now.replay_size) /
                        static_cast<double>(std::max<std::size_t>(1, now.replay_capacity));
    const std::string greedy = std::isnan(now.greedy_return) ? "-" : return_text(now.greedy_return);
    char line[160];
    std::snprintf(line, sizeof line,
                  "%5.1fs  %s steps/s  %s updates/s  replay %.0f%%  eps %.4f-%.2f  return %s", now.seconds,
                  rate(now.environment_steps, last_.environment_steps).c_str(),
                  rate(now.learner_steps, last_.learner_steps).c_str(), fill, now.least_epsilon,
                  now.greatest_epsilon, greedy.c_str());
    if (!now.clients) return line;
    const std::string with_clients = std::string(line) + "  clients " + std::to_string(*now.clients);
    if (!now.shards) {
      std::snprintf(line, sizeof line, "  lag %.1f", now.policy_lag);
      return with_clients + line;
    }
    const auto& [num_there, count, losses] = *now.shards;
    return with_clients + "  shards " + std::to_string(num_there) + "/" + std::to_string(count) +
           (losses == 0 ? "" : "  lost " + std::to_string(losses));
  }

  std::FILE* stream_;
  bool quiet_, terminal_;
  bool open_line_ = false;
  double interval_;
  ProgressReport last_;
};

}  // namespace troop::apex
