/// @file
/// A sum tree: weighted random choice among up to 2^40 leaves whose weights change.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/replay/detail/touched_nodes.hpp>
#include <troop/replay/detail/wide_node.hpp>

namespace troop {

/// Leaves are float32, every inner node is the double-precision sum of 16 children, so a node is one or two
/// cache lines and a million leaves stand five levels high.
///
/// What holds after any history of changes:
/// - A parent is always computed anew from its children, never by adding a difference: the tree depends on
///   its leaves alone, bit for bit, and `total()` has the rounding error of one summation in double precision
///   (relative error below 2^-50 for 2^23 leaves; none when the leaves are multiples of a common unit and the
///   total is below 2^53 units).
/// - `find` returns a leaf that is greater than zero, for every mass, as long as `total()` is: leaf i for the
///   masses in [sum of the leaves before i, that sum + leaf i); a mass of zero or less finds the first such
///   leaf, one beyond the total the last. Where running sums are not exact they are rounded, and the borders
///   of these ranges, the total's included, are those of the rounded sums.
///
/// Costs: one change O(levels); a batch of changes computes each touched inner node once; `find` of a batch
/// keeps many descents in flight, level by level, and prefetches. Memory: 4.54 bytes a leaf. Not thread-safe:
/// changes need exclusive access; several threads may call the const members.
///
///     SumTree tree(1000);
///     tree.set(7, 0.5f);
///     std::size_t leaf = tree.find(random.uniform() * tree.total());   // 7
class SumTree {
 public:
  static constexpr std::size_t kMaxCapacity = std::size_t{1} << 40;

  /// All leaves are zero. Throws InvalidArgument unless 1 <= capacity <= 2^40, Error when the memory is not
  /// to be had.
  explicit SumTree(std::size_t capacity) : capacity_(capacity) {
    require(capacity >= 1 && capacity <= kMaxCapacity, "capacity", capacity, "an integer from 1 to 2^40");
    std::size_t nodes = detail::num_parents(capacity);
    leaves_ = Block(checked_bytes("capacity", nodes * detail::kFanout, sizeof(float)));
    while (nodes > 1) {
      touched_.add_level(nodes);
      const std::size_t parents = detail::num_parents(nodes);
      levels_.emplace_back(parents * detail::kFanout * sizeof(double));
      nodes = parents;
    }
  }

  std::size_t capacity() const noexcept { return capacity_; }

  /// The sum of all leaves.
  double total() const noexcept {
    return levels_.empty() ? detail::WideNode(leaf_data()).sum()
                           : detail::WideNode(sums(levels_.size() - 1)).sum();
  }

  float operator[](std::size_t leaf) const noexcept {
    assert(leaf < capacity_);
    return leaf_data()[leaf];
  }

  /// All leaves, where the tree keeps them: valid as long as the tree lives, moves included.
  std::span<const float> leaves() const noexcept { return {leaf_data(), capacity_}; }

  /// Sets one leaf. `value` must be finite and not negative.
  void set(std::integral auto leaf, float value) noexcept {
    const auto place = static_cast<std::size_t>(leaf);
    set(std::span(&place, 1), std::span(&value, 1));
  }

  /// Sets many leaves; of a leaf that is named twice the last value stays. Values must be finite and not
  /// negative.
  void set(std::span<const std::size_t> leaves, std::span<const float> values) noexcept {
    assert(leaves.size() == values.size());
    for (std::size_t first = 0; first < leaves.size(); first += detail::TouchedNodes::kChunk) {
      const std::size_t count = std::min(detail::TouchedNodes::kChunk, leaves.size() - first);
      set_chunk(leaves.subspan(first, count), values.subspan(first, count));
    }
  }

  /// Sets the adjacent leaves [first, first + values.size()).
  void set_range(std::size_t first, std::span<const float> values) noexcept {
    if (values.empty()) return;
    assert(first + values.size() <= capacity_);
    std::copy(values.begin(), values.end(), leaf_data() + first);
    sum_range(first, values.size());
  }

  /// Sets the adjacent leaves [first, first + count) to `value`.
  void fill(std::size_t first, std::size_t count, float value) noexcept {
    if (count == 0) return;
    assert(first + count <= capacity_);
    std::fill_n(leaf_data() + first, count, value);
    sum_range(first, count);
  }

