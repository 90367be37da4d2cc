/// @file
/// The HTTP server of a run: metrics, probes, status, and a page that shows it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/monitor/metrics.hpp>
#include <troop/net/address.hpp>
#include <troop/net/authentication.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace troop::monitor {

/// What opens the pages of a server beyond loopback: 64 hexadecimal digits made of the cluster's token. Who
/// overhears them can watch the run, and cannot take part in it. A browser asks for them as the password of
/// the user `troop`; programs send `Authorization: Bearer` and the digits.
std::string http_password(const net::Token& token);

struct HttpOptions {
  /// HOST:PORT; port 0 takes any free one. Beyond loopback only with a token or `insecure`.
  std::string listen = "127.0.0.1:0";
  net::Token token = {};  ///< beyond loopback all but the probes needs `http_password` of it
  bool insecure = false;  ///< show everything to everybody who can connect
  std::size_t max_connections = 128;
  std::size_t max_header_bytes = 8192;
  /// For a request to be there, and again for each piece of an answer to be taken.
  Clock::duration deadline = std::chrono::seconds(10);
  Clock::duration heartbeat = std::chrono::seconds(15);  ///< of event streams without events
  /// Takes one line for whatever goes wrong, at most ten in ten seconds. Called by the server's thread.
  std::function<void(const std::string&)> log = troop::detail::print_to_stderr;

  /// Throws InvalidArgument naming the field.
  void validate() const;
};

/// What the pages say. What is left empty is not there (404). All of it is called by the server's thread, must
/// not block for long, and must outlive the server.
struct HttpServices {
  Metrics* metrics = nullptr;                              ///< /metrics, in Prometheus' text format
  std::function<std::string()> status = {};                ///< /api/status: JSON
  std::function<std::string()> summary = {}, actors = {};  ///< /status.txt and /actors.txt, for terminals
  /// /healthz and /readyz: what is wrong, in a sentence; empty when nothing is.
  std::function<std::string()> illness = [] { return std::string(); },
                               obstacle = [] { return std::string(); };
};

/// Serves what `HttpServices` say, the status page at `/`, and at `/api/events` a stream of what is published
/// (server-sent events). Read-only: GET and HEAD, and no request has a body.
///
/// One thread of its own does everything. Memory: some 10 KiB and one answer a connection. When all
/// connections are taken a new one takes the place of that which has been silent for longest; where all are
/// being answered it is closed. A stream that reads too slowly misses events instead of queueing them: it gets
/// the newest of each name.
///
/// Thread-safe. The constructor throws InvalidArgument for bad options, Error when it cannot listen there.
///
///     monitor::HttpServer http({.listen = "127.0.0.1:8080"}, {.metrics = &metrics});
///     http.publish("status", R"({"loss":0.25})");
class HttpServer {
 public:
  HttpServer(const HttpOptions& options, HttpServices services);

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  /// Where it listens, with the port that was taken.
  const net::Address& address() const noexcept;

  /// Sends an event to all streams. `name`: letters; `data`: one line, or it is sent as several. A stream
  /// that begins later gets the newest of each name at once. Cost to the caller: a copy of `data`.
  void publish(const std::string& name, std::string_view data);

  /// Requests that were answered, and connections that were closed because there were too many.
  std::uint64_t requests() const noexcept;
  std::uint64_t crowded() const noexcept;

 private:
  class Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace troop::monitor
