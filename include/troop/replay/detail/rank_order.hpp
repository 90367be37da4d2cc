/// @file
/// Slots in the order of their priorities, with the slot of any rank at hand.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>

namespace troop::detail {

/// A counted B+ tree (Bayer and McCreight 1972) of keys that are made of a priority and a slot: rank 0 is the
/// largest priority, equal priorities stand by slot, smaller slots first. A priority of 0 is not in the
/// order.
///
/// Leaves hold up to 64 keys, inner nodes up to 32 children with the smallest key and the number of keys
/// before each; all but the root are half full or one short of it. A search in a node counts the numbers that
/// are not greater, in vectors and without a branch. Full nodes are split, and poor ones joined or levelled,
/// on the way down, so that a change is one descent to take a key out and one to put it in.
///
/// Costs: a change O(log n); ranks are looked up in batches, many descents side by side. Memory: 4 bytes a
/// slot and, for each slot in the order, about 12.5 bytes after random changes, from 8.3 (full nodes) to 17.8
/// (half empty ones). Address space for the worst is set aside at the beginning, so that no change allocates.
/// Not thread-safe: changes need exclusive access; several threads may call the const members.
class RankOrder {
 public:
  static constexpr std::size_t kMaxCapacity = std::numeric_limits<std::uint32_t>::max();

  /// The order is empty. Throws InvalidArgument unless 1 <= capacity < 2^32, Error when the memory is not to
  /// be had.
  explicit RankOrder(std::size_t capacity) : capacity_(capacity) {
    require(capacity >= 1 && capacity <= kMaxCapacity, "capacity", capacity, "an integer from 1 to 2^32 - 1");
    priorities_ = Block(capacity * sizeof(float));
    // Half a node less one is what a node keeps that was levelled at one more than a full node's content.
    std::size_t nodes = capacity / (kLeafKeys / 2 - 1) + 1;
    leaves_ = Pool<Leaf>(nodes);
    std::size_t inner_nodes = 0;
    while (nodes > 1) inner_nodes += nodes = nodes / (kChildren / 2 - 1) + 1;
    inner_ = Pool<Inner>(inner_nodes + 1);
    root_ = leaves_.take();
    fill_leaf(leaves_[root_], {});
  }

  std::size_t capacity() const noexcept { return capacity_; }

  /// Slots in the order: those whose priority is greater than 0.
  std::size_t size() const noexcept { return size_; }

  float priority(std::size_t slot) const noexcept {
    assert(slot < capacity_);
    return priorities()[slot];
  }

  /// Moves a slot to where its new priority belongs, or out of the order if that is 0. It must be finite and
  /// not negative.
  void set(std::size_t slot, float priority) noexcept {
    assert(slot < capacity_ && std::isfinite(priority) && priority >= 0.0f);
    float& old = priorities()[slot];
    if (old == priority) return;
    if (old > 0.0f) erase(key_of(slot, old));
    if (priority > 0.0f) insert(key_of(slot, priority));
    old = priority;
  }

  /// Sets many slots; of a slot that is named twice the last priority stays.
  void set(std::span<const std::size_t> slots, std::span<const float> priorities) noexcept {
    assert(slots.size() == priorities.size());
    for (std::size_t first = 0; first < slots.size(); first += kAhead) {
      const std::size_t count = std::min(kAhead, slots.size() - first);
      set_chunk(slots.subspan(first, count), priorities.subspan(first, count));
    }
  }

  /// Sets adjacent slots from `first` on in an order that is empty, in O(n log n) as one sort: for a whole
  /// replay several times as fast as setting each. Allocates.
  void build(std::size_t first, std::span<const float> priorities) {
    assert(size_ == 0 && first + priorities.size() <= capacity_);
    std::vector<Key> keys;
    keys.reserve(priorities.size());
    for (std::size_t i = 0; i < priorities.size(); ++i) {
      assert(std::isfinite(priorities[i]) && priorities[i] >= 0.0f);
      if (priorities[i] > 0.0f) keys.push_back(key_of(first + i, priorities[i]));
    }
    std::sort(keys.begin(), keys.end());
    build_tree(keys);
    std::copy(priorities.begin(), priorities.end(),
              this->priorities().begin() + static_cast<std::ptrdiff_t>(first));
  }

