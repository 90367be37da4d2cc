/// @file
/// A shard of a replay that is on another machine, as the learner sees it.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
#include <vector>

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

  void validate() const {
    client.validate();
    const auto check = [](const char* field, Clock::duration duration) {
      require(duration >= std::chrono::milliseconds(1) && duration <= std::chrono::hours(1), field,
              std::chrono::duration<double>(duration).count(), "from 0.001 to 3600 seconds");
    };
    check("deadline", deadline);
    check("refresh", refresh);
  }
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
  bool is_there() const {
    const std::lock_guard lock(mutex_);
    return is_there_;
  }

  /// Throws why the shard is of no use, if it is.
  void check() const {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

  RemoteShardStatistics shard_statistics() const {
    const std::lock_guard lock(mutex_);
    RemoteShardStatistics statistics = statistics_;
    statistics.is_there = is_there_;
    return statistics;
  }
  ClientStatistics client_statistics() const { return client_.statistics(); }

  Key add(const BatchView& records, std::span<const float>) {
    throw Error("the " + std::to_string(records.size()) +
                " records were not added: items go to shards elsewhere by net::ShardedSink");
  }

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

  void check_priorities(std::span<const float> priorities) const {
    troop::detail::check_priorities(priorities, replay_options_.alpha);
  }

  double total_priority() const {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return is_there_ ? totals_.total_priority : 0.0;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return is_there_ ? static_cast<std::size_t>(totals_.size) : 0;
  }

  /// As last heard; 0 before.
  std::size_t capacity() const {
    const std::lock_guard lock(mutex_);
    return capacity_;
  }

  Key next_key() const {
    const std::lock_guard lock(mutex_);
    return next_key_;
  }

  float max_priority(float before_first = 1.0f) const {
    const std::lock_guard lock(mutex_);
    return totals_.max_priority > 0.0f ? totals_.max_priority : before_first;
  }

 private:
  /// Which life of the shard a call is for, and how its keys are told from those of other lives.
  struct Aim {
    Id life{};
    Key offset = 0;             // what is added to the service's keys
    std::uint64_t return_ = 0;  // the how manyeth time that it was there
  };

  static ClientOptions as_learner(const RemoteShardOptions& options) {
    ClientOptions client = options.client;
    client.role = Role::learner;
    return client;
  }

  std::optional<Aim> aim() const {
    const std::lock_guard lock(mutex_);
    if (!is_there_) return {};
    return Aim{life_, offset_, returns_};
  }

  using Take = std::function<void(ByteReader&, const ShardTotals&)>;

  template <class Write>
  void begin(Pending& pending, const Aim& aim, ShardOperation operation, Write write, Take take);
  bool finish(Pending& pending, const std::stop_token& stop = {});
  template <class Write>
  bool call(ShardOperation operation, Write write, Take take, const std::stop_token& stop = {});
  void receive(Pending& pending, std::span<const std::byte> reply);

  /// Takes note of totals that came in answer to a call for `life`. False when they are another life's.
  bool hear(const ShardTotals& totals, const Id& life) {
    const std::lock_guard lock(mutex_);
    if (totals.life == life) {
      if (life != life_) return false;
      totals_ = totals;
      next_key_ = std::max(next_key_, offset_ + totals.next_key);
      return true;
    }
    if (life == life_) {
      life_ = {};
      mark_lost("it is another one than before");
    }
    return false;
  }

  void lose(const Aim& aim, const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (aim.return_ == returns_) mark_lost(why);
  }

  /// Needs the lock.
  void mark_lost(const std::string& why) {
    if (!std::exchange(is_there_, false)) return;
    ++statistics_.losses;
    statistics_.last_error = why;
  }

  // The shard's thread.

  void look(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any never;
    while (!stop.stop_requested()) {
      try {
        if (is_known() || describe(stop)) refresh(stop);
      } catch (const RefusedError&) {
        fail(std::current_exception());
        return;
      } catch (const std::exception&) {
        fail(std::current_exception());
      }
      if (steer_ && !is_there()) steer_(nullptr);
      std::unique_lock lock(mutex);
      never.wait_for(lock, stop, options_.refresh, [] { return false; });
    }
  }

  bool is_known() const {
    const std::lock_guard lock(mutex_);
    return life_ != Id{};
  }

  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    mark_lost("it is of no use");
    failure_ = std::move(failure);
  }

  /// Asks who is there. False when nobody answers. Throws what keeps the shard from being of use.
  bool describe(const std::stop_token& stop) {
    std::vector<std::byte> body;
    ByteWriter writer(body);
    ShardCallHead{ShardOperation::describe}.write(writer);
    ShardTotals totals;
    std::size_t capacity = 0;
    const auto take = [&](std::span<const std::byte> reply) {
      ByteReader reader(reply);
      totals = ShardTotals::read(reader);
      const ReplayOptions theirs = detail::read_options(reader);
      const RecordLayout layout = reader.layout();
      reader.finish();
      check_shard(theirs, layout);
      capacity = theirs.capacity;
    };
    if (client_.call(body, take, Deadline::after(options_.deadline), stop) != Outcome::ok) return false;
    const std::lock_guard lock(mutex_);
    failure_ = nullptr;
    if (std::exchange(last_life_, totals.life) != totals.life) {
      offset_ = next_key_;
      ++statistics_.lives;
    }
    life_ = totals.life;
    capacity_ = capacity;
    totals_ = totals;
    next_key_ = std::max(next_key_, offset_ + totals.next_key);
    return true;
  }

  void check_shard(const ReplayOptions& theirs, const RecordLayout& layout) const {
    const std::string of = " of the shard at " + address();
    require(theirs.alpha == replay_options_.alpha, "alpha" + of, theirs.alpha,
            "that of the learner, " + troop::detail::to_text(replay_options_.alpha));
    require(theirs.normalizer == replay_options_.normalizer, "normalizer" + of,
            static_cast<int>(theirs.normalizer), "that of the learner");
    const std::string difference = layout.difference(layout_);
    if (!difference.empty()) throw LayoutMismatch("the shard at " + address() + ": " + difference);
  }

  void refresh(const std::stop_token& stop) {
    std::uint64_t allowed = kNoBound;
    Aim aim;
    ShardTotals totals;
    std::uint64_t losses = 0;
    {
      const std::lock_guard lock(mutex_);
      aim = {life_, offset_, returns_};
      totals = totals_;
      losses = statistics_.losses;
    }
    if (steer_) allowed = steer_(&totals);
    if (!look_once(aim, allowed, stop)) return;
    const std::lock_guard lock(mutex_);
    // An answer that came before a call found the shard lost does not bring it back.
    if (is_there_ || life_ != aim.life || statistics_.losses != losses) return;
    is_there_ = true;
    ++returns_;
  }

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
  ~Pending() {
    if (!is_under_way_) return;
    try {
      shard_->client_.finish(call_, Deadline::now());
    } catch (...) {  // nobody asks for it any more
    }
  }

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

