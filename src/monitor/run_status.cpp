#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <troop/monitor/json.hpp>
#include <troop/monitor/run_status.hpp>
#include <troop/version.hpp>

namespace troop::monitor {

ReplayMetrics::ReplayMetrics(Metrics& m)
    : inserts_(m.counter("troop_replay_inserts_total", "Items put into the replay.")),
      samples_(m.counter("troop_replay_samples_total", "Items drawn from the replay.")),
      evictions_(m.counter("troop_replay_evictions_total", "Items that had to go.")),
      updates_(m.counter("troop_replay_priority_updates_total", "Priorities written back.")),
      stale_updates_(m.counter("troop_replay_stale_updates_total", "Priorities for items that were gone.")),
      size_(m.gauge("troop_replay_size", "Items in the replay.")),
      capacity_(m.gauge("troop_replay_capacity", "Most items that the replay holds.")),
      total_priority_(m.gauge("troop_replay_total_priority", "Sum of the priorities' powers.")) {}

void ReplayMetrics::set(const ReplayStatistics& s) {
  const auto raise = [](prometheus::Counter& counter, std::uint64_t total) {
    raise_to(counter, static_cast<double>(total));
  };
  raise(inserts_, s.inserts);
  raise(samples_, s.samples);
  raise(evictions_, s.evictions);
  raise(updates_, s.updates);
  raise(stale_updates_, s.stale_updates);
  size_.Set(static_cast<double>(s.size));
  capacity_.Set(static_cast<double>(s.capacity));
  total_priority_.Set(s.total_priority);
}

void set_metrics(Metrics& metrics, const ClusterSample& c) {
  const auto raise = [&](const char* name, const char* help, std::uint64_t total) {
    raise_to(metrics.counter(name, help), static_cast<double>(total));
  };
  metrics.gauge("troop_cluster_clients", "Connections to this process.").Set(static_cast<double>(c.clients));
  raise("troop_cluster_batches_total", "Batches that were applied.", c.batches);
  raise("troop_cluster_duplicates_total", "Batches that came again.", c.duplicates);
  raise("troop_cluster_waits_total", "Batches that waited for the replay.", c.waits);
  raise("troop_cluster_refused_total", "Connections that were refused.", c.refused);
  raise("troop_cluster_received_bytes_total", "Bytes from clients.", c.bytes_received);
  raise("troop_cluster_sent_bytes_total", "Bytes to clients.", c.bytes_sent);
}

/// All of it; the header says what its functions promise.
class RunStatus::Impl {
 public:
  Impl(const RunFacts& facts, Metrics& metrics, ActorTable& actors)
      : facts_(facts),
        actors_(actors),
        gauges_(metrics),
        started_(ActorTable::unix_time()),
        num_evaluations_(facts.before.value_or(RunBefore()).evaluations) {
    metrics.collect([this] {
      const std::lock_guard lock(mutex_);
      return actor_metrics(rows_);
    });
  }

  void observe(const RunSample& sample) {
    auto rows = actors_.rows(sample.parameter_version);
    const std::lock_guard lock(mutex_);
    rows_ = std::move(rows);
    spread_ = spread_of(rows_);
    if (facts_.before &&
        !std::exchange(is_under_way_, true)) {  // what was before is neither a rate nor a wait
      before_ = now_ = sample;
      learner_moved_ = had_client_ = sample.seconds;
    }
    const double passed = sample.seconds - before_.seconds;
    if (passed >= kRateSeconds) {
      rates_.steps = rate(sample.environment_steps, before_.environment_steps, passed);
      rates_.updates = rate(sample.learner_steps, before_.learner_steps, passed);
      rates_.learner_waits = std::clamp(
          (sample.limiter.sample_wait_seconds - before_.limiter.sample_wait_seconds) / passed, 0.0, 1.0);
      const double inserts = rate(sample.limiter.inserts, before_.limiter.inserts, passed);
      const double samples = rate(sample.limiter.samples, before_.limiter.samples, passed);
      rates_.samples_per_insert = inserts > 0.0 ? samples / inserts : 0.0;
      if (sample.cluster && before_.cluster) {
        rates_.received = rate(sample.cluster->bytes_received, before_.cluster->bytes_received, passed);
        rates_.sent = rate(sample.cluster->bytes_sent, before_.cluster->bytes_sent, passed);
        const double batches = rate(sample.cluster->batches, before_.cluster->batches, passed);
        const double waits = rate(sample.cluster->waits, before_.cluster->waits, passed);
        rates_.actors_wait = batches > 0.0 ? std::min(1.0, waits / batches) : 0.0;
      }
      before_ = sample;
      add_point(sample);
    }
    if (sample.learner_steps != now_.learner_steps) learner_moved_ = sample.seconds;
    if (sample.skipped_steps != now_.skipped_steps) skipped_at_ = sample.seconds;
    if (sample.cluster && sample.cluster->clients > 0) had_client_ = sample.seconds;
    now_ = sample;
    find_alarms();
    gauges_.set(now_, rates_, facts_, rows_, alarms_);
  }

