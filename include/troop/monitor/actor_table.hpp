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

  void validate() const;
};

/// Keeps the newest report of each actor process. One that falls silent is lost, later forgotten; one that
/// says that it ends is forgotten at once. So nothing grows with the number of actors ever seen.
///
/// Names are cut to 128 bytes and everything but printable ASCII in them becomes a question mark, so that they
/// may be shown anywhere. Thread-safe. A report costs a look into a map; `rows` copies all.
class ActorTable {
 public:
  explicit ActorTable(const ActorTableOptions& options = {}) : options_((options.validate(), options)) {}

  void report(ActorReport report, Clock::time_point now = Clock::now());

  /// An actor process of this name is there, though its next report waits behind a batch of it.
  void heard(std::string_view name, Clock::time_point now = Clock::now());

  /// By index of the first environment. `version`: the newest parameters.
  std::vector<ActorRow> rows(std::uint64_t version, Clock::time_point now = Clock::now());

  static double unix_time();

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
Metrics::Families actor_metrics(const std::vector<ActorRow>& rows);

}  // namespace troop::monitor
