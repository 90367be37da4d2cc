#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <troop/agent/item_sink.hpp>
#include <troop/net/client.hpp>
#include <troop/net/server.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>

#include "net_records.hpp"

using namespace troop;
using namespace troop::testing;
using namespace std::chrono_literals;

static_assert(agent::ItemSink<net::Client>);

TEST_CASE(
    "an actor's items go through a client to a replay behind its rate limiter, as fast as it lets them") {
  PrioritizedReplay<NumberedItem> replay({.capacity = 1000});
  RateLimiter limiter({.min_inserts = 10, .samples_per_insert = 1.0, .tolerance = 10.0});
  agent::LocalSink local(replay, limiter);
  net::Server server({.log = nullptr}, replay.layout(),
                     [&](const BatchView& records, std::span<const float> priorities) {
                       return local.insert(records, priorities, Deadline::now());
                     });
  net::Client remote({.connect = to_string(server.address()), .log = nullptr}, replay.layout());
  for (std::uint32_t batch = 0; batch < 10; ++batch) {
    const auto items = numbered(0, 10 * batch, 10);
    CHECK(remote.insert(view(items), priorities_of(items)) == Outcome::ok);
  }
  CHECK(eventually([&] { return replay.size() == 20; }));  // as many as nobody need have sampled
  CHECK(eventually([&] { return server.statistics().waits == 1; }));
  CHECK(replay.size() == 20);
  for (int i = 0; i < 8; ++i) CHECK(limiter.await_sample(10, Deadline::after(30s)) == Outcome::ok);
  CHECK(remote.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(replay.size() == 100);
}
