#include <troop/net/actor_leases.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/client.hpp>
#include <troop/net/server.hpp>

#include "net_clients.hpp"
#include "net_records.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::net;
using namespace std::chrono_literals;
using testing::error_of;
using testing::eventually;

namespace {

Id id(std::uint8_t number) {
  Id id;
  id.fill(std::byte{number});
  return id;
}

const Clock::time_point kStart{};

}  // namespace

TEST_CASE("places are given from the first one on, and beyond the plan too") {
  ActorLeases leases({.planned = 8, .replays = {"a:1", "b:2"}});
  const Leased first = leases.lease(id(1), {.count = 4}, kStart);
  CHECK(first.first == 0);
  CHECK(first.planned == 8);
  CHECK(first.ticket != 0);
  CHECK(first.replays == std::vector<std::string>{"a:1", "b:2"});
  CHECK(leases.lease(id(2), {.count = 4}, kStart).first == 4);
  CHECK(leases.lease(id(3), {.count = 4}, kStart).first == 8);
  CHECK(leases.size(kStart) == 12);
}

TEST_CASE("a client that asks again has the same places") {
  ActorLeases leases({.planned = 8});
  const Leased first = leases.lease(id(1), {.count = 4}, kStart);
  const Leased again = leases.lease(id(1), {.count = 4}, kStart);
  CHECK(again.first == first.first);
  CHECK(again.ticket == first.ticket);
  CHECK(leases.size(kStart) == 4);
}

TEST_CASE("a crashed client's places are free after the lease, and go to the next one with a new ticket") {
  ActorLeases leases({.planned = 8, .duration = 30s});
  const Leased crashed = leases.lease(id(1), {.count = 4}, kStart);
  leases.lease(id(2), {.count = 4}, kStart);
  leases.leave(id(1), kStart);
  CHECK(leases.lease(id(3), {.count = 4}, kStart + 29s).first == 8);
  const Leased next = leases.lease(id(4), {.count = 4}, kStart + 30s);
  CHECK(next.first == 0);
  CHECK(next.ticket != crashed.ticket);
}

TEST_CASE("a client that comes back in time keeps its places, one that says goodbye gives them up at once") {
  ActorLeases leases({.planned = 8, .duration = 30s});
  const Leased held = leases.lease(id(1), {.count = 4}, kStart);
  leases.leave(id(1), kStart);
  leases.lease(id(1), {.count = 4, .ticket = held.ticket, .first = held.first}, kStart + 29s);
  CHECK(leases.size(kStart + 1h) == 4);
  leases.end(id(1));
  CHECK(leases.size(kStart + 1h) == 0);
  CHECK(leases.lease(id(2), {.count = 4}, kStart + 1h).first == 0);
}

TEST_CASE("what a client holds from an earlier server stays its own, and others are given other places") {
  ActorLeases leases({.planned = 12});
  CHECK(leases.lease(id(1), {.count = 4, .ticket = 7, .first = 4}, kStart).first == 4);
  CHECK(leases.lease(id(2), {.count = 4}, kStart).first == 0);
  CHECK(leases.lease(id(3), {.count = 4}, kStart).first == 8);
  CHECK(leases.lease(id(4), {.count = 4, .ticket = 9, .first = 8}, kStart).first ==
        8);  // twice, as documented
}

TEST_CASE("leases that cannot be are refused") {
  ActorLeases leases({.planned = 8});
  CHECK(error_of([&] { leases.lease(id(1), {.count = 0}); }) == "a lease for 0 environments");
  CHECK(error_of([&] { leases.lease(id(1), {.count = 1u << 31}); }) == "a lease for 2147483648 environments");
  CHECK(error_of([&] { leases.lease(id(1), {.count = 1, .ticket = 1, .first = UINT64_MAX}); }) ==
        "a lease from environment 18446744073709551615 on");
  CHECK(error_of([&] { ActorLeases none({.planned = 0}); }) ==
        "planned: 0 is not allowed; expected an integer from 1 to 2^30");
  CHECK(leases.size() == 0);
}

TEST_CASE("whatever comes and goes, nobody is given a place that is taken, and the ladder has no gaps") {
  Random random(testing::seed(), "leases");
  ActorLeases leases({.planned = 40, .duration = 10s});
  std::map<std::uint8_t, Leased> held;
  Clock::time_point now = kStart;
  testing::Failures failures;
  for (int step = 0; step < 3000; ++step) {
    now += 1s;
    const auto who = static_cast<std::uint8_t>(random.below(12));
    if (held.contains(who)) {
      if (random.below(2) == 0) {
        leases.end(id(who));
      } else {
        leases.leave(id(who), now - 10s);  // its time is over
      }
      held.erase(who);
      continue;
    }
    held[who] = leases.lease(id(who), {.count = 4}, now);
    std::set<std::uint64_t> places;
    for (const auto& [other, leased] : held) {
      if (leased.first % 4 != 0 || !places.insert(leased.first).second)
        failures.add("step " + std::to_string(step) + ": place " + std::to_string(leased.first));
    }
    // One that comes takes the first free place.
    for (std::uint64_t place = 0; place < held[who].first; place += 4)
      if (!places.contains(place)) failures.add("step " + std::to_string(step) + ": a gap");
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE(
    "a client has its places over the wire, keeps them over a new server, and gives them up at its end") {
  std::vector<std::string> said;
  ServerOptions options{.log = [&](const std::string& line) { said.push_back(line); }};
  auto leases = std::make_unique<ActorLeases>(LeaseOptions{.planned = 6});
  auto server = std::make_unique<Server>(options, testing::layout(), Services{.leases = leases.get()});
  options.listen = to_string(server->address());
  Client one(testing::client_to(server->address().port)), two(testing::client_to(server->address().port));
  CHECK(one.lease(4, Deadline::after(30s))->first == 0);
  const auto second = two.lease(4, Deadline::after(30s));
  REQUIRE(second.has_value());
  CHECK(second->first == 4);
  CHECK(error_of([&] { two.lease(5); }) ==
        "count: 5 is not allowed; expected 4, as many as this client has leased");
  server.reset();
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("more environments than the 6 that are planned: 127.0.0.1:") == 0);
  CHECK(said[0].find(" has 4 to 7, on rungs that others have too") != std::string::npos);
  leases = std::make_unique<ActorLeases>(LeaseOptions{.planned = 8, .duration = 0s});
  server = std::make_unique<Server>(options, testing::layout(), Services{.leases = leases.get()});
  CHECK(eventually([&] { return leases->size() == 8; }));
  CHECK(two.lease(4)->ticket == second->ticket);
  CHECK(two.lease(4)->first == 4);
  one.stop();
  CHECK(eventually([&] { return leases->size() == 4; }));
}

TEST_CASE("a lease that does not come ends at its deadline") {
  Client client({.connect = "127.0.0.1:9", .log = nullptr});
  CHECK_FALSE(client.lease(4, Deadline::after(1ms)).has_value());
}
