#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include <http_client.hpp>
#include <testing.hpp>

#include <troop/monitor/detail/status_page.hpp>
#include <troop/monitor/http.hpp>

using troop::monitor::HttpOptions;
using troop::monitor::HttpServer;
using troop::monitor::HttpServices;
using troop::testing::error_of;
using troop::testing::get;
using troop::testing::HttpClient;

namespace {

const std::string kSecret = "0123456789abcdef0123456789abcdef";

std::string body_of(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "no body" : answer.substr(end + 4);
}

std::string first_line(const std::string& answer) {
  return answer.substr(0, answer.find("\r\n"));
}

HttpOptions quiet(HttpOptions options = {}) {
  options.log = [](const std::string&) {};
  return options;
}

/// Reachable from elsewhere, as far as its rules go.
HttpOptions beyond_loopback() {
  return quiet({.listen = "0.0.0.0:0", .token = troop::net::Token(kSecret)});
}

}  // namespace

TEST_CASE("each page says what its service says, and what has no service is not there") {
  troop::monitor::Metrics metrics;
  metrics.gauge("reward_scale", "").Set(0.5);
  const HttpServer full(quiet(), {.metrics = &metrics,
                                  .status = [] { return R"({"version":1})"; },
                                  .summary = [] { return "fine\n"; },
                                  .actors = [] { return "none\n"; }});
  const auto port = full.address().port;
  CHECK(body_of(get(port, "/metrics")).find("reward_scale 0.5\n") != std::string::npos);
  CHECK(get(port, "/metrics").find("Content-Type: text/plain; version=0.0.4") != std::string::npos);
  CHECK(body_of(get(port, "/api/status?x=1")) == R"({"version":1})");
  CHECK(get(port, "/api/status").find("Content-Type: application/json") != std::string::npos);
  CHECK(body_of(get(port, "/status.txt")) == "fine\n");
  CHECK(body_of(get(port, "/actors.txt")) == "none\n");
  const std::string page = get(port, "/");
  CHECK(body_of(page) == troop::monitor::detail::kStatusPage);
  CHECK(page.find("Content-Security-Policy: default-src 'none'") != std::string::npos);
  CHECK(first_line(get(port, "/nothing")) == "HTTP/1.1 404 Not Found");
  CHECK(full.requests() == 8);

  const HttpServer empty(quiet(), {});
  for (const char* path : {"/", "/metrics", "/api/status", "/status.txt", "/actors.txt"})
    CHECK(first_line(get(empty.address().port, path)) == "HTTP/1.1 404 Not Found");
}

TEST_CASE("probes say what is wrong") {
  std::atomic<bool> is_ready = false;
  const HttpServer server(quiet(), {.obstacle = [&]() -> std::string {
                            return is_ready ? "" : "the replay is not restored yet";
                          }});
  const auto port = server.address().port;
  CHECK(first_line(get(port, "/healthz")) == "HTTP/1.1 200 OK");
  const std::string answer = get(port, "/readyz");
  CHECK(first_line(answer) == "HTTP/1.1 503 Service Unavailable");
  CHECK(body_of(answer) == "the replay is not restored yet\n");
  is_ready = true;
  CHECK(body_of(get(port, "/readyz")) == "ok\n");
}

