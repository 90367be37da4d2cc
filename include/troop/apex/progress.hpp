/// @file
/// The progress of a run: one live line on a terminal, plain lines elsewhere.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <troop/apex/console.hpp>
#include <troop/core/clock.hpp>

namespace troop::apex {

namespace detail {

/// For the end of a line.
std::string in_brackets(const std::string& text);

}  // namespace detail

/// A return as people read it: 500.0, 21.35 and 0.743, for there are tasks whose returns lie between 0 and 1.
std::string return_text(double value);

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
  bool is_due(double seconds) const noexcept;

  /// `details`: further lines in UTF-8 for a terminal, each with its end, if there are any.
  void print(const ProgressReport& report, const std::string& details = {});

  /// Ends the live lines, so that other output begins on a line of its own.
  void finish();

 private:
  /// Rows and columns of the terminal.
  std::pair<std::size_t, std::size_t> size() const;

  /// Puts lines in the place of those before. What wraps or scrolls could not be written over: lines are cut,
  /// and of too many the last ones are shown.
  void write_over(std::string_view text);

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
  std::string figures(const ProgressReport& now) const;

  const Console console_;
  std::FILE* stream_;
  bool terminal_;
  std::size_t open_lines_ = 0;  // on the terminal, without an end
  double interval_;
  ProgressReport last_;
};

}  // namespace troop::apex
