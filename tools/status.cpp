/// troop status, troop top, troop password: the pages of a run's HTTP server, for a terminal.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <troop/net/detail/asio.hpp>  // before Beast: it sets what Asio needs

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include <CLI/CLI.hpp>

#include <troop/core/error.hpp>
#include <troop/monitor/http.hpp>
#include <troop/net/address.hpp>
#include <troop/net/authentication.hpp>

#include "commands.hpp"

namespace troop::tools {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using net::detail::error_code;
using net::detail::into;

net::Token token_of(const std::string& file) {
  if (!file.empty()) return net::Token::from_file(file);
  return std::getenv("TROOP_TOKEN") != nullptr ? net::Token::from_environment("TROOP_TOKEN") : net::Token();
}

/// The HTTP server of a run, as its user names it: HOST:PORT, or the URL that the run has printed.
class Server {
 public:
  Server(std::string_view place, const net::Token& token) {
    constexpr std::string_view kScheme = "http://";
    if (place.starts_with(kScheme)) place.remove_prefix(kScheme.size());
    if (place.ends_with('/')) place.remove_suffix(1);
    address_ = net::parse_address(place, "HOST:PORT");
    if (!token.is_empty()) password_ = monitor::http_password(token);
  }

  /// A page. Throws Error when it is not there within some seconds.
  std::string get(const std::string& path) const {
    asio::io_context io;
    http::response_parser<http::string_body> answer;
    answer.body_limit(std::size_t{64} << 20);
    error_code error;
    asio::co_spawn(io, exchange(path, answer, error), asio::detached);
    io.run();
    const std::string place = net::to_string(address_);
    if (error) throw Error(place + ": " + error.message());
    switch (answer.get().result()) {
      case http::status::ok:
        return answer.get().body();
      case http::status::unauthorized:
        throw Error(place + (password_.empty() ? " needs the cluster's token: --token-file, or TROOP_TOKEN"
                                               : " has another token than this one"));
      case http::status::not_found:
        throw Error(place + " has no such page: only a learner, or a run in one process, tells of a run");
      default:
        throw Error(place + " answers " + std::string(answer.get().reason()));
    }
  }

 private:
  asio::awaitable<void> exchange(const std::string& path, http::response_parser<http::string_body>& answer,
                                 error_code& error) const {
    constexpr auto kPatience = std::chrono::seconds(5);
    const auto executor = co_await asio::this_coro::executor;
    net::detail::tcp::resolver resolver(executor);
    const auto found =
        co_await resolver.async_resolve(address_.host, std::to_string(address_.port), into(error));
    if (error) co_return;
    boost::beast::tcp_stream stream(executor);
    stream.expires_after(kPatience);
    co_await stream.async_connect(found, into(error));
    if (error) co_return;
    http::request<http::empty_body> request(http::verb::get, path, 11);
    request.set(http::field::host, net::to_string(address_));
    request.set(http::field::connection, "close");
    if (!password_.empty()) request.set(http::field::authorization, "Bearer " + password_);
    co_await http::async_write(stream, request, into(error));
    if (error) co_return;
    boost::beast::flat_buffer buffer;
    co_await http::async_read(stream, buffer, answer, into(error));
  }

  net::Address address_;
  std::string password_;
};

/// What comes from elsewhere must not steer the terminal.
std::string harmless(std::string text) {
  for (char& c : text) {
    if ((c >= 0 && c < ' ' && c != '\n') || c == '\x7f') c = '?';
  }
  return text;
}

/// As many lines as the terminal has, less the one that the prompt needs.
std::string cut_to_terminal(const std::string& text) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 2) return text;
  std::size_t end = 0;
  for (int line = 1; line < size.ws_row; ++line) {
    const std::size_t next = text.find('\n', end);
    if (next == std::string::npos) return text;
    end = next + 1;
  }
  return text.substr(0, end);
}

