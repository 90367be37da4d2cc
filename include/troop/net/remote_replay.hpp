/// @file
/// A replay whose shards are on other machines, and the bookkeeping of its rate limiter.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/net/client.hpp>
#include <troop/net/messages.hpp>
#include <troop/net/remote_shard.hpp>
#include <troop/net/shard_messages.hpp>
#include <troop/replay/rate_limiter.hpp>
#include <troop/replay/replay_options.hpp>
#include <troop/replay/sharded_replay.hpp>

namespace troop::net {

struct RemoteReplayOptions {
  std::vector<std::string> shards;  ///< HOST:PORT of each; their order is part of the keys
  /// How each is reached, and how patient one is with it; where, is in `shards`.
  RemoteShardOptions shard = {};
  /// Alpha and normalizer must be those of the shards. Capacities are said by the shards (see `statistics`).
  ReplayOptions replay = {};
};

/// Draws from shards on other machines as from one replay, and tells them how fast items may come in. For an
/// agent::Learner it is what a PrioritizedReplay is.
///
/// - Draws are exact in the sense of ShardedReplay: a place falls to shard s with probability T_s / T, where
///   the totals are those last heard, some milliseconds old at most; the probability that is reported, and
///   with it the weight, is that by which just this draw was made. A sample over S shards takes the time of
///   one call, not of S. Shards that are lost are left out and taken back by themselves: see RemoteShard.
/// - `limiter` is the learner's. Items that were inserted at the shards are counted into it as soon as they
///   are heard of. What may be inserted by it is divided among the shards that are there, each time one is
///   looked at, and what one may insert nobody else may: so inserts go beyond the limiter's bound by less
///   than a batch a shard. (A shard that is lost keeps what it was granted, and then has its own bound.) What
///   shards held when they were first met counts only as far as `min_inserts` needs it: it is paid for,
///   whoever learnt from it. Items that come to a later life of a shard count from its beginning. Nobody else
///   may insert through the limiter.
///
/// Thread-safe, but the destructor. Starts two threads a shard.
///
///     net::RemoteReplay replay({.shards = {"a:7778", "b:7778"}, .replay = {.alpha = 0.6}}, layout, limiter);
///     agent::Learner learner(network, replay, limiter, parameters, options);
class RemoteReplay {
 public:
  using SampledBatch = RemoteShard::SampledBatch;
  using Element = RemoteShard::Element;

  /// Returns at once; connecting goes on by itself. `layout`: of the shards' records. Throws InvalidArgument
  /// for bad options, and a limiter whose tolerance is less than the number of shards.
  RemoteReplay(const RemoteReplayOptions& options, const RecordLayout& layout, RateLimiter& limiter)
      : limiter_(check(options, limiter)),
        accounts_(options.shards.size()),
        replay_(make_shards(options, layout)) {}

  RemoteReplay(const RemoteReplay&) = delete;
  RemoteReplay& operator=(const RemoteReplay&) = delete;

  const ReplayOptions& options() const noexcept { return replay_.options(); }
  const RecordLayout& layout() const { return replay_.layout(); }
  std::span<const std::shared_ptr<RemoteShard>> shards() const noexcept { return replay_.shards(); }

  /// Throws why a shard is of no use, if one is: it has other records or options, or refused the learner for
  /// good. Samples throw it too, but a learner that waits for the limiter takes none.
  void check() const {
    for (const auto& shard : shards()) shard->check();
  }

  /// Waits until `count` shards are there. Throws what `check` does.
  Outcome await_shards(std::size_t count, Deadline deadline = Deadline::never(),
                       const std::stop_token& stop = {}) const {
    require(count <= shards().size(), "count", count,
            "at most the number of shards, " + std::to_string(shards().size()));
    return wait(deadline, stop, [&] {
      check();
      return num_there() >= count;
    });
  }

  /// Shards that are there.
  std::size_t num_there() const {
    const auto is_there = [](const auto& shard) { return shard->is_there(); };
    return static_cast<std::size_t>(std::count_if(shards().begin(), shards().end(), is_there));
  }

  /// As ShardedReplay::sample. Throws EmptyReplay while nothing can be drawn from any shard.
  void sample(std::size_t count, const SampleOptions& options, Random& random, SampledBatch& batch) {
    replay_.sample(count, options, random, batch);
  }

  /// Waits as long as nothing can be drawn: all shards are lost, or have come back without items. Says so
  /// when it has waited for as long as the limiter's reports take, and again.
  Outcome sample(std::size_t count, const SampleOptions& options, Random& random, SampledBatch& batch,
                 Deadline deadline, const std::stop_token& stop = {}) {
    const Clock::time_point start = Clock::now();
    const RateLimiterOptions& reports = limiter_.options();
    for (;;) {
      try {
        sample(count, options, random, batch);
        return Outcome::ok;
      } catch (const EmptyReplay&) {
      }
      const Deadline report = Deadline::after(reports.report_after);
      const auto has_items = [&] { return total_priority() > 0.0; };
      const Outcome outcome = wait(Deadline(std::min(deadline.time(), report.time())), stop, has_items);
      if (outcome == Outcome::cancelled) return outcome;
      if (deadline.has_passed()) return Outcome::timeout;
      if (outcome == Outcome::timeout) say_waiting(count, start);
    }
  }

