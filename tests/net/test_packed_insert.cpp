#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/client.hpp>
#include <troop/net/detail/frame_buffer.hpp>
#include <troop/net/detail/packed_insert.hpp>
#include <troop/net/server.hpp>

#include "net_clients.hpp"
#include "net_records.hpp"
#include "proxy.hpp"
#include "raw_client.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::testing;
using namespace std::chrono_literals;
using net::PayloadCodec;
using net::detail::PackedInsert;
using troop::testing::error_of;

namespace {

constexpr PayloadCodec kCodecs[] = {PayloadCodec::lz4, PayloadCodec::zstd};
constexpr std::size_t kHead = net::InsertPayload::kHeadBytes;

net::ServerOptions quick_server() {
  return {.handshake_deadline = 5s, .heartbeat = 50ms, .idle_deadline = 2s, .log = nullptr};
}

net::ClientOptions quick_client(std::uint16_t port, PayloadCodec codec) {
  auto options = client_to(port);
  options.compression = codec;
  options.connect_deadline = 2s;
  return options;
}

std::vector<std::byte> batch(std::uint64_t sequence, std::uint32_t first, std::size_t count) {
  const auto items = numbered(0, first, count);
  return insert_of(sequence, view(items), priorities_of(items));
}

std::vector<std::byte> packed(PayloadCodec codec, std::span<const std::byte> payload) {
  std::vector<std::byte> out;
  PackedInsert::pack(codec, payload, out);
  return out;
}

void set_size(std::vector<std::byte>& payload, std::uint32_t size) {
  std::memcpy(payload.data() + kHead, &size, sizeof size);
}

/// A frame with that codec, whatever it holds.
std::vector<std::byte> frame_of(PayloadCodec codec, std::span<const std::byte> payload) {
  std::vector<std::byte> frame;
  net::append_frame(net::MessageType::insert, payload, frame);
  const auto head = net::make_frame_head(net::MessageType::insert, payload, codec);
  std::memcpy(frame.data(), head.data(), head.size());
  return frame;
}

/// A client that has agreed on a codec.
struct PackingClient : RawClient {
  PackingClient(const net::Server& server, std::uint32_t features, std::uint8_t id = 1)
      : RawClient(server.address().port) {
    net::Hello hello = hello_of(layout(), id);
    hello.features = features;
    agreed = connect(hello).features;
  }
  std::uint32_t agreed;
};

}  // namespace

TEST_CASE("a packed batch is the batch's head, the rest's size, zeros and the rest compressed") {
  for (const PayloadCodec codec : kCodecs) {
    const auto payload = batch(5, 0, 1000);
    auto small = packed(codec, payload);
    REQUIRE(small.size() < payload.size());
    CHECK(std::memcmp(small.data(), payload.data(), kHead) == 0);
    std::uint32_t numbers[2];
    std::memcpy(numbers, small.data() + kHead, 8);
    CHECK(numbers[0] == payload.size() - kHead);
    CHECK(numbers[1] == 0);
    net::InsertPayload::set_sequence(77, small);  // numbers are put in later
    CHECK(PackedInsert::unpacked_bytes(small, payload.size()) == payload.size());
    std::vector<std::byte> back(payload.size());
    CHECK(PackedInsert::unpack(codec, small, back));
    CHECK(back == batch(77, 0, 1000));
  }
}

TEST_CASE("what does not become smaller is not packed") {
  MESSAGE("seed " << seed());
  Random random(seed(), "noise");
  std::vector<std::byte> noise(kHead + 5000), out;
  for (auto& byte : noise) byte = static_cast<std::byte>(random());
  for (const PayloadCodec codec : kCodecs) {
    CHECK(!PackedInsert::pack(codec, noise, out));
    CHECK(!PackedInsert::pack(codec, batch(1, 0, 1), out));
    CHECK(PackedInsert::pack(codec, std::vector<std::byte>(kHead + 5000), out));
  }
}

