// A server that several connections say anything to: it answers, closes, and is then as it was before; what
// it applies is what was sent, once and in order.
//
// Script: whether clients need a token (a byte, odd), then again and again what a connection does: which one
// (a byte), what (a byte), and what belongs to that. Frames are well-formed unless they shall not be.
#include <troop/net/server.hpp>

#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include <troop/net/detail/asio.hpp>
#include <troop/net/detail/packed_insert.hpp>

#include "fuzz.hpp"

namespace troop::fuzz {
namespace {

namespace asio = net::detail::asio;
using net::MessageType;
using net::detail::tcp;

struct Item {
  std::uint64_t client;
  std::uint32_t batch, place;
};

constexpr std::size_t kConnections = 3, kMaxFrame = 1024, kMaxSteps = 64, kMaxBatch = 64 << 10;

/// Applies batches, and looks at whether they come in order.
class Sink {
 public:
  /// Nobody is connected: other clients come.
  void begin() {
    const std::lock_guard lock(mutex_);
    last_.clear();
    is_strict_ = true;
  }
  /// Clients say what may be anything from now on, or say goodbye and begin anew.
  void expect_anything() {
    const std::lock_guard lock(mutex_);
    is_strict_ = false;
  }

  Outcome insert(const BatchView& records, std::span<const float> priorities) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (!(priorities[i] >= 0.0f)) throw InvalidArgument("priority", "this", "something else");
      if (priorities[i] == 7.0f) return Outcome::closed;
      if (priorities[i] == 8.0f) throw std::runtime_error("no");
    }
    if (priorities[0] == 9.0f && std::exchange(has_room_, !has_room_)) return Outcome::timeout;
    Item first;
    std::memcpy(&first, records.record(0), sizeof first);
    if (is_strict_) check(first.batch > last_[first.client], "batches are applied once and in order");
    if (is_strict_) last_[first.client] = first.batch;
    Item last;
    std::memcpy(&last, records.record(records.size() - 1), sizeof last);
    const bool is_packed = last.place == 0;  // those are all alike
    for (std::size_t i = 0; i < records.size(); ++i) {
      Item item;
      std::memcpy(&item, records.record(i), sizeof item);
      const bool fits =
          item.client == first.client && item.batch == first.batch && item.place == (is_packed ? 0 : i);
      check(fits || !is_strict_, "items are applied as they were sent");
    }
    return Outcome::ok;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint32_t> last_;  // batch of each client
  bool is_strict_ = true, has_room_ = true;
};

struct Subject {
  explicit Subject(const net::Token& key)
      : token(key),
        server({.token = key,
                .max_connections = 2,  // one less than come, so that some are turned away
                .max_sessions = 8,
                .max_frame_bytes = kMaxBatch,
                .max_receive_bytes = kMaxBatch,
                .window = 4,
                .handshake_deadline = std::chrono::seconds(60),
                .heartbeat = std::chrono::seconds(60),
                .idle_deadline = std::chrono::seconds(120),
                .log = nullptr},
               RecordLayout::of<Item>(), [this](const BatchView& records, std::span<const float> priorities) {
                 return sink.insert(records, priorities);
               }) {}

  const net::Token token;
  Sink sink;
  net::Server server;
};

Subject& subject(bool needs_token) {
  static Subject open{net::Token{}};
  static Subject closed{net::Token("a token of the fuzzer's own")};
  return needs_token ? closed : open;
}

/// Blocking, with 20 s of patience.
class Connection {
 public:
  Connection(Subject& subject, std::uint64_t client) : subject_(subject), socket_(io_), client_(client) {
    // Ports of one address would run out: they rest for a minute after each connection.
    static std::uint32_t turn = 0;
    const asio::ip::address_v4 from(0x7f000002 + (turn++ >> 8) % 0xffff00);
    const asio::ip::address_v4 to = asio::ip::address_v4::loopback();
    socket_.open(tcp::v4());
    socket_.bind({from, 0});
    socket_.connect({to, subject.server.address().port});
    socket_.set_option(tcp::no_delay(true));
    const timeval patience{20, 0};
    ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  void send(std::span<const std::byte> bytes) {
    // Does not block: what no longer fits is not sent.
    const auto sent =
        ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(bytes.size())) is_answered_ = false;
  }
  template <class Message>
  void send(const Message& message) requires requires {
    Message::kType;
  }
  { send(Message::kType, to_bytes(message)); }
  void send(MessageType type, std::span<const std::byte> payload) {
    Bytes frame;
    net::append_frame(type, payload, frame);
    send(frame);
  }

  /// No more frames of ours begin where the server expects one, so it need not answer.
  void send_raw(std::span<const std::byte> bytes) {
    send(bytes);
    is_answered_ = false;
  }

