#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/detail/stream.hpp>

#include "certificates.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::testing;
using namespace troop::net::detail;

namespace {

/// Both ends of a connection in one io_context.
struct Ends {
  explicit Ends(bool has_tls) {
    tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    client.socket().connect(acceptor.local_endpoint());
    acceptor.accept(server.socket());
    if (!has_tls) return;
    error_code errors[2];
    net::TlsOptions head = authority.issue("head");
    const net::TlsOptions actor{.authority = head.authority};
    head.authority.clear();
    of_server.emplace(head);
    of_client.emplace(actor, "127.0.0.1");
    run([&]() -> asio::awaitable<void> { co_await client.connect_tls(*of_client, errors[0]); },
        [&]() -> asio::awaitable<void> { co_await server.accept_tls(*of_server, errors[1]); });
    CHECK(!errors[0]);
    CHECK(!errors[1]);
  }

  template <class... Tasks>
  void run(Tasks... tasks) {
    io.restart();
    (asio::co_spawn(io, tasks(), asio::detached), ...);
    io.run();
  }

  TemporaryDirectory directory;
  Authority authority{directory, "authority"};
  std::optional<TlsContext> of_server, of_client;
  asio::io_context io{1};
  Stream client{io}, server{io};
};

}  // namespace

TEST_CASE("many buffers of all sizes arrive in both directions at once") {
  MESSAGE("seed " << seed());
  for (const bool has_tls : {false, true}) {
    Ends ends(has_tls);
    Random random(seed(), "buffers");
    std::vector<std::vector<std::byte>> parts;
    std::vector<std::byte> all;
    for (int i = 0; i < 200; ++i) {
      const std::size_t sizes[] = {1, 16, 500, 8192, 16'384, 70'000, 1 << 20};
      std::vector<std::byte> part(1 + random.below(sizes[random.below(i % 10 == 0 ? 7 : 5)]));
      for (auto& byte : part) byte = static_cast<std::byte>(random());
      all.insert(all.end(), part.begin(), part.end());
      parts.push_back(std::move(part));
    }
    std::vector<asio::const_buffer> buffers;
    for (const auto& part : parts) buffers.push_back(asio::buffer(part));
    std::vector<std::byte> received[2];
    const auto write = [&](Stream& to) -> asio::awaitable<void> {
      error_code error;
      CHECK(co_await asio::async_write(to, buffers, into(error)) == all.size());
      CHECK(!error);
      to.shut_down();
    };
    const auto read = [&](Stream& from, std::vector<std::byte>& bytes) -> asio::awaitable<void> {
      std::vector<std::byte> space(50'000);
      for (;;) {
        error_code error;
        const std::size_t count = co_await from.async_read_some(asio::buffer(space), into(error));
        if (error) break;
        bytes.insert(bytes.end(), space.begin(), space.begin() + static_cast<std::ptrdiff_t>(count));
      }
    };
    ends.run([&] { return write(ends.client); }, [&] { return write(ends.server); },
             [&] { return read(ends.client, received[0]); }, [&] { return read(ends.server, received[1]); });
    CHECK(received[0] == all);
    CHECK(received[1] == all);
  }
}

TEST_CASE("waiting takes a few bytes where it must, and none is lost") {
  for (const bool has_tls : {false, true}) {
    Ends ends(has_tls);
    const std::array<std::byte, 5> bytes = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                                            std::byte{5}};
    ends.run(
        [&]() -> asio::awaitable<void> {
          error_code error;
          std::array<std::byte, 2> few{};
          std::array<std::byte, 8> rest{};
          std::size_t count = co_await ends.server.wait(few, error);
          CHECK(count == (has_tls ? 2 : 0));
          std::copy_n(few.begin(), count, rest.begin());
          while (count < bytes.size() && !error)
            count += co_await ends.server.async_read_some(asio::buffer(rest) + count, into(error));
          CHECK(count == 5);
          CHECK(std::equal(bytes.begin(), bytes.end(), rest.begin()));
        },
        [&]() -> asio::awaitable<void> {
          error_code error;
          co_await asio::async_write(ends.client, asio::buffer(bytes), into(error));
        });
  }
}

TEST_CASE("closing ends what is under way") {
  for (const bool has_tls : {false, true}) {
    Ends ends(has_tls);
    error_code reading, waiting;
    std::array<std::byte, 8> bytes;
    ends.run(
        [&]() -> asio::awaitable<void> {
          co_await ends.client.async_read_some(asio::buffer(bytes), into(reading));
        },
        [&]() -> asio::awaitable<void> { co_await ends.server.wait(bytes, waiting); },
        [&]() -> asio::awaitable<void> {
          ends.client.close();
          ends.server.close();
          co_return;
        });
    CHECK(reading);
    CHECK(waiting);
    CHECK(!ends.client.is_open());
  }
}