TEST_CASE("sizes are checked before memory is taken, and garbage is never more than that") {
  MESSAGE("seed " << seed());
  Random random(seed(), "garbage");
  for (const PayloadCodec codec : kCodecs) {
    const auto payload = batch(1, 0, 1000);
    const auto good = packed(codec, payload);
    const auto error = [&](std::vector<std::byte> bad, std::size_t most = 100'000) {
      return error_of([&] { PackedInsert::unpacked_bytes(bad, most); });
    };
    CHECK(error(good) == "no error");
    CHECK(error(good, payload.size()) == "no error");
    CHECK(error(good, payload.size() - 1) ==
          "a batch of " + std::to_string(payload.size()) + " bytes when unpacked, more than allowed");
    auto bad = good;
    set_size(bad, UINT32_MAX);
    CHECK(error(bad) == "a batch of " + std::to_string(std::uint64_t{UINT32_MAX} + kHead) +
                            " bytes when unpacked, more than allowed");
    bad = good;
    bad[kHead + 5] = std::byte{1};
    CHECK(error(bad) == "a batch with reserved bytes in use");
    for (std::size_t size = 0; size < kHead + 8; ++size)
      CHECK(
          error({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}).find(" bytes too early") !=
          std::string::npos);

    std::vector<std::byte> out(payload.size());
    bad = good;
    set_size(bad, static_cast<std::uint32_t>(payload.size() - kHead - 4));
    CHECK(!PackedInsert::unpack(codec, bad, std::span(out).first(out.size() - 4)));
    out.resize(payload.size() + 4);
    CHECK(!PackedInsert::unpack(codec, good, out));
    out.resize(payload.size());
    for (int round = 0; round < 2000; ++round) {
      bad = good;
      for (std::uint64_t changes = 1 + random.below(8); changes > 0; --changes)
        bad[kHead + 8 + random.below(bad.size() - kHead - 8)] = static_cast<std::byte>(random());
      if (round % 2 == 0) bad.resize(kHead + 8 + random.below(bad.size() - kHead - 8));
      PackedInsert::unpack(codec, bad, out);  // whatever it says: nothing beyond `out` is touched
    }
  }
}

TEST_CASE("a server agrees on the codecs that it knows, and takes packed batches only from who has agreed") {
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  std::string sentence;
  PayloadCodec codec = PayloadCodec::zstd;
  std::uint32_t features = 0, agreed = 0;
  SUBCASE("who has not") {
    sentence = "a frame with a compression that was not agreed";
  }
  SUBCASE("who has agreed on another") {
    features = agreed = net::feature_of(PayloadCodec::lz4);
    sentence = "a frame with a compression that was not agreed";
  }
  SUBCASE("who has") {
    features = 0xffffffff;
    agreed = net::kFeatures & ~net::kReports;  // this one takes none
  }
  PackingClient client(server, features);
  CHECK(client.agreed == agreed);
  client.send(frame_of(codec, packed(codec, batch(1, 0, 100))));
  if (sentence.empty()) {
    CHECK(client.expect<net::Acknowledge>().last == 1);
    client.send(frame_of(PayloadCodec::lz4, packed(PayloadCodec::lz4, batch(2, 100, 100))));
    CHECK(client.expect<net::Acknowledge>().last == 2);
    client.send(frame_of(PayloadCodec::none, batch(3, 200, 100)));
    CHECK(client.expect<net::Acknowledge>().last == 3);
    client.send(frame_of(codec, packed(codec, batch(3, 200, 100))));  // again
    CHECK(client.expect<net::Acknowledge>().last == 3);
    CHECK(sink.fault(0, 300) == "");
    CHECK(server.statistics().packed == 3);
    CHECK(server.statistics().duplicates == 1);
  } else {
    const auto refusal = client.expect<net::Refusal>();
    CHECK(refusal.code == net::RefusalCode::malformed);
    CHECK(refusal.sentence == sentence);
  }
}

