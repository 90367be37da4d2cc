/// @file
/// A shard of a replay that is on another machine, as the learner sees it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include <troop/core/bytes.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/net/client.hpp>
#include <troop/net/messages.hpp>
#include <troop/net/shard_messages.hpp>
#include <troop/replay/batch.hpp>
#include <troop/replay/detail/priorities.hpp>
#include <troop/replay/replay_options.hpp>

namespace troop::net {

struct RemoteShardOptions {
  /// Where the shard is and how it is reached. The role is learner, whatever is said here.
  ClientOptions client = {};
  /// Of a call. A shard that does not answer in time is lost until it answers again.
  Clock::duration deadline = std::chrono::seconds(2);
  /// The time between two looks at how things stand there.
  Clock::duration refresh = std::chrono::milliseconds(5);

  void validate() const;
};

/// Since construction.
struct RemoteShardStatistics {
  bool is_there = false;         ///< now: it can be drawn from
  std::uint64_t losses = 0;      ///< times that it was there and then was not
  std::uint64_t lives = 0;       ///< of different services that were met
  std::uint64_t lost_draws = 0;  ///< places that fell to it and had to be drawn from others
  std::uint64_t dropped_updates =
      0;                   ///< priorities that it did not get: it was lost, or is another one by now
  std::string last_error;  ///< why it was lost the last time
};

/// Draws from and updates the replay behind a ShardService elsewhere. Models RemoteReplayShard.
///
/// - What it tells of the replay (`total_priority`, `size`, `next_key`, `max_priority`) is what was last
///   heard: every reply has it, and a thread asks for it every few milliseconds.
/// - A shard that is lost (no connection, no answer in time, an answer that cannot be) has the total priority
///   0 and size 0, so nothing is drawn from it. A draw that had begun throws EmptyReplay; updates are dropped
///   and counted; `trim` and `clear` do nothing; `statistics` are those last heard. It is taken back by
///   itself as soon as it answers again.
/// - Keys are those of the service, plus for each later life of the service all keys that were heard of
///   before. So they stay unique, and a priority for an item of an earlier life is dropped here; should the
///   service change on the way, it is dropped there.
/// - A shard that is of no use (its records, alpha or normalizer are others, or it refused this client for
///   good: wrong token, version) is an error: `check` and `total_priority` throw it.
/// - It takes no items: actors send them to the shard (see ShardedSink), and `add` throws Error.
///
/// Thread-safe, but the destructor. Never waits longer than `deadline`.
///
///     const net::RemoteShardOptions a{.client = {.connect = "a:7778"}}, b{.client = {.connect = "b:7778"}};
///     ShardedReplay<net::RemoteShard> replay({std::make_shared<net::RemoteShard>(a, options, layout),
///                                             std::make_shared<net::RemoteShard>(b, options, layout)});
class RemoteShard {
 public:
  using SampledBatch = Batch<DynamicRecord>;
  using Element = std::byte;
  static constexpr bool kDivisible = true;  // a service takes no other replay
  static constexpr std::uint64_t kNoBound = std::numeric_limits<std::uint64_t>::max();

  /// Called by this shard's thread before each look, with what was last heard, or null when the shard is
  /// lost. Returns how many items may be inserted there, counted like `ShardTotals::inserts`.
  using Steer = std::function<std::uint64_t(const ShardTotals*)>;

  class Pending;
  using PendingDraw = Pending;
  using PendingUpdate = Pending;

  /// Returns at once; connecting goes on by itself. `replay`: what the shard must have as alpha and
  /// normalizer; `layout`: of its records. Without `steer` inserts have no bound while this is there.
  RemoteShard(const RemoteShardOptions& options, const ReplayOptions& replay, RecordLayout layout,
              Steer steer = {})
      : options_((options.validate(), options)),
        replay_options_((replay.validate(), replay)),
        layout_(std::move(layout)),
        steer_(std::move(steer)),
        client_(as_learner(options)),
        thread_([this](const std::stop_token& stop) { look(stop); }) {}

  RemoteShard(const RemoteShard&) = delete;
  RemoteShard& operator=(const RemoteShard&) = delete;

