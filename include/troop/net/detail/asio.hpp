/// @file
/// The parts of Boost.Asio that the transport uses, and the one way in which it waits.
#pragma once

// ThreadSanitizer knows no fences. Asio's are besides its locks, and only matter to handlers without any.
#if defined(__SANITIZE_THREAD__) && !defined(BOOST_ASIO_DISABLE_FENCED_BLOCK)
#define BOOST_ASIO_DISABLE_FENCED_BLOCK
#endif

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/error_code.hpp>

namespace troop::net::detail {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

/// Completes a co_await with its value and leaves the error in `error`, without an exception.
inline auto into(error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

/// Something to wait for within one io_context: `wait` sleeps until `notify` is called or the time has come.
/// What happened must be looked up elsewhere; a notification while nobody waits is not kept.
class Event {
 public:
  explicit Event(asio::io_context& io) : timer_(io) {}

  asio::awaitable<void> wait_until(asio::steady_timer::time_point time) {
    error_code ignored;
    timer_.expires_at(time);
    co_await timer_.async_wait(into(ignored));
  }
  asio::awaitable<void> wait_for(asio::steady_timer::duration time) {
    return wait_until(asio::steady_timer::clock_type::now() + time);
  }
  asio::awaitable<void> wait() { return wait_until(asio::steady_timer::time_point::max()); }

  void notify() { timer_.cancel(); }

 private:
  asio::steady_timer timer_;
};

}  // namespace troop::net::detail
