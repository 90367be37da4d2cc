#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <troop/net/actor_leases.hpp>

namespace troop::net {

void LeaseOptions::validate() const {
  require(planned >= 1 && planned <= (std::size_t{1} << 30), "planned", planned, "an integer from 1 to 2^30");
  require(duration >= Clock::duration::zero() && duration <= std::chrono::hours(24), "duration",
          std::chrono::duration<double>(duration).count(), "from 0 to 86400 seconds");
  require(replays.size() <= 1024, "replays", replays.size(), "at most 1024 addresses");
}

Leased ActorLeases::lease(const Id& client, const Lease& wish, Clock::time_point now) {
  if (wish.count == 0 || wish.count > kMostEnvironments)
    throw Error("a lease for " + std::to_string(wish.count) + " environments");
  if (wish.first > UINT64_MAX / 2)
    throw Error("a lease from environment " + std::to_string(wish.first) + " on");
  const std::lock_guard lock(mutex_);
  remove_expired(now);
  const auto [entry, is_new] = held_.try_emplace(client);
  Held& held = entry->second;
  const bool is_same = !is_new && held.count == wish.count;
  held.count = wish.count;
  if (wish.ticket != 0) {
    held.first = wish.first;
    held.ticket = wish.ticket;
  } else if (!is_same) {
    held.first = first_gap(client, wish.count);
    held.ticket = new_ticket();
  }
  held.expires = Clock::time_point::max();
  return {
      .ticket = held.ticket, .first = held.first, .planned = options_.planned, .replays = options_.replays};
}

void ActorLeases::leave(const Id& client, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(client);
  if (found != held_.end()) found->second.expires = now + options_.duration;
}

void ActorLeases::end(const Id& client) {
  const std::lock_guard lock(mutex_);
  held_.erase(client);
}

std::size_t ActorLeases::size(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  remove_expired(now);
  std::size_t size = 0;
  for (const auto& [client, held] : held_) size += held.count;
  return size;
}

void ActorLeases::remove_expired(Clock::time_point now) {
  std::erase_if(held_, [&](const auto& entry) { return entry.second.expires <= now; });
}

std::uint64_t ActorLeases::first_gap(const Id& client, std::uint64_t count) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // first, end
  for (const auto& [other, held] : held_) {
    if (other != client) taken.emplace_back(held.first, held.first + held.count);
  }
  std::sort(taken.begin(), taken.end());
  std::uint64_t first = 0;
  for (const auto& [begin, end] : taken) {
    if (begin >= first + count) break;
    first = std::max(first, end);
  }
  return first;
}

}  // namespace troop::net
