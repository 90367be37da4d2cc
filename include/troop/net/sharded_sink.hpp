/// @file
/// Sends an actor's batches to whichever shards take them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
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
  ShardedSink(const std::vector<std::string>& servers, ClientOptions options, const RecordLayout& layout);

  ShardedSink(const ShardedSink&) = delete;
  ShardedSink& operator=(const ShardedSink&) = delete;
  ~ShardedSink() { stop(Deadline::now()); }

  std::size_t num_clients() const noexcept { return clients_.size(); }
  /// How it stands with each server.
  ClientStatistics statistics(std::size_t client) const { return clients_.at(client)->statistics(); }

  /// As Client::insert.
  Outcome insert(const BatchView& records, std::span<const float> priorities,
                 Deadline deadline = Deadline::never(), const std::stop_token& stop = {});

  /// Waits until everything that was inserted before is acknowledged by all servers.
  Outcome flush(Deadline deadline = Deadline::never(), const std::stop_token& stop = {});

  /// As Client::stop, of all clients at the same time.
  Outcome stop(Deadline deadline = Deadline::after(std::chrono::seconds(5)));

 private:
  static constexpr Clock::duration kPeriod = std::chrono::milliseconds(2);

  /// Gives the batch to a client. timeout: none has room.
  Outcome offer(const BatchView& records, std::span<const float> priorities);

  std::vector<std::unique_ptr<Client>> clients_;
  std::atomic<std::size_t> turn_{0};
};

}  // namespace troop::net
