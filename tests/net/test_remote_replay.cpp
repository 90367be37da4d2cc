#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/remote_replay.hpp>
#include <troop/net/sharded_sink.hpp>
#include <troop/replay/rate_limiter.hpp>

#include "net_shards.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::testing;
using namespace std::chrono_literals;
using net::RemoteReplay;

namespace {

constexpr ReplayOptions kProportional{.capacity = 10'000, .alpha = 1.0};
const RecordLayout kLayout = RecordLayout::of<NumberedItem>();

std::vector<std::unique_ptr<ShardHost>> make_hosts(std::size_t count,
                                                   const net::ShardServiceOptions& service = {}) {
  std::vector<std::unique_ptr<ShardHost>> hosts;
  for (std::size_t s = 0; s < count; ++s)
    hosts.push_back(std::make_unique<ShardHost>(kProportional, service));
  return hosts;
}

std::vector<std::string> addresses(const std::vector<std::unique_ptr<ShardHost>>& hosts) {
  std::vector<std::string> addresses;
  for (const auto& host : hosts) addresses.push_back(host->address());
  return addresses;
}

net::RemoteReplayOptions to(const std::vector<std::unique_ptr<ShardHost>>& hosts) {
  return {.shards = addresses(hosts), .shard = to_shard(), .replay = kProportional};
}

net::ClientOptions actor() {
  net::ClientOptions options = to_shard().client;
  options.max_outbox_bytes = 4096;
  return options;
}

std::uint64_t total_inserts(const std::vector<std::unique_ptr<ShardHost>>& hosts) {
  std::uint64_t inserts = 0;
  for (const auto& host : hosts) inserts += host->service().inserts();
  return inserts;
}

/// Inserts batches of 10 until it is destroyed.
class Actor {
 public:
  explicit Actor(const std::vector<std::string>& shards)
      : sink_(shards, actor(), kLayout), thread_([this](const std::stop_token& stop) {
          const auto items = numbered(0, 1, 10);
          while (sink_.insert(view(items), priorities_of(items), Deadline::never(), stop) == Outcome::ok) {
          }
        }) {}

 private:
  net::ShardedSink sink_;
  std::jthread thread_;
};

/// Waits until nothing has changed for a while; returns what it is then.
template <class F>
std::uint64_t settled(F f) {
  std::uint64_t value = f();
  for (int same = 0; same < 50; ++same) {
    std::this_thread::sleep_for(2ms);
    if (f() != value) value = f(), same = 0;
  }
  return value;
}

}  // namespace

TEST_CASE("inserts at the shards count for the learner's limiter, which waits until there are enough") {
  const auto hosts = make_hosts(2);
  RateLimiter limiter({.min_inserts = 40, .samples_per_insert = 1.0, .tolerance = 30.0, .report = nullptr});
  RemoteReplay replay(to(hosts), kLayout, limiter);
  REQUIRE(replay.await_shards(2, Deadline::after(30s)) == Outcome::ok);
  net::ShardedSink sink(addresses(hosts), actor(), kLayout);
  const auto insert = [&](std::size_t count) {
    const auto items = numbered(0, 1, count);
    CHECK(sink.insert(view(items), priorities_of(items), Deadline::after(30s)) == Outcome::ok);
    CHECK(sink.flush(Deadline::after(30s)) == Outcome::ok);
  };
  insert(20);
  CHECK(eventually([&] { return limiter.inserts() == 20; }));
  CHECK(limiter.await_sample(1, Deadline::after(20ms)) == Outcome::timeout);
  std::thread actor([&] {
    std::this_thread::sleep_for(10ms);
    insert(20);
  });
  CHECK(limiter.await_sample(30, Deadline::after(30s)) == Outcome::ok);
  actor.join();
  Random random(1);
  Batch<DynamicRecord> batch;
  CHECK(replay.sample(30, {}, random, batch, Deadline::after(30s)) == Outcome::ok);
  CHECK(batch.size() == 30);
  // The learner is as far ahead as it may be.
  CHECK(limiter.await_sample(1, Deadline::after(20ms)) == Outcome::timeout);
  insert(10);
  CHECK(limiter.await_sample(10, Deadline::after(30s)) == Outcome::ok);
  CHECK(limiter.inserts() == 50);
}

TEST_CASE("actors that are too fast are held at the shards, and go on as the learner samples") {
  const auto hosts = make_hosts(3);
  RateLimiter limiter({.min_inserts = 100, .samples_per_insert = 2.0, .tolerance = 200.0, .report = nullptr});
  RemoteReplay replay(to(hosts), kLayout, limiter);
  REQUIRE(replay.await_shards(3, Deadline::after(30s)) == Outcome::ok);
  const Actor actor(addresses(hosts));
  // What is wanted, less what cannot be divided, and less than a batch more a shard.
  REQUIRE(eventually([&] { return limiter.insert_room() < 3; }));
  std::uint64_t held = settled([&] { return total_inserts(hosts); });
  CHECK(held > 300 - 3);
  CHECK(held < 300 + 3 * 10);
  CHECK(limiter.inserts() == held);
  for (int step = 0; step < 10; ++step) CHECK(limiter.await_sample(100, Deadline::after(30s)) == Outcome::ok);
  REQUIRE(eventually([&] { return limiter.insert_room() < 3; }));  // 500 inserts are paid for by now
  held = settled([&] { return total_inserts(hosts); });
  CHECK(held > 800 - 3);
  CHECK(held < 800 + 3 * 10);
  CHECK(limiter.inserts() == held);
}

TEST_CASE("a shard to which nobody sends leaves its part to the others") {
  const auto hosts = make_hosts(4);
  RateLimiter limiter({.min_inserts = 10, .samples_per_insert = 1.0, .tolerance = 4.0, .report = nullptr});
  RemoteReplay replay(to(hosts), kLayout, limiter);
  REQUIRE(replay.await_shards(4, Deadline::after(30s)) == Outcome::ok);
  const Actor actor({hosts[2]->address()});
  for (int step = 0; step < 100; ++step)
    REQUIRE(limiter.await_sample(3, Deadline::after(30s)) == Outcome::ok);
  CHECK(hosts[2]->service().inserts() == total_inserts(hosts));
}

TEST_CASE("without a learner shards take what their options say, and a new one goes on from there") {
  const auto hosts = make_hosts(2, {.inserts_without_learner = 50, .learner_deadline = 300ms});
  const Actor actor(addresses(hosts));
  const auto settle = [&] { return settled([&] { return total_inserts(hosts); }); };
  REQUIRE(eventually([&] { return total_inserts(hosts) == 100; }));
  CHECK(settle() == 100);
  std::uint64_t held = 0;
  {
    RateLimiter limiter({.min_inserts = 60, .samples_per_insert = 1.0, .tolerance = 40.0, .report = nullptr});
    RemoteReplay replay(to(hosts), kLayout, limiter);
    // The items that were there are enough to begin with, and are paid for.
    CHECK(limiter.await_sample(1, Deadline::after(30s)) == Outcome::ok);
    REQUIRE(eventually([&] { return limiter.insert_room() < 2; }));
    held = settle();
    // Of the older items 50 count, and 10 more unless as many new ones had come to the first shard before the
    // second one was met.
    CHECK(held > 140 - 2);
    CHECK(held <= 150 + 2 * 10);
    CHECK(eventually([&] {
      const std::uint64_t older = limiter.inserts() + 100 - held;
      return older >= 50 && older <= 60;
    }));
  }
  REQUIRE(eventually([&] { return total_inserts(hosts) >= held + 100; }));
  CHECK(settle() == held + 100);
}

TEST_CASE("items that come to a restarted shard count, those that it had lost stay counted") {
  const auto hosts = make_hosts(1);
  RateLimiter limiter({.min_inserts = 10, .samples_per_insert = 0.0});
  RemoteReplay replay(to(hosts), kLayout, limiter);
  REQUIRE(replay.await_shards(1, Deadline::after(30s)) == Outcome::ok);
  const auto items = numbered(0, 1, 30);
  const auto insert = [&] { return hosts[0]->service().insert(view(items), priorities_of(items)); };
  CHECK(insert() == Outcome::ok);
  CHECK(eventually([&] { return limiter.inserts() == 30; }));
  hosts[0]->renew();
  CHECK(insert() == Outcome::ok);
  hosts[0]->start();
  CHECK(eventually([&] { return limiter.inserts() == 60; }));
  hosts[0]->stop();
  CHECK(insert() == Outcome::ok);
  hosts[0]->start();  // the same life, that went on meanwhile
  CHECK(eventually([&] { return limiter.inserts() == 90; }));
}

TEST_CASE("a learner waits while all shards are lost, and goes on when one is back") {
  const auto hosts = make_hosts(2);
  for (std::uint32_t s = 0; s < 2; ++s) hosts[s]->add(s, 1, 100);
  Lines lines;
  RateLimiter limiter({.min_inserts = 1, .report_after = 20ms, .report = lines.callable()});
  RemoteReplay replay(to(hosts), kLayout, limiter);
  REQUIRE(replay.await_shards(2, Deadline::after(30s)) == Outcome::ok);
  Random random(1);
  Batch<DynamicRecord> batch;
  CHECK(replay.sample(10, {}, random, batch, Deadline::after(30s)) == Outcome::ok);
  for (const auto& host : hosts) host->stop();
  CHECK(replay.sample(10, {}, random, batch, Deadline::after(10ms)) == Outcome::timeout);
  CHECK(replay.sample(10, {}, random, batch, Deadline::now()) == Outcome::timeout);
  CHECK(error_of([&] { replay.sample(10, {}, random, batch); }) == "sample from an empty replay");
  std::jthread helper([&](const std::stop_token&) {
    eventually([&] { return lines.has("2 are connected"); });
    hosts[1]->start();
  });
  CHECK(replay.sample(10, {}, random, batch, Deadline::after(30s)) == Outcome::ok);
  CHECK(batch.size() == 10);
  CHECK(lines.all().front() ==
        "learner has waited 0 s to sample 10: no shard has items that can be drawn; 0 of 2 are connected");
  helper.join();

  // Back, but empty.
  for (const auto& host : hosts) host->restart_empty();
  REQUIRE(replay.await_shards(2, Deadline::after(30s)) == Outcome::ok);
  std::stop_source stop;
  std::jthread stopper([&](const std::stop_token&) {
    std::this_thread::sleep_for(10ms);
    stop.request_stop();
  });
  CHECK(replay.sample(10, {}, random, batch, Deadline::never(), stop.get_token()) == Outcome::cancelled);
}

TEST_CASE("a shard of no use is told to whoever asks, waits or samples") {
  const auto hosts = make_hosts(1);
  auto options = to(hosts);
  options.replay.alpha = 0.5;
  RateLimiter limiter({.min_inserts = 1});
  RemoteReplay replay(options, kLayout, limiter);
  const std::string expected = "alpha of the shard at " + hosts[0]->address() +
                               ": 1 is not allowed; expected that of the learner, 0.5";
  CHECK(error_of([&] { replay.await_shards(1, Deadline::after(30s)); }) == expected);
  CHECK(error_of([&] { replay.check(); }) == expected);
  Random random(1);
  Batch<DynamicRecord> batch;
  CHECK(error_of([&] { replay.sample(1, {}, random, batch, Deadline::after(30s)); }) == expected);
  CHECK(error_of([&] { replay.await_shards(2); }) ==
        "count: 2 is not allowed; expected at most the number of shards, 1");
  RateLimiter narrow({.tolerance = 1.0});
  options.shards.push_back("127.0.0.1:1");
  CHECK(error_of([&] { RemoteReplay two(options, kLayout, narrow); }) ==
        "tolerance: 1 is not allowed; expected at least the number of shards, 2");
  CHECK(error_of([&] { RemoteReplay none({}, kLayout, limiter); }) ==
        "number of shards: 0 is not allowed; expected a positive integer");
}

TEST_CASE("what it says of the replay is what the shards hold together") {
  const auto hosts = make_hosts(2);
  for (std::uint32_t s = 0; s < 2; ++s) hosts[s]->add(s, 1, 10);
  RateLimiter limiter({.min_inserts = 1});
  RemoteReplay replay(to(hosts), kLayout, limiter);
  CHECK(eventually([&] { return replay.size() == 20; }));
  CHECK(replay.total_priority() == 110.0);
  CHECK(replay.max_priority() == 10.0f);
  CHECK(replay.statistics().inserts == 20);
  CHECK(replay.statistics().capacity == 20'000);
  CHECK(replay.capacity() == 20'000);
  CHECK(replay.layout() == kLayout);
  CHECK(replay.options().alpha == 1.0);
  CHECK(replay.update(std::vector<Key>{0, 1}, std::vector<float>{2.0f, 3.0f}) == 0);
  CHECK(replay.total_priority() == 113.0);
  CHECK(replay.trim() == 0);
  CHECK(replay.priority_histogram().bins.size() == 3);
  replay.clear();
  CHECK(replay.size() == 0);
}
