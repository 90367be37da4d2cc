/// @file
/// What a replay asks of the place that holds its items.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
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
/// A storage that keeps a part of its records where only the learner needs it, such as in a GPU's memory, also
/// has `sample_layout()`: the layout in which `gather` writes records.
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

/// `capacity` slots of shared pointers to objects of type `S::Item`, made by `S(capacity, options)`.
///
/// - `exchange(slot, items)` swaps pointers, null ones too, with those of adjacent slots; `gather(slots,
///   items)` copies the pointers of any slots over null ones. Neither destroys an object, for both are called
///   under the replay's lock.
/// - For snapshots, outside of that lock: `S::save(items, bytes)` appends an encoding of objects,
///   `S::load(count, bytes)` returns pointers to `count` objects or throws Error; `S::format()` names the
///   encoding.
template <class S>
concept ObjectStorage = std::default_initializable<typename S::Options> &&
    std::constructible_from<S, std::size_t, const typename S::Options&> &&
    requires(S& storage, const S& constant, std::size_t slot,
             std::span<std::shared_ptr<const typename S::Item>> items,
             std::span<const std::shared_ptr<const typename S::Item>> saved,
             std::span<const std::size_t> slots, std::vector<std::byte>& out,
             std::span<const std::byte> bytes) {
  { constant.capacity() } -> std::same_as<std::size_t>;
  { storage.exchange(slot, items) }
  noexcept;
  { constant.gather(slots, items.data()) }
  noexcept;
  { S::format() } -> std::convertible_to<std::string>;
  S::save(saved, out);
  { S::load(slot, bytes) } -> std::same_as<std::vector<std::shared_ptr<const typename S::Item>>>;
};

}  // namespace troop
