/// @file
/// A TCP proxy on loopback that does to connections what networks do.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <troop/net/detail/asio.hpp>

namespace troop::testing {

/// Forwards connections to a port of this machine, each after its own plan. Thread-safe.
///
///     Proxy proxy(server.address().port, [&](std::size_t) { return Proxy::Plan{.cut_to_server = 1000}; });
class Proxy {
 public:
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

  struct Plan {
    /// After so many bytes in that direction both connections are cut.
    std::size_t cut_to_server = kNever, cut_to_client = kNever;
    bool reset = false;                  ///< cut by a reset instead of an end
    bool stall = false;                  ///< instead of cutting: nothing more is forwarded, nothing is closed
    bool drop_to_client = false;         ///< what the server says is thrown away
    std::chrono::microseconds delay{0};  ///< before each piece is forwarded
    std::size_t piece = 4096;            ///< bytes that are forwarded at once, at most
  };

  /// `plan(n)` is asked for the n-th connection, by the proxy's thread.
  Proxy(std::uint16_t target, std::function<Plan(std::size_t)> plan)
      : plan_(std::move(plan)),
        target_(target),
        acceptor_(io_, tcp::endpoint(net::detail::asio::ip::address_v4::loopback(), 0)) {
    port_ = acceptor_.local_endpoint().port();
    net::detail::asio::co_spawn(io_, accept(), net::detail::asio::detached);
    thread_ = std::thread([this] { io_.run(); });
  }

  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  ~Proxy() {
    io_.stop();
    thread_.join();
  }

  std::uint16_t port() const noexcept { return port_; }
  std::size_t connections() const noexcept { return connections_; }
  /// Where later connections go.
  void set_target(std::uint16_t target) noexcept { target_ = target; }

  /// Cuts all connections.
  void cut() {
    net::detail::asio::post(io_, [this] {
      for (const auto& weak : pairs_) {
        if (const auto pair = weak.lock()) pair->cut();
      }
      pairs_.clear();
    });
  }

 private:
  using tcp = net::detail::tcp;
  using error_code = net::detail::error_code;
  template <class T>
  using awaitable = net::detail::asio::awaitable<T>;

  struct Pair {
    explicit Pair(net::detail::asio::io_context& io, tcp::socket socket)
        : client(std::move(socket)), server(io) {}

    void cut() {
      error_code ignored;
      if (plan.reset) {
        client.set_option(net::detail::asio::socket_base::linger(true, 0), ignored);
        server.set_option(net::detail::asio::socket_base::linger(true, 0), ignored);
      }
      client.close(ignored);
      server.close(ignored);
    }

    tcp::socket client, server;
    Plan plan;
  };

  awaitable<void> accept() {
    for (;;) {
      error_code error;
      tcp::socket socket = co_await acceptor_.async_accept(net::detail::into(error));
      if (error) co_return;
      auto pair = std::make_shared<Pair>(io_, std::move(socket));
      pair->plan = plan_(connections_);
      ++connections_;
      pairs_.push_back(pair);
      net::detail::asio::co_spawn(io_, connect(pair), net::detail::asio::detached);
    }
  }

  awaitable<void> connect(std::shared_ptr<Pair> pair) {
    error_code error;
    const tcp::endpoint endpoint(net::detail::asio::ip::address_v4::loopback(), target_);
    co_await pair->server.async_connect(endpoint, net::detail::into(error));
    if (error) {
      pair->cut();
      co_return;
    }
    pair->client.set_option(tcp::no_delay(true), error);
    pair->server.set_option(tcp::no_delay(true), error);
    net::detail::asio::co_spawn(io_, pump(pair, true), net::detail::asio::detached);
    net::detail::asio::co_spawn(io_, pump(pair, false), net::detail::asio::detached);
  }

  awaitable<void> pump(std::shared_ptr<Pair> pair, bool to_server) {
    const Plan& plan = pair->plan;
    tcp::socket& from = to_server ? pair->client : pair->server;
    tcp::socket& to = to_server ? pair->server : pair->client;
    std::size_t left = to_server ? plan.cut_to_server : plan.cut_to_client;
    std::vector<std::byte> piece(plan.piece);
    net::detail::Event pause(io_);
    for (;;) {
      error_code error;
      const auto space = net::detail::asio::buffer(piece.data(), piece.size());
      std::size_t count = co_await from.async_read_some(space, net::detail::into(error));
      if (error) break;
      if (plan.delay.count() > 0) co_await pause.wait_for(plan.delay);
      count = std::min(count, left);
      left -= count;
      if (to_server || !plan.drop_to_client) {
        const auto bytes = net::detail::asio::buffer(piece.data(), count);
        co_await net::detail::asio::async_write(to, bytes, net::detail::into(error));
        if (error) break;
      }
      if (left == 0 && plan.stall) co_await pause.wait();
      if (left == 0) {
        pair->cut();
        co_return;
      }
    }
    error_code ignored;  // an end is passed on; the other direction may go on
    to.shutdown(tcp::socket::shutdown_send, ignored);
    from.shutdown(tcp::socket::shutdown_receive, ignored);
  }

  std::function<Plan(std::size_t)> plan_;
  std::atomic<std::uint16_t> target_;
  std::atomic<std::size_t> connections_{0};
  std::uint16_t port_ = 0;
  net::detail::asio::io_context io_{1};
  tcp::acceptor acceptor_;
  std::vector<std::weak_ptr<Pair>> pairs_;
  std::thread thread_;
};

}  // namespace troop::testing
