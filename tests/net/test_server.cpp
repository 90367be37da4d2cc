#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/address.hpp>
#include <troop/net/detail/limited_log.hpp>
#include <troop/net/server.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "net_records.hpp"
#include "raw_client.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::net;
using namespace troop::testing;
using namespace std::chrono_literals;
using troop::testing::error_of;

namespace {

ServerOptions quiet() {
  return {.handshake_deadline = 10s, .log = nullptr};
}

void insert(RawClient& client, std::uint64_t sequence, std::uint32_t first, std::size_t count = 1) {
  const auto items = numbered(0, first, count);
  client.send(MessageType::insert, insert_of(sequence, view(items), priorities_of(items)));
}

std::uint64_t acknowledged(RawClient& client) {
  return client.expect<Acknowledge>().last;
}

/// A client who does everything right, to be used while others do not.
struct GoodClient {
  explicit GoodClient(const Server& server) : raw(server.address().port) {
    raw.connect(hello_of(layout(), 200));
  }
  bool works() {
    insert(raw, next, static_cast<std::uint32_t>(next - 1));
    return acknowledged(raw) == next++;
  }
  RawClient raw;
  std::uint64_t next = 1;
};

}  // namespace

TEST_CASE("addresses are HOST:PORT") {
  CHECK(parse_address("head:7777") == Address{"head", 7777});
  CHECK(parse_address("[::1]:0") == Address{"::1", 0});
  CHECK(to_string(Address{"::1", 80}) == "[::1]:80");
  CHECK(to_string(Address{"head", 80}) == "head:80");
  for (const char* bad : {"", ":", "head", "head:", ":80", "head:x", "head:65536", "head:-1", "::1:80",
                          "[head]:80", "head: 80", "[]:80", "he ad:80", "head:80x"}) {
    CHECK(error_of([&] { parse_address(bad, "listen"); }) ==
          "listen: \"" + std::string(bad) + "\" is not allowed; expected HOST:PORT or [IPV6]:PORT");
  }
}

TEST_CASE("items go into a replay as they were sent") {
  PrioritizedReplay<NumberedItem> replay({.capacity = 100});
  Server server(quiet(), replay.layout(), [&](const BatchView& records, std::span<const float> priorities) {
    replay.add(records, priorities);
    return Outcome::ok;
  });
  RawClient client(server.address().port);
  const Welcome welcome = client.connect(hello_of(layout(), 1));
  CHECK(welcome.last == 0);
  CHECK(welcome.run == server.run());
  CHECK(welcome.window == 64);
  CHECK(welcome.heartbeat_ms == 5000);
  CHECK(welcome.max_frame_bytes == 64 << 20);
  insert(client, 1, 5, 3);
  CHECK(acknowledged(client) == 1);
  CHECK(replay.size() == 3);
  const auto statistics = server.statistics();
  CHECK(statistics.items == 3);
  CHECK(statistics.frames == 3);
  CHECK(statistics.admitted == 1);
}

TEST_CASE("a batch that comes again is acknowledged, counted, and not applied") {
  RecordingSink sink;
  Server server(quiet(), layout(), sink.callable());
  RawClient client(server.address().port);
  client.connect(hello_of(layout(), 1));
  insert(client, 1, 0, 2);
  CHECK(acknowledged(client) == 1);
  insert(client, 1, 0, 2);
  CHECK(acknowledged(client) == 1);
  insert(client, 2, 2, 2);
  CHECK(acknowledged(client) == 2);
  CHECK(server.statistics().duplicates == 1);
  RawClient again(server.address().port);  // the reply was lost, as this client believes
  CHECK(again.connect(hello_of(layout(), 1, 2)).last == 2);
  insert(again, 2, 2, 2);
  CHECK(acknowledged(again) == 2);
  CHECK(server.statistics().duplicates == 2);
  CHECK(sink.fault(0, 4) == "");
}

TEST_CASE("acknowledgements are cumulative") {
  RecordingSink sink;
  sink.answer(Outcome::timeout);
  Server server(quiet(), layout(), sink.callable());
  RawClient client(server.address().port);
  client.connect(hello_of(layout(), 1));
  for (std::uint32_t i = 0; i < 50; ++i) insert(client, i + 1, i);
  CHECK(eventually([&] { return server.statistics().waits == 1; }));
  sink.answer(Outcome::ok);
  std::size_t messages = 0;
  for (std::uint64_t last = 0; last < 50; ++messages) last = acknowledged(client);
  CHECK(messages < 50);
  CHECK(sink.fault(0, 50) == "");
}