  /// The slots of `ranks`, each below `size()`, in any order. The two spans may be the same memory.
  void slots_at(std::span<const std::size_t> ranks, std::span<std::size_t> slots) const noexcept {
    assert(ranks.size() == slots.size());
    for (std::size_t first = 0; first < ranks.size(); first += kInFlight) {
      const std::size_t count = std::min(kInFlight, ranks.size() - first);
      find_chunk(ranks.subspan(first, count), slots.subspan(first, count));
    }
  }

 private:
  using Key = std::int64_t;
  using Node = std::uint32_t;

  static constexpr std::size_t kLeafKeys = 64;
  static constexpr std::size_t kChildren = 32;
  static constexpr std::size_t kInFlight = 512;  // descents side by side
  static constexpr std::size_t kAhead = 64;  // slots whose nodes are brought to the cache before they move
  static constexpr Key kNoKey = std::numeric_limits<Key>::max();

  struct alignas(64) Leaf {
    Key keys[kLeafKeys];  // ascending, then kNoKey
  };

  struct alignas(64) Inner {
    Key first[kChildren];             // no key that belongs in the child is smaller: 0 in the leftmost nodes;
                                      // kNoKey where there is no child
    std::uint32_t before[kChildren];  // keys in the children before
    Node child[kChildren];
    std::uint32_t children;
  };

  /// Nodes by number, given out and taken back. Memory is touched when a node is first given out.
  template <class T>
  class Pool {
   public:
    Pool() = default;
    explicit Pool(std::size_t nodes) : block_(nodes * sizeof(T)) {}
    T& operator[](Node node) noexcept { return block_.as<T>()[node]; }
    const T& operator[](Node node) const noexcept { return block_.as<T>()[node]; }

    Node take() noexcept {
      if (free_ == kNone) {
        assert(used_ < block_.as<T>().size());
        return used_++;
      }
      const Node node = free_;
      free_ = next(node);
      return node;
    }
    void give_back(Node node) noexcept { next(node) = std::exchange(free_, node); }

   private:
    static constexpr Node kNone = std::numeric_limits<Node>::max();
    /// A node that is free holds the number of the next one that is.
    Node& next(Node node) noexcept { return *reinterpret_cast<Node*>(&(*this)[node]); }

    Block block_;
    Node used_ = 0, free_ = kNone;
  };

  std::span<float> priorities() noexcept { return priorities_.as<float>(); }
  std::span<const float> priorities() const noexcept { return priorities_.as<float>(); }

  /// Ascending keys: descending priorities, then ascending slots. Floats that are not negative are in the
  /// same order as their bits.
  static Key key_of(std::size_t slot, float priority) noexcept {
    const auto below_top = std::numeric_limits<std::int32_t>::max() - std::bit_cast<std::int32_t>(priority);
    return Key{below_top} << 32 | static_cast<Key>(slot);
  }
  static std::size_t slot_of(Key key) noexcept { return static_cast<std::uint32_t>(key); }

  /// Numbers of `sorted` that are not greater than `limit`.
  template <std::size_t kSize, class Number>
  static std::size_t count_up_to(const Number (&sorted)[kSize], Number limit) noexcept {
    Number count = 0;
    for (std::size_t i = 0; i < kSize; ++i) count += sorted[i] <= limit ? Number{1} : Number{0};
    return static_cast<std::size_t>(count);
  }

  /// The child in which `key` is or belongs.
  static std::size_t child_for(const Inner& node, Key key) noexcept {
    return count_up_to(node.first, key) - 1;
  }

  /// Keys below child `i` of a node that has `count` keys below it.
  static std::size_t keys_of(const Inner& node, std::size_t i, std::size_t count) noexcept {
    return (i + 1 < node.children ? node.before[i + 1] : count) - node.before[i];
  }

