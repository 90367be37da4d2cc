#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <troop/agent/item_sink.hpp>
#include <troop/agent/learner.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sharded_replay.hpp>

namespace {

using troop::Outcome;
using troop::agent::LearnerOptions;
using troop::agent::ParameterStore;

struct Transition {
  std::array<float, 2> observation;
  std::int32_t action;
  float reward;
  float discount;
  std::array<float, 2> next_observation;
};

/// Gives each transition its reward as TD error and counts what is asked of it.
class CountingNetwork {
 public:
  const troop::nn::Network& network() const { return network_; }
  void evaluate(troop::nn::ObservationsView, troop::MatrixView<float>) {}
  std::span<const float> parameters() const { return parameters_; }
  void set_parameters(std::span<const float> values) { parameters_.assign(values.begin(), values.end()); }
  void sync_target() { synced_at.push_back(steps); }
  std::span<const float> target_parameters() const { return parameters_; }
  void set_target_parameters(std::span<const float>) {}
  std::uint64_t optimizer_steps() const { return steps; }
  std::span<const float> optimizer_state() const { return {}; }
  void set_optimizer_state(std::uint64_t, std::span<const float>) {}

  troop::nn::TrainResult train_step(const troop::nn::TransitionBatch& batch, std::span<const float> weights,
                                    std::span<float> priorities) {
    ++steps;
    if (at_step) at_step(steps);
    parameters_[0] = static_cast<float>(steps);
    if (fail_from != 0 && steps >= fail_from) {
      for (float& priority : priorities) priority = std::nanf("");
      return {.loss = std::nanf(""), .applied = false};
    }
    if (throw_at != 0 && steps == throw_at) throw troop::Error("the card fell off the bus");
    for (std::size_t i = 0; i < batch.size(); ++i) {
      priorities[i] = batch.reward(i);
      weights_in_range += weights[i] > 0.0f && weights[i] <= 1.0f;
    }
    return {.loss = 2.0f, .gradient_norm = 3.0f, .mean_q = 4.0f, .applied = true};
  }

  std::uint64_t steps = 0, fail_from = 0, throw_at = 0, weights_in_range = 0;
  std::vector<std::uint64_t> synced_at;
  std::function<void(std::uint64_t)> at_step;

 private:
  troop::nn::Network network_ = troop::nn::mlp({});
  std::vector<float> parameters_{0.0f};
};

static_assert(troop::nn::require_q_network<CountingNetwork>());

/// A replay of 100 items with rewards 1 to 100 and priorities of 1, and all that a learner needs.
struct Bench {
  explicit Bench(troop::RateLimiterOptions rate = {.min_inserts = 100, .samples_per_insert = 0.0})
      : limiter(rate) {
    std::vector<Transition> items(100);
    for (std::size_t i = 0; i < items.size(); ++i) items[i].reward = static_cast<float>(i + 1);
    limiter.await_insert(100);
    replay.add(items, std::vector<float>(100, 1.0f));
  }

  troop::agent::Learner<CountingNetwork, troop::PrioritizedReplay<Transition>> learner(
      const LearnerOptions& options) {
    return {network, replay, limiter, parameters, options};
  }

  CountingNetwork network;
  troop::PrioritizedReplay<Transition> replay{{.capacity = 200, .soft_capacity = 100, .alpha = 1.0}};
  troop::RateLimiter limiter;
  ParameterStore parameters;
};

/// How many of 4,096 draws have the priority reward + 0.5; the rest must have the priority 1 with which all
/// began, else -1.
int draws_with_new_priority(troop::PrioritizedReplay<Transition>& replay) {
  troop::Random random(1);
  const auto batch = replay.sample(4096, {}, random);
  const double total = replay.statistics().total_priority;
  int renewed = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const double priority = batch.probabilities[i] * total;
    const bool is_new = std::abs(priority - static_cast<double>(batch.records()[i].reward) - 0.5) < 1e-3;
    if (!is_new && std::abs(priority - 1.0) > 1e-3) return -1;
    renewed += is_new;
  }
  return renewed;
}

}  // namespace

