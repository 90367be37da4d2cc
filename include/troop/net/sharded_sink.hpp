/// @file
/// Sends an actor's batches to whichever shards take them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/net/client.hpp>

namespace troop::net {

/// Brings each batch to one of several servers, by a Client for each: exactly once, as that does. Models
/// agent::ItemSink.
///
/// - A batch goes to the next server, in turn, that is connected and whose outbox has room; while none is
///   connected, to the next outbox with room. So `insert` waits only when there is none; with `drop_oldest`
///   every outbox has room.
/// - Batches that were given to a client stay with it: those of a server that is lost are sent when it is
///   back. New ones go to the others meanwhile.
/// - Batches are in the order of the calls of `insert` for each server, not over all.
/// - A server that has refused for good is left out like one that is lost. While none is connected, `insert`
///   throws its RefusedError; `flush` does always.
///
/// Thread-safe, but `stop` and the destructor belong to one thread.
///
///     net::ShardedSink sink({"a:7778", "b:7778"}, {.token = token}, layout);
///     sink.insert(batch, priorities, Deadline::after(10s));
class ShardedSink {
 public:
  /// `options`: of each client; what `connect` says is not used. Returns at once.
  ShardedSink(const std::vector<std::string>& servers, ClientOptions options, const RecordLayout& layout) {
    require(!servers.empty(), "number of servers", 0, "a positive integer");
    for (const std::string& server : servers) {
      options.connect = server;
      clients_.push_back(std::make_unique<Client>(options, layout));
    }
  }

  ShardedSink(const ShardedSink&) = delete;
  ShardedSink& operator=(const ShardedSink&) = delete;
  ~ShardedSink() { stop(Deadline::now()); }

  std::size_t num_clients() const noexcept { return clients_.size(); }
  /// How it stands with each server.
  ClientStatistics statistics(std::size_t client) const { return clients_.at(client)->statistics(); }

  /// As Client::insert.
  Outcome insert(const BatchView& records, std::span<const float> priorities,
                 Deadline deadline = Deadline::never(), const std::stop_token& stop = {}) {
    for (;;) {
      const Outcome outcome = offer(records, priorities);
      if (outcome != Outcome::timeout) return outcome;
      if (stop.stop_requested()) return Outcome::cancelled;
      if (deadline.has_passed()) return Outcome::timeout;
      // Any of the clients may have room next; looking again costs less than being told by each.
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any never;
      never.wait_until(lock, stop, std::min(deadline.time(), Clock::now() + kPeriod), [] { return false; });
    }
  }

  /// Waits until everything that was inserted before is acknowledged by all servers.
  Outcome flush(Deadline deadline = Deadline::never(), const std::stop_token& stop = {}) {
    Outcome outcome = Outcome::ok;
    for (const auto& client : clients_) {
      const Outcome one = client->flush(deadline, stop);
      if (outcome == Outcome::ok) outcome = one;
    }
    return outcome;
  }

  /// As Client::stop, of all clients at the same time.
  Outcome stop(Deadline deadline = Deadline::after(std::chrono::seconds(5))) {
    std::vector<Outcome> outcomes(clients_.size());
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < clients_.size(); ++i)
      threads.emplace_back([&, i] { outcomes[i] = clients_[i]->stop(deadline); });
    threads.clear();
    for (const Outcome outcome : outcomes) {
      if (outcome != Outcome::ok) return outcome;
    }
    return Outcome::ok;
  }

 private:
  static constexpr Clock::duration kPeriod = std::chrono::milliseconds(2);

  /// Gives the batch to a client. timeout: none has room.
  Outcome offer(const BatchView& records, std::span<const float> priorities) {
    const std::size_t start = turn_.fetch_add(1, std::memory_order_relaxed);
    bool is_any_connected = false;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      Client& client = *clients_[(start + i) % clients_.size()];
      if (!client.statistics().is_connected) continue;
      is_any_connected = true;
      const Outcome outcome = client.insert(records, priorities, Deadline::now());
      if (outcome != Outcome::timeout) return outcome;
    }
    for (std::size_t i = 0; i < clients_.size() && !is_any_connected; ++i) {
      Client& client = *clients_[(start + i) % clients_.size()];
      const Outcome outcome = client.insert(records, priorities, Deadline::now());
      if (outcome != Outcome::timeout) return outcome;
    }
    return Outcome::timeout;
  }

  std::vector<std::unique_ptr<Client>> clients_;
  std::atomic<std::size_t> turn_{0};
};

}  // namespace troop::net