  const RecordLayout& layout() const noexcept { return layout_; }
  const ReplayOptions& options() const noexcept { return replay_options_; }
  const std::string& address() const noexcept { return options_.client.connect; }

  /// Whether it can be drawn from.
  bool is_there() const;

  /// Throws why the shard is of no use, if it is.
  void check() const;

  RemoteShardStatistics shard_statistics() const;
  ClientStatistics client_statistics() const { return client_.statistics(); }

  Key add(const BatchView& records, std::span<const float>);

  double draw(std::span<double> parts, Random& random, const DrawTarget<std::byte>& target);
  void begin_draw(std::span<const double> parts, Random& random, const DrawTarget<std::byte>& target,
                  Pending& pending);
  double finish_draw(Pending& pending);

  std::size_t update(std::span<const Key> keys, std::span<const float> priorities);
  void begin_update(std::span<const Key> keys, std::span<const float> priorities, Pending& pending);
  std::size_t finish_update(Pending& pending);

  std::size_t trim();
  void clear();
  ReplayStatistics statistics();
  PriorityHistogram priority_histogram();

  void check_priorities(std::span<const float> priorities) const;

  double total_priority() const;

  std::size_t size() const;

  /// As last heard; 0 before.
  std::size_t capacity() const;

  Key next_key() const;

  float max_priority(float before_first = 1.0f) const;

 private:
  /// Which life of the shard a call is for, and how its keys are told from those of other lives.
  struct Aim {
    Id life{};
    Key offset = 0;             // what is added to the service's keys
    std::uint64_t return_ = 0;  // the how manyeth time that it was there
  };

  static ClientOptions as_learner(const RemoteShardOptions& options);

  std::optional<Aim> aim() const;

  using Take = std::function<void(ByteReader&, const ShardTotals&)>;

  template <class Write>
  void begin(Pending& pending, const Aim& aim, ShardOperation operation, Write write, Take take);
  bool finish(Pending& pending, const std::stop_token& stop = {});
  template <class Write>
  bool call(ShardOperation operation, Write write, Take take, const std::stop_token& stop = {});
  void receive(Pending& pending, std::span<const std::byte> reply);

  /// Takes note of totals that came in answer to a call for `life`. False when they are another life's.
  bool hear(const ShardTotals& totals, const Id& life);

  void lose(const Aim& aim, const std::string& why);

  /// Needs the lock.
  void mark_lost(const std::string& why);

  // The shard's thread.

  void look(const std::stop_token& stop);

  bool is_known() const;

  void fail(std::exception_ptr failure);

  /// Asks who is there. False when nobody answers. Throws what keeps the shard from being of use.
  bool describe(const std::stop_token& stop);

  void check_shard(const ReplayOptions& theirs, const RecordLayout& layout) const;

  void refresh(const std::stop_token& stop);

  bool look_once(const Aim& aim, std::uint64_t allowed, const std::stop_token& stop);

  const RemoteShardOptions options_;
  const ReplayOptions replay_options_;
  const RecordLayout layout_;
  const Steer steer_;

  mutable std::mutex mutex_;  // guards the following
  bool is_there_ = false;
  Id life_{}, last_life_{};  // life_: zeros while it is not known
  std::size_t capacity_ = 0;
  Key offset_ = 0, next_key_ = 0;
  std::uint64_t returns_ = 0;
  ShardTotals totals_;
  ReplayStatistics replay_statistics_;  // as last heard
  RemoteShardStatistics statistics_;
  std::exception_ptr failure_;

  Client client_;
  std::jthread thread_;
};

/// A call to a shard that may be under way. Ends it when destroyed.
class RemoteShard::Pending {
 public:
  Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending();

 private:
  friend class RemoteShard;

  RemoteShard* shard_ = nullptr;
  bool is_under_way_ = false;
  Aim aim_;
  Deadline deadline_ = Deadline::never();
  Take take_;
  bool is_answered_ = false;
  std::size_t count_ = 0;    // of places or keys
  std::size_t dropped_ = 0;  // of these keys
  double smallest_ = 0.0;    // probability
  std::uint64_t stale_ = 0;  // updates that found no item
  PendingCall call_{[this](std::span<const std::byte> reply) { shard_->receive(*this, reply); }};
};

}  // namespace troop::net