TEST_CASE("packed batches that are none are refused as malformed, and others are not disturbed") {
  RecordingSink sink;
  auto options = quick_server();
  options.max_frame_bytes = 20'000;
  net::Server server(options, layout(), sink.callable());
  PackingClient good(server, net::kFeatures, 2);
  for (const PayloadCodec codec : kCodecs) {
    const auto refusal_of = [&](const std::vector<std::byte>& payload) {
      PackingClient client(server, net::kFeatures);
      client.send(frame_of(codec, payload));
      const auto refusal = client.expect<net::Refusal>();
      CHECK(refusal.code == net::RefusalCode::malformed);
      CHECK(!refusal.again);
      CHECK(client.is_closed());
      return refusal.sentence;
    };
    auto bad = packed(codec, batch(1, 0, 1000));
    bad.resize(bad.size() - 10);
    CHECK(refusal_of(bad) == "a batch that cannot be unpacked");
    bad.resize(kHead + 8);
    CHECK(refusal_of(bad) == "a batch that cannot be unpacked");
    bad.resize(kHead + 3);
    CHECK(refusal_of(bad) == "ends 1 bytes too early");
    bad = packed(codec, batch(1, 0, 1000));
    set_size(bad, 4'000'000'000u);
    CHECK(refusal_of(bad) ==
          "a batch of " + std::to_string(4'000'000'000u + kHead) + " bytes when unpacked, more than allowed");
    const auto large = batch(1, 0, 2000);
    CHECK(refusal_of(packed(codec, large)) ==
          "a batch of " + std::to_string(large.size()) + " bytes when unpacked, more than allowed");
    bad = packed(codec, batch(1, 0, 1000));
    const std::uint32_t count = 999;
    std::memcpy(bad.data() + 8, &count, sizeof count);
    CHECK(refusal_of(bad) ==
          "a batch of 999 items of 8 bytes in " + std::to_string(kHead + 12'000) + " bytes");
    CHECK(refusal_of(packed(codec, batch(2, 0, 1000))) == "batch 2 came after batch 0");
  }
  std::vector<std::byte> frame;
  net::append_frame(net::MessageType::heartbeat, {}, frame);
  const auto head = net::make_frame_head(net::MessageType::heartbeat, {}, PayloadCodec::lz4);
  std::memcpy(frame.data(), head.data(), head.size());
  PackingClient client(server, net::kFeatures);
  client.send(frame);
  CHECK(client.expect<net::Refusal>().sentence == "a frame with a compression that was not agreed");
  good.send(frame_of(PayloadCodec::lz4, packed(PayloadCodec::lz4, batch(1, 0, 100))));
  CHECK(good.expect<net::Acknowledge>().last == 1);
  CHECK(sink.fault(0, 100) == "");
  CHECK(eventually([&] { return server.statistics().receive_bytes == 0; }));
}

TEST_CASE("batches that wait are unpacked once, count as memory, and give it back") {
  RecordingSink sink;
  sink.answer(Outcome::timeout);
  auto options = quick_server();
  options.max_frame_bytes = 1 << 20;
  options.max_receive_bytes = 2'500'000;
  options.idle_deadline = 60s;
  net::Server server(options, layout(), sink.callable());
  const auto waits = [&] { return server.statistics().waits + server.statistics().memory_waits; };
  constexpr std::size_t kItems = 80'000;  // 960 KB
  std::vector<std::unique_ptr<PackingClient>> clients;
  for (std::uint8_t id = 0; id < 4; ++id) {
    clients.push_back(
        std::make_unique<PackingClient>(server, net::kFeatures, static_cast<std::uint8_t>(id + 1)));
    const auto items = numbered(id, 0, kItems);
    const auto codec = kCodecs[id % 2];
    clients.back()->send(frame_of(codec, packed(codec, insert_of(1, view(items), priorities_of(items)))));
  }
  CHECK(eventually([&] { return waits() == 4; }));  // two have no room to be kept unpacked
  CHECK(server.statistics().receive_bytes >= 12 * kItems);
  CHECK(server.statistics().receive_bytes <= options.max_receive_bytes + options.max_frame_bytes);
  sink.answer(Outcome::ok);
  for (const auto& client : clients) CHECK(client->expect<net::Acknowledge>().last == 1);
  for (std::uint32_t id = 0; id < 4; ++id) CHECK(sink.fault(id, kItems) == "");
  CHECK(server.statistics().packed == 4);
  CHECK(eventually([&] { return server.statistics().receive_bytes == 0; }));
  CHECK(server.statistics().connections == 4);

  sink.answer(Outcome::timeout);  // who leaves while it waits
  {
    PackingClient leaving(server, net::kFeatures, 9);
    leaving.send(frame_of(PayloadCodec::lz4, packed(PayloadCodec::lz4, batch(1, 0, kItems))));
    CHECK(eventually([&] { return waits() == 5; }));
  }
  sink.answer(Outcome::ok);
  CHECK(eventually([&] { return server.statistics().connections == 4; }));
  CHECK(eventually([&] { return server.statistics().receive_bytes == 0; }));
}

TEST_CASE("a client packs what gets smaller, and each item arrives once whatever is cut") {
  MESSAGE("seed " << seed());
  for (const PayloadCodec codec : kCodecs) {
    RecordingSink sink;
    net::Server server(quick_server(), layout(), sink.callable());
    Random random(seed(), "proxy", static_cast<std::uint64_t>(codec));
    Proxy proxy(server.address().port, [&](std::size_t) {
      Proxy::Plan plan;
      plan.cut_to_server = 1 + random.below(15'000);
      if (random.below(3) == 0) plan.cut_to_client = 1 + random.below(500);
      plan.reset = random.below(2) == 0;
      return plan;
    });
    auto options = quick_client(proxy.port(), codec);
    options.connect_deadline = 200ms;
    net::Client client(options, layout());
    Random sizes(seed(), "sizes");
    std::size_t sent = 0;
    for (int i = 0; i < 300; ++i) {
      const std::size_t size = 1 + sizes.below(300);
      CHECK(send(client, 0, sent, size) == Outcome::ok);
      sent += size;
    }
    CHECK(client.flush(Deadline::after(100s)) == Outcome::ok);
    CHECK(sink.fault(0, sent) == "");
    CHECK(client.statistics().connections > 5);
    CHECK(client.statistics().bytes_saved > 12 * sent / 10);
    CHECK(client.statistics().outbox_bytes == 0);
    CHECK(server.statistics().packed > 100);
  }
}

TEST_CASE("batches are counted in the outbox as they were packed") {
  net::Client client(quick_client(1, PayloadCodec::lz4), layout());
  const std::vector<NumberedItem> same(1000);
  CHECK(client.insert(view(same), std::vector<float>(1000)) == Outcome::ok);
  CHECK(client.statistics().outbox_bytes < 200);
  const std::uint64_t saved = client.statistics().bytes_saved;
  CHECK(saved > 11'000);
  Random random(1, "noise");
  std::vector<NumberedItem> noise(1000);
  std::vector<float> priorities(1000);
  for (auto& item : noise) {
    item = {static_cast<std::uint32_t>(random()), static_cast<std::uint32_t>(random())};
  }
  for (auto& priority : priorities) priority = static_cast<float>(random.uniform());
  const std::uint64_t before = client.statistics().outbox_bytes;
  CHECK(client.insert(view(noise), priorities) == Outcome::ok);
  CHECK(client.statistics().outbox_bytes - before >= 12'000);
  CHECK(client.statistics().bytes_saved == saved);
}

namespace {

/// A server of one connection that knows no features, and writes down the batches that it acknowledges.
struct OldServer {
  explicit OldServer(net::detail::tcp::acceptor& acceptor) : socket(acceptor.accept()) {
    buffer.reserve(net::detail::FrameBuffer::kBase);
    const auto hello = net::read_message<net::Hello>(next().payload);
    features = hello.features;
    say(net::Challenge{});
    next();
    say(net::Welcome{.last = hello.first - 1, .window = 64, .max_frame_bytes = 64 << 20});
  }

  net::detail::Frame next() {
    for (;;) {
      net::detail::Frame frame;
      const auto state = buffer.next({.insert = 1 << 20}, frame);
      if (state == net::detail::FrameBuffer::State::fault)
        throw Error(std::string(to_string(buffer.fault())));
      if (state == net::detail::FrameBuffer::State::frame) {
        if (frame.head.type != net::MessageType::heartbeat) return frame;
        continue;
      }
      if (buffer.needed() > buffer.capacity()) buffer.reserve(buffer.needed());
      const auto space = buffer.space();
      buffer.received(socket.read_some(net::detail::asio::buffer(space.data(), space.size())));
    }
  }

  template <class Message>
  void say(const Message& message) {
    std::vector<std::byte> bytes;
    net::append_message(message, bytes);
    net::detail::asio::write(socket, net::detail::asio::buffer(bytes));
  }

  /// Takes the next batch.
  void take(RecordingSink& sink) {
    const auto frame = next();
    CHECK(frame.head.codec == PayloadCodec::none);
    const auto view = net::read_insert(frame.payload, layout());
    sink.insert(view.records, view.priorities);
    say(net::Acknowledge{view.sequence});
  }

  net::detail::tcp::socket socket;
  net::detail::FrameBuffer buffer;
  std::uint32_t features = 0;
};

}  // namespace

TEST_CASE("to a server that does not know the codec batches go as they are, also those that lie packed") {
  for (const PayloadCodec codec : kCodecs) {
    net::detail::asio::io_context io;
    net::detail::tcp::acceptor acceptor(io, {net::detail::asio::ip::address_v4::loopback(), 0});
    const std::uint16_t port = acceptor.local_endpoint().port();
    RecordingSink sink;
    net::Client client(quick_client(port, codec), layout());
    for (std::size_t i = 0; i < 20; ++i) CHECK(send(client, 0, 5000 * i, 5000) == Outcome::ok);
    const std::uint64_t saved = client.statistics().bytes_saved;
    CHECK(saved > 0);
    {
      OldServer old(acceptor);
      CHECK(old.features == (net::feature_of(codec) | net::kReports));
      for (int i = 0; i < 10; ++i) old.take(sink);
      CHECK(eventually([&] { return client.statistics().acknowledged == 10; }));
      CHECK(send(client, 0, 100'000, 5000) == Outcome::ok);  // known to be no use: not packed
      CHECK(client.statistics().bytes_saved == saved);
    }
    {
      OldServer again(acceptor);
      for (int i = 0; i < 5; ++i) again.take(sink);
      CHECK(eventually([&] { return client.statistics().acknowledged == 15; }));
    }
    acceptor.close();
    auto options = quick_server();
    options.listen = "127.0.0.1:" + std::to_string(port);
    net::Server server(options, layout(), sink.callable());  // a newer one takes its place
    CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
    CHECK(sink.fault(0, 105'000) == "");
    CHECK(server.statistics().packed == 5);
    CHECK(server.statistics().batches == 6);
    CHECK(send(client, 0, 105'000, 5000) == Outcome::ok);
    CHECK(client.statistics().bytes_saved > saved);
    CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
    CHECK(server.statistics().packed == 6);
  }
}
