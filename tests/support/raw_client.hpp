/// @file
/// A client that says over a socket whatever a test wants, and shows the frames that come back.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/read.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/net/authentication.hpp>
#include <troop/net/detail/asio.hpp>
#include <troop/net/frame.hpp>
#include <troop/net/messages.hpp>

namespace troop::testing {

/// Blocking; gives up after 30 seconds.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : socket_(io_) {
    socket_.connect({net::detail::asio::ip::address_v4::loopback(), port});
    socket_.set_option(net::detail::tcp::no_delay(true));
    const timeval limit{30, 0};
    ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }

  /// An end of connection is no error here: what matters is what the server said.
  void send(std::span<const std::byte> bytes) {
    net::detail::error_code ignored;
    net::detail::asio::write(socket_, net::detail::asio::buffer(bytes.data(), bytes.size()), ignored);
  }
  void send(net::MessageType type, std::span<const std::byte> payload = {}) {
    std::vector<std::byte> frame;
    net::append_frame(type, payload, frame);
    send(frame);
  }

  struct Received {
    net::MessageType type;
    std::vector<std::byte> payload;
  };

  /// The next frame that is no heartbeat; none when the server has closed.
  std::optional<Received> receive() {
    for (;;) {
      net::FrameHeadBytes bytes;
      net::FrameHead head;
      if (!read(bytes)) return std::nullopt;
      if (net::parse_frame_head(bytes, head) != net::FrameFault::none)
        throw Error("a bad frame from the server");
      std::vector<std::byte> payload(head.frame_bytes() - bytes.size());
      if (!read(payload)) return std::nullopt;
      payload.resize(head.length);
      if (!net::matches(head, payload)) throw Error("a damaged frame from the server");
      if (head.type != net::MessageType::heartbeat) return Received{head.type, std::move(payload)};
    }
  }

  template <class Message>
  Message expect() {
    const auto frame = receive();
    if (!frame) throw Error("the server has closed");
    if (frame->type != Message::kType)
      throw Error("a frame of type " + std::to_string(static_cast<int>(frame->type)));
    return net::read_message<Message>(frame->payload);
  }

  /// Whether the server closes without another frame.
  bool is_closed() { return !receive().has_value(); }

  net::Challenge hello(const net::Hello& hello) {
    hello_ = to_bytes(hello);
    send(net::MessageType::hello, hello_);
    const auto frame = receive();
    if (!frame || frame->type != net::MessageType::challenge) throw Error("no challenge");
    challenge_ = frame->payload;
    return net::read_message<net::Challenge>(challenge_);
  }

  void prove(const net::Token& token) {
    send(net::MessageType::proof, to_bytes(net::ProofMessage{net::client_proof(token, hello_, challenge_)}));
  }

  net::Welcome connect(const net::Hello& message, const net::Token& token = {}) {
    hello(message);
    prove(token);
    const auto welcome = expect<net::Welcome>();
    if (welcome.proof != net::server_proof(token, hello_, challenge_, welcome)) throw Error("a wrong proof");
    return welcome;
  }

  net::detail::tcp::socket& socket() { return socket_; }

 private:
  bool read(std::span<std::byte> into) {
    net::detail::error_code error;
    net::detail::asio::read(socket_, net::detail::asio::buffer(into.data(), into.size()), error);
    return !error;
  }

  net::detail::asio::io_context io_;
  net::detail::tcp::socket socket_;
  std::vector<std::byte> hello_, challenge_;
};

/// A hello as an actor with such records would say it.
inline net::Hello hello_of(const RecordLayout& layout, std::uint8_t client, std::uint64_t first = 1) {
  net::Hello hello{.first = first, .name = "raw", .layout = net::layout_bytes(layout)};
  hello.client.fill(std::byte{client});
  return hello;
}

/// The payload of an insert.
inline std::vector<std::byte> insert_of(std::uint64_t sequence, const BatchView& records,
                                        std::span<const float> priorities) {
  std::vector<std::byte> payload(net::InsertPayload::bytes(records.size(), records.layout().size()));
  net::InsertPayload::write(records, priorities, payload);
  net::InsertPayload::set_sequence(sequence, payload);
  return payload;
}

}  // namespace troop::testing