TEST_CASE("while a client's batch waits the server says by name that the client is there") {
  RecordingSink sink;
  sink.answer(Outcome::timeout);
  std::mutex mutex;
  std::vector<std::string> names;
  net::Services services{.insert = sink.callable()};
  services.held = [&](const std::string& name) {
    const std::lock_guard lock(mutex);
    names.push_back(name);
  };
  Server server(quiet(), layout(), std::move(services));
  RawClient client(server.address().port);
  client.connect(hello_of(layout(), 1));
  insert(client, 1, 0);
  CHECK(eventually([&] {
    const std::lock_guard lock(mutex);
    return !names.empty() && names.front() == "raw";
  }));
  sink.answer(Outcome::ok);
  CHECK(acknowledged(client) == 1);
}

TEST_CASE("of two clients with one identity the newer is admitted and the older told why") {
  RecordingSink sink;
  Server server(quiet(), layout(), sink.callable());
  RawClient older(server.address().port);
  older.connect(hello_of(layout(), 1));
  insert(older, 1, 0);
  CHECK(acknowledged(older) == 1);
  RawClient newer(server.address().port);
  CHECK(newer.connect(hello_of(layout(), 1)).last == 1);
  const auto refusal = older.expect<Refusal>();
  CHECK(refusal.code == RefusalCode::displaced);
  CHECK_FALSE(refusal.again);
  CHECK(refusal.sentence == "another connection with the same client id came");
  insert(older, 2, 1);  // too late
  CHECK(older.is_closed());
  insert(newer, 2, 1);
  CHECK(acknowledged(newer) == 2);
  CHECK(sink.fault(0, 2) == "");
  CHECK(server.sessions().size() == 1);
}

TEST_CASE("a batch that waits for room in a connection that was displaced is not applied twice") {
  RecordingSink sink;
  sink.answer(Outcome::timeout);
  Server server(quiet(), layout(), sink.callable());
  RawClient older(server.address().port);
  older.connect(hello_of(layout(), 1));
  insert(older, 1, 0);
  CHECK(eventually([&] { return server.statistics().waits == 1; }));
  RawClient newer(server.address().port);
  CHECK(newer.connect(hello_of(layout(), 1)).last == 0);
  sink.answer(Outcome::ok);
  insert(newer, 1, 0);
  CHECK(acknowledged(newer) == 1);
  CHECK(older.expect<Refusal>().code == RefusalCode::displaced);
  CHECK(older.is_closed());
  CHECK(sink.fault(0, 1) == "");
}

TEST_CASE("sessions are given and taken over, a bounded number of them, the longest away going first") {
  RecordingSink sink;
  ServerOptions options = quiet();
  options.max_connections = 2;
  options.max_sessions = 3;
  std::vector<Session> sessions;
  {
    Server server(options, layout(), sink.callable());
    for (std::uint8_t id = 1; id <= 4; ++id) {
      RawClient client(server.address().port);
      client.connect(hello_of(layout(), id, id));
      client.socket().close();
      CHECK(eventually([&] { return server.statistics().connections == 0; }));
    }
    RawClient connected(server.address().port);
    connected.connect(hello_of(layout(), 2, 20));
    sessions = server.sessions();
    REQUIRE(sessions.size() == 3);
    CHECK(sessions[0].client[0] == std::byte{3});
    CHECK(sessions[1].client[0] == std::byte{4});
    CHECK(sessions[2].client[0] == std::byte{2});  // is connected
    CHECK(sessions[0].last == 2);
    CHECK(sessions[2].last == 19);
    CHECK(server.hold([](const auto& held) { return held; }) == sessions);
    CHECK(server.statistics().lost == 18);
  }
  Server server(options, layout(), sink.callable(), sessions);
  CHECK(server.sessions() == sessions);
  RawClient client(server.address().port);
  CHECK(client.connect(hello_of(layout(), 4, 1)).last == 3);
  CHECK(from_bytes<Session>(to_bytes(sessions[0])) == sessions[0]);
  sessions.push_back(sessions[0]);
  CHECK(error_of([&] { Server(options, layout(), sink.callable(), std::span(sessions).last(2)); }) ==
        "no error");
  CHECK(error_of([&] {
          sessions = {sessions[0], sessions[0]};
          Server(options, layout(), sink.callable(), sessions);
        }) == "sessions: 2 is not allowed; expected each client once");
}

