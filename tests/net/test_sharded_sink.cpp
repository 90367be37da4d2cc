#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <troop/agent/item_sink.hpp>
#include <troop/core/random.hpp>
#include <troop/net/server.hpp>
#include <troop/net/sharded_sink.hpp>

#include "net_records.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::testing;
using namespace std::chrono_literals;
using net::ShardedSink;

static_assert(agent::ItemSink<ShardedSink>);

namespace {

const RecordLayout kLayout = RecordLayout::of<NumberedItem>();

/// What the servers of a test have taken; each keeps its port and its sessions over restarts.
struct Shard {
  RecordingSink sink;
  std::unique_ptr<net::Server> server;
  std::uint16_t port = 0;
  std::vector<net::Session> sessions;

  Shard() { start(); }
  void start() {
    server = std::make_unique<net::Server>(
        net::ServerOptions{.listen = "127.0.0.1:" + std::to_string(port), .log = nullptr}, kLayout,
        sink.callable(), sessions);
    port = server->address().port;
  }
  void stop() {
    server->stop(Deadline::now());
    sessions = server->sessions();
    server.reset();
  }
};

std::vector<std::string> addresses(const std::vector<std::unique_ptr<Shard>>& shards) {
  std::vector<std::string> addresses;
  for (const auto& shard : shards) addresses.push_back("127.0.0.1:" + std::to_string(shard->port));
  return addresses;
}

std::vector<std::unique_ptr<Shard>> make_shards(std::size_t count) {
  std::vector<std::unique_ptr<Shard>> shards;
  for (std::size_t s = 0; s < count; ++s) shards.push_back(std::make_unique<Shard>());
  return shards;
}

net::ClientOptions quiet() {
  return {.connect = {},
          .max_outbox_bytes = 4096,
          .min_backoff = 1ms,
          .max_backoff = 20ms,
          .seed = 1,
          .log = nullptr};
}

bool all_connected(const ShardedSink& sink) {
  for (std::size_t i = 0; i < sink.num_clients(); ++i) {
    if (!sink.statistics(i).is_connected) return false;
  }
  return true;
}

/// A batch of items of its own client, so that each shows whole and once where it went.
Outcome insert(ShardedSink& sink, std::uint32_t batch, Deadline deadline = Deadline::after(30s)) {
  const auto items = numbered(batch, 0, 10);
  return sink.insert(view(items), priorities_of(items), deadline);
}

std::size_t total(const std::vector<std::unique_ptr<Shard>>& shards) {
  std::size_t count = 0;
  for (const auto& shard : shards) count += shard->sink.count();
  return count;
}

/// How many of the batches 0 to count - 1 are in one shard, whole and once, and in no other.
std::size_t whole(const std::vector<std::unique_ptr<Shard>>& shards, std::uint32_t count) {
  std::size_t found = 0;
  for (std::uint32_t batch = 0; batch < count; ++batch) {
    std::size_t in = 0, none = 0;
    for (const auto& shard : shards) {
      in += shard->sink.fault(batch, 10).empty();
      none += shard->sink.fault(batch, 0).empty();
    }
    found += in == 1 && none + 1 == shards.size();
  }
  return found;
}

}  // namespace

