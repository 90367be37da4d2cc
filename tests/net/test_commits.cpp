#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <net_clients.hpp>
#include <net_records.hpp>

#include <troop/core/commit_line.hpp>
#include <troop/net/client.hpp>
#include <troop/net/server.hpp>

using namespace std::chrono_literals;
using namespace troop;
using namespace troop::testing;

namespace {

/// Takes everything into `sink` and issues a ticket for each batch, as a log does.
struct LoggingSink {
  Outcome insert(const BatchView& records, std::span<const float> priorities, const net::Session& batch) {
    const Outcome outcome = sink.callable()(records, priorities);
    if (outcome != Outcome::ok) return outcome;
    line.issue();
    const std::lock_guard lock(mutex);
    batches.push_back(batch);
    return outcome;
  }
  net::Services services() {
    return {.insert_from = [this](const auto& records, auto priorities,
                                  const auto& batch) { return insert(records, priorities, batch); },
            .commits = &line};
  }

  RecordingSink sink;
  CommitLine line;
  std::mutex mutex;
  std::vector<net::Session> batches;
};

}  // namespace

TEST_CASE("a batch is acknowledged when it is committed and not before") {
  LoggingSink log;
  net::Server server({.log = nullptr}, layout(), log.services());
  net::Client client(client_to(server.address().port), layout());
  for (std::size_t i = 0; i < 3; ++i) CHECK(send(client, 0, 5 * i, 5) == Outcome::ok);
  CHECK(eventually([&] { return server.statistics().batches == 3; }));
  CHECK(client.flush(Deadline::after(50ms)) == Outcome::timeout);
  log.line.reach(2);
  CHECK(client.flush(Deadline::after(50ms)) == Outcome::timeout);
  log.line.reach(3);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(log.batches.at(2) == net::Session{client.id(), 3});
  CHECK(server.statistics().duplicates == 0);
}

TEST_CASE("batches that were not committed come again to the next server, those that were do not") {
  LoggingSink first, second;
  auto server = std::make_unique<net::Server>(net::ServerOptions{.log = nullptr}, layout(), first.services());
  const std::uint16_t port = server->address().port;
  net::Client client(client_to(port), layout());
  for (std::size_t i = 0; i < 4; ++i) CHECK(send(client, 0, 5 * i, 5) == Outcome::ok);
  CHECK(eventually([&] { return server->statistics().batches == 4; }));
  first.line.reach(2);
  server.reset();
  // What the log has: two batches.
  const std::vector<net::Session> sessions{{client.id(), 2}};
  server = std::make_unique<net::Server>(
      net::ServerOptions{.listen = "127.0.0.1:" + std::to_string(port), .log = nullptr}, layout(),
      second.services(), sessions);
  CHECK(eventually([&] { return server->statistics().batches == 2; }));
  second.line.reach(2);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(second.batches.at(0).last == 3);
  CHECK(second.batches.at(1).last == 4);
  CHECK(server->statistics().lost == 0);
}
