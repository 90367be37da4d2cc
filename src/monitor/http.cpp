#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <troop/monitor/detail/beast.hpp>
#include <troop/monitor/detail/status_page.hpp>
#include <troop/monitor/http.hpp>
#include <troop/net/detail/limited_log.hpp>

namespace troop::monitor {

std::string http_password(const net::Token& token) {
  static constexpr std::string_view kLabel = "troop 1 http";
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string password;
  for (const std::byte byte : token.prove({std::as_bytes(std::span(kLabel))})) {
    password += kDigits[static_cast<unsigned>(byte) >> 4];
    password += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return password;
}

void HttpOptions::validate() const {
  net::parse_address(listen, "listen");
  require(max_connections >= 1 && max_connections <= 65536, "max_connections", max_connections,
          "an integer from 1 to 65536");
  require(max_header_bytes >= 256 && max_header_bytes <= 65536, "max_header_bytes", max_header_bytes,
          "an integer from 256 to 65536");
  for (const auto& [field, value] : {std::pair("deadline", deadline), std::pair("heartbeat", heartbeat)}) {
    require(value >= std::chrono::milliseconds(1) && value <= std::chrono::hours(1), field,
            std::chrono::duration<double>(value).count(), "from 0.001 to 3600 seconds");
  }
}

/// All of it; the header says what its functions promise.
class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpServices services)
      : options_((options.validate(), options)),
        services_(std::move(services)),
        acceptor_(io_),
        ticker_(io_),
        log_(options.log) {
    listen();
    detail::asio::co_spawn(io_, accept(), detail::asio::detached);
    detail::asio::co_spawn(io_, tick(), detail::asio::detached);
    thread_ = std::thread([this] { io_.run(); });
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    detail::asio::post(io_, [this] {
      is_stopping_ = true;
      error_code ignored;
      acceptor_.close(ignored);
      for (const auto& connection : connections_) close(*connection);
      ticker_.notify();
    });
    thread_.join();
  }

  const net::Address& address() const noexcept { return address_; }

  void publish(const std::string& name, std::string_view data) {
    std::string text = "event: " + name + "\n";
    while (true) {
      const std::size_t end = data.find_first_of("\r\n");
      text += "data: " + std::string(data.substr(0, end)) + "\n";
      if (end == std::string_view::npos) break;
      data.remove_prefix(end + 1);
    }
    detail::asio::post(io_, [this, name, text = std::make_shared<const std::string>(text + "\n")] {
      events_[name] = {++last_event_, text};
      for (const auto& connection : connections_) connection->wake.notify();
    });
  }

  std::uint64_t requests() const noexcept { return requests_.load(std::memory_order_relaxed); }
  std::uint64_t crowded() const noexcept { return crowded_.load(std::memory_order_relaxed); }

 private:
  using error_code = detail::error_code;
  using tcp = detail::tcp;
  using status = detail::http::status;
  using Request = detail::http::request_parser<detail::http::empty_body>;
  template <class T>
  using awaitable = detail::asio::awaitable<T>;

  struct Connection {
    Connection(detail::asio::io_context& io, tcp::socket s) : socket(std::move(s)), wake(io) {}

    tcp::socket socket;
    detail::Event wake;  // of a stream: there is something to send
    Clock::time_point deadline;
    bool is_waiting = true;  // for a request
    bool is_closed = false;
    std::list<std::shared_ptr<Connection>>::iterator place;
  };
  using ConnectionPointer = std::shared_ptr<Connection>;

  struct Published {
    std::uint64_t number = 0;
    std::shared_ptr<const std::string> text;
  };

  struct Answer {
    status code = status::ok;
    std::string type = "text/plain; charset=utf-8", body;
    bool keeps_alive = true, is_head = false;
    bool is_stream = false;  // of events; the rest does not count then
  };