TEST_CASE("while sessions are held nothing is applied, and connections stay alive") {
  RecordingSink sink;
  ServerOptions options = quiet();
  options.heartbeat = 10ms;
  Server server(options, layout(), sink.callable());
  GoodClient good(server);
  CHECK(good.works());
  server.hold([&](const std::vector<Session>& sessions) {
    CHECK(sessions.at(0).last == 1);
    insert(good.raw, 2, 1);
    const std::uint64_t sent = server.statistics().bytes_sent;
    CHECK(eventually([&] { return server.statistics().bytes_sent > sent + 64; }));  // heartbeats
    CHECK(sink.count() == 1);
  });
  CHECK(acknowledged(good.raw) == 2);
}

TEST_CASE(
    "what is no message, or none for now, is refused, counted and logged, and others are not disturbed") {
  RecordingSink sink;
  Lines lines;
  ServerOptions options = quiet();
  options.log = lines.callable();
  options.max_frame_bytes = 1 << 20;
  Server server(options, layout(), sink.callable());
  GoodClient good(server);
  RawClient bad(server.address().port);
  std::string sentence;
  RefusalCode code = RefusalCode::malformed;
  const auto head = [&](MessageType type, std::uint32_t length, std::uint8_t version = kProtocolVersion) {
    FrameHeadBytes bytes = make_frame_head(type, {});
    bytes[3] = std::byte{version};
    std::memcpy(bytes.data() + 8, &length, 4);
    bad.send(bytes);
  };
  SUBCASE("garbage") {
    bad.send(std::as_bytes(std::span("GET / HTTP/1.1\r\nHost: head\r\n\r\n")));
    sentence = "not a frame of this protocol";
  }
  SUBCASE("another version") {
    head(MessageType::hello, 0, 2);
    code = RefusalCode::version;
    sentence = "protocol version 2, this server speaks version 1";
  }
  SUBCASE("a large hello") {
    head(MessageType::hello, 65537);
    sentence = "a frame of 65537 bytes, more than allowed";
  }
  SUBCASE("a large batch of a stranger") {
    head(MessageType::insert, 1 << 20);
    sentence = "a frame of 1048576 bytes, more than allowed";
  }
  SUBCASE("a large batch") {
    bad.connect(hello_of(layout(), 1));
    head(MessageType::insert, (1 << 20) + 1);
    sentence = "a frame of 1048577 bytes, more than allowed";
  }
  SUBCASE("a batch before the proof") {
    bad.hello(hello_of(layout(), 1));
    insert(bad, 1, 0);
    sentence = "a message of type 6 where none is expected";
  }
  SUBCASE("what only servers say") {
    bad.connect(hello_of(layout(), 1));
    bad.send(MessageType::parameters);
    sentence = "a message of type 9 where none is expected";
  }
  SUBCASE("a fetch where there are no parameters") {
    bad.connect(hello_of(layout(), 1));
    bad.send(MessageType::fetch, to_bytes(Fetch{}));
    code = RefusalCode::role;
    sentence = "this server has no parameters";
  }
  SUBCASE("a lease where there are none") {
    bad.connect(hello_of(layout(), 1));
    bad.send(MessageType::lease, to_bytes(Lease{}));
    code = RefusalCode::role;
    sentence = "this server leases no places on the ladder";
  }
  SUBCASE("a call where none is answered") {
    bad.connect(hello_of(layout(), 1));
    bad.send(MessageType::call, std::vector<std::byte>(8));
    code = RefusalCode::role;
    sentence = "this server answers no calls";
  }
  SUBCASE("a large call of a stranger") {
    head(MessageType::call, 1 << 20);
    sentence = "a frame of 1048576 bytes, more than allowed";
  }
  SUBCASE("items of who told no layout") {
    Hello hello = hello_of(layout(), 1);
    hello.layout.clear();
    bad.connect(hello);
    insert(bad, 1, 0);
    code = RefusalCode::role;
    sentence = "items from a client that has told no record layout";
  }
  SUBCASE("a heartbeat with something in it") {
    bad.connect(hello_of(layout(), 1));
    bad.send(MessageType::heartbeat, std::vector<std::byte>(1));
    sentence = "a message of type 12 where none is expected";
  }
  SUBCASE("a hello that ends too early") {
    bad.send(MessageType::hello, std::vector<std::byte>(30));
    sentence = "ends ";
  }
  SUBCASE("a hello whose layout claims more fields than there are bytes") {
    Hello hello = hello_of(layout(), 1);
    hello.layout.resize(20, std::byte{0xff});
    std::memset(hello.layout.data() + 16, 0xff, 4);
    bad.hello(hello);
    bad.prove({});
    code = RefusalCode::layout;
    sentence = "a record layout that cannot be: 4294967295 elements in ";
  }
  SUBCASE("another layout") {
    bad.hello(hello_of(RecordLayout({{"client", DType::f64, {2}}}), 1));
    bad.prove({});
    code = RefusalCode::layout;
    sentence = "field 0: client f64[2], expected client u32";
  }
  SUBCASE("an unknown role") {
    Hello hello = hello_of(layout(), 1);
    hello.role = static_cast<Role>(5);
    bad.send(MessageType::hello, to_bytes(hello));
    sentence = "role 5, which is none";
  }
  SUBCASE("a long name") {
    Hello hello = hello_of(layout(), 1);
    hello.name.assign(129, 'x');
    bad.send(MessageType::hello, to_bytes(hello));
    sentence = "a name of more than 128 bytes";
  }
  SUBCASE("a gap") {
    bad.connect(hello_of(layout(), 1));
    insert(bad, 1, 0);
    insert(bad, 3, 1);
    CHECK(acknowledged(bad) == 1);
    sentence = "batch 3 came after batch 1";
  }
  SUBCASE("a batch of other records") {
    bad.connect(hello_of(layout(), 1));
    bad.send(MessageType::insert, std::vector<std::byte>(40, std::byte{1}));
    sentence = "a batch with reserved bytes in use";
  }
  SUBCASE("damage") {
    bad.connect(hello_of(layout(), 1));
    std::vector<std::byte> frame;
    const auto items = numbered(0, 0, 2);
    append_frame(MessageType::insert, insert_of(1, view(items), priorities_of(items)), frame);
    frame[40] ^= std::byte{4};
    bad.send(frame);
    code = RefusalCode::damaged;
    sentence = "a frame whose checksum does not match";
  }
  const auto refusal = bad.expect<Refusal>();
  CHECK(refusal.code == code);
  CHECK(refusal.again == (code == RefusalCode::damaged));
  CHECK(refusal.sentence.substr(0, sentence.size()) == sentence);
  CHECK(bad.is_closed());
  bad.socket().close();
  CHECK(server.statistics().refused_for(code) == 1);
  CHECK(lines.all().size() == 1);
  CHECK(lines.has("refused 127.0.0.1:"));
  CHECK(lines.has(sentence));
  CHECK(good.works());
  CHECK(good.works());
  CHECK(eventually([&] { return server.statistics().connections == 1; }));
}

