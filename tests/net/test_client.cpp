#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/client.hpp>
#include <troop/net/server.hpp>

#include "net_clients.hpp"
#include "net_records.hpp"
#include "proxy.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::testing;
using namespace std::chrono_literals;
using troop::testing::error_of;

namespace {

struct SmallFloat {
  float value;
};

net::ServerOptions quick_server() {
  return {.handshake_deadline = 2s, .heartbeat = 50ms, .idle_deadline = 1s, .log = nullptr};
}

net::ClientOptions quick_client(std::uint16_t port) {
  auto options = client_to(port);
  options.connect_deadline = 1s;
  return options;
}

}  // namespace

TEST_CASE("batches reach the server once and in order, and flush waits for them") {
  RecordingSink sink;
  net::Server server(patient(quick_server()), layout(), sink.callable());
  net::Client client(quick_client(server.address().port), layout());
  std::size_t sent = 0;
  for (std::size_t size = 1; size <= 100; ++size) {
    CHECK(send(client, 0, sent, size) == Outcome::ok);
    sent += size;
  }
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(sink.fault(0, sent) == "");
  const auto statistics = client.statistics();
  CHECK(statistics.sent == 100);
  CHECK(statistics.acknowledged == 100);
  CHECK(statistics.waiting == 0);
  CHECK(statistics.outbox_bytes == 0);
  CHECK(statistics.re_sent == 0);
  CHECK(statistics.connections == 1);
  CHECK(statistics.servers == 1);
  CHECK(statistics.max_acknowledge_seconds > 0.0);
  CHECK(server.statistics().batches == 100);
  CHECK(server.statistics().items == sent);
  CHECK(server.sessions().size() == 1);
  CHECK(client.stop(Deadline::after(30s)) == Outcome::ok);
  CHECK(client.stop() == Outcome::closed);
  CHECK(send(client, 0, 0, 1) == Outcome::closed);
  CHECK(client.flush() == Outcome::closed);
  CHECK(eventually([&] { return server.sessions().empty(); }));  // it will not come back
  CHECK(eventually([&] { return server.statistics().connections == 0; }));
}

