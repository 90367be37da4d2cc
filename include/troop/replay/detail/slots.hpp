/// @file
/// Which slot of a replay holds which key: a ring where the oldest item goes first, a table where any item
/// may go.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/fwd.hpp>

namespace troop::detail {

/// Slots are taken one after the other, and again from the first: key k is in slot k % capacity, and the
/// newest items are held. Costs no memory an item.
class RingSlots {
 public:
  explicit RingSlots(std::size_t capacity) : capacity_(capacity) {}

  Key next_key() const noexcept { return next_; }
  Key oldest_key() const noexcept { return oldest_; }
  std::size_t size() const noexcept { return static_cast<std::size_t>(next_ - oldest_); }
  std::size_t slot_of(Key key) const noexcept { return static_cast<std::size_t>(key % capacity_); }

  /// The newest item's place, from which keys and slots of the other live items follow without a division.
  struct Newest {
    explicit Newest(const RingSlots& slots) noexcept
        : key(slots.next_ - 1), slot(slots.slot_of(key)), capacity(slots.capacity_) {}

    std::size_t slot_of(Key live) const noexcept {
      const auto back = static_cast<std::size_t>(key - live);
      return slot >= back ? slot - back : slot + capacity - back;
    }
    Key key_of(std::size_t full) const noexcept {
      return key - (slot >= full ? slot - full : slot + capacity - full);
    }

    Key key;
    std::size_t slot, capacity;
  };

  /// Calls `f(slot, first, count)` for the one or two runs of adjacent slots of `count` keys from `key` on.
  template <class F>
  void for_runs(Key key, std::size_t count, F&& f) const {
    for (std::size_t done = 0; done < count;) {
      const std::size_t slot = slot_of(key + done);
      const std::size_t run = count - done < capacity_ - slot ? count - done : capacity_ - slot;
      f(slot, done, run);
      done += run;
    }
  }

  /// Takes keys for `count` items; the slots of those that stay may still hold older items.
  Key take(std::size_t count) noexcept {
    const Key first = next_;
    next_ += count;
    if (next_ - oldest_ > capacity_) oldest_ = next_ - capacity_;
    return first;
  }

  /// Forgets the oldest `count` items.
  void drop(std::size_t count) noexcept {
    assert(count <= size());
    oldest_ += count;
  }

  /// Holds the keys [oldest, next), as a snapshot says.
  void restore(Key oldest, Key next) noexcept {
    assert(oldest <= next && next - oldest <= capacity_);
    oldest_ = oldest;
    next_ = next;
  }

 private:
  std::size_t capacity_;
  Key next_ = 0, oldest_ = 0;
};

/// Any slot may hold any key. 14 bytes a slot: the key in it, and a hash table of slots with linear probing
/// (Knuth, vol. 3, section 6.4, algorithms L and R), two thirds full at most.
class TableSlots {
 public:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kMaxCapacity = std::numeric_limits<std::uint32_t>::max() - 1;

  explicit TableSlots(std::size_t capacity)
      : capacity_((require(capacity <= kMaxCapacity, "capacity", capacity, "at most 2^32 - 2"), capacity)),
        buckets_(capacity + capacity / 2 + 1),
        keys_(checked_bytes("capacity", capacity, sizeof(Key))),
        table_(checked_bytes("capacity", buckets_, sizeof(std::uint32_t))) {}

  Key next_key() const noexcept { return next_; }
  std::size_t size() const noexcept { return size_; }
  bool is_full() const noexcept { return size_ == capacity_; }
  Key key_of(std::size_t slot) const noexcept { return keys_.as<Key>()[slot]; }

  /// Whether the slot holds an item.
  bool holds(std::size_t slot) const noexcept { return find(key_of(slot)) == slot; }

  /// The slot that holds `key`, or kNone.
  std::size_t find(Key key) const noexcept {
    const auto table = table_.as<std::uint32_t>();
    for (std::size_t bucket = home(key); table[bucket] != 0; bucket = after(bucket)) {
      if (key_of(table[bucket] - 1) == key) return table[bucket] - 1;
    }
    return kNone;
  }

  /// A slot that holds nothing; there must be one. It stays so until `put`.
  std::size_t free_slot() const noexcept {
    assert(!is_full());
    return free_ != 0 ? free_ - 1 : used_;
  }

  /// Puts the next key into `free_slot()` and returns it.
  Key put() noexcept {
    const std::size_t slot = free_slot();
    if (free_ != 0) {
      free_ = key_of(slot);
    } else {
      ++used_;
    }
    return put_at(slot, next_++);
  }

  /// Puts the next key into the place of the item of `slot`, and returns it.
  Key replace(std::size_t slot) noexcept {
    remove_from_table(slot);
    --size_;
    return put_at(slot, next_++);
  }

  /// Empties a slot.
  void erase(std::size_t slot) noexcept {
    remove_from_table(slot);
    --size_;
    keys_.as<Key>()[slot] = free_;  // free slots are a list through their keys
    free_ = slot + 1;
  }

  /// Empties all slots; keys go on from `next`.
  void clear(Key next) noexcept {
    const auto table = table_.as<std::uint32_t>();
    for (auto& entry : table) entry = 0;
    size_ = used_ = free_ = 0;
    next_ = next;
  }

  /// Puts an old key into the next fresh slot after a `clear`, as a snapshot says; returns the slot.
  std::size_t restore(Key key) noexcept {
    assert(free_ == 0 && used_ < capacity_);
    put_at(used_, key);
    return used_++;
  }
  void restore_next(Key next) noexcept { next_ = next; }

 private:
  Key put_at(std::size_t slot, Key key) noexcept {
    const auto table = table_.as<std::uint32_t>();
    keys_.as<Key>()[slot] = key;
    std::size_t bucket = home(key);
    while (table[bucket] != 0) bucket = after(bucket);
    table[bucket] = static_cast<std::uint32_t>(slot + 1);
    ++size_;
    return key;
  }

  /// Closes the gap that the slot's entry leaves: entries behind it move up where their home allows it.
  void remove_from_table(std::size_t slot) noexcept {
    const auto table = table_.as<std::uint32_t>();
    std::size_t gap = home(key_of(slot));
    while (table[gap] != slot + 1) gap = after(gap);
    for (std::size_t bucket = after(gap); table[bucket] != 0; bucket = after(bucket)) {
      const std::size_t wanted = home(key_of(table[bucket] - 1));
      const bool reachable =
          gap <= bucket ? wanted <= gap || wanted > bucket : wanted <= gap && wanted > bucket;
      if (!reachable) continue;
      table[gap] = table[bucket];
      gap = bucket;
    }
    table[gap] = 0;
  }

  std::size_t home(Key key) const noexcept {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>((static_cast<Wide>(key * 0x9e3779b97f4a7c15u) * buckets_) >> 64);
  }
  std::size_t after(std::size_t bucket) const noexcept { return bucket + 1 == buckets_ ? 0 : bucket + 1; }

  std::size_t capacity_, buckets_;
  Block keys_;   // of a full slot its key, of an empty one the next empty one's number + 1
  Block table_;  // slot + 1, 0 for none
  std::size_t size_ = 0, used_ = 0;
  Key free_ = 0;  // the first empty slot's number + 1, of those that were full before
  Key next_ = 0;
};

}  // namespace troop::detail