TEST_CASE("batches go to the shards in turn") {
  const auto shards = make_shards(3);
  ShardedSink sink(addresses(shards), quiet(), kLayout);
  REQUIRE(eventually([&] { return all_connected(sink); }));
  for (std::uint32_t batch = 0; batch < 30; ++batch) CHECK(insert(sink, batch) == Outcome::ok);
  CHECK(sink.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(whole(shards, 30) == 30);
  for (const auto& shard : shards) CHECK(shard->sink.count() == 100);
  CHECK(sink.stop(Deadline::after(30s)) == Outcome::ok);
  CHECK(insert(sink, 31) == Outcome::closed);
}

TEST_CASE("a shard without room is passed over, and only when none has any does insert wait") {
  const auto shards = make_shards(2);
  ShardedSink sink(addresses(shards), quiet(), kLayout);
  REQUIRE(eventually([&] { return all_connected(sink); }));
  shards[0]->sink.answer(Outcome::timeout);
  for (std::uint32_t batch = 0; batch < 200; ++batch) CHECK(insert(sink, batch) == Outcome::ok);
  REQUIRE(eventually([&] { return sink.statistics(1).waiting == 0; }));
  shards[1]->sink.answer(Outcome::timeout);
  std::uint32_t inserted = 200;
  while (insert(sink, inserted, Deadline::now()) == Outcome::ok) ++inserted;
  CHECK(insert(sink, inserted, Deadline::after(10ms)) == Outcome::timeout);
  std::stop_source stop;
  stop.request_stop();
  const auto items = numbered(inserted, 0, 10);
  CHECK(sink.insert(view(items), priorities_of(items), Deadline::never(), stop.get_token()) ==
        Outcome::cancelled);
  std::thread later([&] {
    std::this_thread::sleep_for(10ms);
    shards[1]->sink.answer(Outcome::ok);
  });
  CHECK(insert(sink, inserted++) == Outcome::ok);
  later.join();
  shards[0]->sink.answer(Outcome::ok);
  CHECK(sink.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(whole(shards, inserted) == inserted);
  CHECK(shards[0]->sink.count() > 0);
  CHECK(shards[1]->sink.count() > shards[0]->sink.count());
}

TEST_CASE("batches of a lost shard wait for it, exactly once, and new ones go to the others") {
  const auto shards = make_shards(2);
  ShardedSink sink(addresses(shards), quiet(), kLayout);
  REQUIRE(eventually([&] { return all_connected(sink); }));
  shards[0]->sink.answer(Outcome::timeout);
  for (std::uint32_t batch = 0; batch < 20; ++batch) CHECK(insert(sink, batch) == Outcome::ok);
  REQUIRE(eventually([&] { return shards[1]->sink.count() == 100; }));
  shards[0]->stop();
  shards[0]->sink.answer(Outcome::ok);
  REQUIRE(eventually([&] { return !sink.statistics(0).is_connected; }));
  for (std::uint32_t batch = 20; batch < 300; ++batch) CHECK(insert(sink, batch) == Outcome::ok);
  CHECK(eventually([&] { return shards[1]->sink.count() == 2900; }));
  CHECK(sink.flush(Deadline::after(5ms)) == Outcome::timeout);
  shards[0]->start();
  CHECK(sink.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(shards[0]->sink.count() == 100);
  CHECK(whole(shards, 300) == 300);
}

TEST_CASE("while no shard is there batches wait in the outboxes, until these are full") {
  auto shards = make_shards(2);
  const auto where = addresses(shards);
  for (const auto& shard : shards) shard->stop();
  ShardedSink sink(where, quiet(), kLayout);
  std::uint32_t inserted = 0;
  while (insert(sink, inserted, Deadline::now()) == Outcome::ok) ++inserted;
  CHECK(inserted >= 50);
  CHECK(sink.statistics(0).waiting == sink.statistics(1).waiting);
  CHECK(insert(sink, inserted, Deadline::after(5ms)) == Outcome::timeout);
  for (const auto& shard : shards) shard->start();
  CHECK(sink.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(total(shards) == inserted * 10);
  CHECK(whole(shards, inserted) == inserted);
}

TEST_CASE("several threads insert while shards come and go: every batch is there once") {
  const std::uint64_t seed = testing::seed();
  CAPTURE(seed);
  const auto shards = make_shards(3);
  ShardedSink sink(addresses(shards), quiet(), kLayout);
  Failures failures;
  std::atomic<bool> done{false};
  std::atomic<std::uint32_t> next{0};
  std::vector<std::thread> actors;
  for (int t = 0; t < 2; ++t) {
    actors.emplace_back([&] {
      while (!done) {
        if (insert(sink, next++) != Outcome::ok) failures.add("a batch was not taken");
        std::this_thread::sleep_for(100us);
      }
    });
  }
  Random random(seed, "chaos");
  for (int round = 0; round < 10; ++round) {
    Shard& shard = *shards[random.below(3)];
    shard.stop();
    const std::uint32_t before = next;
    CHECK(eventually([&] { return next >= before + 20; }));
    shard.start();
  }
  done = true;
  for (auto& actor : actors) actor.join();
  CHECK(sink.flush(Deadline::after(30s)) == Outcome::ok);
  TROOP_CHECK_NONE(failures);
  CHECK(whole(shards, next) == next);
}

TEST_CASE("a shard that has refused is left out while another is there") {
  const auto shards = make_shards(1);
  net::Server stranger({.token = net::Token("0123456789abcdef"), .log = nullptr}, kLayout,
                       RecordingSink().callable());
  std::vector<std::string> where = addresses(shards);
  where.push_back(to_string(stranger.address()));
  ShardedSink sink(where, quiet(), kLayout);
  REQUIRE(eventually([&] { return sink.statistics(0).is_connected; }));
  REQUIRE(eventually([&] { return stranger.statistics().refused_for(net::RefusalCode::token) == 1; }));
  REQUIRE(eventually([&] { return error_of([&] { sink.flush(Deadline::now()); }) != "no error"; }));
  for (std::uint32_t batch = 0; batch < 10; ++batch) CHECK(insert(sink, batch) == Outcome::ok);
  CHECK(eventually([&] { return whole(shards, 10) == 10; }));
  shards[0]->stop();
  REQUIRE(eventually([&] { return !sink.statistics(0).is_connected; }));
  CHECK_THROWS_AS(
      [&] {
        for (int i = 0; i < 2; ++i) insert(sink, 10);
      }(),
      net::RefusedError);
}

TEST_CASE("a sink has servers") {
  CHECK(error_of([&] { ShardedSink sink({}, quiet(), kLayout); }) ==
        "number of servers: 0 is not allowed; expected a positive integer");
  CHECK(error_of([&] { ShardedSink sink({"nowhere"}, quiet(), kLayout); }) != "no error");
}