TEST_CASE("whatever is cut, every item is there once and in each client's order") {
  MESSAGE("seed " << seed());
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  Random random(seed(), "proxy");
  Proxy proxy(server.address().port, [&](std::size_t) {
    Proxy::Plan plan;
    switch (random.below(5)) {
      case 0:
        plan.cut_to_client = 1 + random.below(500);
        break;
      case 1:
        plan.cut_to_server = 1 + random.below(400);
        break;  // within the handshake
      case 2:
        plan.drop_to_client = true;
        [[fallthrough]];
      default:
        plan.cut_to_server = 1 + random.below(15'000);
    }
    plan.reset = random.below(2) == 0;
    plan.piece = 1 + random.below(2000);
    return plan;
  });
  auto options = quick_client(proxy.port());
  options.connect_deadline = 100ms;
  const std::uint64_t reconnects = check_each_item_comes_once(options, sink, 4, 600, 240s);
  CHECK(reconnects > 20);
  CHECK(server.statistics().lost == 0);
}

TEST_CASE(
    "a server that is replaced together with its replay is found again, and nothing is lost or doubled") {
  RecordingSink sink;
  auto server = std::make_unique<net::Server>(quick_server(), layout(), sink.callable());
  const std::uint16_t port = server->address().port;
  Lines lines;
  auto options = quick_client(port);
  options.log = lines.callable();
  options.max_outbox_bytes = 16 << 10;
  net::Client client(options, layout());
  std::atomic<bool> done = false;
  std::size_t sent = 0;
  Failures failures;
  std::thread actor([&] {
    while (!done) {
      if (send(client, 0, sent, 7) != Outcome::ok) failures.add("insert");
      sent += 7;
    }
  });
  for (int restart = 0; restart < 3; ++restart) {
    const std::size_t before = sink.count();
    CHECK(eventually([&] { return sink.count() > before + 500; }));
    server->stop(Deadline::after(1s));
    const auto sessions = server->sessions();
    server.reset();
    auto server_options = quick_server();
    server_options.listen = "127.0.0.1:" + std::to_string(port);
    server = std::make_unique<net::Server>(server_options, layout(), sink.callable(), sessions);
  }
  done = true;
  actor.join();
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  TROOP_CHECK_NONE(failures);
  CHECK(sink.fault(0, sent) == "");
  CHECK(client.statistics().servers == 4);
  CHECK(server->statistics().lost == 0);
  // One line when it is gone and one when it is back, however many attempts.
  CHECK(lines.all().size() == 6);
  CHECK(lines.has("lost the connection to 127.0.0.1:" + std::to_string(port) +
                  ": the server ends; trying again"));
  CHECK(lines.has("connected to 127.0.0.1:" + std::to_string(port) + " after "));
}

TEST_CASE("batches that were acknowledged after the snapshot are counted as lost, and the client goes on") {
  RecordingSink sink;
  auto server = std::make_unique<net::Server>(quick_server(), layout(), sink.callable());
  const std::uint16_t port = server->address().port;
  net::Client client(quick_client(port), layout());
  CHECK(send(client, 0, 0, 5) == Outcome::ok);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  const auto sessions = server->hold([](const auto& held) { return held; });
  CHECK(send(client, 0, 5, 5) == Outcome::ok);
  CHECK(send(client, 0, 10, 5) == Outcome::ok);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  server.reset();
  auto options = quick_server();
  options.listen = "127.0.0.1:" + std::to_string(port);
  server = std::make_unique<net::Server>(options, layout(), sink.callable(), sessions);
  CHECK(send(client, 0, 15, 5) == Outcome::ok);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(server->statistics().lost == 2);
  CHECK(client.statistics().lost == 2);
  CHECK(sink.fault(0, 20) == "");
}

TEST_CASE("while the replay is full the outbox fills up to its limit, callers wait, and nothing grows") {
  RecordingSink sink;
  sink.answer(Outcome::timeout);
  net::ServerOptions server_options = quick_server();
  server_options.heartbeat = 500ms;
  server_options.idle_deadline = 10s;
  net::Server server(server_options, layout(), sink.callable());
  auto options = quick_client(server.address().port);
  options.max_outbox_bytes = 8192;
  net::Client client(options, layout());
  std::size_t sent = 0;
  while (send(client, 0, sent, 50, Deadline::after(50ms)) == Outcome::ok) sent += 50;
  CHECK(sent == 50 * (8192 / 632));
  CHECK(client.statistics().outbox_bytes <= 8192);
  CHECK(client.statistics().outbox_bytes > 8192 - 632);
  CHECK(client.flush(Deadline::after(1ms)) == Outcome::timeout);
  CHECK(eventually([&] { return server.statistics().waits == 1; }));
  CHECK(client.statistics().is_connected);  // heartbeats go on, though the server does not read
  std::this_thread::sleep_for(2s);          // four of them
  CHECK(client.statistics().connections == 1);
  CHECK(server.statistics().receive_bytes == 0);

  SUBCASE("and goes on when there is room") {
    sink.answer(Outcome::ok);
    CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
    CHECK(sink.fault(0, sent) == "");
    CHECK(server.statistics().waits == 1);
  }
  SUBCASE("a waiting insert ends by a stop token") {
    std::stop_source source;
    std::thread canceller([&] { source.request_stop(); });
    const auto items = numbered(0, 0, 50);
    CHECK(client.insert(view(items), priorities_of(items), Deadline::never(), source.get_token()) ==
          Outcome::cancelled);
    CHECK(client.flush(Deadline::never(), source.get_token()) == Outcome::cancelled);
    canceller.join();
  }
  SUBCASE("stop ends the waiting of others by its deadline") {
    std::thread waiting([&] { CHECK(send(client, 0, 0, 50, Deadline::never()) == Outcome::closed); });
    CHECK(client.stop(Deadline::after(10ms)) == Outcome::timeout);
    waiting.join();
  }
  SUBCASE("a closed replay is a server that ends") {
    sink.answer(Outcome::closed);
    CHECK(eventually([&] { return server.statistics().refused_for(net::RefusalCode::stopping) > 0; }));
    CHECK(eventually([&] { return client.statistics().last_error == "the replay is closed"; }));
    sink.answer(Outcome::ok);
    CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
    CHECK(sink.fault(0, sent) == "");
  }
}

TEST_CASE("drop_oldest never waits: batches that were never sent go, the oldest first, and are counted") {
  RecordingSink sink;
  sink.answer(Outcome::timeout);
  net::Server server(quick_server(), layout(), sink.callable());
  auto options = quick_client(server.address().port);
  options.max_outbox_bytes = 8192;
  options.when_full = net::FullPolicy::drop_oldest;
  net::Client client(options, layout());
  for (std::size_t i = 0; i < 200; ++i) CHECK(send(client, 0, i, 1, Deadline::now()) == Outcome::ok);
  const auto statistics = client.statistics();
  CHECK(statistics.dropped == 200 - statistics.waiting);
  CHECK(statistics.dropped_items == statistics.dropped);
  CHECK(statistics.dropped > 0);
  CHECK(statistics.outbox_bytes <= 8192);
  sink.answer(Outcome::ok);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(sink.count() == client.statistics().acknowledged);
  CHECK(sink.count() + client.statistics().dropped == 200);
}

TEST_CASE("a token that is not the server's ends the client with the server's sentence") {
  RecordingSink sink;
  Lines refusals, lines;
  auto server_options = quick_server();
  server_options.token = net::Token("the right token, 16+");
  server_options.log = refusals.callable();
  net::Server server(server_options, layout(), sink.callable());
  auto options = quick_client(server.address().port);
  options.name = "actor-3";
  options.log = lines.callable();
  std::string sentence;
  SUBCASE("wrong") {
    options.token = net::Token("a wrong token of 16+");
    sentence = "the token is not the server's";
  }
  SUBCASE("missing") {
    sentence = "this server wants a token, and the client has none";
  }
  net::Client client(options, layout());
  CHECK(error_of([&] { client.flush(Deadline::after(30s)); }) == "no error");  // nothing to wait for
  CHECK(eventually([&] { return client.statistics().last_error == sentence; }));
  CHECK_THROWS_WITH_AS(send(client, 0, 0, 1), sentence.c_str(), net::RefusedError);
  CHECK_THROWS_WITH_AS(client.flush(), sentence.c_str(), net::RefusedError);
  CHECK(client.statistics().attempts == 1);
  CHECK(server.statistics().refused_for(net::RefusalCode::token) == 1);
  CHECK(server.statistics().sessions == 0);
  CHECK(refusals.all().size() == 1);
  CHECK(refusals.has(" (actor-3): " + sentence));
  CHECK(lines.all() ==
        std::vector<std::string>{to_string(server.address()) + " refused this client for good: " + sentence});

  options.token = server_options.token;
  net::Client good(options, layout());
  CHECK(send(good, 0, 0, 1) == Outcome::ok);
  CHECK(good.flush(Deadline::after(30s)) == Outcome::ok);
}

TEST_CASE("a client with a token leaves a server without one") {
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  auto options = quick_client(server.address().port);
  options.token = net::Token("a token of 16 or more");
  net::Client client(options, layout());
  CHECK(eventually([&] {
    return client.statistics().last_error == "the server does not know a token, and this client has one";
  }));
}

TEST_CASE("records of another layout are refused, naming the field") {
  struct Other {
    std::uint32_t client;
    float number;
  };
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  net::Client client(quick_client(server.address().port), RecordLayout::of<Other>());
  CHECK(eventually([&] { return !client.statistics().last_error.empty(); }));
  CHECK_THROWS_WITH_AS(client.flush(), "field 1: number f32, expected number u32", net::RefusedError);
  CHECK(server.statistics().refused_for(net::RefusalCode::layout) == 1);
}

TEST_CASE("an exception of the replay reaches the client") {
  std::atomic<bool> fails_once = false;
  RecordingSink sink;
  net::Server server(quick_server(), layout(),
                     [&](const BatchView& records, std::span<const float> priorities) {
                       if (fails_once.exchange(false)) throw Error("the disk is full");
                       if (priorities[0] == 13.0f)
                         throw InvalidArgument("priorities[0]", "13", "no unlucky number");
                       return sink.insert(records, priorities);
                     });
  net::Client client(quick_client(server.address().port), layout());
  CHECK(send(client, 0, 0, 1) == Outcome::ok);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  fails_once = true;
  CHECK(send(client, 0, 1, 1) == Outcome::ok);  // tried again
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(client.statistics().last_error == "the disk is full");
  CHECK(server.statistics().refused_for(net::RefusalCode::failed) == 1);
  CHECK(send(client, 0, 13, 1) == Outcome::ok);  // not tried again
  CHECK_THROWS_WITH_AS(client.flush(Deadline::after(30s)),
                       "priorities[0]: 13 is not allowed; expected no unlucky number", net::RefusedError);
  CHECK(server.statistics().refused_for(net::RefusalCode::rejected) == 1);
  CHECK(sink.fault(0, 2) == "");
}

TEST_CASE("a client checks what it is given before it sends it") {
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  auto options = quick_client(server.address().port);
  options.max_frame_bytes = 1032;
  net::Client client(options, layout());
  const auto items = numbered(0, 0, 2);
  const auto insert = [&](std::vector<float> priorities) {
    return error_of([&] { client.insert(view(items), priorities); });
  };
  CHECK(insert({1.0f}) == "number of priorities: 1 is not allowed; expected 2, as many as records");
  CHECK(insert({0.0f, NAN}) ==
        "priorities[1]: nan is not allowed; expected a finite number that is not negative");
  CHECK(insert({-1.0f, 0.0f}) ==
        "priorities[0]: -1 is not allowed; expected a finite number that is not negative");
  CHECK(insert({0.0f, INFINITY}) ==
        "priorities[1]: inf is not allowed; expected a finite number that is not negative");
  CHECK(error_of([&] { send(client, 0, 0, 85); }) ==
        "batch: 85 records of 8 bytes is not allowed; expected at most 1032 bytes with their priorities");
  CHECK(send(client, 0, 0, 84) == Outcome::ok);
  CHECK(send(client, 0, 0, 0) == Outcome::ok);  // nothing to send
  const std::vector<float> floats(2);
  CHECK_THROWS_AS(client.insert(BatchView(RecordLayout::of<SmallFloat>(), floats.data(), 2), floats),
                  LayoutMismatch);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(sink.fault(0, 84) == "");
}

TEST_CASE("a peer that is gone without a word is noticed by the missing heartbeats") {
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  Proxy proxy(server.address().port, [](std::size_t number) {
    Proxy::Plan plan;
    if (number == 0) plan.cut_to_client = 300, plan.cut_to_server = 2000, plan.stall = true;
    return plan;
  });
  net::Client client(quick_client(proxy.port()), layout());
  for (std::size_t i = 0; i < 10; ++i) CHECK(send(client, 0, 50 * i, 50) == Outcome::ok);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(sink.fault(0, 500) == "");
  CHECK(client.statistics().connections == 2);
  CHECK(client.statistics().last_error == "nothing was heard for three heartbeats");
  CHECK(client.statistics().re_sent > 0);
  CHECK(eventually([&] { return server.statistics().connections == 1; }));  // the server notices as well
}

TEST_CASE("connections that are slow in all pieces work") {
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  Proxy proxy(server.address().port,
              [](std::size_t) { return Proxy::Plan{.delay = std::chrono::microseconds(200), .piece = 60}; });
  net::Client client(quick_client(proxy.port()), layout());
  for (std::size_t i = 0; i < 10; ++i) CHECK(send(client, 0, 50 * i, 50) == Outcome::ok);
  CHECK(client.stop(Deadline::after(30s)) == Outcome::ok);
  CHECK(sink.fault(0, 500) == "");
}

TEST_CASE("a server that cannot be reached is tried again, with one line for it all") {
  RecordingSink sink;
  Lines lines;
  auto server = std::make_unique<net::Server>(quick_server(), layout(), sink.callable());
  const std::uint16_t port = server->address().port;
  server.reset();
  auto options = quick_client(port);
  options.log = lines.callable();
  net::Client client(options, layout());
  CHECK(send(client, 0, 0, 5) == Outcome::ok);
  CHECK(eventually([&] { return client.statistics().attempts > 5; }));
  const std::string place = "127.0.0.1:" + std::to_string(port);
  CHECK(lines.all() ==
        std::vector<std::string>{"cannot reach " + place + ": Connection refused; trying again"});
  auto server_options = quick_server();
  server_options.listen = place;
  server = std::make_unique<net::Server>(server_options, layout(), sink.callable());
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(sink.fault(0, 5) == "");
  CHECK(lines.all().size() == 2);
}

TEST_CASE("a name is looked up anew at each attempt") {
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  Lines lines;
  std::atomic<int> calls = 0;
  auto options = quick_client(server.address().port);
  options.connect = "head.invalid:" + std::to_string(server.address().port);
  options.log = lines.callable();
  net::Client client(options, layout(), [&](const std::string& host) {
    CHECK(host == "head.invalid");
    if (++calls == 1) throw Error("there is no name server");
    return calls == 2 ? std::vector<std::string>() : std::vector<std::string>{"127.0.0.1"};
  });
  CHECK(send(client, 0, 0, 5) == Outcome::ok);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(calls == 3);
  REQUIRE(lines.all().size() == 2);
  CHECK(lines.all()[0] ==
        "cannot reach " + options.connect + ": Host not found (authoritative); trying again");
}

TEST_CASE("nobody waits for a name server that does not answer") {
  std::atomic<bool> answer = false;
  std::atomic<int> looking = 0;
  {
    auto options = quick_client(1);
    options.connect = "head.invalid:7777";
    options.connect_deadline = 20ms;
    net::Client client(options, layout(), [&](const std::string&) {
      ++looking;
      while (!answer) std::this_thread::sleep_for(1ms);
      --looking;
      return std::vector<std::string>();
    });
    CHECK(
        eventually([&] { return client.statistics().last_error == "its name was not found within 0.02 s"; }));
    CHECK(client.stop(Deadline::now()) == Outcome::ok);
    CHECK(looking > 0);
  }
  answer = true;
  CHECK(eventually([&] { return looking == 0; }));
}

TEST_CASE("a question for a name that is lost is asked again, and the next answer counts") {
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  std::atomic<bool> ends = false;
  std::atomic<int> asked = 0, looking = 0;
  {
    auto options = quick_client(server.address().port);
    options.connect = "head.invalid:" + std::to_string(server.address().port);
    options.connect_deadline = 60s;
    net::Client client(options, layout(), [&](const std::string&) {
      ++looking;
      if (asked++ == 0) {
        while (!ends) std::this_thread::sleep_for(1ms);
      }
      --looking;
      return std::vector<std::string>{"127.0.0.1"};
    });
    const auto start = Clock::now();
    CHECK(send(client, 0, 0, 5) == Outcome::ok);
    CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
    CHECK(seconds_since(start) < 30.0);
    CHECK(asked == 2);
    CHECK(client.statistics().attempts == 1);
  }
  ends = true;
  CHECK(eventually([&] { return looking == 0; }));
}

TEST_CASE("stop ends a client at once, whatever it is doing") {
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  Proxy stalling(server.address().port,
                 [](std::size_t) { return Proxy::Plan{.cut_to_client = 1, .stall = true}; });
  for (const std::uint16_t port : {server.address().port, stalling.port(), std::uint16_t{1}}) {
    auto options = quick_client(port);
    options.connect_deadline = 60s;
    options.min_backoff = options.max_backoff = 60s;
    net::Client client(options, layout());
    CHECK(send(client, 0, 0, 1) == Outcome::ok);
    const auto start = Clock::now();
    client.stop(Deadline::after(2ms));
    CHECK(seconds_since(start) < 20.0);
  }
}

namespace {

/// A server that says one thing after the hello.
std::string error_after(const std::function<void(net::detail::tcp::socket&)>& answer) {
  net::detail::asio::io_context io;
  net::detail::tcp::acceptor acceptor(io, {net::detail::asio::ip::address_v4::loopback(), 0});
  auto options = quick_client(acceptor.local_endpoint().port());
  options.token = net::Token("a token of 16 or more");
  options.min_backoff = options.max_backoff = 60s;
  net::Client client(options, layout());
  net::detail::tcp::socket socket(io);
  acceptor.accept(socket);
  std::array<std::byte, 64> bytes;
  socket.read_some(net::detail::asio::buffer(bytes.data(), bytes.size()));
  answer(socket);
  CHECK(eventually([&] { return !client.statistics().last_error.empty(); }));
  return client.statistics().last_error;
}

void say(net::detail::tcp::socket& socket, const std::vector<std::byte>& bytes) {
  net::detail::error_code ignored;
  net::detail::asio::write(socket, net::detail::asio::buffer(bytes.data(), bytes.size()), ignored);
}

}  // namespace

TEST_CASE("a client believes no server blindly") {
  std::vector<std::byte> bytes;
  append_message(net::Challenge{.needs_token = true}, bytes);
  CHECK(error_after([&](auto& socket) {
          append_message(net::Welcome{.max_frame_bytes = 64 << 20}, bytes);
          say(socket, bytes);
        }) == "the server does not know the token");
  CHECK(error_after([&](auto& socket) {
          bytes.clear();
          append_message(net::Acknowledge{7}, bytes);
          say(socket, bytes);
        }) == "a message of type 7 where none is expected");
  CHECK(error_after([&](auto& socket) { say(socket, std::vector<std::byte>(100)); }) ==
        "not a frame of this protocol");
  CHECK(error_after([&](auto& socket) {
          bytes.clear();
          append_message(net::Refusal{net::RefusalCode::version, false, "speak\nversion 2"}, bytes);
          bytes[3] = std::byte{2};
          say(socket, bytes);
        }) == "speak?version 2");
  CHECK(error_after([&](auto& socket) {
          bytes.clear();
          append_frame(net::MessageType::challenge, {}, bytes);
          bytes[3] = std::byte{2};
          say(socket, bytes);
        }) == "the server speaks protocol version 2, this client version 1");
  CHECK(error_after([&](auto& socket) { socket.close(); }).size() > 0);
  CHECK(error_after([&](auto& socket) {
          bytes.clear();
          append_frame(net::MessageType::goodbye, {}, bytes);
          say(socket, bytes);
        }) == "the server ends");
}

TEST_CASE("options of a client that make no sense are refused") {
  const auto error = [](auto change) {
    auto options = quick_client(1);
    change(options);
    return error_of([&] { options.validate(); });
  };
  CHECK(error([](auto&) {}) == "no error");
  CHECK(error([](auto& o) { o.connect = ""; }) ==
        "connect: \"\" is not allowed; expected HOST:PORT or [IPV6]:PORT");
  CHECK(error([](auto& o) { o.name.assign(129, 'x'); }) ==
        "name: 129 is not allowed; expected at most 128 bytes");
  CHECK(error([](auto& o) { o.max_outbox_bytes = 1; }) ==
        "max_outbox_bytes: 1 is not allowed; expected an integer from 4096 to 2^46");
  CHECK(error([](auto& o) { o.max_frame_bytes = 1; }) ==
        "max_frame_bytes: 1 is not allowed; expected an integer from 1024 to 2^30");
  CHECK(error([](auto& o) { o.connect_deadline = 0s; }) ==
        "connect_deadline: 0 is not allowed; expected from 0.001 to 3600 seconds");
  CHECK(error([](auto& o) { o.min_backoff = 0s; }) ==
        "min_backoff: 0 is not allowed; expected at least 0.001 seconds");
  CHECK(error([](auto& o) { o.max_backoff = 0s; }) ==
        "max_backoff: 0 is not allowed; expected from min_backoff to 3600 seconds");
}
