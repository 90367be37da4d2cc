#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>

#include <troop/core/random.hpp>
#include <troop/net/client.hpp>
#include <troop/net/server.hpp>

#include "certificates.hpp"
#include "net_clients.hpp"
#include "net_records.hpp"
#include "proxy.hpp"
#include "raw_client.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::testing;
using namespace std::chrono_literals;
using net::TlsOptions;
using net::detail::tcp;
using troop::testing::error_of;
namespace asio = net::detail::asio;

namespace {

/// Certificates for all tests: they are not changed.
struct Certificates {
  TemporaryDirectory directory;
  Authority authority{directory, "authority"}, other{directory, "other"};
  TlsOptions head = authority.issue("head");
  TlsOptions actor = authority.issue("actor", {.names = ""});

  static const Certificates& get() {
    static const Certificates all;
    return all;
  }
};

/// A server whose clients need no certificate.
TlsOptions server_tls() {
  TlsOptions tls = Certificates::get().head;
  tls.authority.clear();
  return tls;
}

TlsOptions client_tls() {
  return {.authority = Certificates::get().authority.file()};
}

net::ServerOptions quick_server(std::optional<TlsOptions> tls = server_tls()) {
  return {.tls = std::move(tls),
          .handshake_deadline = 5s,
          .heartbeat = 50ms,
          .idle_deadline = 2s,
          .log = nullptr};
}

net::ClientOptions quick_client(std::uint16_t port, std::optional<TlsOptions> tls = client_tls()) {
  auto options = client_to(port);
  options.tls = std::move(tls);
  return options;
}

std::string last_error(const net::Client& client) {
  return client.statistics().last_error;
}

/// Ends of one connection whose handshake fails: what each says about it.
struct Refused {
  std::string client, server;
};

Refused refused(std::optional<TlsOptions> of_server, std::optional<TlsOptions> of_client,
                const std::string& connect = "127.0.0.1") {
  RecordingSink sink;
  Lines server_lines, client_lines;
  auto server_options = quick_server(std::move(of_server));
  server_options.log = server_lines.callable();
  net::Server server(server_options, layout(), sink.callable());
  auto options = quick_client(server.address().port, std::move(of_client));
  options.connect = connect + ":" + std::to_string(server.address().port);
  options.log = client_lines.callable();
  options.min_backoff = options.max_backoff = 60s;
  net::Client client(options, layout());
  try {
    send(client, 0, 0, 1);
  } catch (const net::RefusedError&) {  // where the server refused it for good before
  }
  CHECK(eventually([&] { return !client_lines.all().empty() && !server_lines.all().empty(); }));
  CHECK(eventually([&] { return server.statistics().refused_for(net::RefusalCode::tls) == 1; }));
  CHECK(client.statistics().connections == 0);
  CHECK(server.statistics().frames == 0);
  CHECK(server.statistics().admitted == 0);
  CHECK(server_lines.all().size() == 1);
  CHECK(client_lines.all().size() == 1);
  CHECK(eventually([&] { return server.statistics().connections == 0; }));
  std::string line = server_lines.all().at(0);
  const std::string start = "refused 127.0.0.1:";
  CHECK(line.substr(0, start.size()) == start);
  line.erase(0, line.find(": ") + 2);
  return {client_lines.all().at(0), line};
}

std::string unreachable(const std::string& why, const std::string& line) {
  const std::size_t end = line.find(": ");
  CHECK(line.substr(0, 13) == "cannot reach ");
  return line.substr(std::min(end + 2, line.size())) == why + "; trying again" ? "" : line;
}

}  // namespace