TEST_CASE("a step samples, trains and writes the TD errors back as priorities") {
  Bench bench;
  auto learner = bench.learner({.batch_size = 64, .priority_epsilon = 0.5});
  for (int k = 0; k < 40; ++k) REQUIRE(learner.step() == Outcome::ok);  // 2,560 draws: all of the 100 items
  CHECK(learner.steps() == 40);
  CHECK(bench.network.weights_in_range == 40 * 64);
  CHECK(bench.replay.statistics().updates == 40 * 64);
  CHECK(draws_with_new_priority(bench.replay) > 4000);
  const auto statistics = learner.statistics();
  CHECK(statistics.loss == doctest::Approx(2.0));
  CHECK(statistics.gradient_norm == doctest::Approx(3.0));
  CHECK(statistics.mean_q == doctest::Approx(4.0));
  CHECK(statistics.skipped_steps == 0);
}

TEST_CASE("target, publication and trim are due at their intervals") {
  Bench bench;
  bench.replay.add(std::vector<Transition>(50), std::vector<float>(50, 1.0f));
  auto learner =
      bench.learner({.batch_size = 4, .target_interval = 5, .trim_interval = 8, .publish_interval = 3});
  CHECK(bench.parameters.version() == 1);  // the parameters to begin with
  for (int k = 0; k < 7; ++k) learner.step();
  CHECK(bench.replay.size() == 150);
  for (int k = 7; k < 16; ++k) learner.step();
  CHECK(bench.network.synced_at == std::vector<std::uint64_t>{5, 10, 15});
  CHECK(bench.parameters.version() == 1 + 5);
  std::uint64_t version = 0;
  std::vector<float> parameters;
  REQUIRE(bench.parameters.fetch(version, parameters));
  CHECK(parameters[0] == 15.0f);
  CHECK(bench.replay.size() == 100);
}

TEST_CASE("a step that the limiter does not let through is not made") {
  Bench bench({.min_inserts = 101});
  auto learner = bench.learner({.batch_size = 4});
  CHECK(learner.step(troop::Deadline::now()) == Outcome::timeout);
  bench.limiter.close();
  CHECK(learner.step() == Outcome::closed);
  CHECK(bench.network.steps == 0);
}

TEST_CASE(
    "priorities of a step that was not applied are not written back, and too many in a row end the "
    "training") {
  Bench bench;
  bench.network.fail_from = 3;
  auto learner = bench.learner({.batch_size = 10, .max_skipped_steps = 4});
  for (int k = 0; k < 5; ++k) learner.step();
  CHECK(bench.replay.statistics().updates == 20);
  CHECK(learner.statistics().skipped_steps == 3);
  CHECK_THROWS_WITH_AS(
      learner.step(),
      "training has diverged: loss or gradient was not finite in 4 steps in a row, up to step 6; "
      "before them the mean loss was 2 and the mean gradient norm 3",
      troop::Error);
}

TEST_CASE("a caller's own batch is trained on and its priorities can be read") {
  Bench bench;
  auto learner = bench.learner({.batch_size = 10, .priority_epsilon = 0.0});
  troop::Random random(3);
  const auto batch = bench.replay.sample(10, {}, random);
  learner.step(batch);
  REQUIRE(learner.priorities().size() == 10);
  for (std::size_t i = 0; i < 10; ++i) CHECK(learner.priorities()[i] == batch.records()[i].reward);
  CHECK(bench.replay.statistics().updates == 0);
}

TEST_CASE("the overlapped run makes just the steps that it was asked for and writes all priorities back") {
  for (const std::size_t prefetch : {1u, 2u, 5u}) {
    CAPTURE(prefetch);
    Bench bench;
    auto learner = bench.learner({.batch_size = 64, .prefetch = prefetch, .priority_epsilon = 0.5});
    learner.run({}, 100);
    CHECK(learner.steps() == 100);
    CHECK(bench.replay.statistics().samples == 100 * 64);
    CHECK(bench.replay.statistics().updates == 100 * 64);
    CHECK(draws_with_new_priority(bench.replay) > 4000);
    learner.run({}, 130);
    CHECK(learner.steps() == 130);
  }
}