TEST_CASE("a connection serves one request after the other, and HEAD has no body") {
  const HttpServer server(quiet(), {});
  HttpClient client(server.address().port);
  for (int i = 0; i < 3; ++i) {
    client.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(client.read_until("ok\n").find("HTTP/1.1 200 OK") == 0);
  }
  client.send("HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string answer = client.read_all();
  CHECK(answer.find("Content-Length: 3\r\n") != std::string::npos);
  CHECK(body_of(answer).empty());
}

TEST_CASE("beyond loopback everything but the probes needs a password that is not the token") {
  const HttpServer server(beyond_loopback(), {.status = [] { return "{}"; }});
  const auto port = server.address().port;
  const std::string password = troop::monitor::http_password(troop::net::Token(kSecret));
  CHECK(password.size() == 64);
  CHECK(password != troop::monitor::http_password(troop::net::Token(kSecret + "1")));
  const std::string refused = get(port, "/api/status");
  CHECK(first_line(refused) == "HTTP/1.1 401 Unauthorized");
  CHECK(refused.find("WWW-Authenticate: Basic realm=\"troop\"") != std::string::npos);
  for (const char* path : {"/", "/metrics", "/api/events", "/nothing"})
    CHECK(first_line(get(port, path)) == "HTTP/1.1 401 Unauthorized");
  for (const char* path : {"/healthz", "/readyz"}) CHECK(first_line(get(port, path)) == "HTTP/1.1 200 OK");
  CHECK(body_of(get(port, "/api/status", "Authorization: Bearer " + password + "\r\n")) == "{}");
  CHECK(first_line(get(port, "/api/status", "Authorization: Bearer " + kSecret + "\r\n")) ==
        "HTTP/1.1 401 Unauthorized");
  std::string both(256, '\0');
  const std::string plain = "troop:" + password;
  both.resize(static_cast<std::size_t>(EVP_EncodeBlock(reinterpret_cast<unsigned char*>(both.data()),
                                                       reinterpret_cast<const unsigned char*>(plain.data()),
                                                       static_cast<int>(plain.size()))));
  CHECK(body_of(get(port, "/api/status", "Authorization: Basic " + both + "\r\n")) == "{}");
}

TEST_CASE("beyond loopback there is no server without token or insecure") {
  HttpOptions options = beyond_loopback();
  options.token = {};
  CHECK(error_of([&] { HttpServer(options, {}); }) ==
        "listen: 0.0.0.0:0 is not allowed; expected a loopback address such as 127.0.0.1, or a token, or "
        "insecure to let everybody look");
  options.insecure = true;
  const HttpServer server(options, {.status = [] { return "{}"; }});
  CHECK(body_of(get(server.address().port, "/api/status")) == "{}");
}

TEST_CASE("a port in use and bad options are refused with a sentence") {
  const HttpServer first(quiet(), {});
  const std::string place = "127.0.0.1:" + std::to_string(first.address().port);
  CHECK(error_of([&] { HttpServer(quiet({.listen = place}), {}); }) ==
        "cannot listen on " + place + ": Address already in use");
  CHECK(error_of([] { HttpServer(quiet({.listen = "here"}), {}); }) ==
        "listen: \"here\" is not allowed; expected HOST:PORT or [IPV6]:PORT");
  CHECK(error_of([] { HttpServer(quiet({.max_connections = 0}), {}); }) ==
        "max_connections: 0 is not allowed; expected an integer from 1 to 65536");
  CHECK(error_of([] { HttpServer(quiet({.max_header_bytes = 1}), {}); }) ==
        "max_header_bytes: 1 is not allowed; expected an integer from 256 to 65536");
}

TEST_CASE("what is no request is refused and the server goes on") {
  const HttpServer server(quiet({.max_header_bytes = 1024}), {});
  const auto port = server.address().port;
  const auto answer_to = [&](const std::string& bytes) {
    HttpClient client(port);
    client.send(bytes);
    return first_line(client.read_all());
  };
  CHECK(answer_to("hello\r\n\r\n") == "HTTP/1.1 400 Bad Request");
  CHECK(answer_to(std::string("\x16\x03\x01\0\xff\r\n\r\n", 9)) == "HTTP/1.1 400 Bad Request");
  CHECK(answer_to("GET / HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n") ==
        "HTTP/1.1 431 Request Header Fields Too Large");
  CHECK(answer_to("DELETE / HTTP/1.1\r\nHost: x\r\n\r\n") == "HTTP/1.1 405 Method Not Allowed");
  CHECK(answer_to("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello") ==
        "HTTP/1.1 413 Payload Too Large");
  CHECK(answer_to("GET /%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") ==
        "HTTP/1.1 404 Not Found");
  CHECK(body_of(get(port, "/healthz")) == "ok\n");
}

TEST_CASE("an event stream begins with the newest of each name and goes on with what is published") {
  HttpServer server(quiet(), {});
  server.publish("status", "1");
  server.publish("status", "2");
  server.publish("actors", "a\nb");
  HttpClient client(server.address().port);
  client.send("GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.read_until("\r\n\r\n").find("Content-Type: text/event-stream") != std::string::npos);
  CHECK(client.read_until("\n\n") == "retry: 2000\n\n");
  CHECK(client.read_until("\n\n") == "event: actors\ndata: a\ndata: b\n\n");
  CHECK(client.read_until("\n\n") == "event: status\ndata: 2\n\n");
  server.publish("status", "3");
  CHECK(client.read_until("\n\n") == "event: status\ndata: 3\n\n");
}

TEST_CASE("a stream without events has a sign of life now and then") {
  const HttpServer server(quiet({.heartbeat = std::chrono::milliseconds(5)}), {});
  HttpClient client(server.address().port);
  client.send("GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.read_until(":\n\n:\n\n").ends_with(":\n\n:\n\n"));
}

TEST_CASE("who reads his stream too slowly misses events and holds up nobody") {
  HttpServer server(quiet({.deadline = std::chrono::minutes(5)}), {});
  HttpClient slow(server.address().port), quick(server.address().port);
  for (HttpClient* client : {&slow, &quick}) {
    client->send("GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n");
    client->read_until("retry: 2000\n\n");
  }
  const std::string much(1 << 20, 'x');
  for (int i = 0; i < 40; ++i) {
    server.publish("status", std::to_string(i) + much);
    CHECK(quick.read_until("\n\n").starts_with("event: status\ndata: " + std::to_string(i) + "x"));
  }
  int seen = 0;
  std::string last;
  do {
    last = slow.read_until("\n\n");
    ++seen;
  } while (!last.starts_with("event: status\ndata: 39x") && !last.empty());
  CHECK(last.size() > much.size());
  CHECK(seen < 30);
}

TEST_CASE("who says nothing is closed at the deadline") {
  const HttpServer server(quiet({.deadline = std::chrono::milliseconds(20)}), {});
  HttpClient silent(server.address().port), half(server.address().port);
  half.send("GET /heal");
  CHECK(silent.read_all().empty());
  CHECK(half.read_all().empty());
}

TEST_CASE("a thousand connections that say nothing keep nobody out") {
  const HttpServer server(quiet({.max_connections = 32, .deadline = std::chrono::minutes(5)}), {});
  const auto port = server.address().port;
  std::deque<HttpClient> silent;
  for (int i = 0; i < 1000; ++i) {
    if (silent.size() == 200) silent.pop_front();  // descriptors of this process are scarce as well
    silent.emplace_back(port);
  }
  CHECK(body_of(get(port, "/healthz")) == "ok\n");
  CHECK(server.crowded() >= 200 - 32);  // those that are still open; others may have gone unseen
}

TEST_CASE("a server ends at once, whatever its connections wait for") {
  std::deque<HttpClient> clients;
  {
    HttpServer server(quiet(), {});
    server.publish("status", "1");
    for (int i = 0; i < 3; ++i) clients.emplace_back(server.address().port);
    clients[0].send("GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n");
    clients[0].read_until("data: 1\n\n");
    clients[1].send("GET /he");
  }
  for (HttpClient& client : clients) CHECK(client.read_all().empty());
}

TEST_CASE("threads publish and ask at once") {
  std::atomic<int> number = 0;
  HttpServer server(quiet(), {.status = [&] { return std::to_string(number.load()); }});
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) server.publish("status", std::to_string(++number));
    });
  }
  for (int i = 0; i < 20; ++i)
    CHECK(first_line(get(server.address().port, "/api/status")) == "HTTP/1.1 200 OK");
  for (auto& thread : threads) thread.join();
  HttpClient client(server.address().port);
  client.send("GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.read_until("event: status\ndata: ").ends_with("data: "));
}
