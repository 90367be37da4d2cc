/// @file
/// Which environments of the fleet, and so which rungs of the ladder of exploration rates, belong to whom.
#pragma once

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/net/authentication.hpp>
#include <troop/net/messages.hpp>

namespace troop::net {

struct LeaseOptions {
  /// Environments that the ladder is made for, those of all actor processes together.
  std::size_t planned = 1;
  /// How long the places of a client that has gone without a goodbye are kept for it.
  Clock::duration duration = std::chrono::seconds(30);
  /// Where items are to be sent; empty: to the server itself.
  std::vector<std::string> replays = {};

  void validate() const;
};

/// Gives each client as many places in a row as it has environments: the first gap that is wide enough. So
/// places that crashed clients have left are filled again, and with processes of one size the ladder has
/// neither gaps nor doubles. Places beyond `planned` are given when there is no gap below; they share the
/// rungs of the first ones again.
///
/// A client that comes back in time, or to another server in the place of the one that gave the lease, keeps
/// what it holds, even if somebody else holds it as well by then: a rung with two actors does less harm than
/// an actor that begins anew.
///
/// Thread-safe. Cost of a call: linear in the number of leases.
class ActorLeases {
 public:
  explicit ActorLeases(const LeaseOptions& options) : options_((options.validate(), options)) {}

  const LeaseOptions& options() const noexcept { return options_; }

  /// The client's places: those that it holds or says that it holds, else new ones. A client has one lease.
  Leased lease(const Id& client, const Lease& wish, Clock::time_point now = Clock::now());

  /// The connection of the client is gone: its places are kept for `duration`.
  void leave(const Id& client, Clock::time_point now = Clock::now());

  /// The client will not come back.
  void end(const Id& client);

  /// Environments that are leased.
  std::size_t size(Clock::time_point now = Clock::now());

 private:
  static constexpr std::uint32_t kMostEnvironments = 1 << 20;

  struct Held {
    std::uint64_t first = 0, count = 0, ticket = 0;
    Clock::time_point expires;
  };

  static std::uint64_t new_ticket() {
    std::uint64_t ticket = 0;
    while (ticket == 0) ticket = std::bit_cast<std::uint64_t>(random_bytes<8>());
    return ticket;
  }

  // The following need the lock.

  void remove_expired(Clock::time_point now);

  std::uint64_t first_gap(const Id& client, std::uint64_t count) const;

  const LeaseOptions options_;
  mutable std::mutex mutex_;
  std::map<Id, Held> held_;
};

}  // namespace troop::net
