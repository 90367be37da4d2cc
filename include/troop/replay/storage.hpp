/// @file
/// What a replay asks of the place that holds its items.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <troop/core/record.hpp>
#include <troop/core/view.hpp>

namespace troop {

/// `capacity` slots of records of one layout, made by `S(capacity, layout, options)`.
///
/// - `write(slot, batch)` stores adjacent records of a batch into adjacent slots; it may throw when memory is
///   short, and those slots are then not read before they are written again.
/// - `gather(slots, records)` copies the records of any slots out, one after the other; `prefetch(slot)`
///   hints that a slot is about to be read.
/// - For snapshots: `save(slots, bytes)` appends an encoding of the items of any slots, `validate(count,
///   bytes)` throws Error unless the bytes are one of `count` items, `load(slots, bytes)` writes them into
///   slots; `S::format()` names the encoding. Of a slot that was never written a record of zeros is saved.
///
/// Calls for different slots may come from several threads at once; the replay sees to it that no slot is
/// written while it is read or written.
template <class S>
concept ReplayStorage = std::default_initializable<typename S::Options> &&
    std::constructible_from<S, std::size_t, RecordLayout, const typename S::Options&> &&
    requires(S& storage, const S& constant, std::size_t slot, const BatchView& batch,
             std::span<const std::size_t> slots, std::byte* records, std::vector<std::byte>& out,
             std::span<const std::byte> bytes) {
  { constant.layout() } -> std::same_as<const RecordLayout&>;
  { constant.capacity() } -> std::same_as<std::size_t>;
  storage.write(slot, batch);
  { constant.gather(slots, records) }
  noexcept;
  { constant.prefetch(slot) }
  noexcept;
  { S::format() } -> std::convertible_to<std::string>;
  constant.save(slots, out);
  constant.validate(slot, bytes);
  storage.load(slots, bytes);
};

/// The same for items that are objects of type `S::Item` behind shared pointers: `exchange(slot, items)`
/// stores the items of a span into adjacent slots and leaves there what was in them, to be destroyed by the
/// caller; `release` forgets the items of adjacent slots.
template <class S>
concept ObjectStorage = std::default_initializable<typename S::Options> &&
    std::constructible_from<S, std::size_t, const typename S::Options&> &&
    requires(S& storage, const S& constant, std::size_t slot,
             std::span<std::shared_ptr<const typename S::Item>> items, std::span<const std::size_t> slots,
             std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  { constant.capacity() } -> std::same_as<std::size_t>;
  { storage.exchange(slot, items) }
  noexcept;
  { constant.gather(slots, items.data()) }
  noexcept;
  storage.release(slot, slot);
  { S::format() } -> std::convertible_to<std::string>;
  constant.save(slots, out);
  constant.validate(slot, bytes);
  storage.load(slots, bytes);
};

}  // namespace troop