  void hello(std::uint8_t variant) {
    net::Hello hello{.role = static_cast<net::Role>(variant % 8 == 7 ? variant : 1),
                     .features = net::kFeatures,
                     .first = variant % 8 == 6 ? 5u : 1u,
                     .name = "fuzz",
                     .layout = net::layout_bytes(RecordLayout::of<Item>())};
    std::memcpy(hello.client.data(), &client_, sizeof client_);
    next_ = static_cast<std::uint32_t>(hello.first);
    hello_ = to_bytes(hello);
    send(MessageType::hello, hello_);
    awaits_challenge_ = true;
  }

  /// The right proof if a challenge came.
  void proof() {
    if (std::exchange(awaits_challenge_, false) && is_answered_) {
      if (const auto challenge = receive(MessageType::challenge)) challenge_ = *challenge;
    }
    send(MessageType::proof,
         to_bytes(net::ProofMessage{net::client_proof(subject_.token, hello_, challenge_)}));
  }

  void insert(std::uint8_t count, float priority) {
    std::vector<Item> items;
    for (std::uint32_t i = 0; i <= count % 32u; ++i) items.push_back({client_, next_, i});
    const BatchView batch{std::span<const Item>(items)};
    Bytes payload(net::InsertPayload::bytes(batch.size(), sizeof(Item)));
    net::InsertPayload::write(batch, std::vector<float>(items.size(), priority), payload);
    net::InsertPayload::set_sequence(next_++, payload);
    last_ = payload;
    send(MessageType::insert, payload);
  }
  void insert_packed(std::uint8_t count) {
    const std::vector<Item> items(1u + count % 32u, Item{client_, next_, 0});
    const BatchView batch{std::span<const Item>(items)};
    Bytes payload(net::InsertPayload::bytes(batch.size(), sizeof(Item))), packed;
    net::InsertPayload::write(batch, std::vector<float>(items.size(), 0.5f), payload);
    const auto codec = count < 128 ? net::PayloadCodec::lz4 : net::PayloadCodec::zstd;
    if (!net::detail::PackedInsert::pack(codec, payload, packed)) return;
    net::InsertPayload::set_sequence(next_++, packed);
    Bytes frame;
    ByteWriter writer(frame);
    writer.bytes(net::make_frame_head(MessageType::insert, packed, codec));
    writer.bytes(packed);
    frame.resize(net::FrameHead{.length = static_cast<std::uint32_t>(packed.size())}.frame_bytes());
    send(frame);
  }
  void insert_again() { send(MessageType::insert, last_); }

  /// Says no more, and reads until the server closes.
  void finish() {
    net::detail::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    std::array<std::byte, 4096> bytes;
    for (;;) {
      net::detail::error_code error;
      socket_.read_some(asio::buffer(bytes), error);
      check(error != asio::error::would_block, "a server closes when its client does");
      if (error) return;
    }
  }

 private:
  /// The payload of the next frame if it is of this type.
  std::optional<Bytes> receive(MessageType type) {
    net::FrameHeadBytes bytes;
    net::FrameHead head;
    if (!read(bytes) || net::parse_frame_head(bytes, head) != net::FrameFault::none) return std::nullopt;
    Bytes payload(head.frame_bytes() - bytes.size());
    if (!read(payload)) return std::nullopt;
    payload.resize(head.length);
    check(net::matches(head, payload), "a server's frames are whole");
    if (head.type != type) return std::nullopt;
    return payload;
  }
  bool read(std::span<std::byte> into) {
    if (into.empty()) return true;
    const auto count = ::recv(socket_.native_handle(), into.data(), into.size(), MSG_WAITALL);
    return count == static_cast<ssize_t>(into.size());
  }

  Subject& subject_;
  asio::io_context io_;
  tcp::socket socket_;
  const std::uint64_t client_;
  std::uint32_t next_ = 1;
  Bytes hello_, challenge_, last_;
  bool awaits_challenge_ = false, is_answered_ = true;
};

enum Step : std::uint8_t {
  hello,
  proof,
  insert,
  packed,
  again,
  fetch,
  lease,
  call,
  frame,
  raw,
  heartbeat,
  goodbye,
  leave,
  kNumSteps
};

void take(Step step, Script& script, Sink& sink, std::unique_ptr<Connection>& connection) {
  if (step == frame || step == raw || step == goodbye) sink.expect_anything();
  switch (step) {
    case hello:
      return connection->hello(script.number<std::uint8_t>());
    case proof:
      return connection->proof();
    case insert: {
      static constexpr std::array kPriorities{0.5f, 0.5f, 0.5f, 0.5f, 7.0f, 8.0f, 9.0f, -1.0f};
      const auto count = script.number<std::uint8_t>();
      return connection->insert(count, kPriorities[count / 32 % 8]);
    }
    case packed:
      return connection->insert_packed(script.number<std::uint8_t>());
    case again:
      return connection->insert_again();
    case fetch: {
      const auto flags = script.number<std::uint8_t>();
      return connection->send(net::Fetch{flags / 4u, flags % 2 == 1, flags / 2 % 2 == 1});
    }
    case lease: {
      const auto count = script.number<std::uint16_t>();
      const auto ticket = script.number<std::uint64_t>();
      return connection->send(net::Lease{count, ticket, script.number<std::uint64_t>()});
    }
    case call:
      return connection->send(MessageType::call, script.bytes(script.number<std::uint8_t>()));
    case frame: {
      const auto type = static_cast<MessageType>(script.number<std::uint8_t>());
      const auto payload = script.bytes(std::min<std::size_t>(script.number<std::uint16_t>(), kMaxFrame));
      return connection->send(type, payload);
    }
    case raw:
      return connection->send_raw(
          script.bytes(std::min<std::size_t>(script.number<std::uint16_t>(), kMaxFrame)));
    case heartbeat:
      return connection->send(MessageType::heartbeat, {});
    case goodbye:
      return connection->send(MessageType::goodbye, {});
    case leave:
      connection->finish();
      connection.reset();
      return;
    case kNumSteps:
      return;
  }
}

}  // namespace

