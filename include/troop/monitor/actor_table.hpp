/// @file
/// Who acts: a row for each actor process, as its reports say.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/monitor/metrics.hpp>

namespace troop::monitor {

/// What an actor process says of itself every second or so.
struct ActorReport {
  std::uint64_t ticket = 0;  ///< of its lease: what makes it the same actor
  std::uint64_t first = 0;   ///< index of its first environment in the fleet
  std::uint64_t count = 0;   ///< environments
  std::string name = {};     ///< of the process, for people: host and number
  double least_epsilon = 0.0, greatest_epsilon = 0.0;
  std::uint64_t steps = 0, episodes = 0, dropped = 0;  ///< since it began; dropped: items
  double last_return = 0.0, mean_return = 0.0;         ///< of episodes; 0 before the first
  std::uint64_t parameter_version = 0;                 ///< that acts
  double time = 0.0;                                   ///< seconds since 1970 by its clock; 0: not known
  bool is_last = false;                                ///< it ends now

  template <class Archive>
  void serialize(Archive& archive) {
    archive(ticket, first, count, name, least_epsilon, greatest_epsilon, steps, episodes, dropped,
            last_return, mean_return, parameter_version, time, is_last);
  }
};

struct ActorRow {
  ActorReport report;
  double steps_per_second = 0.0;  ///< between its last two reports
  double seen = 0.0;              ///< seconds since its last report
  std::uint64_t lag = 0;          ///< versions by which its parameters are behind
  double clock_skew = 0.0;        ///< seconds by which its clock is ahead; 0 when that is not known
  bool is_lost = false;
};

struct ActorTableOptions {
  Clock::duration lost_after = std::chrono::seconds(5);     ///< without a report
  Clock::duration forget_after = std::chrono::seconds(60);  ///< without a report
  std::size_t max_rows = 4096;  ///< beyond it the one that has been silent for longest goes

  void validate() const {
    require(lost_after > Clock::duration::zero(), "lost_after",
            std::chrono::duration<double>(lost_after).count(), "a positive time");
    require(forget_after >= lost_after, "forget_after", std::chrono::duration<double>(forget_after).count(),
            "at least lost_after");
    require(max_rows >= 1, "max_rows", max_rows, "a positive integer");
  }
};

/// Keeps the newest report of each actor process. One that falls silent is lost, later forgotten; one that
/// says that it ends is forgotten at once. So nothing grows with the number of actors ever seen.
///
/// Names are cut to 128 bytes and everything but printable ASCII in them becomes a question mark, so that they
/// may be shown anywhere. Thread-safe. A report costs a look into a map; `rows` copies all.
class ActorTable {
 public:
  explicit ActorTable(const ActorTableOptions& options = {}) : options_((options.validate(), options)) {}

  void report(ActorReport report, Clock::time_point now = Clock::now()) {
    report.name = printable(std::move(report.name));
    const std::lock_guard lock(mutex_);
    if (report.is_last) {
      seen_.erase(report.ticket);
      return;
    }
    if (seen_.size() >= options_.max_rows && !seen_.contains(report.ticket)) {
      seen_.erase(std::min_element(seen_.begin(), seen_.end(), [](const auto& a, const auto& b) {
        return a.second.heard < b.second.heard;
      }));
    }
    Seen& seen = seen_[report.ticket];
    const double passed = std::chrono::duration<double>(now - seen.time).count();
    if (seen.time == Clock::time_point()) {
      seen.steps_per_second = 0.0;
    } else if (passed > 0.0) {
      const std::uint64_t steps = report.steps - std::min(report.steps, seen.report.steps);
      seen.steps_per_second = static_cast<double>(steps) / passed;
    }
    seen.time = seen.heard = now;
    seen.clock_skew = report.time == 0.0 ? 0.0 : report.time - unix_time();
    seen.report = std::move(report);
  }

  /// An actor process of this name is there, though its next report waits behind a batch of it.
  void heard(std::string_view name, Clock::time_point now = Clock::now()) {
    const std::string cleaned = printable(std::string(name));
    const std::lock_guard lock(mutex_);
    for (auto& [ticket, seen] : seen_) {
      if (seen.report.name == cleaned) seen.heard = now;
    }
  }

  /// By index of the first environment. `version`: the newest parameters.
  std::vector<ActorRow> rows(std::uint64_t version, Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    std::erase_if(seen_, [&](const auto& entry) { return now - entry.second.heard > options_.forget_after; });
    std::vector<ActorRow> rows;
    rows.reserve(seen_.size());
    for (const auto& [ticket, seen] : seen_) {
      rows.push_back({.report = seen.report,
                      .steps_per_second = seen.steps_per_second,
                      .seen = std::max(0.0, std::chrono::duration<double>(now - seen.heard).count()),
                      .lag = version - std::min(version, seen.report.parameter_version),
                      .clock_skew = seen.clock_skew,
                      .is_lost = now - seen.heard > options_.lost_after});
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.report.first < b.report.first; });
    return rows;
  }

  static double unix_time() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

 private:
  static std::string printable(std::string name) {
    constexpr std::size_t kMostName = 128;
    name.resize(std::min(name.size(), kMostName));
    for (char& c : name) {
      if (c < ' ' || c > '~') c = '?';
    }
    return name;
  }

  struct Seen {
    ActorReport report;
    Clock::time_point time, heard;  // of the last report, of the last sign of life
    double clock_skew = 0.0, steps_per_second = 0.0;
  };

  const ActorTableOptions options_;
  std::mutex mutex_;  // guards the following
  std::map<std::uint64_t, Seen> seen_;
};

/// The rows as metrics, labelled by the first environment's index: for `Metrics::collect`.
inline Metrics::Families actor_metrics(const std::vector<ActorRow>& rows) {
  Metrics::Families families;
  const auto family = [&](const char* name, const char* help, auto value) {
    prometheus::MetricFamily made{name, help, prometheus::MetricType::Gauge, {}};
    for (const ActorRow& row : rows) {
      if (row.is_lost) continue;
      prometheus::ClientMetric metric;
      metric.label = {{"actor", std::to_string(row.report.first)}, {"process", row.report.name}};
      metric.gauge.value = static_cast<double>(value(row));
      made.metric.push_back(std::move(metric));
    }
    families.push_back(std::move(made));
  };
  family("troop_actor_steps_per_second", "Environment steps per second of an actor process.",
         [](const ActorRow& row) { return row.steps_per_second; });
  family("troop_actor_mean_return", "Mean return of an actor process's last episodes, as it explores.",
         [](const ActorRow& row) { return row.report.mean_return; });
  family("troop_actor_policy_lag", "Versions by which an actor process's parameters are behind.",
         [](const ActorRow& row) { return row.lag; });
  family("troop_actor_epsilon_max", "Greatest exploration rate of an actor process.",
         [](const ActorRow& row) { return row.report.greatest_epsilon; });
  return families;
}

}  // namespace troop::monitor