/// Sends a call, or marks the shard as lost.
template <class Write>
void RemoteShard::begin(Pending& pending, const Aim& aim, ShardOperation operation, Write write, Take take) {
  std::vector<std::byte> body;
  ByteWriter writer(body);
  ShardCallHead{operation, aim.life}.write(writer);
  write(writer);
  pending.shard_ = this;
  pending.aim_ = aim;
  pending.take_ = std::move(take);
  pending.deadline_ = Deadline::after(options_.deadline);
  try {
    pending.is_under_way_ = client_.begin(pending.call_, body);
    if (!pending.is_under_way_) lose(aim, "there is no connection");
  } catch (const RefusedError&) {
    fail(std::current_exception());
  }
}

/// Waits for the answer. False when there is none, or none of this life: then the shard is marked as lost.
inline bool RemoteShard::finish(Pending& pending, const std::stop_token& stop) {
  if (!std::exchange(pending.is_under_way_, false)) return false;
  try {
    const Outcome outcome = client_.finish(pending.call_, pending.deadline_, stop);
    if (outcome == Outcome::ok) return pending.is_answered_;
    if (outcome == Outcome::timeout) {
      lose(pending.aim_,
           "no answer within " +
               troop::detail::to_text(std::chrono::duration<double>(options_.deadline).count()) + " s");
    } else if (outcome == Outcome::closed) {
      lose(pending.aim_, "the connection was lost");
    }
  } catch (const RefusedError&) {
    fail(std::current_exception());
  } catch (const Error& error) {  // by the shard, or an answer that cannot be
    lose(pending.aim_, error.what());
  }
  return false;
}

template <class Write>
bool RemoteShard::call(ShardOperation operation, Write write, Take take, const std::stop_token& stop) {
  const auto aim = this->aim();
  if (!aim) return false;
  Pending pending;
  begin(pending, *aim, operation, write, std::move(take));
  return finish(pending, stop);
}

/// In the client's thread.
inline void RemoteShard::receive(Pending& pending, std::span<const std::byte> reply) {
  ByteReader reader(reply);
  const auto totals = ShardTotals::read(reader);
  if (!hear(totals, pending.aim_.life)) return;
  pending.take_(reader, totals);
  reader.finish();
  pending.is_answered_ = true;
}

inline bool RemoteShard::look_once(const Aim& aim, std::uint64_t allowed, const std::stop_token& stop) {
  Pending pending;
  begin(
      pending, aim, ShardOperation::refresh, [&](ByteWriter& writer) { writer.number(allowed); },
      [](ByteReader&, const ShardTotals&) {});
  return finish(pending, stop);
}

inline double RemoteShard::draw(std::span<double> parts, Random& random,
                                const DrawTarget<std::byte>& target) {
  Pending pending;
  begin_draw(parts, random, target, pending);
  return finish_draw(pending);
}

