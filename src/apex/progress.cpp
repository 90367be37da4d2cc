#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troop/apex/progress.hpp>

namespace troop::apex {

namespace detail {

std::string in_brackets(const std::string& text) {
  return text.empty() ? text : "  [" + text + "]";
}

}  // namespace detail

std::string return_text(double value) {
  const double size = std::abs(value);
  char text[48];
  std::snprintf(text, sizeof text, size < 1e15 ? "%.*f" : "%.*e",
                size < 9.9995   ? 3
                : size < 99.995 ? 2
                                : 1,
                value);
  return text;
}

bool Progress::is_due(double seconds) const noexcept {
  return !console_.is_quiet() && seconds - last_.seconds >= interval_;
}

void Progress::print(const ProgressReport& report, const std::string& details) {
  if (console_.is_quiet()) return;
  if (terminal_) {
    write_over(details + text(report));
    std::fflush(stream_);
  } else {
    console_.info("%s", text(report).c_str());
  }
  last_ = report;
}

void Progress::finish() {
  if (open_lines_ > 0) {
    std::fprintf(stream_, "\n");
    std::fflush(stream_);
  }
  open_lines_ = 0;
}

std::pair<std::size_t, std::size_t> Progress::size() const {
  winsize size{};
  const bool is_known = ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && size.ws_row > 1;
  if (!is_known) return {24, 80};
  return {size.ws_row, size.ws_col};
}

void Progress::write_over(std::string_view text) {
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

std::string Progress::figures(const ProgressReport& now) const {
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

}  // namespace troop::apex