  /// The leaf on which `mass` falls. `total()` must be greater than zero.
  std::size_t find(double mass) const noexcept {
    std::size_t leaf = 0;
    find(std::span(&mass, 1), std::span(&leaf, 1));
    return leaf;
  }

  /// `find` for each mass.
  void find(std::span<const double> masses, std::span<std::size_t> leaves) const noexcept {
    assert(masses.size() == leaves.size());
    for (std::size_t first = 0; first < masses.size(); first += kInFlight) {
      const std::size_t count = std::min(kInFlight, masses.size() - first);
      find_chunk(masses.subspan(first, count), leaves.subspan(first, count));
    }
  }

 private:
  static constexpr std::size_t kInFlight = 512;  // descents side by side

  float* leaf_data() noexcept { return leaves_.as<float>().data(); }
  const float* leaf_data() const noexcept { return leaves_.as<float>().data(); }
  double* sums(std::size_t level) noexcept { return levels_[level].as<double>().data(); }
  const double* sums(std::size_t level) const noexcept { return levels_[level].as<double>().data(); }

  /// Computes the sum of node `node` of level `level` from its children.
  void sum_node(std::size_t level, std::size_t node) noexcept {
    const std::size_t child = node * detail::kFanout;
    sums(level)[node] = level == 0 ? detail::WideNode(leaf_data() + child).sum()
                                   : detail::WideNode(sums(level - 1) + child).sum();
  }

  void set_chunk(std::span<const std::size_t> leaves, std::span<const float> values) noexcept {
    for (const std::size_t leaf : leaves) {
      __builtin_prefetch(leaf_data() + leaf, 1);
      if (!levels_.empty()) __builtin_prefetch(sums(0) + leaf / detail::kFanout, 1);
    }
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      assert(leaves[i] < capacity_ && std::isfinite(values[i]) && values[i] >= 0.0f);
      leaf_data()[leaves[i]] = values[i];
    }
    touched_.compute(leaves, [this](std::size_t level, std::size_t node) {
      sum_node(level, node);
      return true;
    });
  }

  void sum_range(std::size_t first, std::size_t count) noexcept {
    touched_.compute_range(first, count,
                           [this](std::size_t level, std::size_t node) { sum_node(level, node); });
  }

  void find_chunk(std::span<const double> masses, std::span<std::size_t> leaves) const noexcept {
    double rest[kInFlight];
    std::copy(masses.begin(), masses.end(), rest);
    std::fill(leaves.begin(), leaves.end(), std::size_t{0});
    for (std::size_t level = levels_.size(); level-- > 0;) {
      const double* below = level > 0 ? sums(level - 1) : nullptr;
      descend(sums(level), rest, leaves, [&](std::size_t child) {
        if (below != nullptr) {
          __builtin_prefetch(below + child * detail::kFanout);
          __builtin_prefetch(below + child * detail::kFanout + 8);
        } else {
          __builtin_prefetch(leaf_data() + child * detail::kFanout);
        }
      });
    }
    descend(leaf_data(), rest, leaves, [](std::size_t) {});
  }

  /// One level down: `places` holds nodes, then their chosen children. Draws that stand in the same node one
  /// after the other, as those of a stratified sample do near the root, share its prefix sums.
  template <class Value, class Visit>
  static void descend(const Value* children, double* rest, std::span<std::size_t> places,
                      Visit visit) noexcept {
    std::size_t node = places[0];
    detail::WideNode::Chooser chooser{detail::WideNode(children + node * detail::kFanout)};
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i] != node) {
        node = places[i];
        chooser = detail::WideNode::Chooser{detail::WideNode(children + node * detail::kFanout)};
      }
      places[i] = node * detail::kFanout + chooser.select(rest[i]);
      visit(places[i]);
    }
  }

  std::size_t capacity_;
  Block leaves_;
  /// [0]: the sums of groups of 16 leaves; [n + 1]: those of groups of 16 sums of [n]; the last has at most
  /// 16.
  std::vector<Block> levels_;
  detail::TouchedNodes touched_;
};

}  // namespace troop
