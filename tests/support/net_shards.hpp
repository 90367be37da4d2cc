/// @file
/// Shards of a replay, each behind a server on loopback that can go and come back.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/record.hpp>
#include <troop/net/remote_shard.hpp>
#include <troop/net/server.hpp>
#include <troop/net/shard_service.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "net_records.hpp"

namespace troop::testing {

/// A replay, its service and a server that keeps its port over restarts.
class ShardHost {
 public:
  using Replay = PrioritizedReplay<DynamicRecord>;

  explicit ShardHost(ReplayOptions replay = {.capacity = 1000}, net::ShardServiceOptions service = {},
                     RecordLayout layout = RecordLayout::of<NumberedItem>())
      : replay_options_(replay), service_options_(service), layout_(std::move(layout)) {
    renew();
    start();
  }

  /// A new process on an empty replay, whose server is not there yet.
  void renew() {
    stop();
    service_.reset();
    replay_ = std::make_unique<Replay>(replay_options_, layout_);
    renew_service();
  }
  /// A new process on what the replay holds, as from a snapshot.
  void renew_service() {
    stop();
    service_ = std::make_unique<net::ShardService<Replay>>(*replay_, service_options_);
  }
  void start() {
    server_ = std::make_unique<net::Server>(
        net::ServerOptions{.listen = "127.0.0.1:" + std::to_string(port_), .log = nullptr}, layout_,
        service_->services());
    port_ = server_->address().port;
  }
  void stop() { server_.reset(); }
  void restart_empty() {
    renew();
    start();
  }

  Replay& replay() { return *replay_; }
  net::ShardService<Replay>& service() { return *service_; }
  net::Server& server() { return *server_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  /// Items of `client`, numbered from `first` on, which is also their priority.
  Key add(std::uint32_t client, std::uint32_t first, std::size_t count) {
    const auto items = numbered(client, first, count);
    return replay_->add(view(items), priorities_of(items));
  }

 private:
  ReplayOptions replay_options_;
  net::ShardServiceOptions service_options_;
  RecordLayout layout_;
  std::unique_ptr<Replay> replay_;
  std::unique_ptr<net::ShardService<Replay>> service_;
  std::uint16_t port_ = 0;
  std::unique_ptr<net::Server> server_;
};

inline net::RemoteShardOptions to_shard(const std::string& address = "127.0.0.1:1") {
  return {.client = {.connect = address,
                     .min_backoff = std::chrono::milliseconds(1),
                     .max_backoff = std::chrono::milliseconds(20),
                     .seed = 1,
                     .log = nullptr},
          .deadline = std::chrono::seconds(20),
          .refresh = std::chrono::milliseconds(1)};
}

/// Whether what is drawn from where is known.
template <class Shard>
bool is_fresh(Shard& remote, ShardHost& host) {
  return remote.is_there() && remote.total_priority() == host.replay().total_priority();
}

}  // namespace troop::testing
