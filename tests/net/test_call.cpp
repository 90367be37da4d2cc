// Calls from clients to a server's `call`.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/client.hpp>
#include <troop/net/server.hpp>

#include "net_clients.hpp"
#include "net_records.hpp"
#include "raw_client.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::net;
using namespace std::chrono_literals;
using testing::error_of;
using testing::eventually;

namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Says what it hears, twice.
void echo(std::span<const std::byte> call, std::vector<std::byte>& reply) {
  const std::string text = text_of(call);
  if (text == "bad") throw Error("a bad call");
  if (text == "slow") std::this_thread::sleep_for(50ms);
  for (int i = 0; i < 2; ++i) reply.insert(reply.end(), call.begin(), call.end());
}

Server make_server(const ServerOptions& options = {.log = nullptr}) {
  return Server(options, testing::layout(), Services{.call = echo});
}

ClientOptions learner_to(const Server& server) {
  ClientOptions options = testing::client_to(server.address().port);
  options.role = Role::learner;
  return options;
}

/// Calls until there is a connection.
std::string ask(Client& client, const std::string& text) {
  std::string answer;
  const auto call = [&] {
    return client.call(
               bytes_of(text), [&](std::span<const std::byte> reply) { answer = text_of(reply); },
               Deadline::after(30s)) == Outcome::ok;
  };
  REQUIRE(eventually(call));
  return answer;
}

}  // namespace

TEST_CASE("a call gets its own reply, of any size") {
  Server server = make_server();
  Client client(learner_to(server));
  CHECK(ask(client, "hello") == "hellohello");
  CHECK(ask(client, "") == "");
  const std::string large(5'000'001, 'x');
  CHECK(ask(client, large) == large + large);
  CHECK(server.statistics().calls == 3);
}

