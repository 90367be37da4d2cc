/// @file
/// The smallest positive and the largest of up to 2^40 leaves whose values change.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/replay/detail/touched_nodes.hpp>

namespace troop {

/// Accompanies a SumTree, whose leaves it reads where they are and of which it keeps the inner levels only,
/// 16 children a node. The smallest positive leaf is what the largest importance-sampling weight of a whole
/// replay comes from: max_j w_j = (N min_j P(j))^-beta (Schaul et al. 2015, section 3.4).
///
/// A node is computed anew from its children, so the answers are exact after any history of changes. Leaves
/// must be finite and not negative.
///
/// Costs: `min` and `max` one read; an update of n leaves at most n nodes a level, each once, and no node
/// above one that has stayed the same. Memory: 0.54 bytes a leaf. Not thread-safe: updates need exclusive
/// access; several threads may call the const members.
///
///     leaves.set(slots, values);                     // a SumTree
///     extremes.update(leaves.leaves(), slots);
///     double largest_weight = std::pow(size * extremes.min() / leaves.total(), -beta);
class MinMaxTree {
 public:
  static constexpr std::size_t kMaxCapacity = std::size_t{1} << 40;

  /// For leaves that are all zero. Throws InvalidArgument unless 1 <= capacity <= 2^40, Error when the memory
  /// is not to be had.
  explicit MinMaxTree(std::size_t capacity) : capacity_(capacity) {
    require(capacity >= 1 && capacity <= kMaxCapacity, "capacity", capacity, "an integer from 1 to 2^40");
    std::size_t nodes = capacity;
    do {
      nodes = detail::num_parents(nodes);
      touched_.add_level(nodes);
      levels_.emplace_back(detail::num_parents(nodes) * sizeof(Group));
    } while (nodes > 1);
  }

  std::size_t capacity() const noexcept { return capacity_; }

  /// The smallest leaf that is greater than zero; 0 if there is none.
  float min() const noexcept { return std::bit_cast<float>(group(levels_.size() - 1, 0).min[0]); }

  /// The largest leaf; 0 if none is greater than zero.
  float max() const noexcept { return std::bit_cast<float>(group(levels_.size() - 1, 0).max[0]); }

  /// To be called after the leaves `changed` have got new values. `leaves` are all `capacity` leaves.
  void update(std::span<const float> leaves, std::span<const std::size_t> changed) noexcept {
    assert(leaves.size() == capacity_);
    for (std::size_t first = 0; first < changed.size(); first += detail::TouchedNodes::kChunk) {
      const std::size_t count = std::min(detail::TouchedNodes::kChunk, changed.size() - first);
      touched_.compute(changed.subspan(first, count),
                       [&](std::size_t level, std::size_t node) { return compute(leaves, level, node); });
    }
  }

  /// To be called after the adjacent leaves [first, first + count) have got new values.
  void update_range(std::span<const float> leaves, std::size_t first, std::size_t count) noexcept {
    assert(leaves.size() == capacity_ && first + count <= capacity_);
    if (count == 0) return;
    touched_.compute_range(first, count,
                           [&](std::size_t level, std::size_t node) { compute(leaves, level, node); });
  }

 private:
  /// The bits of a float: those of floats that are not negative are in the same order as the floats.
  using Bits = std::uint32_t;

  /// What 16 adjacent nodes hold of their children.
  struct alignas(64) Group {
    Bits min[detail::kFanout], max[detail::kFanout];  // 0 where no leaf is positive
  };

  Group& group(std::size_t level, std::size_t node) noexcept {
    return levels_[level].as<Group>()[node / detail::kFanout];
  }
  const Group& group(std::size_t level, std::size_t node) const noexcept {
    return levels_[level].as<Group>()[node / detail::kFanout];
  }

  /// The smallest positive one: a zero less one is the largest number there is.
  static Bits min_of(const Bits* children) noexcept {
    Bits min = ~Bits{0};
    for (std::size_t i = 0; i < detail::kFanout; ++i) min = std::min(min, children[i] - 1);
    return min + 1;
  }

  static Bits max_of(const Bits* children) noexcept {
    Bits max = 0;
    for (std::size_t i = 0; i < detail::kFanout; ++i) max = std::max(max, children[i]);
    return max;
  }

  /// Computes a node from its children; whether it has changed.
  bool compute(std::span<const float> leaves, std::size_t level, std::size_t node) noexcept {
    Bits min, max;
    if (level == 0) {
      const std::size_t first = node * detail::kFanout;
      Bits children[detail::kFanout]{};
      const std::size_t count = leaves.size() - first;
      if (count >= detail::kFanout) {
        std::memcpy(children, leaves.data() + first, sizeof children);  // of a known size: no call
      } else {
        std::memcpy(children, leaves.data() + first, count * sizeof(float));
      }
      for (Bits& child : children) child &= ~Bits{0} >> 1;  // -0 is 0
      min = min_of(children);
      max = max_of(children);
    } else {
      const Group& children = group(level - 1, node * detail::kFanout);
      min = min_of(children.min);
      max = max_of(children.max);
    }
    Bits& old_min = group(level, node).min[node % detail::kFanout];
    Bits& old_max = group(level, node).max[node % detail::kFanout];
    const bool changed = old_min != min || old_max != max;
    old_min = min;
    old_max = max;
    return changed;
  }

  std::size_t capacity_;
  std::vector<Block> levels_;  // [0]: of groups of 16 leaves; the last has one node
  detail::TouchedNodes touched_;
};

}  // namespace troop
