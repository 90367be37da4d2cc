/// @file
/// Sets of slots with members in no order, for uniform choice, and in the order of joining.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>

namespace troop::detail {

/// Of slots that are numbered in 32 bits, one of the numbers standing for none.
inline std::size_t require_slots(std::size_t capacity) {
  require(capacity <= 0xfffffffe, "capacity", capacity, "at most 2^32 - 2");
  return capacity;
}

/// A set of slots whose members stand side by side in no order: joining, leaving and the i-th member cost
/// O(1). 8 bytes a slot.
class SlotSet {
 public:
  explicit SlotSet(std::size_t capacity)
      : members_(checked_bytes("capacity", require_slots(capacity), sizeof(std::uint32_t))),
        places_(checked_bytes("capacity", capacity, sizeof(std::uint32_t))) {}

  std::size_t size() const noexcept { return size_; }
  std::size_t operator[](std::size_t i) const noexcept {
    assert(i < size_);
    return members()[i];
  }
  bool contains(std::size_t slot) const noexcept { return places()[slot] != 0; }

  void insert(std::size_t slot) noexcept {
    if (contains(slot)) return;
    members()[size_++] = static_cast<std::uint32_t>(slot);
    places()[slot] = static_cast<std::uint32_t>(size_);
  }

  void erase(std::size_t slot) noexcept {
    if (!contains(slot)) return;
    const std::uint32_t last = members()[--size_];
    members()[places()[slot] - 1] = last;
    places()[last] = places()[slot];
    places()[slot] = 0;
  }

  void clear() noexcept {
    while (size_ > 0) places()[members()[--size_]] = 0;
  }

 private:
  std::span<std::uint32_t> members() const noexcept { return members_.as<std::uint32_t>(); }
  std::span<std::uint32_t> places() const noexcept { return places_.as<std::uint32_t>(); }

  Block members_;
  Block places_;  // of a member its place + 1, else 0
  std::size_t size_ = 0;
};

/// A set of slots in the order in which they joined: joining, leaving and the step to the one that joined
/// before cost O(1). 8 bytes a slot.
class SlotList {
 public:
  explicit SlotList(std::size_t capacity)
      : links_(checked_bytes("capacity", require_slots(capacity) + 1, sizeof(Link))) {}

  std::size_t size() const noexcept { return size_; }
  bool contains(std::size_t slot) const noexcept {
    return link(slot).newer != 0 || link(slot).older != 0 || head() == slot + 1;
  }

  /// The one that joined last; the set must not be empty.
  std::size_t newest() const noexcept {
    assert(size_ > 0);
    return head() - 1;
  }
  /// The one that joined before `slot`, or, after the first, again the last.
  std::size_t older(std::size_t slot) const noexcept {
    const std::uint32_t next = link(slot).older;
    return next != 0 ? next - 1 : newest();
  }

  void insert(std::size_t slot) noexcept {
    if (contains(slot)) return;
    const auto number = static_cast<std::uint32_t>(slot + 1);
    link(slot) = {.newer = 0, .older = head()};
    if (head() != 0) link(head() - 1).newer = number;
    head() = number;
    ++size_;
  }

  void erase(std::size_t slot) noexcept {
    if (!contains(slot)) return;
    const Link out = link(slot);
    (out.newer != 0 ? link(out.newer - 1).older : head()) = out.older;
    if (out.older != 0) link(out.older - 1).newer = out.newer;
    link(slot) = {};
    --size_;
  }

 private:
  struct Link {
    std::uint32_t newer, older;  // slot + 1, 0 for none
  };
  Link& link(std::size_t slot) const noexcept { return links_.as<Link>()[slot + 1]; }
  std::uint32_t& head() const noexcept { return links_.as<Link>()[0].older; }

  Block links_;  // [0] holds the newest, [slot + 1] the neighbours of a slot
  std::size_t size_ = 0;
};

}  // namespace troop::detail
