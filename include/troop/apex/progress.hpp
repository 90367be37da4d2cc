/// @file
/// The progress of a run: one live line on a terminal, plain lines elsewhere.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troop/apex/console.hpp>
#include <troop/core/clock.hpp>

namespace troop::apex {

namespace detail {

/// For the end of a line.
inline std::string in_brackets(const std::string& text) {
  return text.empty() ? text : "  [" + text + "]";
}

}  // namespace detail

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
  std::string alarm = {};                     ///< some words on the run directory, when not all is well
};

/// Prints reports to a stream. On a terminal lines that are written over, at most ten times a second; otherwise
/// a line a second.
class Progress {
 public:
  /// Lines that are not for people to watch are the console's.
  explicit Progress(const Console& console)
      : console_(console),
        stream_(console.out()),
        terminal_(console.format() == LogFormat::text && isatty(fileno(stream_)) == 1),
        interval_(terminal_ ? 0.1 : 1.0) {}

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { finish(); }

  /// Whether it is time for another line.
  bool is_due(double seconds) const noexcept {
    return !console_.is_quiet() && seconds - last_.seconds >= interval_;
  }

  /// `details`: further lines in UTF-8 for a terminal, each with its end, if there are any.
  void print(const ProgressReport& report, const std::string& details = {}) {
    if (console_.is_quiet()) return;
    if (terminal_) {
      write_over(details + text(report));
      std::fflush(stream_);
    } else {
      console_.info("%s", text(report).c_str());
    }
    last_ = report;
  }

  /// Ends the live lines, so that other output begins on a line of its own.
  void finish() {
    if (open_lines_ > 0) {
      std::fprintf(stream_, "\n");
      std::fflush(stream_);
    }
    open_lines_ = 0;
  }

 private:
  /// Rows and columns of the terminal.
  std::pair<std::size_t, std::size_t> size() const {
    winsize size{};
    const bool is_known =
        ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && size.ws_row > 1;
    if (!is_known) return {24, 80};
    return {size.ws_row, size.ws_col};
  }

  /// Puts lines in the place of those before. What wraps or scrolls could not be written over: lines are cut,
  /// and of too many the last ones are shown.
  void write_over(std::string_view text) {
    const auto [rows, columns] = size();
    std::vector<std::string_view> lines;
    for (std::size_t end = 0; end != std::string_view::npos;) {
      end = text.find('\n');
      lines.push_back(cut(text.substr(0, end), columns - 1));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    if (lines.size() >= rows) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(rows - 1));
    std::string out = "\r";
    if (open_lines_ > 1) out += "\033[" + std::to_string(open_lines_ - 1) + "A";
    for (std::size_t i = 0; i < lines.size(); ++i)
      out += std::string(lines[i]) + (i + 1 < lines.size() ? "\033[K\n" : "\033[K");
    std::fputs((out + "\033[J").c_str(), stream_);
    open_lines_ = lines.size();
  }

  /// At most so many characters of UTF-8.
  static std::string_view cut(std::string_view line, std::size_t most) {
    std::size_t characters = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const bool is_first_byte = (static_cast<unsigned char>(line[i]) & 0xc0) != 0x80;
      if (is_first_byte && ++characters > most) return line.substr(0, i);
    }
    return line;
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

  std::string text(const ProgressReport& now) const { return figures(now) + detail::in_brackets(now.alarm); }

  /// Within 80 columns. Rates are those since the line before.
  std::string figures(const ProgressReport& now) const {
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

  const Console console_;
  std::FILE* stream_;
  bool terminal_;
  std::size_t open_lines_ = 0;  // on the terminal, without an end
  double interval_;
  ProgressReport last_;
};

}  // namespace troop::apex