  void listen() {
    const net::Address wanted = net::parse_address(options_.listen, "listen");
    error_code error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(wanted.host, std::to_string(wanted.port), tcp::resolver::passive, error);
    const std::string place = "cannot listen on " + net::to_string(wanted) + ": ";
    if (error) throw Error(place + error.message());
    const tcp::endpoint endpoint = *found.begin();
    const bool is_open = endpoint.address().is_loopback() || options_.insecure;
    if (!is_open) {
      if (options_.token.is_empty()) {
        throw InvalidArgument(
            "listen", net::to_string(wanted),
            "a loopback address such as 127.0.0.1, or a token, or insecure to let everybody look");
      }
      const std::string password = http_password(options_.token);
      bearer_ = "Bearer " + password;
      const std::string both = "troop:" + password;
      basic_.resize(4 * ((both.size() + 2) / 3) + 1);
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(basic_.data()),
                      reinterpret_cast<const unsigned char*>(both.data()), static_cast<int>(both.size()));
      basic_.pop_back();  // the zero at its end
      basic_ = "Basic " + basic_;
    }
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    if (error) throw Error(place + error.message());
    address_ = {wanted.host, acceptor_.local_endpoint().port()};
  }

  // Connections come and go.

  awaitable<void> accept() {
    while (!is_stopping_) {
      error_code error;
      tcp::socket socket = co_await acceptor_.async_accept(detail::into(error));
      if (is_stopping_) break;
      if (error) {  // out of descriptors or memory: later
        log_.say("http: cannot accept a connection: " + error.message());
        detail::Event pause(io_);
        co_await pause.wait_for(std::chrono::milliseconds(50));
        continue;
      }
      if (connections_.size() >= options_.max_connections && !make_room()) continue;
      socket.set_option(tcp::no_delay(true), error);
      const auto connection = std::make_shared<Connection>(io_, std::move(socket));
      connection->deadline = Clock::now() + options_.deadline;
      connection->place = connections_.insert(connections_.end(), connection);
      detail::asio::co_spawn(io_, serve(connection), detail::asio::detached);
    }
  }

  /// Closes the connection that has been waiting for a request for longest; false when there is none.
  bool make_room() {
    crowded_.fetch_add(1, std::memory_order_relaxed);
    Connection* longest = nullptr;
    for (const auto& c : connections_) {
      if (c->is_waiting && !c->is_closed && (longest == nullptr || c->deadline < longest->deadline))
        longest = c.get();
    }
    if (longest == nullptr) return false;
    close(*longest);
    return true;
  }

  /// Its coroutine ends by that. Other connections stay where they are in the list.
  void close(Connection& c) {
    if (std::exchange(c.is_closed, true)) return;
    error_code ignored;
    c.socket.close(ignored);
    c.wake.notify();
  }

  awaitable<void> tick() {
    const auto period = std::clamp<Clock::duration>(options_.deadline / 8, std::chrono::milliseconds(1),
                                                    std::chrono::milliseconds(250));
    while (!is_stopping_) {
      co_await ticker_.wait_for(period);
      const Clock::time_point now = Clock::now();
      for (const auto& connection : connections_) {
        if (connection->deadline <= now) close(*connection);
      }
      log_.catch_up();
    }
  }

  // Requests and answers.

  awaitable<void> serve(ConnectionPointer connection) {
    Connection& c = *connection;
    try {
      detail::flat_buffer buffer(2 * options_.max_header_bytes);
      bool goes_on = true;
      while (goes_on && !c.is_closed) {
        Request request;
        request.header_limit(static_cast<std::uint32_t>(options_.max_header_bytes));
        c.is_waiting = true;
        c.deadline = Clock::now() + options_.deadline;
        error_code error;
        co_await detail::http::async_read_header(c.socket, buffer, request, detail::into(error));
        if (c.is_closed || is_end(error)) break;
        c.is_waiting = false;
        requests_.fetch_add(1, std::memory_order_relaxed);
        Answer answer = respond(request, error);
        if (answer.is_stream) {
          co_await stream(connection);
          break;
        }
        goes_on = co_await send(c, answer);
      }
    } catch (const std::exception& error) {
      log_.say(std::string("http: closed a connection: ") + error.what());
    }
    close(c);
    connections_.erase(c.place);
    if (is_stopping_) ticker_.notify();
  }

  /// Whether the peer is gone, rather than what it says is not understood.
  static bool is_end(error_code error) {
    using http_error = detail::http::error;
    return error == http_error::end_of_stream || error == http_error::partial_message ||
           (error && error.category() != detail::http::make_error_code(http_error::bad_method).category());
  }

  Answer respond(const Request& request, error_code error) const {
    namespace http = detail::http;
    const auto refuse = [](status code, const char* why) {
      return Answer{.code = code, .body = why, .keeps_alive = false};
    };
    if (error == http::error::header_limit || error == http::error::buffer_overflow)
      return refuse(status::request_header_fields_too_large, "the header is too long\n");
    if (error) return refuse(status::bad_request, "this is not HTTP\n");
    const auto& head = request.get();
    const bool is_head = head.method() == http::verb::head;
    if (head.method() != http::verb::get && !is_head)
      return refuse(status::method_not_allowed, "there is nothing here but to look at\n");
    if (request.chunked() || request.content_length().value_or(0) != 0)
      return refuse(status::payload_too_large, "requests have no bodies here\n");
    const std::string_view target(head.target().data(), head.target().size());
    const std::string_view path = target.substr(0, target.find('?'));
    const auto given = head[http::field::authorization];
    const bool is_probe = path == "/healthz" || path == "/readyz";
    Answer answer;
    if (!is_probe && !is_allowed(std::string_view(given.data(), given.size()))) {
      answer = {.code = status::unauthorized, .body = "a password is needed\n"};
    } else if (path == "/api/events" && !is_head) {
      answer.is_stream = true;
    } else {
      answer = page(path);
    }
    answer.keeps_alive = head.keep_alive();
    answer.is_head = is_head;
    return answer;
  }

  bool is_allowed(std::string_view given) const {
    if (bearer_.empty()) return true;
    const auto equals = [&](const std::string& expected) {
      return given.size() == expected.size() &&
             CRYPTO_memcmp(given.data(), expected.data(), expected.size()) == 0;
    };
    return equals(bearer_) || equals(basic_);
  }

  Answer page(std::string_view path) const {
    const auto probe = [](const std::string& sentence) {
      return sentence.empty() ? Answer{.body = "ok\n"}
                              : Answer{.code = status::service_unavailable, .body = sentence + "\n"};
    };
    if (path == "/" && services_.status)
      return {.type = "text/html; charset=utf-8", .body = std::string(detail::kStatusPage)};
    if (path == "/healthz") return probe(services_.illness());
    if (path == "/readyz") return probe(services_.obstacle());
    if (path == "/metrics" && services_.metrics != nullptr)
      return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = services_.metrics->text()};
    if (path == "/api/status" && services_.status)
      return {.type = "application/json", .body = services_.status()};
    if (path == "/status.txt" && services_.summary) return {.body = services_.summary()};
    if (path == "/actors.txt" && services_.actors) return {.body = services_.actors()};
    return {.code = status::not_found, .body = "there is no such page\n"};
  }

  /// Writes an answer; returns whether another request may follow.
  awaitable<bool> send(Connection& c, Answer& answer) {
    namespace http = detail::http;
    http::response<http::string_body> response(answer.code, 11);
    response.set(http::field::content_type, answer.type);
    set_guards(response);
    if (answer.code == status::unauthorized)
      response.set(http::field::www_authenticate, "Basic realm=\"troop\"");
    if (answer.code == status::method_not_allowed) response.set(http::field::allow, "GET, HEAD");
    response.keep_alive(answer.keeps_alive);
    response.content_length(answer.body.size());
    if (!answer.is_head) response.body() = std::move(answer.body);
    c.deadline = Clock::now() + options_.deadline;
    error_code error;
    co_await http::async_write(c.socket, response, detail::into(error));
    if (!answer.keeps_alive && !error) {  // until the peer has read it, lest a reset destroys it
      c.socket.shutdown(tcp::socket::shutdown_send, error);
      std::array<char, 1024> rest;
      while (!error && !c.is_closed)
        co_await c.socket.async_read_some(detail::asio::buffer(rest), detail::into(error));
    }
    co_return answer.keeps_alive && !error;
  }

  /// What keeps a page from being put to other uses by other sites, whatever is in it.
  template <class Response>
  static void set_guards(Response& response) {
    namespace http = detail::http;
    response.set(http::field::cache_control, "no-store");
    response.set("X-Content-Type-Options", "nosniff");
    response.set("Referrer-Policy", "no-referrer");
    response.set(
        "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'");
  }

  /// An event stream, until the peer closes it or takes nothing any more.
  awaitable<void> stream(ConnectionPointer connection) {
    static constexpr std::string_view kHead =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\nretry: 2000\n\n";
    Connection& c = *connection;
    detail::asio::co_spawn(io_, watch(connection), detail::asio::detached);
    std::map<std::string, std::uint64_t> sent;
    std::shared_ptr<const std::string> event;  // keeps `text`
    std::string_view text = kHead;
    while (!c.is_closed) {
      c.deadline = Clock::now() + options_.deadline;
      error_code error;
      co_await detail::asio::async_write(c.socket, detail::asio::buffer(text.data(), text.size()),
                                         detail::into(error));
      if (error) break;
      c.deadline = Clock::time_point::max();
      event = next_event(sent);
      if (!event && !c.is_closed) {
        co_await c.wake.wait_for(options_.heartbeat);
        event = next_event(sent);
      }
      text = event ? std::string_view(*event) : ":\n\n";
    }
  }

  /// Something published that a stream has not sent; `sent` are the numbers of what it has.
  std::shared_ptr<const std::string> next_event(std::map<std::string, std::uint64_t>& sent) const {
    for (const auto& [name, event] : events_) {
      std::uint64_t& number = sent[name];
      if (std::exchange(number, event.number) != event.number) return event.text;
    }
    return nullptr;
  }

  /// Sees the end of a stream whose peer has gone; what it sends is not looked at.
  awaitable<void> watch(ConnectionPointer connection) {
    std::array<char, 256> ignored;
    error_code error;
    while (!error && !connection->is_closed)
      co_await connection->socket.async_read_some(detail::asio::buffer(ignored), detail::into(error));
    close(*connection);
  }

  HttpOptions options_;
  const HttpServices services_;
  net::Address address_;
  std::string bearer_, basic_;  // what the header may say; empty: nothing is needed

  // Only the server's thread looks at these.
  detail::asio::io_context io_{1};
  tcp::acceptor acceptor_;
  detail::Event ticker_;
  net::detail::LimitedLog log_;
  std::list<ConnectionPointer> connections_;
  std::map<std::string, Published> events_;
  std::uint64_t last_event_ = 0;
  bool is_stopping_ = false;

  std::atomic<std::uint64_t> requests_{0}, crowded_{0};
  std::thread thread_;
};

HttpServer::HttpServer(const HttpOptions& options, HttpServices services)
    : impl_(std::make_unique<Impl>(options, std::move(services))) {}
HttpServer::~HttpServer() = default;
const net::Address& HttpServer::address() const noexcept {
  return impl_->address();
}
void HttpServer::publish(const std::string& name, std::string_view data) {
  impl_->publish(name, data);
}
std::uint64_t HttpServer::requests() const noexcept {
  return impl_->requests();
}
std::uint64_t HttpServer::crowded() const noexcept {
  return impl_->crowded();
}

}  // namespace troop::monitor
