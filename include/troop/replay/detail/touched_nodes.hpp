/// @file
/// Which inner nodes of a 16-ary tree have to be computed again after changes of its leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <troop/replay/detail/wide_node.hpp>

namespace troop::detail {

/// Nodes that 16 children each make of `n` children.
constexpr std::size_t num_parents(std::size_t n) noexcept {
  return (n + kFanout - 1) / kFanout;
}

/// Walks from changed leaves up through the levels of inner nodes and has each node computed once, however
/// many of its children have changed. Level 0 are the parents of the leaves.
class TouchedNodes {
 public:
  /// Leaves whose nodes are worked off at once.
  static constexpr std::size_t kChunk = 1024;

  TouchedNodes() {
    for (auto& list : lists_) list.resize(kChunk);
  }

  void add_level(std::size_t nodes) { marks_.emplace_back((nodes + 63) / 64); }

  /// Calls `compute(level, node)`, children before their parents; it says whether the node has changed, that
  /// is, whether its parent has to be computed too. At most kChunk leaves.
  template <class Compute>
  void compute(std::span<const std::size_t> leaves, Compute compute) noexcept {
    if (marks_.empty()) return;
    // Appending without a branch: whether a node is fresh, or has changed, cannot be predicted.
    std::size_t* nodes = lists_[0].data();
    std::size_t* parents = lists_[1].data();
    std::size_t count = 0;
    for (const std::size_t leaf : leaves) {
      nodes[count] = leaf / kFanout;
      count += mark(0, nodes[count], true);
    }
    for (std::size_t level = 0; level < marks_.size(); ++level) {
      const bool top = level + 1 == marks_.size();
      std::size_t num_parents = 0;
      for (std::size_t i = 0; i < count; ++i) {
        clear_mark(level, nodes[i]);
        const bool changed = compute(level, nodes[i]);
        if (top) continue;
        parents[num_parents] = nodes[i] / kFanout;
        num_parents += mark(level + 1, parents[num_parents], changed);
      }
      std::swap(nodes, parents);
      count = num_parents;
    }
  }

  /// The same for the adjacent leaves [first, first + count), at least one, without a look at what has
  /// changed.
  template <class Compute>
  void compute_range(std::size_t first, std::size_t count, Compute compute) const noexcept {
    std::size_t last = first + count - 1;
    for (std::size_t level = 0; level < marks_.size(); ++level) {
      first /= kFanout;
      last /= kFanout;
      for (std::size_t node = first; node <= last; ++node) compute(level, node);
    }
  }

 private:
  /// Marks a node if it is `wanted`; the number, 0 or 1, of nodes that were not marked before.
  std::size_t mark(std::size_t level, std::size_t node, bool wanted) noexcept {
    std::uint64_t& word = marks_[level][node / 64];
    const std::uint64_t bit = std::uint64_t{wanted} << (node % 64);
    const std::uint64_t fresh = (bit & ~word) >> (node % 64);
    word |= bit;
    return fresh;
  }
  void clear_mark(std::size_t level, std::size_t node) noexcept {
    marks_[level][node / 64] &= ~(std::uint64_t{1} << (node % 64));
  }

  std::vector<std::vector<std::uint64_t>> marks_;  // a bit for each node of each level
  std::vector<std::size_t> lists_[2];              // nodes to be computed
};

}  // namespace troop::detail