  /// Adds `difference` to the number of keys of child `i`.
  static void add_keys(Inner& node, std::size_t i, std::uint32_t difference) noexcept {
    const auto child = static_cast<std::uint32_t>(i);
    const std::uint32_t children = node.children;
    for (std::uint32_t j = 0; j < kChildren; ++j) {
      const bool after = (j > child) & (j < children);  // no branch, so that the loop becomes vectors
      node.before[j] += after ? difference : 0;
    }
  }

  /// Keys of a leaf or children of an inner node, of which `count` keys are below it. The levels count from
  /// the leaves, which are level 0.
  std::size_t fill_of(std::size_t level, Node node, std::size_t count) const noexcept {
    return level == 0 ? count : inner_[node].children;
  }
  static constexpr std::size_t room(std::size_t level) noexcept { return level == 0 ? kLeafKeys : kChildren; }

  void insert(Key key) noexcept {
    if (fill_of(height_, root_, size_) == room(height_)) add_root();
    Node node = root_;
    std::size_t count = size_++;
    for (std::size_t level = height_; level > 0; --level) {
      Inner& inner = inner_[node];
      std::size_t i = child_for(inner, key);
      std::size_t keys = keys_of(inner, i, count);
      if (fill_of(level - 1, inner.child[i], keys) == room(level - 1)) {
        split(inner, i, level - 1, count);
        if (key >= inner.first[i + 1]) ++i;
        keys = keys_of(inner, i, count);
      }
      add_keys(inner, i, 1);
      node = inner.child[i];
      count = keys;
    }
    Leaf& leaf = leaves_[node];
    const std::size_t place = count_up_to(leaf.keys, key);
    std::copy_backward(leaf.keys + place, leaf.keys + count, leaf.keys + count + 1);
    leaf.keys[place] = key;
  }

  /// `key` must be there.
  void erase(Key key) noexcept {
    Node node = root_;
    std::size_t count = size_--;
    for (std::size_t level = height_; level > 0; --level) {
      Inner& inner = inner_[node];
      std::size_t i = child_for(inner, key);
      if (fill_of(level - 1, inner.child[i], keys_of(inner, i, count)) <= room(level - 1) / 2) {
        enrich(inner, i, level - 1, count);
        if (inner.children == 1) {  // of the root, alone, two children can have become one
          root_ = inner.child[0];
          --height_;
          inner_.give_back(node);
          node = root_;
          continue;
        }
        i = child_for(inner, key);
      }
      const std::size_t keys = keys_of(inner, i, count);
      add_keys(inner, i, ~std::uint32_t{0});
      node = inner.child[i];
      count = keys;
    }
    Leaf& leaf = leaves_[node];
    const std::size_t place = count_up_to(leaf.keys, key) - 1;
    assert(leaf.keys[place] == key);
    std::copy(leaf.keys + place + 1, leaf.keys + count, leaf.keys + place);
    leaf.keys[count - 1] = kNoKey;
  }

  Node new_inner() noexcept {
    const Node node = inner_.take();
    clear(inner_[node], 0);
    return node;
  }

  /// Leaves a node its first `children` ones.
  static void clear(Inner& node, std::size_t children) noexcept {
    std::fill(node.first + children, node.first + kChildren, kNoKey);
    std::fill(node.before + children, node.before + kChildren, ~std::uint32_t{0});
    node.children = static_cast<std::uint32_t>(children);
  }

  /// Puts a root with one child above the root.
  void add_root() noexcept {
    const Node above = new_inner();
    Inner& inner = inner_[above];
    inner.first[0] = 0;
    inner.before[0] = 0;
    inner.child[0] = root_;
    inner.children = 1;
    root_ = above;
    ++height_;
  }

  /// Splits child `i`, a full one of `level`, into two halves. `count` keys are below the node.
  void split(Inner& above, std::size_t i, std::size_t level, std::size_t count) noexcept {
    const std::uint32_t end = above.before[i] + static_cast<std::uint32_t>(keys_of(above, i, count));
    for (std::size_t j = above.children++; j > i + 1; --j) {
      above.first[j] = above.first[j - 1];
      above.before[j] = above.before[j - 1];
      above.child[j] = above.child[j - 1];
    }
    above.before[i + 1] = end;  // nothing, to begin with
    above.child[i + 1] = level == 0 ? leaves_.take() : new_inner();
    share(above, i, level, count, room(level) / 2);
  }

