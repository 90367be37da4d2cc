#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <troop/monitor/run_status.hpp>

using troop::monitor::ActorReport;
using troop::monitor::ActorTable;
using troop::monitor::Alarm;
using troop::monitor::CheckpointSample;
using troop::monitor::ClusterSample;
using troop::monitor::EvaluationPoint;
using troop::monitor::Metrics;
using troop::monitor::RunBefore;
using troop::monitor::RunFacts;
using troop::monitor::RunSample;
using troop::monitor::RunStatus;

namespace {

/// A run that a test lets happen.
struct Run {
  Metrics metrics{};
  ActorTable actors{};
  RunStatus status{RunFacts{.environment = "CartPole-v1",
                            .role = "learner",
                            .seed = 7,
                            .target_return = 475.0,
                            .min_inserts = 1000},
                   metrics, actors};
  RunSample sample = {};

  /// Goes on for `seconds`, in which the learner makes `steps`.
  void advance(double seconds, std::uint64_t steps) {
    sample.seconds += seconds;
    sample.learner_steps += steps;
    sample.environment_steps += 8 * steps;
    sample.limiter.inserts += 8 * steps;
    sample.limiter.samples += 128 * steps;
    sample.replay.inserts += 8 * steps;
    sample.replay.size = std::min<std::size_t>(10'000, sample.replay.inserts);
    sample.replay.capacity = 10'000;
    status.observe(sample);
  }

  void act(std::uint64_t ticket, double mean_return) {
    actors.report({.ticket = ticket,
                   .first = ticket,
                   .count = 1,
                   .name = "host:" + std::to_string(ticket),
                   .episodes = 1,
                   .mean_return = mean_return});
  }

  bool has_alarm(const std::string& name) const {
    const auto alarms = status.alarms();
    return std::any_of(alarms.begin(), alarms.end(), [&](const Alarm& alarm) { return alarm.name == name; });
  }

  bool has(const std::string& part) const { return status.json().find(part) != std::string::npos; }
  bool has_metric(const std::string& line) const {
    return metrics.text().find("\n" + line + "\n") != std::string::npos;
  }
};

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("rates are those of the last seconds, in JSON, metrics and for the terminal") {
  Run run;
  for (int i = 0; i < 4; ++i) run.advance(2.0, 1000);
  run.advance(2.0, 500);
  CHECK(run.has(R"("steps_per_second":2000,)"));  // of the environments: 8 for each of the learner
  CHECK(run.has(R"("samples_per_insert":16,)"));
  CHECK(run.has_metric("troop_learner_steps_per_second 250"));
  CHECK(run.has_metric("troop_learner_steps_total 4500"));
  CHECK(run.status.summary().find("learner      250 updates/s   4.5k updates") != std::string::npos);
}

TEST_CASE("the event without history is a part of the whole, which has actors and history as well") {
  Run run;
  run.act(1, 10.0);
  run.advance(2.0, 1000);
  const std::string event = run.status.json(false), whole = run.status.json();
  CHECK(event.find("\"history\"") == std::string::npos);
  CHECK(event.starts_with(R"({"version":1,"troop":")"));
  CHECK(whole.find("\"history\"") != std::string::npos);
  CHECK(whole.find(R"("actors":{"columns":["first")") != std::string::npos);
  CHECK(whole.ends_with("}}"));
}

TEST_CASE("the spread of the actors is of those that have finished an episode and are there") {
  Run run;
  for (std::uint64_t i = 0; i <= 10; ++i) run.act(i, 10.0 * static_cast<double>(i));
  run.actors.report({.ticket = 99, .mean_return = 1e6});  // no episode yet
  run.advance(2.0, 1000);
  CHECK(run.has(R"("actor_returns":[10,50,90])"));
  Run empty;
  empty.advance(2.0, 1000);
  CHECK(empty.has(R"("actor_returns":[null,null,null])"));
}

TEST_CASE("histories keep their bounds and their ends however long a run lasts") {
  Run run;
  for (int i = 1; i <= 5000; ++i) {
    run.advance(2.0, 100);
    run.status.evaluated(
        {.seconds = 2.0 * i, .learner_steps = 100u * static_cast<unsigned>(i), .mean = 1.0 * i});
  }
  const std::string json = run.status.json();
  CHECK(count_of(json, "\"episodes\":") <= RunStatus::kMostPoints + 2);
  CHECK(count_of(json, "\"episodes\":") >= RunStatus::kMostPoints / 2);
  const std::string history =
      json.substr(json.find("\"history\""), json.find("\"evaluations\":[") - json.find("\"history\""));
  CHECK(count_of(history, "],[") <= RunStatus::kMostPoints);
  CHECK(count_of(history, "],[") >= RunStatus::kMostPoints / 3);
  CHECK(json.find(R"("mean":5000,)") != std::string::npos);
  CHECK(run.status.summary().size() < 2000);
}

TEST_CASE("a learner that stands still raises an alarm, which goes when it moves again") {
  Run run;
  run.advance(2.0, 1000);
  run.advance(14.0, 0);
  CHECK_FALSE(run.has_alarm("learner_stalled"));
  run.advance(2.0, 0);
  CHECK(run.has_alarm("learner_stalled"));
  CHECK(run.has_metric("troop_run_alarms 1"));
  CHECK(run.status.summary().find("ALARM        The learner has made no step for 16 s. If") !=
        std::string::npos);
  run.advance(2.0, 100);
  CHECK_FALSE(run.has_alarm("learner_stalled"));
  CHECK(run.has_metric("troop_run_alarms 0"));
}

TEST_CASE("a learner that waits for its first items is not stalled") {
  Run run;
  run.advance(2.0, 0);
  run.advance(60.0, 0);
  CHECK(run.status.alarms().empty());
}

TEST_CASE("each trouble has its alarm, and no other") {
  const auto only_alarm = [](auto trouble) {
    Run run;
    run.advance(2.0, 1000);
    trouble(run);
    run.advance(2.0, 1000);
    const auto alarms = run.status.alarms();
    return alarms.size() == 1 ? alarms[0].name : std::to_string(alarms.size()) + " alarms";
  };
  CHECK(only_alarm([](Run&) {}) == "0 alarms");
  CHECK(only_alarm([](Run& run) { run.sample.skipped_steps = 3; }) == "not_finite");
  CHECK(only_alarm([](Run& run) { run.sample.dropped_events = 1; }) == "disk");
  CHECK(only_alarm([](Run& run) { run.sample.mean_policy_lag = 500.0; }) == "policy_lag");
  CHECK(only_alarm([](Run& run) { run.sample.limiter.sample_wait_seconds = 1.5; }) == "learner_starved");
  CHECK(only_alarm([](Run& run) {
          run.sample.checkpoints = CheckpointSample{.failed = 1, .is_failing = true};
        }) == "checkpoints_failed");
  CHECK(only_alarm([](Run& run) { run.sample.checkpoints = CheckpointSample{.failed = 1}; }) ==
        "0 alarms");  // a later one was written
  CHECK(only_alarm([](Run& run) { run.sample.checkpoints = CheckpointSample{.trouble = "log given up"}; }) ==
        "run_directory");
  CHECK(only_alarm([](Run& run) {
          run.actors.report({.ticket = 1, .time = ActorTable::unix_time() - 60.0});
        }) == "clock_skew");
  CHECK(only_alarm([](Run& run) {
          run.actors.report({.ticket = 1}, troop::Clock::now() - std::chrono::seconds(10));
        }) == "actors_lost");
  CHECK(only_alarm([](Run& run) {
          run.sample.cluster = ClusterSample{.clients = 1};
          run.advance(2.0, 1000);
          run.sample.cluster = ClusterSample{.clients = 1, .batches = 100, .waits = 90};
        }) == "actors_held_back");
  CHECK(only_alarm([](Run& run) {
          run.sample.cluster = ClusterSample{};
          run.advance(20.0, 1000);
        }) == "no_actors");
}

TEST_CASE("an evaluation is in JSON, metrics and the curve of the terminal") {
  Run run;
  run.advance(2.0, 1000);
  CHECK(run.has(R"("evaluation":null)"));
  CHECK(run.has_metric("troop_evaluation_mean_return Nan"));
  run.status.evaluated({.seconds = 1.0, .learner_steps = 500, .mean = 100.0, .episodes = 20});
  run.status.evaluated(
      {.seconds = 2.0, .learner_steps = 1000, .mean = 200.0, .deviation = 5.0, .episodes = 20});
  CHECK(run.has(R"("evaluations":2,"evaluation":{"seconds":2,"learner_steps":1000,)"));
  CHECK(run.has_metric("troop_evaluation_mean_return 200"));
  CHECK(run.has_metric("troop_evaluation_evaluations_total 2"));
  CHECK(run.status.summary().find(
            "return       200.0 +- 5.000 of 20 greedy episodes at 1.0k learner steps, target 475.0   ▁█") !=
        std::string::npos);
}

TEST_CASE("the time to the target is that of the rise so far, and unknown without one") {
  Run run;
  run.advance(2.0, 1000);
  CHECK(run.has(R"("seconds_to_target":null,)"));
  for (int i = 1; i <= 10; ++i) run.status.evaluated({.seconds = 10.0 * i, .mean = 25.0 * i});
  run.advance(98.0, 1000);  // at 100 s a return of 250, which rises by 2.5 a second to 475
  CHECK(run.has(R"("seconds_to_target":90,)"));
  CHECK(run.status.summary().find("target 475.0 in about 90 s") != std::string::npos);
  for (int i = 11; i <= 30; ++i) run.status.evaluated({.seconds = 10.0 * i, .mean = 100.0 - i});
  CHECK(run.has(R"("seconds_to_target":null,)"));
}

TEST_CASE("checkpoints and a cluster are shown where there are any") {
  Run run;
  run.advance(2.0, 1000);
  CHECK_FALSE(run.has("\"checkpoints\""));
  CHECK_FALSE(run.has("\"cluster\""));
  run.sample.checkpoints = CheckpointSample{
      .directory = "runs/<b>", .written = 3, .learner_steps = 900, .age_seconds = 7.0, .bytes = 5000};
  run.sample.cluster = ClusterSample{.clients = 2};
  run.advance(2.0, 1000);
  CHECK(run.has(
      R"("checkpoints":{"directory":"runs/\u003cb\u003e","written":3,"failed":0,"learner_steps":900,)"));
  CHECK(run.has(R"("cluster":{"clients":2,)"));
  CHECK(run.has_metric("troop_cluster_clients 2"));
  CHECK(run.has_metric("troop_run_checkpoints_total 3"));
  CHECK(run.has_metric("troop_run_checkpoint_age_seconds 7"));
  CHECK(run.has_metric("troop_run_checkpoint_bytes 5000"));
}

TEST_CASE("a run that goes on has no rates of what was before, and has not been waiting since its start") {
  Metrics metrics;
  ActorTable actors;
  RunStatus status(RunFacts{.min_inserts = 1000, .before = RunBefore{90'000, 720'000, 12}}, metrics, actors);
  RunSample sample{.seconds = 3600.0, .environment_steps = 720'000, .learner_steps = 90'000};
  sample.cluster = ClusterSample{};
  sample.limiter.inserts = 720'000, sample.limiter.samples = 11'520'000;
  sample.replay.inserts = 5000;
  status.observe(sample);
  const auto has = [&](const std::string& part) { return status.json().find(part) != std::string::npos; };
  CHECK(has(R"("evaluations":12,)"));
  sample.seconds += 4.0, sample.learner_steps += 400, sample.limiter.samples += 51'200;
  sample.limiter.inserts += 3200;
  status.observe(sample);
  CHECK(has(R"("steps":90400,"steps_per_second":100,)"));
  CHECK(has(R"("samples_per_insert":16,)"));
  CHECK(status.alarms().empty());
  sample.seconds += 20.0;
  status.observe(sample);
  REQUIRE(status.alarms().size() == 1);
  CHECK(status.alarms()[0].name == "no_actors");
  status.evaluated({.seconds = 3621.0, .mean = 5.0, .episodes = 10});
  CHECK(has(R"("evaluations":13,)"));
}

TEST_CASE("counts are as short as people read them") {
  CHECK(RunStatus::count_text(std::uint64_t{950}) == "950");
  CHECK(RunStatus::count_text(std::uint64_t{3942}) == "3.9k");
  CHECK(RunStatus::count_text(std::uint64_t{31'000}) == "31k");
  CHECK(RunStatus::count_text(std::uint64_t{2'400'000}) == "2.4M");
}