TEST_CASE("half a frame and then nothing, and bytes at random, harm nobody") {
  MESSAGE("seed " << seed());
  Random random(seed(), "bytes");
  RecordingSink sink;
  Server server(quiet(), layout(), sink.callable());
  GoodClient good(server);
  std::vector<std::byte> conversation;
  append_message(hello_of(layout(), 1), conversation);
  for (int round = 0; round < 100; ++round) {
    RawClient bad(server.address().port);
    std::vector<std::byte> bytes(
        conversation.begin(),
        conversation.begin() + static_cast<std::ptrdiff_t>(random.below(conversation.size())));
    if (random.below(2) == 0) {
      for (int i = 0; i < 200; ++i) bytes.push_back(static_cast<std::byte>(random()));
    }
    bad.send(bytes);
    if (round % 10 == 0) CHECK(good.works());
  }
  CHECK(good.works());
  CHECK(eventually([&] { return server.statistics().connections == 1; }));
  CHECK(server.statistics().sessions == 1);
}

TEST_CASE("whoever is slow or silent is closed by the deadlines") {
  RecordingSink sink;
  ServerOptions options = quiet();
  options.handshake_deadline = 300ms;
  options.heartbeat = 100ms;
  options.idle_deadline = 400ms;
  Server server(options, layout(), sink.callable());
  RawClient silent(server.address().port);
  CHECK(silent.expect<Refusal>().sentence == "no proof came within 0.3 s");
  CHECK(silent.is_closed());

  RawClient dribbling(server.address().port);  // a byte now and then is no sign of life
  std::vector<std::byte> hello;
  append_message(hello_of(layout(), 1), hello);
  std::size_t sent = 0;
  while (server.statistics().refused_for(RefusalCode::slow) < 2 && sent < hello.size()) {
    dribbling.send(std::span(hello).subspan(sent++, 1));
    std::this_thread::sleep_for(20ms);
  }
  CHECK(sent < hello.size());
  CHECK(dribbling.expect<Refusal>().code == RefusalCode::slow);

  RawClient idle(server.address().port);
  idle.connect(hello_of(layout(), 2));
  const auto refusal = idle.expect<Refusal>();
  CHECK(refusal.sentence == "nothing was heard for 0.4 s");
  CHECK(refusal.again);
  CHECK(idle.is_closed());
}

