#include <array>
#include <span>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <troop/agent/item_sink.hpp>
#include <troop/replay/prioritized_replay.hpp>

namespace {
struct Item {
  float value;
};
}  // namespace

TEST_CASE("a local sink adds what the limiter lets through and nothing else") {
  troop::PrioritizedReplay<Item> replay({.capacity = 100});
  troop::RateLimiter limiter({.min_inserts = 10, .samples_per_insert = 1.0, .tolerance = 5.0});
  troop::agent::LocalSink sink(replay, limiter);
  const std::vector<Item> items(10);
  const std::vector<float> priorities(10, 1.0f);
  const troop::BatchView batch{std::span<const Item>(items)};
  CHECK(sink.insert(batch, priorities) == troop::Outcome::ok);
  CHECK(replay.size() == 10);
  CHECK(sink.insert(batch, priorities, troop::Deadline::now()) ==
        troop::Outcome::ok);  // up to the ratio: free
  CHECK(sink.insert(batch, priorities, troop::Deadline::now()) == troop::Outcome::timeout);
  CHECK(replay.size() == 20);
  limiter.close();
  CHECK(sink.insert(batch, priorities) == troop::Outcome::closed);
  CHECK(replay.size() == 20);
}

TEST_CASE("nobody is sent to a replay that the first items have not reached yet") {
  const std::vector<Item> items(5000);  // so many that a sampler who is not held back finds none of them
  const std::vector<float> priorities(items.size(), 1.0f);
  for (int round = 0; round < 50; ++round) {
    troop::PrioritizedReplay<Item> replay({.capacity = 5000});
    troop::RateLimiter limiter({.min_inserts = 1});
    troop::agent::LocalSink sink(replay, limiter);
    std::thread sampler([&] {
      if (limiter.await_sample(1) == troop::Outcome::ok) CHECK(replay.size() == 5000);
    });
    CHECK(sink.insert(troop::BatchView{std::span<const Item>(items)}, priorities) == troop::Outcome::ok);
    sampler.join();
  }
}
