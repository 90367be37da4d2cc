/// @file
/// Makes the replay of this process a shard of a replay whose learner is on another machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/core/view.hpp>
#include <troop/net/authentication.hpp>
#include <troop/net/messages.hpp>
#include <troop/net/server.hpp>
#include <troop/net/shard_messages.hpp>
#include <troop/replay/batch.hpp>
#include <troop/replay/detail/scratch.hpp>
#include <troop/replay/rate_limiter.hpp>
#include <troop/replay/replay_options.hpp>

namespace troop::net {

struct ShardServiceOptions {
  /// Items that may be inserted while no learner is heard: before the first, and again after the last.
  std::uint64_t inserts_without_learner = 10'000;
  /// A learner that was not heard for so long is away.
  Clock::duration learner_deadline = std::chrono::seconds(2);

  void validate() const {
    require(inserts_without_learner <= RateLimiter::kMaxCount, "inserts_without_learner",
            inserts_without_learner, "an integer from 0 to 2^53");
    require(learner_deadline >= std::chrono::milliseconds(1) && learner_deadline <= std::chrono::hours(1),
            "learner_deadline", std::chrono::duration<double>(learner_deadline).count(),
            "from 0.001 to 3600 seconds");
  }
};

/// Answers the calls by which a RemoteShard draws from a replay of this process, and lets items in as fast as
/// the learner's rate limiter wants them, by an allowance that comes with the learner's calls. A batch goes
/// in as a whole while the allowance is not used up, so inserts are ahead of it by less than a batch.
///
/// - `Replay` is a PrioritizedReplay of flat records or a ShardedReplay of such, with a sampler that says
///   kDivisible. Others may use it too; what they add is drawn, and counts for no allowance.
/// - A service has a life: 16 random bytes made by its constructor. A call is for a life and does nothing in
///   another, so priorities of items that a process before this one held never reach this one's.
/// - One learner: with several the last allowance counts.
///
/// Thread-safe. No call waits but for the replay's locks. A call may hold anything: bytes that are no call
/// throw Error and change nothing. A draw of n items copies their records once, into the reply.
///
///     net::ShardService shard(replay);
///     net::Server server({.listen = "0.0.0.0:7778", .token = token}, replay.layout(), shard.services());
template <class Replay>
class ShardService {
 public:
  explicit ShardService(Replay& replay, const ShardServiceOptions& options = {})
      : options_((options.validate(), options)), replay_(replay), allowed_(options.inserts_without_learner) {}

  ShardService(const ShardService&) = delete;
  ShardService& operator=(const ShardService&) = delete;

  /// Both for a server, which must not outlive this.
  Services services() {
    return {.insert = [this](const BatchView& records,
                             std::span<const float> priorities) { return insert(records, priorities); },
            .call = [this](std::span<const std::byte> body,
                           std::vector<std::byte>& reply) { call(body, reply); }};
  }

  /// Adds a batch, or returns timeout while none is wanted. Throws what the replay's `add` throws.
  Outcome insert(const BatchView& records, std::span<const float> priorities) {
    const std::lock_guard lock(mutex_);
    if (inserts_ >= allowed()) return Outcome::timeout;
    replay_.add(records, priorities);
    inserts_ += records.size();
    return Outcome::ok;
  }

  /// Does what a call says and appends the answer to `reply` (docs/protocol.md). Throws Error for what is no
  /// call, and what the replay throws.
  void call(std::span<const std::byte> body, std::vector<std::byte>& reply) {
    ByteReader reader(body);
    const auto head = ShardCallHead::read(reader);
    const std::size_t start = reply.size();
    reply.resize(start + kTotalsBytes);
    if (head.life == life_ || head.operation == ShardOperation::describe)
      answer(head.operation, reader, reply);
    auto& totals = troop::detail::of_this_thread<Scratch>().totals;
    totals.clear();
    ByteWriter writer(totals);
    this->totals().write(writer);
    std::memcpy(reply.data() + start, totals.data(), kTotalsBytes);
  }

  /// Items that were inserted through this service.
  std::uint64_t inserts() const {
    const std::lock_guard lock(mutex_);
    return inserts_;
  }

 private:
  using Operation = ShardOperation;

  static constexpr std::size_t kTotalsBytes = ShardTotals::kBytes;
  static constexpr std::size_t kMaxReplyBytes = std::size_t{1} << 30;

  struct Scratch {
    std::vector<double> parts, probabilities;
    std::vector<Key> keys;
    std::vector<float> priorities;
    std::vector<std::byte> totals;
  };

