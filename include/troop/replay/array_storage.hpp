/// @file
/// The plain storage of a replay: one block of memory, one record after another.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>

namespace troop {

/// What a replay asks of the place that holds its items: `capacity` slots of records of one layout.
///
/// `write` stores adjacent records of a batch into adjacent slots, `gather` copies the records of any slots
/// out, one after the other. Calls for different slots may come from several threads at once; the replay sees
/// to it that no slot is written while it is read or written.
template <class S>
concept ReplayStorage = requires(S& storage, const S& constant, std::size_t slot, const BatchView& batch,
                                 std::span<const std::size_t> slots, std::byte* records) {
  { constant.layout() } -> std::same_as<const RecordLayout&>;
  { constant.capacity() } -> std::same_as<std::size_t>;
  { storage.write(slot, batch) }
  noexcept;
  { constant.gather(slots, records) }
  noexcept;
  { constant.prefetch(slot) }
  noexcept;
};

/// Keeps each record whole in one block: a random read touches one place in memory. Costs the record's size a
/// slot and nothing else; the pages of the block are taken as they are first written.
class ArrayStorage {
 public:
  /// Throws InvalidArgument for a capacity of 0 or an absurd one, Error when the memory is not to be had.
  ArrayStorage(std::size_t capacity, RecordLayout layout)
      : layout_(std::move(layout)),
        capacity_((require(capacity >= 1, "capacity", capacity, "a positive integer"), capacity)),
        block_(checked_bytes("capacity", capacity, layout_.size())) {}

  const RecordLayout& layout() const noexcept { return layout_; }
  std::size_t capacity() const noexcept { return capacity_; }

  /// Stores `batch` into the slots [slot, slot + batch.size()).
  void write(std::size_t slot, const BatchView& batch) noexcept {
    if (batch.empty()) return;  // its address may be null
    const std::size_t bytes = layout_.size();
    std::byte* to = block_.data() + slot * bytes;
    if (batch.stride() == bytes) {
      std::memcpy(to, batch.data(), batch.size() * bytes);
    } else {
      for (std::size_t i = 0; i < batch.size(); ++i) std::memcpy(to + i * bytes, batch.record(i), bytes);
    }
  }

  /// Copies the records of `slots` out, one after the other. Not inlined, for GCC 12 warns of copies that are
  /// never made where it knows the size of `records`.
  [[gnu::noinline]] void gather(std::span<const std::size_t> slots, std::byte* records) const noexcept {
    const std::size_t bytes = layout_.size();
    const std::byte* from = block_.data();
    // Small records by two copies of a fixed size that overlap: a few instructions, where memcpy is a call.
    if (bytes >= 32 && bytes <= 64) {
      for (const std::size_t slot : slots) records = copy_twice<32>(from + slot * bytes, records, bytes);
    } else if (bytes >= 16 && bytes <= 32) {
      for (const std::size_t slot : slots) records = copy_twice<16>(from + slot * bytes, records, bytes);
    } else {
      for (const std::size_t slot : slots) {
        std::memcpy(records, from + slot * bytes, bytes);
        records += bytes;
      }
    }
  }

  /// Hints that `slot` is about to be read.
  void prefetch(std::size_t slot) const noexcept {
    const std::byte* record = block_.data() + slot * layout_.size();
    __builtin_prefetch(record);
    __builtin_prefetch(record + layout_.size() - 1);
  }

 private:
  template <std::size_t kPart>
  static std::byte* copy_twice(const std::byte* from, std::byte* to, std::size_t bytes) noexcept {
    std::byte first[kPart], last[kPart];
    std::memcpy(first, from, kPart);
    std::memcpy(last, from + bytes - kPart, kPart);
    std::memcpy(to, first, kPart);
    std::memcpy(to + bytes - kPart, last, kPart);
    return to + bytes;
  }

  RecordLayout layout_;
  std::size_t capacity_;
  Block block_;
};

}  // namespace troop