  /// Joins child `i`, an at most half full one of `level`, with a neighbour, or, if that holds too much,
  /// takes from it.
  void enrich(Inner& above, std::size_t i, std::size_t level, std::size_t count) noexcept {
    const std::size_t left = i + 1 < above.children ? i : i - 1;
    const std::size_t both = fill_of(level, above.child[left], keys_of(above, left, count)) +
                             fill_of(level, above.child[left + 1], keys_of(above, left + 1, count));
    if (both > room(level)) return share(above, left, level, count, both / 2);
    share(above, left, level, count, both);
    if (level == 0) {
      leaves_.give_back(above.child[left + 1]);
    } else {
      inner_.give_back(above.child[left + 1]);
    }
    for (std::size_t j = left + 2; j < above.children; ++j) {
      above.first[j - 1] = above.first[j];
      above.before[j - 1] = above.before[j];
      above.child[j - 1] = above.child[j];
    }
    clear(above, above.children - 1);
  }

  /// Deals out what child `i` and the next one hold so that `share` keys or children come to the former.
  void share(Inner& above, std::size_t i, std::size_t level, std::size_t count, std::size_t share) noexcept {
    const std::size_t left_keys = keys_of(above, i, count), right_keys = keys_of(above, i + 1, count);
    if (level == 0) {
      Leaf &left = leaves_[above.child[i]], &right = leaves_[above.child[i + 1]];
      Key all[2 * kLeafKeys];
      std::copy_n(right.keys, right_keys, std::copy_n(left.keys, left_keys, all));
      fill_leaf(left, std::span(all, share));
      fill_leaf(right, std::span(all + share, left_keys + right_keys - share));
      above.first[i + 1] = right.keys[0];
      above.before[i + 1] = above.before[i] + static_cast<std::uint32_t>(share);
    } else {
      Inner &left = inner_[above.child[i]], &right = inner_[above.child[i + 1]];
      Part all[2 * kChildren];
      std::size_t parts = 0;
      for (std::size_t j = 0; j < left.children; ++j)
        all[parts++] = {left.first[j], keys_of(left, j, left_keys), left.child[j]};
      for (std::size_t j = 0; j < right.children; ++j)
        all[parts++] = {right.first[j], keys_of(right, j, right_keys), right.child[j]};
      const std::size_t keys = fill_inner(left, std::span(all, share));
      fill_inner(right, std::span(all + share, parts - share));
      above.first[i + 1] = right.first[0];
      above.before[i + 1] = above.before[i] + static_cast<std::uint32_t>(keys);
    }
  }

  /// A node, the keys below it, and a key that none of them is smaller than.
  struct Part {
    Key first;
    std::size_t keys;
    Node node;
  };

  static void fill_leaf(Leaf& leaf, std::span<const Key> keys) noexcept {
    std::fill(std::copy(keys.begin(), keys.end(), leaf.keys), leaf.keys + kLeafKeys, kNoKey);
  }

  /// The keys below the node.
  static std::size_t fill_inner(Inner& node, std::span<const Part> parts) noexcept {
    std::size_t keys = 0;
    for (std::size_t j = 0; j < parts.size(); ++j) {
      node.first[j] = parts[j].first;
      node.before[j] = static_cast<std::uint32_t>(keys);
      node.child[j] = parts[j].node;
      keys += parts[j].keys;
    }
    clear(node, parts.size());
    return keys;
  }