TEST_CASE("the overlapped run stops when asked, also while it waits for inserts") {
  Bench bench({.min_inserts = 1'000'000});
  auto learner = bench.learner({.batch_size = 4});
  std::stop_source source;
  std::thread stopper([&] { source.request_stop(); });
  learner.run(source.get_token());
  stopper.join();
  CHECK(learner.steps() == 0);
}

TEST_CASE("a stop ends the overlapped run with the step that is being made, not with all that were sampled") {
  Bench bench;
  auto learner = bench.learner({.batch_size = 4, .prefetch = 64});
  std::stop_source source;
  bench.network.at_step = [&](std::uint64_t step) {
    if (step != 5) return;
    while (bench.replay.statistics().samples < 60 * 4) std::this_thread::yield();
    source.request_stop();
  };
  learner.run(source.get_token());
  CHECK(learner.steps() == 5);
  CHECK(bench.replay.statistics().updates == 5 * 4);
  learner.run({}, 30);
  CHECK(learner.steps() == 30);
}

TEST_CASE("the overlapped run ends when the limiter is closed") {
  Bench bench({.min_inserts = 1'000'000});
  auto learner = bench.learner({.batch_size = 4});
  std::thread closer([&] { bench.limiter.close(); });
  learner.run({});
  closer.join();
  CHECK(learner.steps() == 0);
}

TEST_CASE("a stop ends the overlapped run while it waits for the limiter, which it does in one wait") {
  Bench bench({.min_inserts = 1'000'000});
  auto learner = bench.learner({.batch_size = 4});
  std::stop_source source;
  std::thread stopper([&] {
    while (bench.limiter.statistics().sample_waits == 0) std::this_thread::yield();
    source.request_stop();
  });
  learner.run(source.get_token());
  stopper.join();
  CHECK(learner.steps() == 0);
  CHECK(bench.limiter.statistics().sample_waits == 1);
  CHECK(bench.limiter.samples() == 0);
}

TEST_CASE("what any thread of the overlapped run throws comes out of it") {
  Bench bench;
  bench.network.throw_at = 20;
  auto learner = bench.learner({.batch_size = 4});
  CHECK_THROWS_WITH_AS(learner.run({}), "the card fell off the bus", troop::Error);

  Bench slow({.min_inserts = 100, .samples_per_insert = 1.0, .tolerance = 1.0});
  slow.network.throw_at = 1;
  auto waiting = slow.learner({.batch_size = 4});  // the sampling thread waits for inserts that never come
  CHECK_THROWS_WITH_AS(waiting.run({}), "the card fell off the bus", troop::Error);

  Bench empty;
  empty.replay.clear();
  auto starved = empty.learner({.batch_size = 4});
  CHECK_THROWS_AS(starved.run({}), troop::EmptyReplay);  // thrown in the sampling thread
}

TEST_CASE("samples stay in their ratio to inserts while actors and learner run at once") {
  Bench bench({.min_inserts = 100, .samples_per_insert = 4.0, .tolerance = 50.0});
  auto learner = bench.learner({.batch_size = 16});
  std::stop_source source;
  std::thread actor([&] {
    for (int k = 0; k < 100; ++k) {
      if (bench.limiter.await_insert(10) != Outcome::ok) break;
      bench.replay.add(std::vector<Transition>(10), std::vector<float>(10, 1.0f));
    }
    source.request_stop();
  });
  learner.run(source.get_token());
  actor.join();
  const double balance =
      4.0 * static_cast<double>(bench.limiter.inserts() - 100) - static_cast<double>(bench.limiter.samples());
  CHECK(balance <= 4.0 * 50.0);
  CHECK(balance >= -4.0 * 50.0);
}

namespace {

/// A replay that may let its learner wait.
struct PatientReplay : troop::PrioritizedReplay<Transition> {
  using Base = troop::PrioritizedReplay<Transition>;
  using Base::Base;