  void evaluated(const EvaluationPoint& point) {
    const std::lock_guard lock(mutex_);
    last_evaluation_ = point;
    ++num_evaluations_;
    add_to(evaluations_, point);
    gauges_.set(point, num_evaluations_);
  }

  void set_histogram(PriorityHistogram histogram) {
    const std::lock_guard lock(mutex_);
    histogram_ = std::move(histogram);
  }

  void set_solved() {
    const std::lock_guard lock(mutex_);
    is_solved_ = true;
  }

  std::vector<Alarm> alarms() const {
    const std::lock_guard lock(mutex_);
    return alarms_;
  }

  std::string json(bool whole) const {
    const std::lock_guard lock(mutex_);
    JsonWriter json;
    json.begin().member("version", kVersion);
    json.member("troop", std::to_string(troop::kVersion.major) + "." + std::to_string(troop::kVersion.minor) +
                             "." + std::to_string(troop::kVersion.patch));
    json.member("started", started_, 14).member("time", ActorTable::unix_time(), 14);
    write_run(json);
    write_learner(json);
    write_replay(json);
    if (now_.cluster) write_cluster(json);
    if (now_.checkpoints) write_checkpoints(json);
    write_alarms(json);
    if (whole) {
      write_history(json);
      json.key("actors").raw(actors_text());
    }
    json.end();
    return json.text();
  }

  std::string actors_json() const {
    const std::lock_guard lock(mutex_);
    return actors_text();
  }

  std::string summary() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    line(text, "%s, %s, seed %llu, %s", facts_.environment.c_str(), facts_.role.c_str(), number(facts_.seed),
         is_solved_ ? "solved" : duration_text(now_.seconds).c_str());
    if (last_evaluation_) {
      line(text, "return       %s +- %s of %llu greedy episodes at %s learner steps%s%s   %s",
           short_text(last_evaluation_->mean).c_str(), short_text(last_evaluation_->deviation).c_str(),
           number(last_evaluation_->episodes), count_text(last_evaluation_->learner_steps).c_str(),
           std::isnan(facts_.target_return) ? "" : (", target " + short_text(facts_.target_return)).c_str(),
           std::isnan(seconds_to_target()) ? "" : (" in about " + duration_text(seconds_to_target())).c_str(),
           sparkline().c_str());
    } else {
      line(text, "return       no evaluation yet");
    }
    line(text,
         "actors       %zu here, %zu lost   %s steps/s   %s steps   epsilon %.4f to %.2f   policy lag %.1f",
         rows_.size() - num_lost(), num_lost(), count_text(rates_.steps).c_str(),
         count_text(now_.environment_steps).c_str(), facts_.least_epsilon, facts_.greatest_epsilon,
         now_.mean_policy_lag);
    line(text, "learner      %s updates/s   %s updates   loss %.4g   |gradient| %.4g   waits %.0f%%",
         count_text(rates_.updates).c_str(), count_text(now_.learner_steps).c_str(), now_.loss,
         now_.gradient_norm, 100.0 * rates_.learner_waits);
    line(text, "replay       %s of %s items (%.0f%%)   %.1f samples an insert",
         count_text(now_.replay.size).c_str(), count_text(now_.replay.capacity).c_str(), 100.0 * fill(),
         rates_.samples_per_insert);
    for (const Alarm& alarm : alarms_)
      line(text, "%s %s %s", alarm.is_serious ? "ALARM       " : "advice      ", alarm.what.c_str(),
           alarm.to_do.c_str());
    return text;
  }

