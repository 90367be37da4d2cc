/// @file
/// What a learner and a shard of its replay say to each other in calls and replies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/error.hpp>
#include <troop/net/messages.hpp>
#include <troop/replay/replay_options.hpp>

namespace troop::net {

/// What a learner asks of a shard. The numbers are part of the protocol.
enum class ShardOperation : std::uint32_t {
  describe = 1,
  refresh = 2,
  draw = 3,
  update = 4,
  trim = 5,
  clear = 6,
  statistics = 7,
  histogram = 8,
};

namespace detail {

inline void write_id(const Id& id, ByteWriter& writer) {
  writer.bytes(id);
}

inline Id read_id(ByteReader& reader) {
  Id id;
  std::memcpy(id.data(), reader.bytes(id.size()).data(), id.size());
  return id;
}

}  // namespace detail

/// What a call begins with.
struct ShardCallHead {
  ShardOperation operation;
  Id life{};  ///< of the service that is meant

  void write(ByteWriter& writer) const {
    writer.number(static_cast<std::uint32_t>(operation));
    writer.number(std::uint32_t{0});
    detail::write_id(life, writer);
  }

  static ShardCallHead read(ByteReader& reader) {
    const auto operation = static_cast<ShardOperation>(reader.number<std::uint32_t>());
    if (reader.number<std::uint32_t>() != 0) throw Error("a call with reserved bytes in use");
    return {operation, detail::read_id(reader)};
  }
};

/// What a reply begins with: how things stand when the operation has been done.
struct ShardTotals {
  static constexpr std::size_t kBytes = 56;
  static constexpr std::uint64_t kMaxKey = std::uint64_t{1} << 53;

  Id life{};
  double total_priority = 0.0;
  std::uint64_t size = 0;
  std::uint64_t next_key = 0;  ///< greater than every key that was given
  std::uint64_t inserts = 0;   ///< items since this life began
  float max_priority = 0.0f;   ///< that was ever given; 0: none yet

  void write(ByteWriter& writer) const {
    detail::write_id(life, writer);
    writer.number(total_priority);
    writer.number(size);
    writer.number(next_key);
    writer.number(inserts);
    writer.number(max_priority);
    writer.number(std::uint32_t{0});
  }

  static ShardTotals read(ByteReader& reader) {
    ShardTotals totals;
    totals.life = detail::read_id(reader);
    totals.total_priority = reader.number<double>();
    totals.size = reader.number<std::uint64_t>();
    totals.next_key = reader.number<std::uint64_t>();
    totals.inserts = reader.number<std::uint64_t>();
    totals.max_priority = reader.number<float>();
    reader.number<std::uint32_t>();
    const bool can_be = totals.total_priority >= 0.0 && totals.total_priority < 1e300 &&
                        totals.max_priority >= 0.0f && totals.size <= totals.next_key &&
                        totals.next_key <= kMaxKey;
    if (!can_be) throw Error("totals that cannot be");
    return totals;
  }
};

namespace detail {

inline void write_options(const ReplayOptions& options, ByteWriter& writer) {
  writer.number(static_cast<std::uint64_t>(options.capacity));
  writer.number(static_cast<std::uint64_t>(options.soft_capacity));
  writer.number(options.alpha);
  writer.number(static_cast<std::uint32_t>(options.normalizer));
  writer.number(std::uint32_t{0});
}

inline ReplayOptions read_options(ByteReader& reader) {
  ReplayOptions options;
  options.capacity = static_cast<std::size_t>(reader.number<std::uint64_t>());
  options.soft_capacity = static_cast<std::size_t>(reader.number<std::uint64_t>());
  options.alpha = reader.number<double>();
  options.normalizer = static_cast<WeightNormalizer>(reader.number<std::uint32_t>());
  reader.number<std::uint32_t>();
  options.validate();
  return options;
}

/// Calls `f(member)` for all members, in the order in which they travel.
template <class Statistics, class F>
void for_statistics(Statistics& s, F f) {
  f(s.size), f(s.capacity), f(s.soft_capacity), f(s.total_priority), f(s.max_priority), f(s.inserts);
  f(s.evictions), f(s.trimmed), f(s.samples), f(s.redraws), f(s.updates), f(s.stale_updates);
  f(s.lock_waits), f(s.lock_wait_seconds);
}

inline void write_statistics(const ReplayStatistics& statistics, ByteWriter& writer) {
  for_statistics(statistics, [&](auto member) { writer.number(member); });
}

inline ReplayStatistics read_statistics(ByteReader& reader) {
  ReplayStatistics statistics;
  for_statistics(statistics,
                 [&](auto& member) { member = reader.number<std::remove_reference_t<decltype(member)>>(); });
  return statistics;
}

inline void write_histogram(const PriorityHistogram& histogram, ByteWriter& writer) {
  writer.number(histogram.zeros);
  writer.number(static_cast<std::uint32_t>(histogram.bins.size()));
  for (const auto& bin : histogram.bins) {
    writer.number(static_cast<std::int32_t>(bin.exponent));
    writer.number(bin.count);
  }
}

/// Exponents must grow by one, within those of floats: what adds histograms up fills the gaps.
inline PriorityHistogram read_histogram(ByteReader& reader) {
  constexpr int kMost = 1000;
  PriorityHistogram histogram;
  histogram.zeros = reader.number<std::uint64_t>();
  histogram.bins.resize(reader.count(12));
  for (auto& bin : histogram.bins) {
    bin.exponent = reader.number<std::int32_t>();
    bin.count = reader.number<std::uint64_t>();
    const int expected = histogram.bins.front().exponent + static_cast<int>(&bin - histogram.bins.data());
    if (bin.exponent < -kMost || bin.exponent > kMost || bin.exponent != expected)
      throw Error("a histogram that cannot be");
  }
  return histogram;
}

}  // namespace detail

}  // namespace troop::net