/// Throws InvalidArgument for more parts than an answer can have records.
inline void RemoteShard::begin_draw(std::span<const double> parts, Random& random,
                                    const DrawTarget<std::byte>& target, Pending& pending) {
  const std::size_t each = sizeof(Key) + sizeof(double) + layout_.size();
  const std::size_t most = (options_.client.max_receive_bytes - 1024) / each;
  require(parts.size() <= most, "count", parts.size(),
          "at most " + std::to_string(most) + ", which fit into max_receive_bytes");
  pending.count_ = parts.size();
  const auto aim = this->aim();
  if (!aim) return;
  const auto write = [&](ByteWriter& writer) {
    writer.number(random());
    writer.number(static_cast<std::uint64_t>(parts.size()));
    writer.numbers(parts);
  };
  const auto take = [this, &pending, target](ByteReader& reader, const ShardTotals& totals) {
    const auto smallest = reader.number<double>();
    const auto count = reader.number<std::uint64_t>();
    if (smallest == 0.0 && count == 0) return;  // nothing can be drawn
    constexpr double kMost = 1.0 + 1e-6;        // of what is rounded
    if (count != target.keys.size() || !(smallest > 0.0 && smallest <= kMost))
      throw Error("an answer to another draw");
    reader.numbers(target.keys);
    reader.numbers(target.probabilities);
    for (Key& key : target.keys) {
      if (key >= totals.next_key) throw Error("a key that was never given");
      key += pending.aim_.offset;
    }
    for (const double probability : target.probabilities) {
      if (!(probability > 0.0 && probability <= kMost)) throw Error("a probability that cannot be");
    }
    const auto records = reader.bytes(target.keys.size() * layout_.size());
    if (!records.empty()) std::memcpy(target.records, records.data(), records.size());
    pending.smallest_ = smallest;
  };
  begin(pending, *aim, ShardOperation::draw, write, take);
}

/// Throws EmptyReplay when nothing was drawn.
inline double RemoteShard::finish_draw(Pending& pending) {
  if (finish(pending)) {
    if (pending.smallest_ > 0.0) return pending.smallest_;
    throw EmptyReplay("the shard at " + address() + " has nothing to draw from");
  }
  const std::lock_guard lock(mutex_);
  statistics_.lost_draws += pending.count_;
  throw EmptyReplay("the shard at " + address() + " was lost");
}

inline std::size_t RemoteShard::update(std::span<const Key> keys, std::span<const float> priorities) {
  Pending pending;
  begin_update(keys, priorities, pending);
  return finish_update(pending);
}

/// Drops priorities for items of earlier lives.
inline void RemoteShard::begin_update(std::span<const Key> keys, std::span<const float> priorities,
                                      Pending& pending) {
  troop::detail::require_as_many(priorities.size(), keys.size(), "keys");
  check_priorities(priorities);
  pending.count_ = keys.size();
  const auto aim = this->aim();
  if (!aim) return;
  const auto lives = [&](Key key) { return key >= aim->offset; };
  const auto count = static_cast<std::size_t>(std::count_if(keys.begin(), keys.end(), lives));
  if (count == 0) return;
  pending.dropped_ = keys.size() - count;
  const auto write = [&](ByteWriter& writer) {
    writer.number(static_cast<std::uint64_t>(count));
    for (const Key key : keys) {
      if (lives(key)) writer.number(key - aim->offset);
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (lives(keys[i])) writer.number(priorities[i]);
    }
  };
  const auto take = [&pending](ByteReader& reader, const ShardTotals&) {
    pending.stale_ = reader.number<std::uint64_t>();
  };
  begin(pending, *aim, ShardOperation::update, write, take);
}

inline std::size_t RemoteShard::finish_update(Pending& pending) {
  const bool is_done = finish(pending);
  const std::size_t dropped = is_done ? pending.dropped_ : pending.count_;
  const std::lock_guard lock(mutex_);
  statistics_.dropped_updates += dropped;
  return dropped + (is_done ? static_cast<std::size_t>(pending.stale_) : 0);
}

inline std::size_t RemoteShard::trim() {
  std::uint64_t trimmed = 0;
  const bool is_done = call(
      ShardOperation::trim, [](ByteWriter&) {},
      [&](ByteReader& reader, const ShardTotals&) { trimmed = reader.number<std::uint64_t>(); });
  return is_done ? static_cast<std::size_t>(trimmed) : 0;
}

inline void RemoteShard::clear() {
  call(
      ShardOperation::clear, [](ByteWriter&) {}, [](ByteReader&, const ShardTotals&) {});
}

inline ReplayStatistics RemoteShard::statistics() {
  ReplayStatistics heard;
  const bool is_done = call(
      ShardOperation::statistics, [](ByteWriter&) {},
      [&](ByteReader& reader, const ShardTotals&) { heard = detail::read_statistics(reader); });
  const std::lock_guard lock(mutex_);
  if (is_done) return replay_statistics_ = heard;
  ReplayStatistics statistics = replay_statistics_;
  statistics.size = 0;
  statistics.total_priority = 0.0;
  return statistics;
}

inline PriorityHistogram RemoteShard::priority_histogram() {
  PriorityHistogram heard;
  const bool is_done = call(
      ShardOperation::histogram, [](ByteWriter&) {},
      [&](ByteReader& reader, const ShardTotals&) { heard = detail::read_histogram(reader); });
  return is_done ? heard : PriorityHistogram{};
}

}  // namespace troop::net
