#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <troop/apex/persistence.hpp>
#include <troop/env/cart_pole.hpp>
#include <troop/env/catch.hpp>
#include <troop/env/environment.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "temporary_directory.hpp"
#include "testing.hpp"

using troop::RateLimiter;
using troop::apex::KeptRun;
using troop::apex::KeptRunFacts;
using troop::apex::Options;
using troop::apex::detail::resumed_state;
using troop::testing::error_of;

namespace {

const troop::RecordLayout kLayout = troop::env::transition_layout(troop::env::CartPole().spec());
const troop::nn::Network kNetwork = troop::nn::dueling_mlp({8}).bind({4}, 2);
using Replay = troop::PrioritizedReplay<troop::DynamicRecord>;

Options kept_in(const std::string& path, bool resume = true) {
  Options options;
  options.keep = {.run_dir = path, .resume = resume};
  return options;
}

KeptRunFacts facts() {
  return {.environment = "CartPole-v1", .network = to_string(kNetwork), .layout = kLayout};
}

void ignore(const std::string&) {}

std::string refusal(const Options& options, const KeptRunFacts& facts) {
  try {
    const KeptRun kept(options, facts, ignore);
  } catch (const troop::apex::NotAdmitted& error) {
    return error.what();
  }
  return "no refusal";
}

/// A checkpoint of a network that has made so many steps.
auto fill(troop::nn::EigenNetwork& network, std::uint64_t steps) {
  return [&network, steps](troop::durability::Checkpoint& checkpoint) {
    checkpoint.copy_from(network);
    checkpoint.info.learner_steps = steps;
    checkpoint.info.environment_steps = 10 * steps;
  };
}

void add(troop::apex::LoggedSink<Replay>& sink, std::size_t count,
         const troop::durability::ClientBatch& from = {}) {
  const std::vector<std::byte> records(count * kLayout.size());
  const std::vector<float> priorities(count, 1.0f);
  CHECK(sink.insert(troop::BatchView(kLayout, records.data(), count), priorities, troop::Deadline::never(),
                    from) == troop::Outcome::ok);
}

}  // namespace