TEST_CASE("with too many connections the oldest stranger goes, and the newest where all are known") {
  RecordingSink sink;
  ServerOptions options = quiet();
  options.max_connections = 3;
  Server server(options, layout(), sink.callable());
  GoodClient good(server);
  RawClient stranger(server.address().port), other(server.address().port);
  CHECK(eventually([&] { return server.statistics().connections == 3; }));
  RawClient third(server.address().port);
  const auto refusal = stranger.expect<Refusal>();
  CHECK(refusal.code == RefusalCode::crowded);
  CHECK(refusal.again);
  CHECK(refusal.sentence == "there are 3 connections already");
  other.connect(hello_of(layout(), 1));
  third.connect(hello_of(layout(), 2));
  RawClient fourth(server.address().port);
  CHECK(fourth.expect<Refusal>().code == RefusalCode::crowded);
  CHECK(fourth.is_closed());
  CHECK(good.works());
  CHECK(server.statistics().refused_for(RefusalCode::crowded) == 2);
  for (RawClient* client : {&other, &stranger, &fourth}) client->socket().close();
  CHECK(eventually([&] { return server.statistics().connections == 2; }));
  RawClient fifth(server.address().port);
  fifth.connect(hello_of(layout(), 3));
}

TEST_CASE("receive buffers of large frames are bounded together, shared, and given back") {
  RecordingSink sink;
  ServerOptions options = quiet();
  options.max_frame_bytes = 1 << 20;
  options.max_receive_bytes = 1 << 20;
  options.heartbeat = 10ms;
  options.idle_deadline = 10s;
  Server server(options, layout(), sink.callable());
  constexpr std::size_t kItems = 60'000;  // 720 KB: one frame at a time has room
  std::vector<std::thread> threads;
  Failures failures;
  for (std::uint8_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      RawClient client(server.address().port);
      client.connect(hello_of(layout(), static_cast<std::uint8_t>(id + 1)));
      for (std::uint64_t batch = 0; batch < 5; ++batch) {
        const auto items = numbered(id, static_cast<std::uint32_t>(batch * kItems), kItems);
        client.send(MessageType::insert, insert_of(batch + 1, view(items), priorities_of(items)));
        if (acknowledged(client) != batch + 1) failures.add("acknowledgement");
        if (server.statistics().receive_bytes > options.max_receive_bytes) failures.add("too much memory");
      }
    });
  }
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);
  for (std::uint32_t id = 0; id < 4; ++id) CHECK(sink.fault(id, 5 * kItems) == "");
  CHECK(eventually([&] { return server.statistics().receive_bytes == 0; }));

  RawClient client(server.address().port);  // an idle connection gives its large buffer back
  client.connect(hello_of(layout(), 9));
  const auto items = numbered(9, 0, kItems);
  client.send(MessageType::insert, insert_of(1, view(items), priorities_of(items)));
  CHECK(acknowledged(client) == 1);
  CHECK(eventually([&] { return server.statistics().receive_bytes == 0; }));
  CHECK(server.statistics().connections == 1);
}

