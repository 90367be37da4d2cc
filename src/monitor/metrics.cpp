#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troop/monitor/metrics.hpp>

namespace troop::monitor {

std::string tag_of(std::string_view name, const prometheus::Labels& labels) {
  constexpr std::string_view kOwn = "troop_", kTotal = "_total";
  if (name.ends_with(kTotal)) name.remove_suffix(kTotal.size());
  std::string tag;
  if (name.starts_with(kOwn)) {
    tag = name.substr(kOwn.size());
    if (const std::size_t end = tag.find('_'); end != std::string::npos) tag[end] = '/';
  } else {
    tag = "user/" + std::string(name);
  }
  for (const auto& [label, value] : labels) tag += "/" + value;
  return tag;
}

prometheus::Counter& Metrics::counter(const std::string& name, const std::string& help,
                                      const prometheus::Labels& labels) {
  return add<prometheus::Counter>(prometheus::BuildCounter(), name, help, labels);
}

prometheus::Gauge& Metrics::gauge(const std::string& name, const std::string& help,
                                  const prometheus::Labels& labels) {
  return add<prometheus::Gauge>(prometheus::BuildGauge(), name, help, labels);
}

prometheus::Histogram& Metrics::histogram(const std::string& name, const std::string& help,
                                          const prometheus::Histogram::BucketBoundaries& bounds,
                                          const prometheus::Labels& labels) {
  return add<prometheus::Histogram>(prometheus::BuildHistogram(), name, help, labels, bounds);
}

void Metrics::collect(std::function<Families()> collect) {
  const std::lock_guard lock(mutex_);
  collectors_.push_back(std::move(collect));
}

Metrics::Families Metrics::families() const {
  Families all = registry_.Collect();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& collect : collectors_)
      for (prometheus::MetricFamily& family : collect()) all.push_back(std::move(family));
  }
  return all;
}

std::vector<Scalar> Metrics::scalars() const {
  std::vector<Scalar> scalars;
  for (const prometheus::MetricFamily& family : registry_.Collect()) {
    const bool is_counter = family.type == prometheus::MetricType::Counter;
    if (!is_counter && family.type != prometheus::MetricType::Gauge) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      prometheus::Labels labels;
      for (const auto& label : metric.label) labels[label.name] = label.value;
      const double value = is_counter ? metric.counter.value : metric.gauge.value;
      if (std::isfinite(value)) scalars.push_back({tag_of(family.name, labels), value});
    }
  }
  std::sort(scalars.begin(), scalars.end(), [](const Scalar& a, const Scalar& b) { return a.tag < b.tag; });
  return scalars;
}

void raise_to(prometheus::Counter& counter, double total) {
  if (const double missing = total - counter.Value(); missing > 0.0) counter.Increment(missing);
}

}  // namespace troop::monitor
