/// @file
/// Rank-based prioritization: slots are drawn by where their priorities stand in the order of all.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

#include <troop/replay/detail/power.hpp>
#include <troop/replay/detail/rank_order.hpp>
#include <troop/replay/replay_options.hpp>
#include <troop/replay/sum_tree.hpp>

namespace troop {

/// P(i) = (1 / rank(i))^alpha / sum_k (1 / k)^alpha, where the largest priority has rank 1 (Schaul et al.
/// 2015, section 3.3, equation 1). How large the priorities are does not matter, so outliers do not either.
///
/// The order is exact at any time (the paper uses a heap that is sorted now and then): equal priorities stand
/// by slot, the smaller slot first. A priority of 0 has no rank and is never drawn. Powers of ranks are kept
/// as float32; those that would be below the smallest normal float32 are that number.
///
/// Costs: a change O(log n); a draw two descents, one in a SumTree over the ranks and one in the order, many
/// side by side. Memory: about 21 bytes a slot when all are in the order, 26.4 at worst. Nothing allocates
/// but the constructor and a `set_range` while no slot has a rank. Not thread-safe: changes need exclusive
/// access; several threads may call the const members.
///
///     using Replay = PrioritizedReplay<Transition, ArrayStorage, RankBasedSampler>;
///     Replay replay({.capacity = 1'000'000, .alpha = 0.7});
class RankBasedSampler {
 public:
  static constexpr std::string_view kName = "rank-based";
  static constexpr bool kTakesPowers = false;

  /// No slot has a rank. Throws InvalidArgument unless `options.capacity` is from 1 to 2^32 - 1, Error when
  /// the memory is not to be had.
  explicit RankBasedSampler(const ReplayOptions& options)
      : order_(options.capacity), ranks_(options.capacity), alpha_(options.alpha) {}

  /// Sets priorities; of a slot that is named twice the last one stays. They must be finite and not negative.
  void set(std::span<const std::size_t> slots, std::span<const float> values) noexcept {
    order_.set(slots, values);
    update_ranks();
  }

  /// Sets the adjacent slots [first, first + values.size()). While no slot has a rank this sorts once,
  /// several times as fast as one by one for a whole replay.
  void set_range(std::size_t first, std::span<const float> values) {
    if (order_.size() == 0) {
      order_.build(first, values);
    } else {
      set_adjacent(first, values.size(), [&](std::size_t i) { return values[i]; });
    }
    update_ranks();
  }

  /// Sets the adjacent slots [first, first + count) to `value`.
  void fill(std::size_t first, std::size_t count, float value) noexcept {
    set_adjacent(first, count, [&](std::size_t) { return value; });
    update_ranks();
  }

  /// The sum of rank^-alpha over all ranks, to which probabilities are relative; 0 while no slot has one.
  double total() const noexcept { return ranks_.total(); }

  float value(std::size_t slot) const noexcept { return order_.priority(slot); }

  /// The probability of the last rank.
  double smallest_probability() const noexcept {
    assert(num_ranks_ > 0);
    return static_cast<double>(ranks_[num_ranks_ - 1]) / total();
  }

  /// Draws a slot for each part in [0, 1), which says where the draw falls within the total when the slots
  /// are lined up by rank. Overwrites the parts. At least one slot must have a rank.
  void draw(std::span<double> parts, std::span<std::size_t> slots,
            std::span<double> probabilities) const noexcept {
    assert(num_ranks_ > 0 && parts.size() == slots.size() && parts.size() == probabilities.size());
    const double total = ranks_.total();
    for (double& part : parts) part *= total;
    ranks_.find(parts, slots);
    for (std::size_t i = 0; i < slots.size(); ++i)
      probabilities[i] = static_cast<double>(ranks_[slots[i]]) / total;
    order_.slots_at(slots, slots);
  }

 private:
  static constexpr std::size_t kPiece = 256;

  template <class Value>
  void set_adjacent(std::size_t first, std::size_t count, Value value) noexcept {
    std::array<std::size_t, kPiece> slots;
    std::array<float, kPiece> values;
    for (std::size_t done = 0; done < count; done += kPiece) {
      const std::size_t piece = std::min(kPiece, count - done);
      for (std::size_t i = 0; i < piece; ++i) {
        slots[i] = first + done + i;
        values[i] = value(done + i);
      }
      order_.set(std::span(slots).first(piece), std::span(values).first(piece));
    }
  }

  /// Gives the tree over the ranks as many leaves as there are slots in the order.
  void update_ranks() noexcept {
    const std::size_t size = order_.size();
    if (size < num_ranks_) ranks_.fill(size, num_ranks_ - size, 0.0f);
    std::array<float, detail::kPowersAtOnce> values;  // the ranks, then their powers
    std::array<double, detail::kPowersAtOnce> powers;
    for (std::size_t done = std::min(num_ranks_, size); done < size; done += values.size()) {
      const auto piece = std::span(values).first(std::min(values.size(), size - done));
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<float>(done + i + 1);
      detail::powers(piece, -alpha_, powers.data());
      for (std::size_t i = 0; i < piece.size(); ++i)
        piece[i] = std::max(static_cast<float>(powers[i]), std::numeric_limits<float>::min());
      ranks_.set_range(done, piece);
    }
    num_ranks_ = size;
  }

  detail::RankOrder order_;
  SumTree ranks_;  // of leaf i the power of rank i + 1, of the leaves from num_ranks_ on zeros
  std::size_t num_ranks_ = 0;
  double alpha_;
};

}  // namespace troop