  std::string actors_table() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    line(text, "%6s %5s  %-32s %15s %9s %9s %8s %5s %7s", "first", "envs", "process", "epsilon", "last",
         "mean", "steps/s", "lag", "seen");
    std::vector<ActorRow> rows = rows_;
    std::stable_partition(rows.begin(), rows.end(), [](const ActorRow& row) { return row.is_lost; });
    for (const ActorRow& row : rows) {
      const ActorReport& r = row.report;
      char epsilons[40];
      std::snprintf(epsilons, sizeof epsilons, "%.4f-%.4f", r.least_epsilon, r.greatest_epsilon);
      line(text, "%6llu %5llu  %-32.32s %15s %9s %9s %8s %5llu %6.0fs%s", number(r.first), number(r.count),
           r.name.c_str(), epsilons, short_text(r.last_return).c_str(), short_text(r.mean_return).c_str(),
           count_text(row.steps_per_second).c_str(), number(row.lag), row.seen, row.is_lost ? " lost" : "");
    }
    return text;
  }

  static std::string count_text(double value) {
    const char* unit = "";
    for (const char* larger : {"k", "M", "G", "T"}) {
      if (value < 999.5) break;
      value /= 1000.0;
      unit = larger;
    }
    char text[32];
    std::snprintf(text, sizeof text, *unit != '\0' && value < 9.95 ? "%.1f%s" : "%.0f%s", value, unit);
    return text;
  }
  static std::string count_text(std::uint64_t value) { return count_text(static_cast<double>(value)); }

 private:
  static constexpr double kRateSeconds = 2.0;  // over which rates are taken
  static constexpr double kStalledSeconds = 15.0;

  struct Rates {
    double steps = 0.0, updates = 0.0, learner_waits = 0.0, actors_wait = 0.0, samples_per_insert = 0.0,
           received = 0.0, sent = 0.0;
  };

  /// Of the mean returns of the actors: a tenth is below `low`, half below `median`, a tenth above `high`. NaN
  /// without any.
  struct Spread {
    double low = std::nan(""), median = std::nan(""), high = std::nan("");
  };

  struct Point {
    double seconds;
    std::uint64_t environment_steps, learner_steps;
    double steps, updates, fill, loss, lag;
    Spread spread;
  };

  /// The metrics of a run, found once.
  struct Gauges {
    explicit Gauges(Metrics& m)
        : environment_steps(m.counter("troop_actor_steps_total", "Environment steps of all actors.")),
          learner_steps(m.counter("troop_learner_steps_total", "Steps of the learner.")),
          skipped_steps(m.counter("troop_learner_skipped_steps_total",
                                  "Learner steps that were not applied: loss or gradient not finite.")),
          replay(m),
          insert_wait(m.counter("troop_replay_insert_wait_seconds_total",
                                "Time that inserts waited for the rate limiter, all together.")),
          sample_wait(m.counter("troop_replay_sample_wait_seconds_total",
                                "Time that the learner waited for the rate limiter.")),
          evaluations(m.counter("troop_evaluation_evaluations_total", "Evaluations of the greedy policy.")),
          dropped_events(
              m.counter("troop_run_dropped_events_total", "TensorBoard events that could not be written.")),
          steps_rate(m.gauge("troop_actor_total_steps_per_second", "Environment steps per second.")),
          updates_rate(m.gauge("troop_learner_steps_per_second", "Learner steps per second.")),
          waits(
              m.gauge("troop_learner_wait_ratio", "Part of the time that the learner waits for experience.")),
          loss(m.gauge("troop_learner_loss", "Loss, a moving mean over 100 steps.")),
          gradient(m.gauge("troop_learner_gradient_norm", "Norm of the gradient, a moving mean.")),
          q(m.gauge("troop_learner_mean_q", "Mean Q-value of what was trained on, a moving mean.")),
          version(m.gauge("troop_learner_parameter_version", "Version of the newest parameters.")),
          lag(m.gauge("troop_actor_mean_policy_lag",
                      "Versions by which the parameters are behind that made the newest items.")),
          actors(m.gauge("troop_actor_processes", "Actor processes that report.")),
          lost(m.gauge("troop_actor_lost_processes", "Actor processes that have fallen silent.")),
          seconds(m.gauge("troop_run_seconds", "Time since the start.")),
          target(m.gauge("troop_run_target_return", "Mean return that counts as solved.")),
          serious(m.gauge("troop_run_alarms", "Alarms at present.")),
          mean(m.gauge("troop_evaluation_mean_return", "Mean return of the last evaluation.")),
          deviation(m.gauge("troop_evaluation_return_deviation", "Standard deviation of its episodes.")),
          metrics(m) {
      mean.Set(std::nan(""));  // nothing is known before the first
      deviation.Set(std::nan(""));
    }

    void set(const RunSample& s, const Rates& r, const RunFacts& facts, const std::vector<ActorRow>& rows,
             const std::vector<Alarm>& alarms) {
      const auto raise = [](prometheus::Counter& counter, std::uint64_t total) {
        raise_to(counter, static_cast<double>(total));
      };
      raise(environment_steps, s.environment_steps);
      raise(learner_steps, s.learner_steps);
      raise(skipped_steps, s.skipped_steps);
      replay.set(s.replay);
      raise(dropped_events, s.dropped_events);
      raise_to(insert_wait, s.limiter.insert_wait_seconds);
      raise_to(sample_wait, s.limiter.sample_wait_seconds);
      steps_rate.Set(r.steps), updates_rate.Set(r.updates), waits.Set(r.learner_waits);
      loss.Set(s.loss), gradient.Set(s.gradient_norm), q.Set(s.mean_q);
      version.Set(static_cast<double>(s.parameter_version)), lag.Set(s.mean_policy_lag);
      const auto num_lost =
          std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.is_lost; });
      lost.Set(static_cast<double>(num_lost));
      actors.Set(static_cast<double>(rows.size()) - static_cast<double>(num_lost));
      seconds.Set(s.seconds), target.Set(facts.target_return);
      serious.Set(static_cast<double>(
          std::count_if(alarms.begin(), alarms.end(), [](const auto& alarm) { return alarm.is_serious; })));
      if (s.cluster) set_metrics(metrics, *s.cluster);
      if (s.checkpoints) {  // these are there with a run directory only
        const CheckpointSample& c = *s.checkpoints;
        raise(metrics.counter("troop_run_checkpoints_total", "Checkpoints that were written."), c.written);
        raise(metrics.counter("troop_run_checkpoint_failures_total", "Checkpoints that could not be."),
              c.failed);
        metrics.gauge("troop_run_checkpoint_age_seconds", "Age of the newest checkpoint of this process.")
            .Set(c.age_seconds);
        metrics.gauge("troop_run_checkpoint_write_seconds", "Time that it took to write.")
            .Set(c.write_seconds);
        metrics.gauge("troop_run_checkpoint_bytes", "Its size.").Set(static_cast<double>(c.bytes));
      }
    }

    void set(const EvaluationPoint& point, std::uint64_t number) {
      raise_to(evaluations, static_cast<double>(number));
      mean.Set(point.mean);
      deviation.Set(point.deviation);
    }

    prometheus::Counter &environment_steps, &learner_steps, &skipped_steps;
    ReplayMetrics replay;
    prometheus::Counter &insert_wait, &sample_wait, &evaluations, &dropped_events;
    prometheus::Gauge &steps_rate, &updates_rate, &waits, &loss, &gradient, &q, &version, &lag, &actors,
        &lost, &seconds, &target, &serious, &mean, &deviation;
    Metrics& metrics;
  };

  static double rate(std::uint64_t now, std::uint64_t before, double passed) {
    return now > before ? static_cast<double>(now - before) / passed : 0.0;
  }

  static Spread spread_of(const std::vector<ActorRow>& rows) {
    std::vector<double> returns;
    for (const ActorRow& row : rows) {
      if (!row.is_lost && row.report.episodes > 0) returns.push_back(row.report.mean_return);
    }
    if (returns.empty()) return {};
    std::sort(returns.begin(), returns.end());
    const auto at = [&](double part) {
      return returns[static_cast<std::size_t>(std::lround(part * static_cast<double>(returns.size() - 1)))];
    };
    return {at(0.1), at(0.5), at(0.9)};
  }

  // The following need the lock.

  double fill() const {
    return now_.replay.capacity == 0
               ? 0.0
               : static_cast<double>(now_.replay.size) / static_cast<double>(now_.replay.capacity);
  }

  std::size_t num_lost() const {
    return static_cast<std::size_t>(
        std::count_if(rows_.begin(), rows_.end(), [](const auto& row) { return row.is_lost; }));
  }

  /// Seconds until the greedy return is at its target, if it goes on as in the newer half of its history by
  /// least squares; NaN when it does not rise, or when there is no target ahead.
  double seconds_to_target() const {
    const std::size_t begin = evaluations_.size() / 2, count = evaluations_.size() - begin;
    if (count < 3 || is_solved_) return std::nan("");
    double mean_time = 0.0, mean_return = 0.0, covariance = 0.0, variance = 0.0;
    for (std::size_t i = begin; i < evaluations_.size(); ++i) {
      mean_time += evaluations_[i].seconds / static_cast<double>(count);
      mean_return += evaluations_[i].mean / static_cast<double>(count);
    }
    for (std::size_t i = begin; i < evaluations_.size(); ++i) {
      const double time = evaluations_[i].seconds - mean_time;
      covariance += time * (evaluations_[i].mean - mean_return);
      variance += time * time;
    }
    const double slope = covariance / variance;
    if (!(slope > 0.0)) return std::nan("");
    const double seconds = mean_time + (facts_.target_return - mean_return) / slope - now_.seconds;
    return seconds > 0.0 ? seconds : std::nan("");
  }

  /// Every second point goes when there are too many; the newest one stays.
  template <class T>
  static void add_to(std::vector<T>& history, const T& point) {
    if (history.size() >= kMostPoints) {
      for (std::size_t i = 0; i < history.size() / 2; ++i) history[i] = history[2 * i + 1];
      history.resize(history.size() / 2);
    }
    history.push_back(point);
  }

  void add_point(const RunSample& sample) {
    if (!points_.empty() && sample.seconds - points_.back().seconds < interval_ - 0.5 * kRateSeconds) return;
    if (points_.size() >= kMostPoints) interval_ *= 2.0;
    const double fill = sample.replay.capacity == 0 ? 0.0
                                                    : static_cast<double>(sample.replay.size) /
                                                          static_cast<double>(sample.replay.capacity);
    add_to(points_, Point{.seconds = sample.seconds,
                          .environment_steps = sample.environment_steps,
                          .learner_steps = sample.learner_steps,
                          .steps = rates_.steps,
                          .updates = rates_.updates,
                          .fill = fill,
                          .loss = sample.loss,
                          .lag = sample.mean_policy_lag,
                          .spread = spread_});
  }

  void find_alarms() {
    alarms_.clear();
    const double idle = now_.seconds - learner_moved_;
    const bool has_begun = now_.replay.inserts >= facts_.min_inserts && now_.replay.inserts > 0;
    const auto alarm = [this](const char* name, bool is_serious, std::string what, const char* to_do) {
      alarms_.push_back({name, is_serious, std::move(what), to_do});
    };
    if (now_.cluster && now_.seconds - had_client_ > kStalledSeconds) {
      alarm("no_actors", true,
            "No actor has been connected for " + duration_text(now_.seconds - had_client_) + ".",
            "Start actors with --connect and this learner's address, and look whether they are refused.");
    } else if (has_begun && idle > kStalledSeconds && !is_solved_) {
      alarm("learner_stalled", true, "The learner has made no step for " + duration_text(idle) + ".",
            "If the actors' steps per second are 0 too, look at their logs; else look for a learner process "
            "that "
            "is starved of processor time or memory.");
    }
    if (skipped_at_ > 0.0 && now_.seconds - skipped_at_ < 60.0)
      alarm("not_finite", true,
            counted(now_.skipped_steps, "learner step was", "learner steps were") +
                " not applied: loss or gradient not finite.",
            "Lower --learning-rate or --max-gradient-norm, and look for rewards that are too large.");
    if (const std::size_t lost = num_lost(); lost > 0)
      alarm("actors_lost", true,
            counted(lost, "actor process has", "actor processes have") + " fallen silent.",
            "The table of actors has their hosts. Their places are free for others after --lease-seconds.");
    if (const double skew = greatest_skew(); std::abs(skew) > 5.0)
      alarm("clock_skew", false, "An actor's clock is " + duration_text(std::abs(skew)) + " off.",
            "Set the clocks of all machines by NTP; only what is shown depends on them.");
    if (now_.dropped_events > 0)
      alarm(
          "disk", true,
          counted(now_.dropped_events, "TensorBoard event", "TensorBoard events") + " could not be written.",
          "Make room on the disk of --tensorboard; the training does not depend on it.");
    if (now_.checkpoints && now_.checkpoints->is_failing)
      alarm(
          "checkpoints_failed", true, "The last checkpoint could not be written.",
          "Make room on the disk of the run directory, and see that it can be written; until then a restart "
          "begins at the checkpoint before.");
    if (now_.checkpoints && !now_.checkpoints->trouble.empty())
      alarm("run_directory", true, "The run directory: " + now_.checkpoints->trouble + ".",
            "Look at the learner's log and at the disk or the mount of --run-dir; docs/durability.md says "
            "what a "
            "crash would lose.");
    if (has_begun && rates_.learner_waits > 0.5 && idle <= kStalledSeconds)
      alarm("learner_starved", false,
            "The learner waits for experience " + std::to_string(std::lround(100.0 * rates_.learner_waits)) +
                "% of the time.",
            "More actors make it faster; so does a higher --samples-per-insert, at the price of older data.");
    if (rates_.actors_wait > 0.5)
      alarm("actors_held_back", false,
            "The rate limiter holds back " + std::to_string(std::lround(100.0 * rates_.actors_wait)) +
                "% of the actors' batches.",
            "The learner is the bottleneck: fewer actors would do, or a faster learner (--num-threads).");
    if (now_.mean_policy_lag > 100.0)
      alarm(
          "policy_lag", false,
          "The newest items were made with parameters " + count_text(now_.mean_policy_lag) + " versions old.",
          "Lower the actors' --parameter-interval, or raise the learner's --publish-interval.");
  }

  double greatest_skew() const {
    double greatest = 0.0;
    for (const ActorRow& row : rows_) {
      if (std::abs(row.clock_skew) > std::abs(greatest)) greatest = row.clock_skew;
    }
    return greatest;
  }

  void write_run(JsonWriter& json) const {
    json.key("run").begin();
    json.member("environment", facts_.environment).member("role", facts_.role).member("seed", facts_.seed);
    json.member("seconds", now_.seconds, 7).member("solved", is_solved_);
    json.member("target_return", facts_.target_return);
    json.member("seconds_to_target", seconds_to_target(), 3);
    json.member("environment_steps", now_.environment_steps).member("steps_per_second", rates_.steps, 5);
    json.key("epsilon")
        .begin_array()
        .value(facts_.least_epsilon, 5)
        .value(facts_.greatest_epsilon, 5)
        .end_array();
    json.member("policy_lag", now_.mean_policy_lag, 4);
    json.member("planned_environments", facts_.planned_environments);
    json.member("actors", rows_.size() - num_lost()).member("lost_actors", num_lost());
    json.key("actor_returns");
    write_spread(json.begin_array(), spread_);
    json.end_array();
    json.member("evaluations", num_evaluations_);
    json.key("evaluation");
    if (last_evaluation_) {
      write_evaluation(json, *last_evaluation_);
    } else {
      json.raw("null");
    }
    json.end();
  }

  static void write_spread(JsonWriter& json, const Spread& spread) {
    for (const double value : {spread.low, spread.median, spread.high}) json.value(value, 5);
  }

  static void write_evaluation(JsonWriter& json, const EvaluationPoint& point) {
    json.begin().member("seconds", point.seconds, 7).member("learner_steps", point.learner_steps);
    json.member("environment_steps", point.environment_steps).member("mean", point.mean, 6);
    json.member("deviation", point.deviation, 5).member("min", point.min, 6).member("max", point.max, 6);
    json.member("episodes", point.episodes).end();
  }

  void write_learner(JsonWriter& json) const {
    json.key("learner").begin();
    json.member("steps", now_.learner_steps).member("steps_per_second", rates_.updates, 5);
    json.member("skipped_steps", now_.skipped_steps).member("loss", now_.loss, 5);
    json.member("gradient_norm", now_.gradient_norm, 5).member("mean_q", now_.mean_q, 5);
    json.member("batch_size", facts_.batch_size).member("wait_ratio", rates_.learner_waits, 3);
    json.member("parameter_version", now_.parameter_version).end();
  }

  void write_replay(JsonWriter& json) const {
    const ReplayStatistics& r = now_.replay;
    json.key("replay").begin();
    json.member("size", r.size).member("capacity", r.capacity).member("inserts", r.inserts);
    json.member("samples", r.samples).member("evictions", r.evictions).member("updates", r.updates);
    json.member("stale_updates", r.stale_updates).member("min_inserts", facts_.min_inserts);
    json.member("samples_per_insert", rates_.samples_per_insert, 4);
    // The oldest item came when there were as many inserts fewer as there are items.
    json.member("age_seconds", rates_.steps > 0.0 ? static_cast<double>(r.size) / rates_.steps : std::nan(""),
                4);
    json.key("priorities").begin_array();
    for (const auto& bin : histogram_.bins)
      json.begin_array().value(bin.exponent).value(bin.count).end_array();
    json.end_array().end();
  }

  void write_cluster(JsonWriter& json) const {
    const ClusterSample& c = *now_.cluster;
    json.key("cluster").begin();
    json.member("clients", c.clients).member("batches", c.batches).member("duplicates", c.duplicates);
    json.member("waits", c.waits).member("refused", c.refused).member("wait_ratio", rates_.actors_wait, 3);
    json.member("received_per_second", rates_.received, 5).member("sent_per_second", rates_.sent, 5).end();
  }

  void write_checkpoints(JsonWriter& json) const {
    const CheckpointSample& c = *now_.checkpoints;
    json.key("checkpoints").begin();
    json.member("directory", c.directory).member("written", c.written).member("failed", c.failed);
    json.member("learner_steps", c.learner_steps).member("age_seconds", c.age_seconds, 5);
    json.member("write_seconds", c.write_seconds, 3).member("bytes", c.bytes);
    json.member("interval_seconds", c.interval_seconds, 5).end();
  }

  void write_alarms(JsonWriter& json) const {
    json.key("alarms").begin_array();
    for (const Alarm& alarm : alarms_) {
      json.begin().member("name", alarm.name).member("serious", alarm.is_serious);
      json.member("what", alarm.what).member("to_do", alarm.to_do).end();
    }
    json.end_array();
  }

  void write_history(JsonWriter& json) const {
    json.key("history").begin().key("columns").begin_array();
    for (const char* name :
         {"seconds", "environment_steps", "learner_steps", "steps_per_second", "updates_per_second", "fill",
          "loss", "policy_lag", "return_low", "return_median", "return_high"})
      json.value(name);
    json.end_array().key("rows").begin_array();
    for (const Point& p : points_) {
      json.begin_array().value(p.seconds, 6).value(p.environment_steps).value(p.learner_steps);
      for (const double value : {p.steps, p.updates, p.fill, p.loss, p.lag}) json.value(value, 4);
      write_spread(json, p.spread);
      json.end_array();
    }
    json.end_array().end().key("evaluations").begin_array();
    for (const EvaluationPoint& point : evaluations_) write_evaluation(json, point);
    json.end_array();
  }

  std::string actors_text() const {
    JsonWriter json;
    json.begin().key("columns").begin_array();
    for (const char* name :
         {"first", "environments", "process", "least_epsilon", "greatest_epsilon", "last_return",
          "mean_return", "steps_per_second", "steps", "episodes", "dropped", "policy_lag", "seen", "lost"})
      json.value(name);
    json.end_array().key("rows").begin_array();
    for (const ActorRow& row : rows_) {
      const ActorReport& r = row.report;
      json.begin_array().value(r.first).value(r.count).value(r.name);
      json.value(r.least_epsilon, 3).value(r.greatest_epsilon, 3);
      json.value(r.last_return, 4).value(r.mean_return, 4).value(row.steps_per_second, 4);
      json.value(r.steps).value(r.episodes).value(r.dropped).value(row.lag).value(row.seen, 2);
      json.value(row.is_lost ? 1 : 0).end_array();
    }
    json.end_array().end();
    return json.text();
  }

  /// The learning curve in eighths of a line's height.
  std::string sparkline() const {
    static constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    constexpr std::size_t kWidth = 32;
    const std::size_t begin = evaluations_.size() > kWidth ? evaluations_.size() - kWidth : 0;
    double low = evaluations_[begin].mean, high = low;
    for (std::size_t i = begin; i < evaluations_.size(); ++i) {
      low = std::min(low, evaluations_[i].mean);
      high = std::max(high, evaluations_[i].mean);
    }
    std::string text;
    for (std::size_t i = begin; i < evaluations_.size(); ++i) {
      const double height = high > low ? (evaluations_[i].mean - low) / (high - low) : 0.0;
      text += kBars[static_cast<std::size_t>(std::clamp(7.0 * height + 0.5, 0.0, 7.0))];
    }
    return text;
  }

  static std::string counted(std::uint64_t count, const char* one, const char* many) {
    return count_text(count) + " " + (count == 1 ? one : many);
  }

  static unsigned long long number(std::uint64_t value) { return value; }

  static std::string short_text(double value) {
    char text[48];
    std::snprintf(text, sizeof text, std::abs(value) < 9.9995 ? "%.3f" : "%.1f", value);
    return std::abs(value) < 1e9 ? text : count_text(value);
  }

  static std::string duration_text(double seconds) {
    char text[48];
    const auto whole = static_cast<long long>(std::clamp(seconds, 0.0, 1e15));
    if (whole < 120) {
      std::snprintf(text, sizeof text, "%lld s", whole);
    } else if (whole < 7200) {
      std::snprintf(text, sizeof text, "%lld min", whole / 60);
    } else {
      std::snprintf(text, sizeof text, "%lld h %lld min", whole / 3600, whole / 60 % 60);
    }
    return text;
  }

  [[gnu::format(printf, 2, 3)]] static void line(std::string& text, const char* format, ...) {
    char out[512];
    va_list values;
    va_start(values, format);
    std::vsnprintf(out, sizeof out, format, values);
    va_end(values);
    text += out;
    text += '\n';
  }

  const RunFacts facts_;
  ActorTable& actors_;

  mutable std::mutex mutex_;  // guards the following
  Gauges gauges_;
  const double started_;
  RunSample now_, before_;
  Rates rates_;
  std::vector<ActorRow> rows_;
  Spread spread_;
  std::vector<Point> points_;
  double interval_ = kRateSeconds;  // between two points
  std::vector<EvaluationPoint> evaluations_;
  std::optional<EvaluationPoint> last_evaluation_;
  std::uint64_t num_evaluations_;
  PriorityHistogram histogram_;
  std::vector<Alarm> alarms_;
  double learner_moved_ = 0.0, skipped_at_ = 0.0, had_client_ = 0.0;
  bool is_under_way_ = false, is_solved_ = false;
};

RunStatus::RunStatus(const RunFacts& facts, Metrics& metrics, ActorTable& actors)
    : impl_(std::make_unique<Impl>(facts, metrics, actors)) {}
RunStatus::~RunStatus() = default;
void RunStatus::observe(const RunSample& sample) {
  impl_->observe(sample);
}
void RunStatus::evaluated(const EvaluationPoint& point) {
  impl_->evaluated(point);
}
void RunStatus::set_histogram(PriorityHistogram histogram) {
  impl_->set_histogram(std::move(histogram));
}
void RunStatus::set_solved() {
  impl_->set_solved();
}
std::vector<Alarm> RunStatus::alarms() const {
  return impl_->alarms();
}
std::string RunStatus::json(bool whole) const {
  return impl_->json(whole);
}
std::string RunStatus::actors_json() const {
  return impl_->actors_json();
}
std::string RunStatus::summary() const {
  return impl_->summary();
}
std::string RunStatus::actors_table() const {
  return impl_->actors_table();
}
std::string RunStatus::count_text(double value) {
  return Impl::count_text(value);
}
std::string RunStatus::count_text(std::uint64_t value) {
  return Impl::count_text(value);
}

}  // namespace troop::monitor