  /// Builds the tree of ascending keys, its nodes three quarters full.
  void build_tree(std::span<const Key> keys) {
    std::vector<Part> parts, above;
    parts.reserve(keys.size() / (kLeafKeys / 2) + 1);  // first, so that nothing has changed where this throws
    above.reserve(parts.capacity());
    leaves_.give_back(root_);
    size_ = keys.size();
    height_ = 0;
    deal_out(keys, kLeafKeys, [&](std::span<const Key> some) {
      const Node node = leaves_.take();
      fill_leaf(leaves_[node], some);
      parts.push_back({parts.empty() ? 0 : some.front(), some.size(), node});
    });
    for (; parts.size() > 1; ++height_, parts.swap(above)) {
      above.clear();
      deal_out(std::span<const Part>(parts), kChildren, [&](std::span<const Part> some) {
        const Node node = inner_.take();
        above.push_back({some.front().first, fill_inner(inner_[node], some), node});
      });
    }
    root_ = parts.front().node;
  }

  template <class Item, class Visit>
  static void deal_out(std::span<const Item> items, std::size_t room, Visit visit) {
    const std::size_t target = room * 3 / 4;
    const std::size_t shares = items.size() <= room ? 1 : (items.size() + target - 1) / target;
    for (std::size_t i = 0; i < shares; ++i) {
      const std::size_t begin = items.size() * i / shares, end = items.size() * (i + 1) / shares;
      visit(items.subspan(begin, end - begin));
    }
  }

  /// First brings the nodes between which the slots will move to the cache, many descents side by side. The
  /// nodes that are changed in the end may be others, when some have been split or joined before. (Within one
  /// function with the changes: GCC removes calls of functions that do nothing but prefetch.)
  void set_chunk(std::span<const std::size_t> slots, std::span<const float> priorities) noexcept {
    if (height_ >= 4) {  // smaller trees lie in the cache
      for (const std::size_t slot : slots) __builtin_prefetch(&this->priorities()[slot], 1);
      Key keys[2 * kAhead];
      Node nodes[2 * kAhead];
      for (std::size_t i = 0; i < slots.size(); ++i) {
        keys[2 * i] = key_of(slots[i], priority(slots[i]));
        keys[2 * i + 1] = key_of(slots[i], priorities[i]);
        nodes[2 * i] = nodes[2 * i + 1] = root_;
      }
      for (std::size_t level = height_; level > 0; --level) {
        for (std::size_t i = 0; i < 2 * slots.size(); ++i) {
          const Inner& inner = inner_[nodes[i]];
          nodes[i] = inner.child[child_for(inner, keys[i])];
          const auto* next = level > 1 ? reinterpret_cast<const std::byte*>(&inner_[nodes[i]])
                                       : reinterpret_cast<const std::byte*>(&leaves_[nodes[i]]);
          for (std::size_t line = 0; line < sizeof(Leaf) / 64; ++line)
            __builtin_prefetch(next + 64 * line, 1);
        }
      }
    }
    for (std::size_t i = 0; i < slots.size(); ++i) set(slots[i], priorities[i]);
  }

  void find_chunk(std::span<const std::size_t> ranks, std::span<std::size_t> slots) const noexcept {
    std::uint32_t rest[kInFlight];
    Node nodes[kInFlight];
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      assert(ranks[i] < size_);
      rest[i] = static_cast<std::uint32_t>(ranks[i]);
      nodes[i] = root_;
    }
    for (std::size_t level = height_; level > 0; --level) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const Inner& inner = inner_[nodes[i]];
        const std::size_t child = count_up_to(inner.before, rest[i]) - 1;
        rest[i] -= inner.before[child];
        nodes[i] = inner.child[child];
        if (level > 1) {
          const auto* next = inner_[nodes[i]].before;
          for (std::size_t line = 0; line < 4; ++line) __builtin_prefetch(next + 16 * line);
        } else {
          __builtin_prefetch(&leaves_[nodes[i]].keys[rest[i]]);
        }
      }
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) slots[i] = slot_of(leaves_[nodes[i]].keys[rest[i]]);
  }

  std::size_t capacity_;
  std::size_t size_ = 0;
  Block priorities_;
  Pool<Leaf> leaves_;
  Pool<Inner> inner_;
  Node root_;
  std::size_t height_ = 0;  // levels of inner nodes
};

}  // namespace troop::detail
