#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troop/monitor/actor_table.hpp>

namespace troop::monitor {

void ActorTableOptions::validate() const {
  require(lost_after > Clock::duration::zero(), "lost_after",
          std::chrono::duration<double>(lost_after).count(), "a positive time");
  require(forget_after >= lost_after, "forget_after", std::chrono::duration<double>(forget_after).count(),
          "at least lost_after");
  require(max_rows >= 1, "max_rows", max_rows, "a positive integer");
}

void ActorTable::report(ActorReport report, Clock::time_point now) {
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

void ActorTable::heard(std::string_view name, Clock::time_point now) {
  const std::string cleaned = printable(std::string(name));
  const std::lock_guard lock(mutex_);
  for (auto& [ticket, seen] : seen_) {
    if (seen.report.name == cleaned) seen.heard = now;
  }
}

std::vector<ActorRow> ActorTable::rows(std::uint64_t version, Clock::time_point now) {
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

double ActorTable::unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Metrics::Families actor_metrics(const std::vector<ActorRow>& rows) {
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