void run(std::span<const std::byte> input) {
  static std::uint64_t client = 0;
  client += kConnections;
  Script script(input);
  Subject& tested = subject(script.number<std::uint8_t>() % 2 == 1);
  tested.sink.begin();
  std::array<std::unique_ptr<Connection>, kConnections> connections;
  for (std::size_t steps = 0; steps < kMaxSteps && !script.empty(); ++steps) {
    const auto which = script.number<std::uint8_t>() % kConnections;
    // The first two are the same client.
    if (!connections[which]) connections[which] = std::make_unique<Connection>(tested, client + which / 2);
    take(static_cast<Step>(script.number<std::uint8_t>() % kNumSteps), script, tested.sink,
         connections[which]);
  }
  for (const auto& connection : connections) {
    if (connection) connection->finish();
  }
  const auto latest = Clock::now() + std::chrono::seconds(20);
  while (tested.server.statistics().connections > 0) {
    check(Clock::now() < latest, "a server forgets connections that have ended");
    std::this_thread::yield();
  }
  const net::ServerStatistics statistics = tested.server.statistics();
  // Where batches are unpacked is kept for a moment, for the next one.
  check(statistics.receive_bytes <= kMaxBatch,
        "a server gives back the memory of connections that have ended");
  check(statistics.sessions <= 8, "a server remembers no more clients than it may");
}

std::vector<Bytes> seeds() {
  const auto step = [](ScriptWriter& out, int connection, Step what) -> ScriptWriter& {
    return out.number(static_cast<std::uint8_t>(connection)).number(static_cast<std::uint8_t>(what));
  };
  std::vector<Bytes> seeds;
  for (const auto needs_token : {std::uint8_t{0}, std::uint8_t{1}}) {
    ScriptWriter good, two;
    good.number(needs_token);
    step(good, 0, hello).number(std::uint8_t{0});
    step(good, 0, proof);
    for (const int count : {0, 5, 40, 6 * 32}) step(good, 0, insert).number(static_cast<std::uint8_t>(count));
    step(good, 0, again);
    step(good, 0, packed).number(std::uint8_t{31});
    step(good, 0, packed).number(std::uint8_t{0xff});
    for (const std::uint8_t flags : {std::uint8_t{0}, std::uint8_t{2}, std::uint8_t{4}, std::uint8_t{5}})
      step(good, 0, fetch).number(flags);
    step(good, 0, lease).number(std::uint16_t{2}).number(std::uint64_t{0}).number(std::uint64_t{0});
    step(good, 0, lease).number(std::uint16_t{2}).number(std::uint64_t{1}).number(std::uint64_t{0});
    step(good, 0, call).number(std::uint8_t{12}).bytes(Bytes(12, std::byte{1}));
    step(good, 0, heartbeat);
    step(good, 0, goodbye);
    seeds.push_back(good);
    two.number(needs_token);
    for (const int connection : {0, 1, 2}) {
      step(two, connection, hello).number(std::uint8_t{0});
      step(two, connection, proof);
      step(two, connection, insert).number(std::uint8_t{3});
    }
    step(two, 0, leave);
    step(two, 0, hello).number(std::uint8_t{6});
    step(two, 0, proof);
    for (const int count : {4 * 32, 5 * 32, 7 * 32})
      step(two, 0, insert).number(static_cast<std::uint8_t>(count));
    seeds.push_back(two);
  }
  ScriptWriter stranger;
  stranger.number(std::uint8_t{0});
  const Bytes garbage(40, std::byte{'G'});
  step(stranger, 0, raw).text(garbage);
  step(stranger, 1, frame).number(static_cast<std::uint8_t>(MessageType::hello)).text(garbage);
  seeds.push_back(stranger);
  return seeds;
}

}  // namespace troop::fuzz