TEST_CASE("with TLS batches small and large arrive once and in order, and nothing is readable on the way") {
  RecordingSink sink;
  net::Server server(patient(quick_server()), layout(), sink.callable());
  net::Client client(quick_client(server.address().port), layout());
  std::size_t sent = 0;
  for (const std::size_t count : {1u, 40u, 90'000u, 1u, 90'000u, 40u, 40u, 700u, 3u, 20'000u}) {
    CHECK(send(client, 0, sent, count) == Outcome::ok);
    sent += count;
  }
  for (int i = 0; i < 1000; ++i, sent += 40) CHECK(send(client, 0, sent, 40) == Outcome::ok);
  CHECK(client.flush(Deadline::after(60s)) == Outcome::ok);
  CHECK(sink.fault(0, sent) == "");
  CHECK(client.statistics().connections == 1);
  // A large batch was received, and its buffer is given back though the connection stays.
  CHECK(eventually([&] { return server.statistics().receive_bytes == 0; }));
  CHECK(send(client, 0, sent, 90'000) == Outcome::ok);
  CHECK(client.flush(Deadline::after(60s)) == Outcome::ok);
  CHECK(sink.fault(0, sent + 90'000) == "");
  CHECK(client.stop(Deadline::after(30s)) == Outcome::ok);
  CHECK(eventually([&] { return server.sessions().empty(); }));
}

TEST_CASE(
    "with an authority at the server clients prove themselves by certificates, and the token is one thing "
    "more") {
  const Certificates& all = Certificates::get();
  RecordingSink sink;
  auto server_options = quick_server(all.head);
  server_options.token = net::Token("the right token, 16+");
  net::Server server(server_options, layout(), sink.callable());
  auto options = quick_client(server.address().port, all.actor);
  options.token = server_options.token;
  net::Client client(options, layout());
  CHECK(send(client, 0, 0, 5) == Outcome::ok);
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(sink.fault(0, 5) == "");
  options.token = net::Token("a wrong token of 16+");
  net::Client wrong(options, layout());
  CHECK(eventually([&] { return last_error(wrong) == "the token is not the server's"; }));
  CHECK(server.statistics().refused_for(net::RefusalCode::tls) == 0);
}

TEST_CASE("a server's certificate must come from the authority and be for the name, whichever that is") {
  const Certificates& all = Certificates::get();
  SUBCASE("another authority") {
    const auto lines = refused(server_tls(), TlsOptions{.authority = all.other.file()});
    CHECK(unreachable("the server's certificate is refused: unable to get local issuer certificate",
                      lines.client) == "");
    CHECK(lines.server == "the client ended TLS: unknown ca");
  }
  SUBCASE("the system's authorities") {
    const auto lines = refused(server_tls(), TlsOptions{});
    CHECK(unreachable("the server's certificate is refused: unable to get local issuer certificate",
                      lines.client) == "");
    CHECK(lines.server == "the client ended TLS: unknown ca");
  }
  SUBCASE("another number") {
    TlsOptions tls = all.authority.issue("numbers", {.names = "DNS:127.0.0.1,DNS:localhost,IP:127.0.0.2"});
    tls.authority.clear();
    const auto lines = refused(tls, client_tls());
    CHECK(unreachable("the server's certificate is not for 127.0.0.1", lines.client) == "");
    CHECK(lines.server == "the client ended TLS: bad certificate");
  }
  SUBCASE("another name") {
    TlsOptions tls = client_tls();
    tls.server_name = "head.example";
    const auto lines = refused(server_tls(), tls);
    CHECK(unreachable("the server's certificate is not for head.example", lines.client) == "");
    CHECK(lines.server == "the client ended TLS: bad certificate");
  }
  SUBCASE("a name as the subject only") {
    TlsOptions tls = all.authority.issue("localhost", {.names = ""});
    tls.authority.clear();
    const auto lines = refused(tls, client_tls(), "localhost");
    CHECK(unreachable("the server's certificate is not for localhost", lines.client) == "");
  }
}

TEST_CASE("names and numbers that the certificate has are accepted") {
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  for (const std::string name : {"", "localhost", "127.0.0.1"}) {
    auto options = quick_client(server.address().port);
    options.tls->server_name = name;
    if (name.empty()) options.connect = "localhost:" + std::to_string(server.address().port);
    net::Client client(options, layout());
    CHECK(send(client, 0, sink.count(), 1) == Outcome::ok);
    CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  }
  CHECK(sink.fault(0, 3) == "");
}

TEST_CASE("a client's certificate must be there and come from the authority") {
  const Certificates& all = Certificates::get();
  SUBCASE("none") {
    const auto lines = refused(all.head, client_tls());
    CHECK(lines.server == "this server wants a certificate, and the client has none");
    CHECK(unreachable("the server ended TLS: certificate required", lines.client) == "");
  }
  SUBCASE("another authority's") {
    TlsOptions tls = all.other.issue("stranger");
    tls.authority = all.authority.file();
    const auto lines = refused(all.head, tls);
    CHECK(lines.server == "the client's certificate is refused: unable to get local issuer certificate");
    CHECK(unreachable("the server ended TLS: unknown ca", lines.client) == "");
  }
}

TEST_CASE("an end that speaks TLS and one that does not tell each other so") {
  SUBCASE("the server does") {
    const auto lines = refused(server_tls(), std::nullopt);
    CHECK(lines.server == "this server speaks TLS only, and the client does not");
    const std::string end = " refused this client for good: " + lines.server;
    CHECK(lines.client.substr(lines.client.find(' ')) == end);
  }
  SUBCASE("the client does") {
    const auto lines = refused(std::nullopt, client_tls());
    CHECK(lines.server == "the client speaks TLS, and this server does not");
    CHECK(unreachable("the server does not speak TLS", lines.client) == "");
  }
}

namespace {

/// A server of one TLS connection that checks nothing; returns the client's last error. No byte of the client
/// may come through.
std::string error_at_client(const TlsOptions& server, const TlsOptions& client_options,
                            int max_version = TLS1_3_VERSION) {
  asio::ssl::context context(asio::ssl::context::tls_server);
  SSL_CTX_set_max_proto_version(context.native_handle(), max_version);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_VERSION);
  SSL_CTX_set_cipher_list(context.native_handle(), "ALL:@SECLEVEL=0");
  context.use_certificate_chain_file(server.certificate);
  context.use_private_key_file(server.key, asio::ssl::context::pem);
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  Lines lines;
  auto options = quick_client(acceptor.local_endpoint().port(), client_options);
  options.min_backoff = options.max_backoff = 60s;
  options.log = lines.callable();
  net::Client client(options, layout());
  send(client, 0, 0, 1);
  asio::ssl::stream<tcp::socket> stream(acceptor.accept(), context);
  net::detail::error_code error;
  stream.handshake(asio::ssl::stream_base::server, error);
  std::array<std::byte, 64> bytes;
  CHECK(stream.read_some(asio::buffer(bytes.data(), bytes.size()), error) == 0);
  CHECK(eventually([&] { return !last_error(client).empty(); }));
  CHECK(client.statistics().connections == 0);
  CHECK(eventually([&] { return lines.all().size() == 1; }));
  return last_error(client);
}

}  // namespace

TEST_CASE("a client says nothing to a server whose certificate is not valid, or whose TLS is too old") {
  const Certificates& all = Certificates::get();
  const TlsOptions expired = all.authority.issue("expired", {.begins = -7200, .ends = -3600});
  CHECK(error_at_client(expired, client_tls()) ==
        "the server's certificate is refused: certificate has expired");
  const TlsOptions early = all.authority.issue("early", {.begins = 3600});
  CHECK(error_at_client(early, client_tls()) ==
        "the server's certificate is refused: certificate is not yet valid");
  CHECK(error_at_client(all.other.issue("stranger"), client_tls()) ==
        "the server's certificate is refused: unable to get local issuer certificate");
  const std::string old = error_at_client(all.head, client_tls(), TLS1_1_VERSION);
  CHECK((old == "TLS: unsupported protocol" || old == "the server ended TLS: protocol version"));
}

namespace {

/// A TLS client that has its own idea of what is allowed.
struct RawTls {
  RawTls(std::uint16_t port, const std::function<void(asio::ssl::context&)>& set_up)
      : stream((set_up(context), io), context) {
    stream.next_layer().connect({asio::ip::address_v4::loopback(), port});
    stream.handshake(asio::ssl::stream_base::client, error);
    if (!error) {  // what a server thinks of a certificate is known with the first byte that it sends
      std::array<std::byte, 1> byte;
      stream.read_some(asio::buffer(byte.data(), byte.size()), error);
    }
  }

  asio::io_context io;
  asio::ssl::context context{asio::ssl::context::tls_client};
  asio::ssl::stream<tcp::socket> stream;
  net::detail::error_code error;
};

}  // namespace

TEST_CASE("a server takes neither expired certificates nor TLS below 1.2, and counts what it refuses") {
  const Certificates& all = Certificates::get();
  RecordingSink sink;
  Lines lines;
  auto options = quick_server(all.head);
  options.log = lines.callable();
  net::Server server(options, layout(), sink.callable());
  const TlsOptions expired = all.authority.issue("old-actor", {.begins = -7200, .ends = -3600});
  RawTls with_expired(server.address().port, [&](asio::ssl::context& context) {
    context.use_certificate_chain_file(expired.certificate);
    context.use_private_key_file(expired.key, asio::ssl::context::pem);
  });
  CHECK(with_expired.error.message().find("certificate expired") != std::string::npos);
  CHECK(
      eventually([&] { return lines.has("the client's certificate is refused: certificate has expired"); }));
  RawTls old(server.address().port, [](asio::ssl::context& context) {
    SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context.native_handle(), TLS1_1_VERSION);
    SSL_CTX_set_cipher_list(context.native_handle(), "ALL:@SECLEVEL=0");
  });
  CHECK(old.error.message().find("protocol version") != std::string::npos);
  CHECK(eventually([&] { return lines.has("TLS: unsupported protocol"); }));
  RawTls weak(server.address().port, [](asio::ssl::context& context) {
    SSL_CTX_set_max_proto_version(context.native_handle(), TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(context.native_handle(), "AES128-SHA:ECDHE-ECDSA-AES128-SHA");
  });
  CHECK(weak.error.message().find("handshake failure") != std::string::npos);
  CHECK(eventually([&] { return lines.has("TLS: no shared cipher"); }));
  CHECK(server.statistics().refused_for(net::RefusalCode::tls) == 3);
  CHECK(sink.count() == 0);
}

TEST_CASE("bytes at random, a look whether somebody listens, and half a handshake harm nobody") {
  MESSAGE("seed " << seed());
  Random random(seed(), "bytes");
  RecordingSink sink;
  net::Server server(patient(quick_server()), layout(), sink.callable());
  net::Client client(quick_client(server.address().port), layout());
  for (std::size_t round = 0; round < 60; ++round) {
    RawClient bad(server.address().port);
    std::vector<std::byte> bytes(random.below(300));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    if (round % 3 > 0 && bytes.size() > 2) bytes[0] = std::byte{22}, bytes[1] = std::byte{3};
    if (round % 3 == 2 && bytes.size() > 9) bytes[3] = std::byte{0}, bytes[5] = std::byte{1};
    bad.send(bytes);
    if (round % 10 == 0) CHECK(send(client, 0, round / 10, 1) == Outcome::ok);
  }
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(sink.fault(0, 6) == "");
  CHECK(client.statistics().connections == 1);
  CHECK(eventually([&] { return server.statistics().connections == 1; }));
  CHECK(server.statistics().sessions == 1);
}

TEST_CASE(
    "who is slow or silent in the TLS handshake is dropped by the deadline, and makes room for others") {
  RecordingSink sink;
  Lines lines;
  auto options = quick_server();
  options.handshake_deadline = 40ms;
  options.log = lines.callable();
  std::vector<std::byte> start(300);  // of a client's first message, as far as it goes
  start[0] = std::byte{22}, start[1] = std::byte{3}, start[2] = std::byte{1}, start[3] = std::byte{2};
  SUBCASE("by the deadline") {
    net::Server server(options, layout(), sink.callable());
    RawClient silent(server.address().port);
    CHECK(silent.is_closed());
    CHECK(server.statistics().refused_for(net::RefusalCode::slow) == 1);
    CHECK(lines.has("no TLS handshake within 0.04 s"));
    RawClient dribbling(server.address().port);
    std::size_t sent = 0;
    while (server.statistics().refused_for(net::RefusalCode::slow) < 2 && sent < start.size()) {
      dribbling.send(std::span(start).subspan(sent++, 1));
      std::this_thread::sleep_for(2ms);
    }
    CHECK(sent < start.size());
    CHECK(dribbling.is_closed());
    CHECK(eventually([&] { return server.statistics().connections == 0; }));
    CHECK(lines.all().size() == 2);
  }
  SUBCASE("by others") {
    options.handshake_deadline = 60s;
    options.max_connections = 2;
    net::Server server(options, layout(), sink.callable());
    RawClient first(server.address().port), second(server.address().port);
    second.send(start);
    net::Client client(quick_client(server.address().port), layout());
    CHECK(send(client, 0, 0, 1) == Outcome::ok);
    CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
    CHECK(first.is_closed());
    CHECK(server.statistics().refused_for(net::RefusalCode::crowded) == 1);
  }
  SUBCASE("by the end of the server") {
    options.handshake_deadline = 60s;
    net::Server server(options, layout(), sink.callable());
    RawClient first(server.address().port), second(server.address().port);
    second.send(start);
    CHECK(eventually([&] { return server.statistics().connections == 2; }));
    server.stop(Deadline::after(20ms));
    CHECK(server.statistics().connections == 0);
  }
}

TEST_CASE("a server that does not answer in the TLS handshake is left by the deadline, or by stop") {
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  auto options = quick_client(acceptor.local_endpoint().port());
  options.connect_deadline = 20ms;
  net::Client client(options, layout());
  CHECK(eventually([&] { return last_error(client) == "no welcome within 0.02 s"; }));
  options.connect_deadline = 60s;
  net::Client patient(options, layout());
  const auto start = Clock::now();
  CHECK(patient.stop(Deadline::now()) == Outcome::ok);
  CHECK(seconds_since(start) < 20.0);
}

TEST_CASE("wherever a connection with TLS is cut, every item is there once and in each client's order") {
  MESSAGE("seed " << seed());
  RecordingSink sink;
  net::Server server(quick_server(), layout(), sink.callable());
  Random random(seed(), "proxy");
  std::size_t step = 0;
  Proxy proxy(server.address().port, [&](std::size_t) {
    Proxy::Plan plan;
    switch (random.below(6)) {
      case 0:
      case 1:
        plan.cut_to_client = 1 + (step += 37) % 2000;  // most often within the handshake
        break;
      case 2:
      case 3:
        plan.cut_to_server = 1 + (step += 37) % 2000;
        break;
      case 4:
        plan.cut_to_server = 2000 + random.below(30'000), plan.drop_to_client = random.below(4) == 0;
        break;
      default:
        plan.cut_to_server = 2000 + random.below(30'000);
    }
    plan.reset = random.below(2) == 0;
    plan.piece = 1 + random.below(2000);
    return plan;
  });
  auto options = quick_client(proxy.port());
  options.connect_deadline = 300ms;
  const std::uint64_t reconnects = check_each_item_comes_once(options, sink, 3, 150, 200s);
  CHECK(proxy.connections() > 20);
  CHECK(reconnects > 5);
  CHECK(server.statistics().lost == 0);
}

TEST_CASE("a certificate that is mended is found by itself, with one line for all attempts") {
  const Certificates& all = Certificates::get();
  RecordingSink sink;
  Lines lines;
  TlsOptions wrong = all.other.issue("wrong");
  wrong.authority.clear();
  auto server = std::make_unique<net::Server>(quick_server(wrong), layout(), sink.callable());
  const std::uint16_t port = server->address().port;
  auto options = quick_client(port);
  options.log = lines.callable();
  net::Client client(options, layout());
  CHECK(send(client, 0, 0, 5) == Outcome::ok);
  CHECK(eventually([&] { return client.statistics().attempts > 5; }));
  CHECK(lines.all() == std::vector<std::string>{
                           "cannot reach 127.0.0.1:" + std::to_string(port) +
                           ": the server's certificate is refused: unable to get local issuer certificate; "
                           "trying again"});
  server.reset();
  auto server_options = quick_server();
  server_options.listen = "127.0.0.1:" + std::to_string(port);
  server = std::make_unique<net::Server>(server_options, layout(), sink.callable());
  CHECK(client.flush(Deadline::after(30s)) == Outcome::ok);
  CHECK(sink.fault(0, 5) == "");
  CHECK(lines.all().size() == 2);
}

TEST_CASE("files that cannot be used are named with the reason before anything is begun") {
  const Certificates& all = Certificates::get();
  const auto file = [&](const char* name) { return all.directory.file(name); };
  RecordingSink sink;
  const auto server_error = [&](const TlsOptions& tls) {
    return error_of([&] { net::Server(quick_server(tls), layout(), sink.callable()); });
  };
  const auto client_error = [&](const TlsOptions& tls) {
    return error_of([&] { net::Client(quick_client(1, tls), layout()); });
  };
  CHECK(server_error(all.head) == "no error");
  CHECK(client_error(all.actor) == "no error");

  const std::string missing = file("missing");
  CHECK(server_error({missing, all.head.key}) == missing + ": cannot open: No such file or directory");
  CHECK(server_error({all.head.certificate, missing}) ==
        missing + ": cannot open: No such file or directory");
  CHECK(server_error({all.head.certificate, all.head.key, missing}) ==
        missing + ": cannot open: No such file or directory");
  CHECK(client_error({.authority = missing}) == missing + ": cannot open: No such file or directory");
  CHECK(client_error({missing, all.actor.key}) == missing + ": cannot open: No such file or directory");

  Authority::write(file("text"), "this is no certificate\n");
  const std::string text = file("text");
  CHECK(server_error({text, all.head.key}).find(text + ": is no certificate in PEM: ") == 0);
  CHECK(server_error({all.head.key, all.head.key}).find(all.head.key + ": is no certificate in PEM: ") == 0);
  CHECK(client_error({.authority = text}).find(text + ": is no certificate in PEM: ") == 0);
  Authority::write(file("empty"), "");
  const std::string empty = file("empty");
  CHECK(client_error({.authority = empty}) == empty + ": is empty");
  CHECK(server_error({empty, all.head.key}) == empty + ": is empty");
  CHECK(server_error({all.head.certificate, empty}) == empty + ": is empty");
  CHECK(server_error({all.head.certificate, text})
            .find(text + ": is no private key in PEM, without a password: ") == 0);
  Authority::write(file("locked.key"), Authority::key_pem("secret"));
  CHECK(server_error({all.head.certificate, file("locked.key")})
            .find(file("locked.key") + ": is no private key in PEM, without a password: ") == 0);

  CHECK(server_error({all.head.certificate, all.actor.key}) ==
        all.actor.key + ": is not the key of the certificate " + all.head.certificate);
  const TlsOptions rsa = all.authority.issue("rsa", {.key = "RSA"});
  CHECK(server_error(rsa) == "no error");
  CHECK(server_error({all.head.certificate, rsa.key}) ==
        rsa.key + ": is not the key of the certificate " + all.head.certificate);

  const TlsOptions open = all.authority.issue("open");
  ::chmod(open.key.c_str(), 0644);
  CHECK(server_error(open) == open.key + ": can be read by everybody; a private key must not (chmod o-r)");

  const TlsOptions expired = all.authority.issue("gone", {.begins = -7200, .ends = -3600});
  CHECK(server_error(expired).find(expired.certificate + ": the certificate expired at ") == 0);
  CHECK(client_error(expired).find(expired.certificate + ": the certificate expired at ") == 0);
  CHECK(server_error(expired).find(" GMT") != std::string::npos);
  const TlsOptions early = all.authority.issue("not-yet", {.begins = 3600});
  CHECK(server_error(early).find(early.certificate + ": the certificate is not valid before ") == 0);
}

TEST_CASE("TLS options that make no sense are refused") {
  RecordingSink sink;
  const auto server_error = [&](const TlsOptions& tls) {
    return error_of([&] { quick_server(tls).validate(); });
  };
  const auto client_error = [&](const TlsOptions& tls) {
    return error_of([&] { quick_client(1, tls).validate(); });
  };
  CHECK(server_error({}) == "tls: no certificate is not allowed; expected a certificate and its key");
  CHECK(server_error({.certificate = "a"}) ==
        "tls: no key is not allowed; expected a certificate and its key, or neither");
  CHECK(server_error({"a", "b", "c", "d"}) ==
        "tls.server_name: \"d\" is not allowed; expected nothing: it is for clients");
  CHECK(server_error({"a", "b"}) == "no error");
  CHECK(client_error({}) == "no error");
  CHECK(client_error({.key = "a"}) ==
        "tls: a key without certificate is not allowed; expected a certificate and its key, or neither");
  CHECK(client_error({"a", "b", "c", "d"}) == "no error");
}

TEST_CASE("a server with TLS may listen to the world, and says if that lets everybody in") {
  const Certificates& all = Certificates::get();
  RecordingSink sink;
  Lines lines;
  auto options = quick_server();
  options.listen = "0.0.0.0:0";
  options.log = lines.callable();
  const std::string expected =
      "everybody who can connect to 0.0.0.0:0 may insert: there is neither a token nor an authority for "
      "clients' certificates";
  { net::Server server(options, layout(), sink.callable()); }
  CHECK(lines.all() == std::vector<std::string>{expected});
  options.tls = all.head;
  { net::Server server(options, layout(), sink.callable()); }
  options.tls = server_tls();
  options.token = net::Token("a token of 16 or more");
  { net::Server server(options, layout(), sink.callable()); }
  CHECK(lines.all().size() == 1);
}
