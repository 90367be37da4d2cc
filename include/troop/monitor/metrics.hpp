/// @file
/// The metrics of a process: one registry, from which Prometheus, TensorBoard and the status page are fed.
#pragma once

#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <prometheus/client_metric.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/labels.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <troop/core/error.hpp>

namespace troop::monitor {

/// A number of the registry under the name by which TensorBoard groups it: `learner/loss`.
struct Scalar {
  std::string tag;
  double value;
};

/// The tag of a metric: the part between `troop_` and the next underscore is its group; a `_total` at the end
/// is left out. Metrics that are not troop's are in the group `user`. Values of labels follow, each after a
/// slash.
///
///     tag_of("troop_learner_loss", {})                       // "learner/loss"
///     tag_of("reward_scale", {{"game", "pong"}})             // "user/reward_scale/pong"
std::string tag_of(std::string_view name, const prometheus::Labels& labels);

/// Counters, gauges and histograms of prometheus-cpp. A program adds its own in one line; asking again for the
/// same name and labels gives the same metric.
///
/// A metric's reference stays valid as long as the registry. To find one takes a lock and a look into a map:
/// keep the reference where that counts. To set or increment it is one atomic operation. Thread-safe.
///
///     metrics.gauge("reward_scale", "What rewards are multiplied with.").Set(0.1);
///     metrics.counter("resets_total", "Games begun, by level.", {{"level", "3"}}).Increment();
class Metrics {
 public:
  using Families = std::vector<prometheus::MetricFamily>;

  /// These throw InvalidArgument for a name or a label that Prometheus does not allow, and for a name that
  /// belongs to a metric of another kind.
  prometheus::Counter& counter(const std::string& name, const std::string& help,
                               const prometheus::Labels& labels = {});
  prometheus::Gauge& gauge(const std::string& name, const std::string& help,
                           const prometheus::Labels& labels = {});
  /// `bounds`: upper ends of the buckets, rising; one without an end follows.
  prometheus::Histogram& histogram(const std::string& name, const std::string& help,
                                   const prometheus::Histogram::BucketBoundaries& bounds,
                                   const prometheus::Labels& labels = {});

  /// Whatever `collect` returns is in `text` as well: for metrics of things that come and go, which would
  /// otherwise stay for ever. Called by whichever thread asks for the text.
  void collect(std::function<Families()> collect);

  /// Everything in Prometheus' text format 0.0.4.
  std::string text() const { return prometheus::TextSerializer().Serialize(families()); }

  /// Everything, those of `collect` included.
  Families families() const;

  /// All counters and gauges whose value is finite, by tag; without those of `collect`.
  std::vector<Scalar> scalars() const;

 private:
  template <class Metric, class Builder, class... Arguments>
  Metric& add(Builder builder, const std::string& name, const std::string& help,
              const prometheus::Labels& labels, const Arguments&... arguments) {
    try {
      return builder.Name(name).Help(help).Register(registry_).Add(labels, arguments...);
    } catch (const std::invalid_argument&) {
      throw InvalidArgument(
          "metric", "\"" + name + "\"",
          "letters, digits and underscores in its name and labels, and one kind of metric for a name");
    }
  }

  mutable prometheus::Registry registry_;
  mutable std::mutex mutex_;  // guards the following
  std::vector<std::function<Families()>> collectors_;
};

/// Raises a counter to a total that was counted elsewhere. One that is smaller changes nothing.
void raise_to(prometheus::Counter& counter, double total);

}  // namespace troop::monitor