TEST_CASE(
    "stop says goodbye after what was applied is acknowledged, and does not wait for those who do not "
    "listen") {
  RecordingSink sink;
  Server server(quiet(), layout(), sink.callable());
  GoodClient good(server);
  RawClient deaf(server.address().port), stranger(server.address().port);
  deaf.connect(hello_of(layout(), 1));
  CHECK(good.works());
  server.stop(Deadline::after(20ms));
  const auto goodbye = good.raw.receive();
  REQUIRE(goodbye.has_value());
  CHECK(goodbye->type == MessageType::goodbye);
  CHECK(good.raw.is_closed());
  CHECK(server.statistics().connections == 0);
  CHECK(server.sessions().size() == 2);
  server.stop();
  CHECK_THROWS(RawClient(server.address().port));
}

TEST_CASE("a server says why it cannot listen") {
  RecordingSink sink;
  const auto error = [&](const std::string& listen, bool insecure = false) {
    ServerOptions options = quiet();
    options.listen = listen;
    options.insecure = insecure;
    return error_of([&] { Server(options, layout(), sink.callable()); });
  };
  const Server server(quiet(), layout(), sink.callable());
  const std::string taken = to_string(server.address());
  CHECK(error(taken) == "cannot listen on " + taken + ": Address already in use");
  CHECK(error("192.0.2.1:0", true) == "cannot listen on 192.0.2.1:0: Cannot assign requested address");
  CHECK(error("0.0.0.0:0") ==
        "listen: 0.0.0.0:0 is not allowed; expected a loopback address such as 127.0.0.1, or a token, or "
        "TLS, or insecure to let everybody in");
  CHECK(error("0.0.0.0:0", true) == "no error");
  CHECK(error("localhost:0") == "no error");
}

TEST_CASE("options of a server that make no sense are refused") {
  const auto error = [](auto change) {
    ServerOptions options = quiet();
    change(options);
    return error_of([&] { options.validate(); });
  };
  CHECK(error([](auto&) {}) == "no error");
  CHECK(error([](auto& o) { o.listen = "head"; }) ==
        "listen: \"head\" is not allowed; expected HOST:PORT or [IPV6]:PORT");
  CHECK(error([](auto& o) { o.max_connections = 0; }) ==
        "max_connections: 0 is not allowed; expected an integer from 1 to 1000000");
  CHECK(error([](auto& o) { o.max_sessions = 5; }) ==
        "max_sessions: 5 is not allowed; expected at least max_connections");
  CHECK(error([](auto& o) { o.max_frame_bytes = 1023; }) ==
        "max_frame_bytes: 1023 is not allowed; expected an integer from 1024 to 2^30");
  CHECK(error([](auto& o) { o.max_receive_bytes = 5; }) ==
        "max_receive_bytes: 5 is not allowed; expected at least max_frame_bytes");
  CHECK(error([](auto& o) { o.window = 0; }) ==
        "window: 0 is not allowed; expected an integer from 1 to 65536");
  CHECK(error([](auto& o) { o.heartbeat = 0s; }) ==
        "heartbeat: 0 is not allowed; expected from 0.001 to 3600 seconds");
  CHECK(error([](auto& o) { o.idle_deadline = 9s; }) ==
        "idle_deadline: 9 is not allowed; expected at least two heartbeats");
}

TEST_CASE("the log of refusals cannot be flooded") {
  Lines lines;
  troop::net::detail::LimitedLog log(lines.callable());
  const auto start = Clock::now();
  for (int i = 0; i < 100; ++i) log.say("line " + std::to_string(i), start);
  CHECK(lines.all().size() == 10);
  log.catch_up(start + 9s);
  CHECK(lines.all().size() == 10);
  log.catch_up(start + 11s);
  CHECK(lines.all().back() == "90 more such lines were left out");
  log.say("again", start + 11s);
  CHECK(lines.all().back() == "again");
  CHECK(lines.all().size() == 12);
}
