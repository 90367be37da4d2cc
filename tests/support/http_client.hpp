/// @file
/// Plain HTTP over a socket, as a test wants it.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <troop/net/detail/asio.hpp>

namespace troop::testing {

/// A connection over loopback. Blocking; gives up after 30 seconds.
class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port) : socket_(io_) {
    socket_.connect({net::detail::asio::ip::address_v4::loopback(), port});
    const timeval limit{30, 0};
    ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }

  /// An end of the connection is no error here.
  void send(const std::string& bytes) {
    net::detail::error_code ignored;
    net::detail::asio::write(socket_, net::detail::asio::buffer(bytes), ignored);
  }

  /// What comes until `end` has come, with it; what has come when the server closes before.
  std::string read_until(const std::string& end) {
    std::size_t found = std::string::npos, searched = 0;
    while ((found = seen_.find(end, searched)) == std::string::npos) {
      searched = seen_.size() - std::min(seen_.size(), end.size());
      std::array<char, 4096> bytes;
      net::detail::error_code error;
      const std::size_t count = socket_.read_some(net::detail::asio::buffer(bytes), error);
      if (error) break;
      seen_.append(bytes.data(), count);
    }
    const std::size_t size = found == std::string::npos ? seen_.size() : found + end.size();
    std::string result = seen_.substr(0, size);
    seen_.erase(0, size);
    return result;
  }

  /// Everything until the server closes.
  std::string read_all() { return read_until(std::string(1, '\0') + "never"); }

 private:
  net::detail::asio::io_context io_;
  net::detail::tcp::socket socket_;
  std::string seen_;
};

/// The whole answer to one GET, with its head; `more`: further lines of the request's head.
inline std::string get(std::uint16_t port, const std::string& path, const std::string& more = "") {
  HttpClient client(port);
  client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "Connection: close\r\n\r\n");
  return client.read_all();
}

}  // namespace troop::testing