  Outcome sample(std::size_t count, const troop::SampleOptions& options, troop::Random& random,
                 SampledBatch& batch, troop::Deadline, const std::stop_token& stop) {
    if (answer != Outcome::ok) {
      while (waits && !stop.stop_requested()) std::this_thread::yield();
      return answer;
    }
    betas.push_back(options.beta);
    Base::sample(count, options, random, batch);
    return Outcome::ok;
  }

  Outcome answer = Outcome::ok;
  bool waits = false;
  std::vector<double> betas;
};

}  // namespace

TEST_CASE("a replay that has nothing to draw from lets the learner wait") {
  Bench bench;
  PatientReplay replay({.capacity = 200, .alpha = 1.0});
  replay.add(std::vector<Transition>(100), std::vector<float>(100, 1.0f));
  troop::agent::Learner learner(bench.network, replay, bench.limiter, bench.parameters,
                                {.batch_size = 8, .beta = {.initial = 0.4, .steps = 4}});
  CHECK(learner.step() == Outcome::ok);
  replay.answer = Outcome::timeout;
  CHECK(learner.step(troop::Deadline::now()) == Outcome::timeout);
  CHECK(bench.network.steps == 1);
  replay.answer = Outcome::ok;
  CHECK(learner.step() == Outcome::ok);
  REQUIRE(replay.betas.size() == 2);
  CHECK(replay.betas[1] == doctest::Approx(0.55));  // the step that was not made does not count

  replay.answer = Outcome::cancelled;
  replay.waits = true;
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stop.request_stop();
  });
  learner.run(stop.get_token());
  CHECK(learner.steps() == 2);
}

TEST_CASE("bad options are refused by name") {
  Bench bench;
  CHECK_THROWS_WITH(bench.learner({.batch_size = 0}),
                    "batch_size: 0 is not allowed; expected an integer from 1 to 65536");
  CHECK_THROWS_WITH(bench.learner({.beta = {.initial = 1.5}}),
                    "beta_initial: 1.5 is not allowed; expected a number from 0 to 1");
  CHECK_THROWS_AS(bench.learner({.target_interval = 0}), troop::InvalidArgument);
  CHECK_THROWS_AS(bench.learner({.publish_interval = 0}), troop::InvalidArgument);
  CHECK_THROWS_AS(bench.learner({.prefetch = 65}), troop::InvalidArgument);
}

TEST_CASE("a learner and a sink take a sharded replay as they take another") {
  using Replay = troop::ShardedReplay<troop::PrioritizedReplay<Transition>>;
  Replay replay({.capacity = 400, .soft_capacity = 100, .alpha = 1.0}, 4);
  troop::RateLimiter limiter({.min_inserts = 1, .samples_per_insert = 0.0});
  troop::agent::LocalSink sink(replay, limiter);
  static_assert(troop::agent::ItemSink<decltype(sink)>);
  std::vector<Transition> items(40);
  for (Transition& item : items) item.reward = 3.0f;
  for (int i = 0; i < 8; ++i)
    CHECK(sink.insert(troop::BatchView(replay.layout(), items.data(), items.size()),
                      std::vector<float>(items.size(), 1.0f)) == Outcome::ok);
  CountingNetwork network;
  ParameterStore parameters;
  troop::agent::Learner<CountingNetwork, Replay> learner(
      network, replay, limiter, parameters,
      {.batch_size = 64, .trim_interval = 30, .prefetch = 1, .priority_epsilon = 0.5});
  for (int k = 0; k < 29; ++k) CHECK(learner.step() == Outcome::ok);
  CHECK(replay.size() == 320);
  CHECK(replay.statistics().updates == 29 * 64);
  CHECK(replay.max_priority() == 3.5f);
  learner.step();
  CHECK(replay.size() == 100);
  learner.run({}, 60);
  CHECK(network.weights_in_range == 60 * 64);
  const auto statistics = replay.statistics();
  CHECK(statistics.updates + statistics.stale_updates == 60 * 64);
}