TEST_CASE("after a restart neither side of the limiter is ahead by more than it may be") {
  const troop::RateLimiterOptions options{.min_inserts = 100, .samples_per_insert = 4.0, .tolerance = 50.0};
  const troop::ReplayOptions replay{.capacity = 1000};
  const auto resumed = [&](std::uint64_t size, std::uint64_t inserts, std::uint64_t samples) {
    return resumed_state(options, replay, size, {.inserts = inserts, .samples = samples});
  };
  CHECK(resumed(1000, 5000, 19'600) == RateLimiter::State{5000, 19'600});  // as it was
  // Samples of steps that were lost are not made up for, but for what the limiter allows in any case.
  CHECK(resumed(1000, 9000, 19'600) == RateLimiter::State{9000, 8900 * 4 - 200});
  CHECK(resumed(1000, 5000, 90'000) == RateLimiter::State{5000, 4900 * 4 + 200});
  // Without items the learner waits as at the start.
  CHECK(resumed(0, 5000, 19'600) == RateLimiter::State{0, 0});
  CHECK(resumed(99, 5000, 19'600) == RateLimiter::State{99, 0});
  // A replay that is never so full as that is full with less.
  CHECK(resumed_state(options, {.capacity = 1000, .soft_capacity = 40}, 40,
                      {.inserts = 200, .samples = 400}) == RateLimiter::State{200, 400});
  // A log without any checkpoint.
  CHECK(resumed(300, 300, 0) == RateLimiter::State{300, 200 * 4 - 200});
}

TEST_CASE("what a run needs to go on is there again, and its items once") {
  const troop::testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  const troop::durability::ClientBatch client{.client = {std::byte{7}}, .number = 3};
  std::vector<float> parameters;
  {
    KeptRun kept(kept_in(path), facts(), ignore);
    CHECK_FALSE(kept.is_resumed());
    troop::nn::EigenNetwork network(kNetwork, 5, {});
    parameters.assign(network.parameters().begin(), network.parameters().end());
    Replay replay({.capacity = 500}, kLayout);
    RateLimiter limiter({.min_inserts = 10});
    const auto log = kept.open_log(replay);
    troop::apex::LoggedSink<Replay> sink(replay, limiter, log.get());
    add(sink, 40);
    kept.evaluated(12.5);
    kept.checkpoint_if_due(299.0, fill(network, 1));  // not yet
    CHECK(kept.statistics().written == 0);
    kept.finish(
        300.0,
        [&](troop::durability::Checkpoint& checkpoint) {
          fill(network, 70)(checkpoint);
          checkpoint.info.next_key = 40;
          checkpoint.info.limiter = limiter.state();
        },
        "");
    add(sink, 5, client);  // beyond the last checkpoint
    CHECK(log->flush(troop::Deadline::never()));
    CHECK(kept.alarm().empty());
  }
  KeptRun kept(kept_in(path), facts(), ignore);
  CHECK(kept.is_resumed());
  CHECK_FALSE(kept.finished());
  CHECK(kept.info().learner_steps == 70);
  CHECK(kept.info().seconds == 300.0);
  CHECK(kept.info().mean_return == 12.5);
  troop::nn::EigenNetwork network(kNetwork, 6, {});
  kept.restore(network);
  CHECK(std::equal(parameters.begin(), parameters.end(), network.parameters().begin()));
  Replay replay({.capacity = 500}, kLayout);
  const auto log = kept.open_log(replay);
  CHECK(replay.size() == 45);
  CHECK(kept.environment_steps() == 705);
  CHECK(kept.sessions() == std::vector<troop::net::Session>{{client.client, 3}});
  RateLimiter limiter({.min_inserts = 10});
  kept.restore(limiter, replay.options(), replay.size());
  CHECK(limiter.inserts() == 45);
}

TEST_CASE("a finished run says so, until it is given more time") {
  const troop::testing::TemporaryDirectory directory;
  for (const std::string result : {"solved: all", "not solved: yet"}) {
    const std::string path = directory.file(result.substr(0, 3));
    Options options = kept_in(path);
    options.max_seconds = 60.0;
    troop::nn::EigenNetwork network(kNetwork, 5, {});
    KeptRun(options, facts(), ignore).finish(61.0, fill(network, 70), result);
    {
      const KeptRun kept(options, facts(), ignore);
      CHECK(kept.finished() == result);
      REQUIRE(kept.checkpoint());
      CHECK(kept.checkpoint()->info.learner_steps == 70);
    }
    options.max_seconds = 120.0;
    CHECK(KeptRun(options, facts(), ignore).finished().has_value() == (result == "solved: all"));
  }
}

TEST_CASE("a directory is refused that holds a run, another one, or is in use") {
  const troop::testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  {
    const KeptRun kept(kept_in(path, false), facts(), ignore);
    CHECK(refusal(kept_in(path), facts()).starts_with(path + ": is in use by process "));
  }
  CHECK(refusal(kept_in(path, false), facts()) == path + ": holds a run already; --resume goes on with it");
  KeptRunFacts other = facts();
  other.environment = "Catch";
  CHECK(refusal(kept_in(path), other) ==
        path + ": is a run of the environment \"CartPole-v1\", expected \"Catch\"");
  other = facts();
  other.network = to_string(troop::nn::dueling_mlp({16}).bind({4}, 2));
  CHECK(refusal(kept_in(path), other).starts_with(path + ": is a run of the network \""));
  other = facts();
  other.layout = troop::env::transition_layout(troop::env::Catch().spec());
  CHECK(refusal(kept_in(path), other).starts_with(path + ": record layouts differ: "));
  std::ofstream(directory.file("file")) << "x";
  CHECK(refusal(kept_in(directory.file("file")), facts())
            .starts_with(directory.file("file") + ": cannot make"));
}

TEST_CASE("without a run directory nothing is kept and nothing is wrong") {
  KeptRun kept({}, facts(), ignore);
  CHECK_FALSE(kept.is_kept());
  Replay replay({.capacity = 500}, kLayout);
  CHECK(kept.open_log(replay) == nullptr);
  RateLimiter limiter({.min_inserts = 10});
  kept.restore(limiter, replay.options(), 0);
  CHECK(limiter.inserts() == 0);
  troop::nn::EigenNetwork network(kNetwork, 5, {});
  kept.checkpoint_if_due(1e9, fill(network, 1));
  kept.finish(1e9, fill(network, 1), "solved");
  CHECK(kept.alarm().empty());
}

TEST_CASE("a checkpoint and a run directory can be played as a saved network can") {
  const troop::testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  troop::nn::EigenNetwork network(kNetwork, 5, {});
  KeptRun(kept_in(path), facts(), ignore).finish(1.0, fill(network, 1), "");
  for (const std::string& file : {path, path + "/checkpoints/checkpoint-000001-000000000001"}) {
    const troop::nn::LoadedNetwork loaded = troop::apex::detail::load_to_play(file);
    CHECK(loaded.network == kNetwork);
    CHECK(std::equal(loaded.parameters.begin(), loaded.parameters.end(), network.parameters().begin()));
  }
  CHECK(error_of([&] { troop::apex::detail::load_to_play(directory.path().string()); }) ==
        directory.path().string() + ": holds no checkpoint");
}
