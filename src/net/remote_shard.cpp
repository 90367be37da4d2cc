#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <troop/net/remote_shard.hpp>

namespace troop::net {

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

template <class Write>
bool RemoteShard::call(ShardOperation operation, Write write, Take take, const std::stop_token& stop) {
  const auto aim = this->aim();
  if (!aim) return false;
  Pending pending;
  begin(pending, *aim, operation, write, std::move(take));
  return finish(pending, stop);
}

void RemoteShardOptions::validate() const {
  client.validate();
  const auto check = [](const char* field, Clock::duration duration) {
    require(duration >= std::chrono::milliseconds(1) && duration <= std::chrono::hours(1), field,
            std::chrono::duration<double>(duration).count(), "from 0.001 to 3600 seconds");
  };
  check("deadline", deadline);
  check("refresh", refresh);
}

bool RemoteShard::is_there() const {
  const std::lock_guard lock(mutex_);
  return is_there_;
}

void RemoteShard::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

RemoteShardStatistics RemoteShard::shard_statistics() const {
  const std::lock_guard lock(mutex_);
  RemoteShardStatistics statistics = statistics_;
  statistics.is_there = is_there_;
  return statistics;
}

Key RemoteShard::add(const BatchView& records, std::span<const float>) {
  throw Error("the " + std::to_string(records.size()) +
              " records were not added: items go to shards elsewhere by net::ShardedSink");
}

void RemoteShard::check_priorities(std::span<const float> priorities) const {
  troop::detail::check_priorities(priorities, replay_options_.alpha);
}

double RemoteShard::total_priority() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  return is_there_ ? totals_.total_priority : 0.0;
}

std::size_t RemoteShard::size() const {
  const std::lock_guard lock(mutex_);
  return is_there_ ? static_cast<std::size_t>(totals_.size) : 0;
}

std::size_t RemoteShard::capacity() const {
  const std::lock_guard lock(mutex_);
  return capacity_;
}

Key RemoteShard::next_key() const {
  const std::lock_guard lock(mutex_);
  return next_key_;
}

float RemoteShard::max_priority(float before_first) const {
  const std::lock_guard lock(mutex_);
  return totals_.max_priority > 0.0f ? totals_.max_priority : before_first;
}

ClientOptions RemoteShard::as_learner(const RemoteShardOptions& options) {
  ClientOptions client = options.client;
  client.role = Role::learner;
  return client;
}

std::optional<RemoteShard::Aim> RemoteShard::aim() const {
  const std::lock_guard lock(mutex_);
  if (!is_there_) return {};
  return Aim{life_, offset_, returns_};
}

bool RemoteShard::hear(const ShardTotals& totals, const Id& life) {
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

void RemoteShard::lose(const Aim& aim, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (aim.return_ == returns_) mark_lost(why);
}

void RemoteShard::mark_lost(const std::string& why) {
  if (!std::exchange(is_there_, false)) return;
  ++statistics_.losses;
  statistics_.last_error = why;
}

void RemoteShard::look(const std::stop_token& stop) {
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

bool RemoteShard::is_known() const {
  const std::lock_guard lock(mutex_);
  return life_ != Id{};
}

void RemoteShard::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  mark_lost("it is of no use");
  failure_ = std::move(failure);
}

bool RemoteShard::describe(const std::stop_token& stop) {
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

void RemoteShard::check_shard(const ReplayOptions& theirs, const RecordLayout& layout) const {
  const std::string of = " of the shard at " + address();
  require(theirs.alpha == replay_options_.alpha, "alpha" + of, theirs.alpha,
          "that of the learner, " + troop::detail::to_text(replay_options_.alpha));
  require(theirs.normalizer == replay_options_.normalizer, "normalizer" + of,
          static_cast<int>(theirs.normalizer), "that of the learner");
  const std::string difference = layout.difference(layout_);
  if (!difference.empty()) throw LayoutMismatch("the shard at " + address() + ": " + difference);
}

void RemoteShard::refresh(const std::stop_token& stop) {
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

RemoteShard::Pending::~Pending() {
  if (!is_under_way_) return;
  try {
    shard_->client_.finish(call_, Deadline::now());
  } catch (...) {  // nobody asks for it any more
  }
}

/// Waits for the answer. False when there is none, or none of this life: then the shard is marked as lost.
bool RemoteShard::finish(Pending& pending, const std::stop_token& stop) {
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

/// In the client's thread.
void RemoteShard::receive(Pending& pending, std::span<const std::byte> reply) {
  ByteReader reader(reply);
  const auto totals = ShardTotals::read(reader);
  if (!hear(totals, pending.aim_.life)) return;
  pending.take_(reader, totals);
  reader.finish();
  pending.is_answered_ = true;
}

bool RemoteShard::look_once(const Aim& aim, std::uint64_t allowed, const std::stop_token& stop) {
  Pending pending;
  begin(
      pending, aim, ShardOperation::refresh, [&](ByteWriter& writer) { writer.number(allowed); },
      [](ByteReader&, const ShardTotals&) {});
  return finish(pending, stop);
}

double RemoteShard::draw(std::span<double> parts, Random& random, const DrawTarget<std::byte>& target) {
  Pending pending;
  begin_draw(parts, random, target, pending);
  return finish_draw(pending);
}

/// Throws InvalidArgument for more parts than an answer can have records.
void RemoteShard::begin_draw(std::span<const double> parts, Random& random,
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
double RemoteShard::finish_draw(Pending& pending) {
  if (finish(pending)) {
    if (pending.smallest_ > 0.0) return pending.smallest_;
    throw EmptyReplay("the shard at " + address() + " has nothing to draw from");
  }
  const std::lock_guard lock(mutex_);
  statistics_.lost_draws += pending.count_;
  throw EmptyReplay("the shard at " + address() + " was lost");
}

std::size_t RemoteShard::update(std::span<const Key> keys, std::span<const float> priorities) {
  Pending pending;
  begin_update(keys, priorities, pending);
  return finish_update(pending);
}

/// Drops priorities for items of earlier lives.
void RemoteShard::begin_update(std::span<const Key> keys, std::span<const float> priorities,
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

std::size_t RemoteShard::finish_update(Pending& pending) {
  const bool is_done = finish(pending);
  const std::size_t dropped = is_done ? pending.dropped_ : pending.count_;
  const std::lock_guard lock(mutex_);
  statistics_.dropped_updates += dropped;
  return dropped + (is_done ? static_cast<std::size_t>(pending.stale_) : 0);
}

std::size_t RemoteShard::trim() {
  std::uint64_t trimmed = 0;
  const bool is_done = call(
      ShardOperation::trim, [](ByteWriter&) {},
      [&](ByteReader& reader, const ShardTotals&) { trimmed = reader.number<std::uint64_t>(); });
  return is_done ? static_cast<std::size_t>(trimmed) : 0;
}

void RemoteShard::clear() {
  call(
      ShardOperation::clear, [](ByteWriter&) {}, [](ByteReader&, const ShardTotals&) {});
}

ReplayStatistics RemoteShard::statistics() {
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

PriorityHistogram RemoteShard::priority_histogram() {
  PriorityHistogram heard;
  const bool is_done = call(
      ShardOperation::histogram, [](ByteWriter&) {},
      [&](ByteReader& reader, const ShardTotals&) { heard = detail::read_histogram(reader); });
  return is_done ? heard : PriorityHistogram{};
}

}  // namespace troop::net
