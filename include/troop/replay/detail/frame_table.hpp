/// @file
/// Which frames a storage holds, found by their digests, and how often each is used.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include <troop/core/memory.hpp>
#include <troop/replay/detail/frame_hash.hpp>

namespace troop::detail {

/// The number of a frame, from 1.
using FrameId = std::uint32_t;
inline constexpr FrameId kNoFrame = 0;

/// A hash table with chains that grows by one bucket for each frame (linear hashing, Litwin 1980), so that no
/// call ever moves the whole table, and nothing of it moves in memory. Costs 28 bytes for each frame of the
/// greatest number that was held at once. Not thread-safe.
class FrameTable {
 public:
  explicit FrameTable(std::size_t most)
      : entries_(Block::reserve((most + 1) * sizeof(Entry))),
        buckets_(Block::reserve((most + 1) * sizeof(FrameId))) {}

  /// Hints that `find` is going to be asked for this digest.
  void prefetch(const FrameDigest& digest) const noexcept { __builtin_prefetch(&bucket(bucket_of(digest))); }

  /// The linked frame of this digest, or kNoFrame.
  FrameId find(const FrameDigest& digest) const noexcept {
    FrameId id = bucket(bucket_of(digest));
    while (id != kNoFrame && !(entry(id).digest == digest)) id = entry(id).next;
    return id;
  }

  /// A new frame with so many uses, which `find` does not see yet. There must be less than `most`.
  FrameId take(const FrameDigest& digest, std::uint32_t uses) noexcept {
    FrameId id = free_;
    if (id != kNoFrame) {
      free_ = entry(id).next;
    } else {
      id = static_cast<FrameId>(++taken_);
      assert(taken_ < entries_.bytes() / sizeof(Entry));
    }
    entry(id) = {digest, kNoFrame, uses};
    ++frames_;
    uses_ += uses;
    return id;
  }

  /// Lets `find` see the frame. None of its digest must be linked.
  void link(FrameId id) noexcept {
    if (++linked_ > buckets_used_) split();
    FrameId& head = bucket(bucket_of(entry(id).digest));
    entry(id).next = head;
    head = id;
  }

  void hold(FrameId id, std::uint32_t uses) noexcept {
    entry(id).uses += uses;
    uses_ += uses;
  }

  /// Takes so many uses back. Returns true when none is left; then the frame is gone.
  bool drop(FrameId id, std::uint32_t uses) noexcept {
    assert(entry(id).uses >= uses);
    uses_ -= uses;
    if ((entry(id).uses -= uses) > 0) return false;
    unlink(id);
    entry(id).next = free_;
    free_ = id;
    --frames_;
    return true;
  }

  std::size_t frames() const noexcept { return frames_; }
  std::size_t uses() const noexcept { return uses_; }
  /// The greatest number that was ever given.
  std::size_t taken() const noexcept { return taken_; }
  std::size_t bytes() const noexcept { return taken_ * sizeof(Entry) + buckets_used_ * sizeof(FrameId); }

 private:
  struct Entry {
    FrameDigest digest;
    FrameId next;  // in the chain of its bucket, or among the free ones
    std::uint32_t uses;
  };

  Entry& entry(FrameId id) const noexcept { return entries_.as<Entry>()[id]; }
  FrameId& bucket(std::size_t i) const noexcept { return buckets_.as<FrameId>()[i]; }

  std::size_t bucket_of(const FrameDigest& digest) const noexcept {
    const std::size_t mask = std::bit_ceil(buckets_used_) - 1;
    const std::size_t i = digest.low & mask;
    return i < buckets_used_ ? i : i & (mask >> 1);
  }

  /// Adds a bucket and moves there what belongs to it, which is all in one other bucket.
  void split() noexcept {
    const std::size_t added = buckets_used_++;
    FrameId* from = &bucket(added - std::bit_floor(added));
    FrameId* to = &bucket(added);
    while (*from != kNoFrame) {
      Entry& moving = entry(*from);
      if (bucket_of(moving.digest) != added) {
        from = &moving.next;
        continue;
      }
      *to = *from;
      *from = moving.next;
      moving.next = kNoFrame;
      to = &moving.next;
    }
  }

  void unlink(FrameId id) noexcept {
    FrameId* at = &bucket(bucket_of(entry(id).digest));
    while (*at != kNoFrame && *at != id) at = &entry(*at).next;
    if (*at == kNoFrame) return;
    *at = entry(id).next;
    --linked_;
  }

  Block entries_, buckets_;
  std::size_t taken_ = 0, frames_ = 0, linked_ = 0, uses_ = 0, buckets_used_ = 1;
  FrameId free_ = kNoFrame;
};

}  // namespace troop::detail