TEST_CASE("several calls are under way at once, from several threads") {
  Server server = make_server();
  Client client(learner_to(server));
  ask(client, "there");
  testing::Failures failures;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(testing::seed(), "calls", static_cast<std::uint64_t>(t));
      for (int round = 0; round < 50; ++round) {
        std::string answers[2];
        PendingCall one([&](std::span<const std::byte> reply) { answers[0] = text_of(reply); });
        PendingCall two([&](std::span<const std::byte> reply) { answers[1] = text_of(reply); });
        const std::string text(random.below(3000), static_cast<char>('a' + t));
        const bool is_sent = client.begin(one, bytes_of(text)) && client.begin(two, bytes_of(text + "!"));
        const bool is_done = client.finish(two) == Outcome::ok && client.finish(one) == Outcome::ok;
        if (!is_sent || !is_done || answers[0] != text + text || answers[1] != text + "!" + text + "!")
          failures.add("thread " + std::to_string(t) + ", round " + std::to_string(round));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("what the server throws is thrown at the caller, and so is what the caller's own function throws") {
  Server server = make_server();
  Client client(learner_to(server));
  ask(client, "there");
  CHECK(error_of([&] { client.call(bytes_of("bad"), [](auto) {}); }) == "a bad call");
  CHECK(error_of([&] { client.call(bytes_of("good"), [](auto) { throw Error("cannot read that"); }); }) ==
        "cannot read that");
  CHECK(ask(client, "on") == "onon");
}

TEST_CASE("a call that waits ends at its deadline, by a stop token, and with the connection") {
  auto server =
      std::make_unique<Server>(ServerOptions{.log = nullptr}, testing::layout(), Services{.call = echo});
  Client client(learner_to(*server));
  ask(client, "there");
  const auto never = [](std::span<const std::byte>) { FAIL("taken too late"); };
  CHECK(client.call(bytes_of("slow"), never, Deadline::after(1ms)) == Outcome::timeout);
  std::stop_source stop;
  stop.request_stop();
  CHECK(client.call(bytes_of("slow"), never, Deadline::never(), stop.get_token()) == Outcome::cancelled);
  CHECK(ask(client, "on") == "onon");  // replies that nobody waits for are dropped
  PendingCall pending(never);
  CHECK(client.begin(pending, bytes_of("slow")));
  server->stop(Deadline::now());
  CHECK(client.finish(pending, Deadline::after(30s)) == Outcome::closed);
  CHECK(client.call(bytes_of("x"), never, Deadline::after(30s)) == Outcome::closed);
  client.stop(Deadline::now());
  CHECK(client.call(bytes_of("x"), never, Deadline::after(30s)) == Outcome::closed);
}

TEST_CASE("a server that hangs does not keep its client from ending") {
  testing::RecordingSink sink;
  std::atomic<bool> hangs{true};
  const auto hang = [&](std::span<const std::byte>, std::vector<std::byte>&) {
    while (hangs) std::this_thread::sleep_for(1ms);
  };
  Server server({.log = nullptr}, testing::layout(), Services{.insert = sink.callable(), .call = hang});
  Client client(learner_to(server), testing::layout());
  CHECK(testing::send(client, 0, 0, 1) == Outcome::ok);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);  // the last that the client hears
  CHECK(client.call(
            bytes_of("x"), [](auto) {}, Deadline::after(20ms)) == Outcome::timeout);
  CHECK(client.stop(Deadline::after(30s)) == Outcome::ok);
  hangs = false;
}

TEST_CASE("a refused client's calls throw its error") {
  ServerOptions options{.log = nullptr};
  options.token = Token("0123456789abcdef");
  Server server = make_server(options);
  Client client(learner_to(server));
  REQUIRE(eventually([&] { return error_of([&] { client.flush(); }) != "no error"; }));
  CHECK_THROWS_AS(client.call(bytes_of("x"), [](auto) {}), RefusedError);
}

TEST_CASE(
    "who calls without reading the replies makes nothing grow, and a call without a number is refused") {
  Server server = make_server();
  testing::RawClient raw(server.address().port);
  raw.connect(testing::hello_of(testing::layout(), 1));
  std::thread sender([&] {
    for (int i = 0; i < 20; ++i) raw.send(MessageType::call, std::vector<std::byte>(2'000'000, std::byte{1}));
  });
  REQUIRE(eventually([&] { return server.statistics().calls >= 1; }));
  std::this_thread::sleep_for(50ms);
  CHECK(server.statistics().calls <= 5);  // a reply of 4 MB each in sockets, and one that waits
  for (int i = 0; i < 20; ++i) CHECK(raw.receive()->payload.size() == 16 + 2 * (2'000'000 - 8));
  sender.join();
  raw.send(MessageType::call, std::vector<std::byte>(7));
  CHECK(raw.expect<Refusal>().sentence == "a call without a number");
}

TEST_CASE("the newest report reaches a server that listens, and a call after it still has its reply") {
  std::atomic<int> heard = 0;
  const Server server({.log = nullptr}, testing::layout(),
                      Services{.call = echo, .report = [&](std::span<const std::byte> report) {
                                 heard = std::stoi(text_of(report));
                               }});
  Client client(learner_to(server));
  for (int i = 1; i <= 50; ++i) client.report(bytes_of(std::to_string(i)));
  CHECK(eventually([&] { return heard == 50; }));
  CHECK(ask(client, "after") == "afterafter");
  client.report(bytes_of("51"));
  CHECK(client.stop(Deadline::after(30s)) == Outcome::ok);
  CHECK(heard == 51);
}

TEST_CASE("a server that does not listen gets no reports, and refuses one that comes nevertheless") {
  const Server server = make_server();
  Client client(learner_to(server));
  client.report(bytes_of("1"));
  CHECK(ask(client, "after") == "afterafter");
  CHECK(server.statistics().refused_for(RefusalCode::malformed) == 0);
  testing::RawClient stranger(server.address().port);
  stranger.connect(testing::hello_of(testing::layout(), 9));
  stranger.send(MessageType::report, bytes_of("1"));
  CHECK(stranger.expect<Refusal>().sentence == "a message of type 16 where none is expected");
}

TEST_CASE("a report that the server cannot read closes the connection, and a large one is not sent") {
  const Server server({.log = nullptr}, testing::layout(),
                      Services{.report = [](std::span<const std::byte>) { throw Error("not a report"); }});
  testing::RawClient stranger(server.address().port);
  stranger.connect(testing::hello_of(testing::layout(), 9));
  stranger.send(MessageType::report, bytes_of("1"));
  CHECK(stranger.expect<Refusal>().sentence == "not a report");
  Client client(learner_to(server));
  const std::vector<std::byte> large(65537);
  CHECK(error_of([&] { client.report(large); }) ==
        "report: 65537 is not allowed; expected at most 65536 bytes");
}