  void answer(Operation operation, ByteReader& reader, std::vector<std::byte>& reply) {
    ByteWriter writer(reply);
    switch (operation) {
      case Operation::describe:
        reader.finish();
        detail::write_options(replay_.options(), writer);
        writer.layout(replay_.layout());
        return;
      case Operation::refresh: {
        const auto allowed = reader.number<std::uint64_t>();
        reader.finish();
        allow(allowed);
        return;
      }
      case Operation::draw:
        draw(reader, reply);
        return;
      case Operation::update:
        update(reader, writer);
        return;
      case Operation::trim:
        reader.finish();
        writer.number(static_cast<std::uint64_t>(replay_.trim()));
        return;
      case Operation::clear:
        reader.finish();
        replay_.clear();
        return;
      case Operation::statistics:
        reader.finish();
        detail::write_statistics(replay_.statistics(), writer);
        return;
      case Operation::histogram:
        reader.finish();
        detail::write_histogram(replay_.priority_histogram(), writer);
        return;
    }
    throw Error("a call for operation " + std::to_string(static_cast<std::uint32_t>(operation)));
  }

  void draw(ByteReader& reader, std::vector<std::byte>& reply) {
    auto& [parts, probabilities, keys, priorities, totals] = troop::detail::of_this_thread<Scratch>();
    Random random(reader.number<std::uint64_t>(), "draw");
    const std::size_t count = reader.count<std::uint64_t>(sizeof(double));
    parts.resize(count);
    reader.numbers(std::span(parts));
    reader.finish();
    for (const double part : parts) {
      if (!(part >= 0.0 && part < 1.0)) throw Error("a part that is not in [0, 1)");
    }
    const std::size_t record_bytes = replay_.layout().size();
    if (count > kMaxReplyBytes / (sizeof(Key) + sizeof(double) + record_bytes))
      throw Error("a draw of " + std::to_string(count) + " records of " + std::to_string(record_bytes) +
                  " bytes");
    keys.resize(count);
    probabilities.resize(count);
    const std::size_t start = reply.size(), records_at = start + kDrawHead + count * kBytesBesideRecord;
    reply.resize(records_at + count * record_bytes);
    ByteWriter writer(reply);
    try {
      const double smallest =
          replay_.draw(parts, random, DrawTarget<std::byte>{keys, probabilities, reply.data() + records_at});
      const std::uint64_t number = count;
      std::byte* to = reply.data() + start;
      std::memcpy(to, &smallest, sizeof smallest);
      std::memcpy(to + 8, &number, sizeof number);
      if (count == 0) return;
      std::memcpy(to + kDrawHead, keys.data(), count * sizeof(Key));
      std::memcpy(to + kDrawHead + count * sizeof(Key), probabilities.data(), count * sizeof(double));
    } catch (const EmptyReplay&) {
      reply.resize(start);
      writer.number(0.0);
      writer.number(std::uint64_t{0});
    }
  }

  void update(ByteReader& reader, ByteWriter& writer) {
    auto& scratch = troop::detail::of_this_thread<Scratch>();
    const std::size_t count = reader.count<std::uint64_t>(sizeof(Key) + sizeof(float));
    scratch.keys.resize(count);
    scratch.priorities.resize(count);
    reader.numbers(std::span(scratch.keys));
    reader.numbers(std::span(scratch.priorities));
    reader.finish();
    writer.number(static_cast<std::uint64_t>(replay_.update(scratch.keys, scratch.priorities)));
  }

  static constexpr std::size_t kDrawHead = 16, kBytesBesideRecord = sizeof(Key) + sizeof(double);

  void allow(std::uint64_t allowed) {
    const std::lock_guard lock(mutex_);
    allowed_ = allowed;
    inserts_when_heard_ = inserts_;
    heard_at_ = Clock::now();
  }

  /// Needs the lock.
  std::uint64_t allowed() const {
    const bool is_away = Clock::now() - heard_at_ > options_.learner_deadline;
    return is_away ? inserts_when_heard_ + options_.inserts_without_learner : allowed_;
  }

  ShardTotals totals() const {
    ShardTotals totals{.life = life_, .inserts = inserts()};
    totals.max_priority = replay_.max_priority(0.0f);
    totals.total_priority = replay_.total_priority();
    totals.size = replay_.size();
    totals.next_key = replay_.next_key();  // the last, so that it is greater than what was counted or drawn
    return totals;
  }

  const ShardServiceOptions options_;
  Replay& replay_;
  const Id life_ = random_bytes<16>();

  mutable std::mutex mutex_;  // guards the following
  std::uint64_t inserts_ = 0, allowed_, inserts_when_heard_ = 0;
  Clock::time_point heard_at_ = Clock::now();
};

}  // namespace troop::net