  /// As ShardedReplay::update. Priorities for items of shards that are lost are dropped, and counted by the
  /// shard.
  std::size_t update(std::span<const Key> keys, std::span<const float> priorities) {
    return replay_.update(keys, priorities);
  }
  std::size_t trim() { return replay_.trim(); }
  void clear() { replay_.clear(); }

  std::size_t size() const { return replay_.size(); }
  /// Of all shards that were ever met.
  std::size_t capacity() const {
    std::size_t capacity = 0;
    for (const auto& shard : shards()) capacity += shard->capacity();
    return capacity;
  }
  double total_priority() const { return replay_.total_priority(); }
  float max_priority(float before_first = 1.0f) const { return replay_.max_priority(before_first); }
  /// Of all shards; of those that are lost what was last heard.
  ReplayStatistics statistics() const { return replay_.statistics(); }
  PriorityHistogram priority_histogram() const { return replay_.priority_histogram(); }

 private:
  /// What of a shard's inserts was counted, and how far they may go: `allowed`, from the next answer on; up
  /// to `reserved` until then.
  struct Account {
    std::uint64_t outstanding() const noexcept {
      return is_there && reserved > counted ? reserved - counted : 0;
    }

    bool is_there = false, was_met = false;
    Id life{};
    std::uint64_t counted = 0, allowed = 0, reserved = 0;
  };

  /// A learner that waits leaves room for `tolerance` items at least, and every shard must get some of it.
  static RateLimiter& check(const RemoteReplayOptions& options, RateLimiter& limiter) {
    const RateLimiterOptions& bounds = limiter.options();
    require(
        bounds.samples_per_insert == 0.0 || bounds.tolerance >= static_cast<double>(options.shards.size()),
        "tolerance", bounds.tolerance,
        "at least the number of shards, " + std::to_string(options.shards.size()));
    return limiter;
  }

  std::vector<std::shared_ptr<RemoteShard>> make_shards(const RemoteReplayOptions& options,
                                                        const RecordLayout& layout) {
    std::vector<std::shared_ptr<RemoteShard>> shards;
    for (std::size_t s = 0; s < options.shards.size(); ++s) {
      RemoteShardOptions shard = options.shard;
      shard.client.connect = options.shards[s];
      shards.push_back(std::make_shared<RemoteShard>(
          shard, options.replay, layout, [this, s](const ShardTotals* totals) { return steer(s, totals); }));
    }
    return shards;
  }

  /// Counts what came to shard `s` and says how far it may go on. Called by the shard's thread, with totals
  /// after the last answer.
  std::uint64_t steer(std::size_t s, const ShardTotals* totals) {
    std::uint64_t allowed = 0;
    {
      const std::lock_guard lock(mutex_);
      Account& account = accounts_[s];
      account.is_there = totals != nullptr;
      if (totals != nullptr) {
        count(account, *totals);
        allowed = grant(account);
      } else {
        account.allowed = account.reserved = 0;
      }
    }
    changed_.notify_all();
    return allowed;
  }

  /// An equal part of what may be inserted, as far as others do not have it.
  std::uint64_t grant(Account& account) const {
    const std::uint64_t room = limiter_.insert_room();
    if (room == RateLimiter::kMaxCount) return RemoteShard::kNoBound;
    std::uint64_t num_there = 0, others = 0;
    for (const Account& other : accounts_) {
      num_there += other.is_there;
      if (&other != &account) others += other.outstanding();
    }
    const std::uint64_t share = std::min(room / num_there, room - std::min(room, others));
    const std::uint64_t before = std::exchange(account.allowed, account.counted + share);
    account.reserved = std::max(before, account.allowed);
    return account.allowed;
  }

  void count(Account& account, const ShardTotals& totals) {
    if (!std::exchange(account.was_met, true)) {
      account.life = totals.life;
      account.counted = totals.inserts;
      const std::uint64_t wanted = limiter_.options().min_inserts, inserts = limiter_.inserts();
      if (wanted > inserts) limiter_.count_inserts(std::min(totals.size, wanted - inserts));
    } else if (std::exchange(account.life, totals.life) != totals.life) {
      account.counted = account.allowed = 0;
    }
    if (totals.inserts > account.counted)
      limiter_.count_inserts(totals.inserts - std::exchange(account.counted, totals.inserts));
  }

  template <class Ready>
  Outcome wait(Deadline deadline, const std::stop_token& stop, Ready ready) const {
    // `ready` looks at the shards, which change a moment after `changed_` or, when they are lost, without it.
    constexpr auto kPeriod = std::chrono::milliseconds(5);
    while (!ready()) {
      if (stop.stop_requested()) return Outcome::cancelled;
      if (deadline.has_passed()) return Outcome::timeout;
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, stop, std::min(deadline.time(), Clock::now() + kPeriod),
                          [] { return false; });
    }
    return Outcome::ok;
  }

  void say_waiting(std::size_t count, Clock::time_point since) const {
    const auto& report = limiter_.options().report;
    if (!report) return;
    const std::string seconds =
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - since).count());
    try {
      report("learner has waited " + seconds + " s to sample " + troop::detail::grouped(count) +
             ": no shard has items that can be drawn; " + std::to_string(num_there()) + " of " +
             std::to_string(shards().size()) + " are connected");
    } catch (...) {
    }
  }

  RateLimiter& limiter_;
  mutable std::mutex mutex_;  // guards the accounts
  mutable std::condition_variable_any changed_;
  std::vector<Account> accounts_;
  mutable ShardedReplay<RemoteShard> replay_;
};

}  // namespace troop::net
