#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <testing.hpp>

#include <troop/monitor/metrics.hpp>

using troop::monitor::Metrics;
using troop::monitor::Scalar;
using troop::testing::error_of;

namespace {

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_CASE("a metric is added in one line and stands in the text with its help and kind") {
  Metrics metrics;
  metrics.gauge("reward_scale", "What rewards are multiplied with.").Set(0.5);
  metrics.counter("resets_total", "Games begun.", {{"level", "3"}}).Increment();
  metrics.histogram("lengths", "Steps of a game.", {10.0, 100.0}).Observe(42.0);
  const std::string text = metrics.text();
  CHECK(has_line(text, "# HELP reward_scale What rewards are multiplied with."));
  CHECK(has_line(text, "# TYPE reward_scale gauge"));
  CHECK(has_line(text, "reward_scale 0.5"));
  CHECK(has_line(text, "# TYPE resets_total counter"));
  CHECK(has_line(text, "resets_total{level=\"3\"} 1"));
  CHECK(has_line(text, "lengths_bucket{le=\"10\"} 0"));
  CHECK(has_line(text, "lengths_bucket{le=\"100\"} 1"));
}

TEST_CASE("the same name and labels are the same metric") {
  Metrics metrics;
  auto& first = metrics.counter("resets_total", "Games begun.");
  CHECK(&metrics.counter("resets_total", "Games begun.") == &first);
  CHECK(&metrics.counter("resets_total", "Games begun.", {{"level", "1"}}) != &first);
}

TEST_CASE("a name that Prometheus does not allow, or of another kind, is refused") {
  Metrics metrics;
  metrics.gauge("taken", "");
  const std::string expected =
      " is not allowed; expected letters, digits and underscores in its name and labels, and one kind of "
      "metric for a name";
  CHECK(error_of([&] { metrics.gauge("a name", ""); }) == "metric: \"a name\"" + expected);
  CHECK(error_of([&] { metrics.gauge("x", "", {{"1st", "a"}}); }) == "metric: \"x\"" + expected);
  CHECK(error_of([&] { metrics.counter("taken", ""); }) == "metric: \"taken\"" + expected);
}

TEST_CASE("labels that come from strangers cannot break out of their quotes") {
  Metrics metrics;
  metrics.gauge("actors", "", {{"host", "a\"} 1\nforged 2"}}).Set(1.0);
  CHECK_FALSE(has_line(metrics.text(), "forged 2"));
}

TEST_CASE("what a collector returns is in the text for as long as it returns it") {
  Metrics metrics;
  bool is_there = true;
  metrics.collect([&] {
    Metrics::Families families;
    if (is_there) {
      prometheus::MetricFamily family{"actor_return", "", prometheus::MetricType::Gauge, {}};
      family.metric.emplace_back().gauge.value = 7.0;
      families.push_back(family);
    }
    return families;
  });
  CHECK(has_line(metrics.text(), "actor_return 7"));
  CHECK(metrics.scalars().empty());
  is_there = false;
  CHECK_FALSE(has_line(metrics.text(), "actor_return 7"));
}

TEST_CASE("scalars have the tags by which TensorBoard groups them, and only finite values") {
  Metrics metrics;
  metrics.gauge("troop_learner_loss", "").Set(0.25);
  metrics.counter("troop_replay_inserts_total", "").Increment(3.0);
  metrics.gauge("reward_scale", "", {{"game", "pong"}}).Set(2.0);
  metrics.gauge("troop_evaluation_mean_return", "").Set(std::nan(""));
  metrics.histogram("lengths", "", {1.0}).Observe(1.0);
  std::vector<std::string> seen;
  for (const Scalar& scalar : metrics.scalars())
    seen.push_back(scalar.tag + "=" + std::to_string(scalar.value));
  CHECK(seen == std::vector<std::string>{"learner/loss=0.250000", "replay/inserts=3.000000",
                                         "user/reward_scale/pong=2.000000"});
}

TEST_CASE("a counter is raised to a total and never lowered") {
  Metrics metrics;
  auto& counter = metrics.counter("steps_total", "");
  troop::monitor::raise_to(counter, 5.0);
  troop::monitor::raise_to(counter, 3.0);
  CHECK(counter.Value() == 5.0);
}

TEST_CASE("threads add, set and read at once") {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) metrics.counter("steps_total", "").Increment();
    });
  }
  std::size_t bytes = 0;
  for (int i = 0; i < 20; ++i) bytes += metrics.text().size() + metrics.scalars().size();
  for (auto& thread : threads) thread.join();
  CHECK(metrics.counter("steps_total", "").Value() == 600.0);
  CHECK(bytes < 100000);
}
