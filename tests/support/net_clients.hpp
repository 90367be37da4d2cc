/// @file
/// Clients that send numbered items, and the check that each item came once whatever happened on the way.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/net/client.hpp>
#include <troop/net/server.hpp>

#include "net_records.hpp"
#include "testing.hpp"

namespace troop::testing {

/// Of a client that comes back fast and says nothing.
inline net::ClientOptions client_to(std::uint16_t port) {
  return {.connect = "127.0.0.1:" + std::to_string(port),
          .min_backoff = std::chrono::milliseconds(1),
          .max_backoff = std::chrono::milliseconds(8),
          .seed = 1,
          .log = nullptr};
}

/// Of a server whose connections are counted: on a busy machine, or under ThreadSanitizer, nobody is heard for seconds.
inline net::ServerOptions patient(net::ServerOptions options) {
  options.heartbeat = std::chrono::seconds(20);
  options.idle_deadline = std::chrono::seconds(60);
  return options;
}

inline Outcome send(net::Client& client, std::uint32_t id, std::size_t first, std::size_t count,
                    Deadline deadline = Deadline::after(std::chrono::seconds(30))) {
  const auto items = numbered(id, static_cast<std::uint32_t>(first), count);
  return client.insert(view(items), priorities_of(items), deadline);
}

/// Lets clients, each from a thread of its own, send batches of 1 to 100 items, and checks that all came once
/// and in order. Returns how often the clients had to connect again.
inline std::uint64_t check_each_item_comes_once(net::ClientOptions options, const RecordingSink& sink,
                                                std::size_t num_clients, std::size_t num_batches,
                                                Clock::duration patience) {
  std::vector<std::unique_ptr<net::Client>> clients;
  for (std::size_t i = 0; i < num_clients; ++i) {
    options.seed = seed() + i + 1;
    clients.push_back(std::make_unique<net::Client>(options, layout()));
  }
  std::vector<std::size_t> sent(num_clients, 0);
  Failures failures;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < num_clients; ++i) {
    threads.emplace_back([&, i] {
      Random sizes(seed(), "sizes", i);
      for (std::size_t batch = 0; batch < num_batches; ++batch) {
        const std::size_t size = 1 + sizes.below(100);
        if (send(*clients[i], static_cast<std::uint32_t>(i), sent[i], size) != Outcome::ok)
          failures.add("insert");
        sent[i] += size;
      }
      if (clients[i]->flush(Deadline::after(patience)) != Outcome::ok) failures.add("flush");
    });
  }
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);
  std::uint64_t reconnects = 0;
  for (std::size_t i = 0; i < num_clients; ++i) {
    CHECK(sink.fault(static_cast<std::uint32_t>(i), sent[i]) == "");
    reconnects += clients[i]->statistics().connections - 1;
    CHECK(clients[i]->statistics().lost == 0);
  }
  return reconnects;
}

}  // namespace troop::testing
