/// @file
/// A connection's bytes, in the clear or through TLS.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <troop/net/detail/asio.hpp>
#include <troop/net/detail/tls_context.hpp>

namespace troop::net::detail {

/// A TCP socket, after a handshake with TLS over it; one of Asio's streams, for its `async_write`. In the
/// clear it costs a branch a call. One read and one write may be under way at a time, all in one thread.
///
/// A TLS connection takes OpenSSL's buffers besides (not measured). Its end is said by frames and not by TLS:
/// there is no close_notify.
class Stream {
 public:
  using executor_type = tcp::socket::executor_type;

  explicit Stream(asio::io_context& io) : socket_(io) {}
  explicit Stream(tcp::socket socket) : socket_(std::move(socket)) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  /// What is beneath, for what is done before the handshake.
  tcp::socket& socket() noexcept { return socket_; }
  bool is_open() const { return socket_.is_open(); }

  /// Ends what is under way with an error.
  void close() {
    error_code ignored;
    socket_.close(ignored);
  }
  /// Says that nothing more will be written.
  void shut_down() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

  /// The client's side of the handshake. What was connected before must have come to its end.
  asio::awaitable<void> connect_tls(TlsContext& context, error_code& error) {
    tls_.emplace(socket_, context.get());
    context.name_server(tls_->native_handle());
    return tls_->async_handshake(asio::ssl::stream_base::client, into(error));
  }
  /// The server's side. After an error what comes from the client is read as it is.
  asio::awaitable<void> accept_tls(TlsContext& context, error_code& error) {
    tls_.emplace(socket_, context.get());
    return tls_->async_handshake(asio::ssl::stream_base::server, into(error));
  }
  /// Back to the clear, after a handshake that failed.
  void drop_tls() noexcept { tls_.reset(); }
  /// From the handshake on.
  const SSL* tls() { return tls_ ? tls_->native_handle() : nullptr; }

  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return tls_ ? tls_->async_read_some(buffers, std::forward<Token>(token))
                : socket_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return tls_ ? tls_->async_write_some(buffers, std::forward<Token>(token))
                : socket_.async_write_some(buffers, std::forward<Token>(token));
  }

  /// Waits until something can be read, while the buffer that it is for need not be there. TLS cannot wait
  /// without reading: returns how many bytes went into `few`, in the clear none.
  asio::awaitable<std::size_t> wait(std::span<std::byte> few, error_code& error) {
    if (tls_) co_return co_await tls_->async_read_some(asio::buffer(few.data(), few.size()), into(error));
    co_await socket_.async_wait(tcp::socket::wait_read, into(error));
    co_return std::size_t{0};
  }

 private:
  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
};

}  // namespace troop::net::detail
