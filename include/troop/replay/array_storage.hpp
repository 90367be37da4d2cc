/// @file
/// The plain storage of a replay: one block of memory, one record after another.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>

namespace troop {

/// Keeps each record whole in one block: a random read touches one place in memory. Costs the record's size a
/// slot and nothing else; the pages of the block are taken as they are first written.
class ArrayStorage {
 public:
  struct Options {
    /// Keeps the records in a file instead of in memory, for replays larger than that. It is scratch space:
    /// created with its full size at once, so that a full disk shows here, and gone with the storage or the
    /// process. Put it on a fast local disk. Empty: in memory.
    std::string file = {};
    /// Takes all memory at once and not page by page as records come: the first round of inserts is then as
    /// fast as the later ones, and a lack of memory shows at the start.
    bool prefault = false;

    void validate() const {
      require(file.empty() || !prefault, "prefault", "true", "false when a file is given");
    }
  };

  static std::string format() { return "records"; }

  ArrayStorage(std::size_t capacity, RecordLayout layout)
      : ArrayStorage(capacity, std::move(layout), Options{}) {}

  /// Throws InvalidArgument for a capacity of 0 or an absurd one, Error when the memory is not to be had,
  /// FileError when the file is not.
  ArrayStorage(std::size_t capacity, RecordLayout layout, const Options& options)
      : layout_(std::move(layout)),
        capacity_((require(capacity >= 1, "capacity", capacity, "a positive integer"), capacity)),
        block_(
            make_block(checked_bytes("capacity", capacity, layout_.size()), (options.validate(), options))) {}

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

  /// The records one after the other, as they lie in memory.
  void save(std::span<const std::size_t> slots, std::vector<std::byte>& out) const {
    const std::size_t before = out.size();
    out.resize(before + slots.size() * layout_.size());
    gather(slots, out.data() + before);
  }
  void validate(std::size_t count, std::span<const std::byte> bytes) const {
    if (bytes.size() / layout_.size() == count && bytes.size() % layout_.size() == 0) return;
    throw Error(std::to_string(bytes.size()) + " bytes for " + std::to_string(count) + " records of " +
                std::to_string(layout_.size()));
  }
  void load(std::span<const std::size_t> slots, std::span<const std::byte> bytes) {
    validate(slots.size(), bytes);
    for (std::size_t i = 0; i < slots.size(); ++i)
      std::memcpy(block_.data() + slots[i] * layout_.size(), bytes.data() + i * layout_.size(),
                  layout_.size());
  }

 private:
  static Block make_block(std::size_t bytes, const Options& options) {
    Block block = options.file.empty() ? Block(bytes) : Block::on_scratch_file(bytes, options.file);
    if (options.prefault) block.prefault();
    return block;
  }

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