bool is_terminal() {
  return ::isatty(STDOUT_FILENO) == 1;
}

/// Shows `text()` again and again, on a terminal in the same place. What goes wrong after the first time is
/// shown as well, for a head may be away for a while.
template <class Text>
[[noreturn]] void watch(double interval, Text text) {
  std::string shown = text();
  for (;;) {
    if (is_terminal())
      std::cout << "\x1b[H\x1b[2J" << cut_to_terminal(shown) << std::flush;
    else
      std::cout << shown << std::endl;
    if (!std::cout) std::exit(1);  // nobody reads it any more
    std::this_thread::sleep_for(std::chrono::duration<double>(interval));
    try {
      shown = text();
    } catch (const Error& error) {
      shown = std::string(error.what()) + "\n";
    }
  }
}

/// The words of a command, and its help.
class Words {
 public:
  Words(const char* name, const char* what) : app_(what) { app_.name(std::string("troop ") + name); }

  CLI::App& operator*() { return app_; }
  CLI::App* operator->() { return &app_; }

  void take_server(std::string& place, std::string& token_file, double& interval) {
    app_.add_option("server", place, "HOST:PORT of the run's --http")->required();
    take_token(token_file);
    app_.add_option("--interval", interval, "seconds between two looks [2]")->check(CLI::Range(0.1, 3600.0));
  }
  void take_token(std::string& token_file) {
    app_.add_option("--token-file", token_file,
                    "file with the cluster's token (none: TROOP_TOKEN in the environment)");
  }

  /// Whether to go on; else `code` is what the command returns.
  bool parse(int argc, const char* const* argv, int& code) {
    try {
      app_.parse(argc, argv);
      return true;
    } catch (const CLI::CallForHelp&) {
      std::cout << app_.help();
      code = 0;
    } catch (const CLI::ParseError& error) {
      std::cerr << "error: " << error.what() << " (--help tells more)\n";
      code = 2;
    }
    return false;
  }

 private:
  CLI::App app_;
};

}  // namespace

int status(int argc, const char* const* argv) {
  std::string place, token_file;
  double interval = 2.0;
  bool watches = false, json = false;
  int code = 0;
  Words words("status", "How a run goes: its return, rates, replay and alarms.");
  words.take_server(place, token_file, interval);
  words->add_flag("--watch", watches, "look again and again");
  words->add_flag("--json", json, "all of it, as docs/monitoring.md describes it");
  if (!words.parse(argc, argv, code)) return code;
  const Server server(place, token_of(token_file));
  const auto text = [&] {
    return json ? server.get("/api/status") + "\n" : harmless(server.get("/status.txt"));
  };
  if (watches) watch(interval, text);
  std::cout << text();
  return 0;
}

int top(int argc, const char* const* argv) {
  std::string place, token_file;
  double interval = 2.0;
  bool once = !is_terminal();
  int code = 0;
  Words words("top", "The actors of a run, lost ones first: in place on a terminal, else once.");
  words.take_server(place, token_file, interval);
  words->add_flag("--once", once, "look once");
  if (!words.parse(argc, argv, code)) return code;
  const Server server(place, token_of(token_file));
  const auto text = [&] { return harmless(server.get("/actors.txt")); };
  if (!once) watch(interval, text);
  std::cout << text();
  return 0;
}

int password(int argc, const char* const* argv) {
  std::string token_file;
  int code = 0;
  Words words("password",
              "Prints what a browser wants to know, for the user troop, before it shows a status page beyond "
              "loopback. It is made of the cluster's token and opens nothing else.");
  words.take_token(token_file);
  if (!words.parse(argc, argv, code)) return code;
  const net::Token token = token_of(token_file);
  require(!token.is_empty(), "--token-file", "\"\"", "a file, or TROOP_TOKEN in the environment");
  std::cout << monitor::http_password(token) << "\n";
  return 0;
}

}  // namespace troop::tools
