/// @file
/// Where an actor's items go.
#pragma once

#include <concepts>
#include <span>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/view.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace troop::agent {

/// Takes batches of items with their priorities: the replay of the process, or a client of one elsewhere.
/// `insert` waits while the other side asks for patience; ok means that the items were taken, anything else
/// that none was and that the caller still has them.
template <class S>
concept ItemSink = requires(S& sink, const BatchView& records, std::span<const float> priorities,
                            Deadline deadline) {
  { sink.insert(records, priorities, deadline) } -> std::same_as<Outcome>;
};

/// The replay of this process, behind its rate limiter. Thread-safe.
template <class Replay>
class LocalSink {
 public:
  LocalSink(Replay& replay, RateLimiter& limiter) : replay_(replay), limiter_(limiter) {}

  Outcome insert(const BatchView& records, std::span<const float> priorities,
                 Deadline deadline = Deadline::never()) {
    return limiter_.insert(records.size(), deadline, [&] { replay_.add(records, priorities); });
  }

 private:
  Replay& replay_;
  RateLimiter& limiter_;
};

}  // namespace troop::agent
