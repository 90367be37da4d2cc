/// @file
/// The storage of a replay whose items are objects of any type: episodes of any length, strings,
/// structs with vectors.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/fwd.hpp>
#include <troop/replay/storage.hpp>

namespace troop {

/// Keeps a shared pointer to each object: replay and batches share objects, which live as long as one of them
/// holds them and must not change. 16 bytes a slot beside the objects.
///
/// `Serializer` is for snapshots alone: `format()`, the name of its encoding; `save(object, bytes)`, which
/// appends; `load(bytes)`, which returns an object or throws Error whatever the bytes. CerealSerializer, the
/// default, comes with <troop/serialization/cereal.hpp>. A replay that is never saved needs none.
///
///     PrioritizedReplay<Episode, HeapStorage<Episode>> replay({.capacity = 10'000});
///     replay.add(std::make_shared<const Episode>(std::move(episode)), priority);
template <class T, class Serializer>
class HeapStorage {
 public:
  using Item = T;
  using Pointer = std::shared_ptr<const T>;

  struct Options {
    void validate() const noexcept {}
  };

  /// Throws InvalidArgument for a capacity of 0 or an absurd one, Error when the memory is not to be had.
  explicit HeapStorage(std::size_t capacity, const Options& = {}) : objects_(make(capacity)) {}

  std::size_t capacity() const noexcept { return objects_.size(); }

  /// Swaps `items` with what is in the slots from `slot` on.
  void exchange(std::size_t slot, std::span<Pointer> items) noexcept {
    assert(slot + items.size() <= capacity());
    for (std::size_t i = 0; i < items.size(); ++i) objects_[slot + i].swap(items[i]);
  }

  /// Copies the pointers of `slots` to `items`, which are null before: else objects might be destroyed here.
  void gather(std::span<const std::size_t> slots, Pointer* items) const noexcept {
    for (std::size_t i = 0; i < slots.size(); ++i) items[i] = objects_[slots[i]];
  }

  static std::string format() { return "objects, " + Complete<Serializer>::Type::format(); }

  /// Appends the objects, the length of each (64 bits) before its bytes.
  static void save(std::span<const Pointer> items, std::vector<std::byte>& out) {
    std::vector<std::byte> bytes;
    for (const Pointer& item : items) {
      assert(item != nullptr);
      bytes.clear();
      Complete<Serializer>::Type::save(*item, bytes);
      ByteWriter writer(out);
      writer.number(static_cast<std::uint64_t>(bytes.size()));
      writer.bytes(bytes);
    }
  }

  /// Reads `count` objects. Throws Error unless the bytes are just these.
  static std::vector<Pointer> load(std::size_t count, std::span<const std::byte> bytes) {
    ByteReader reader(bytes);
    if (count > bytes.size() / sizeof(std::uint64_t))
      throw Error(std::to_string(bytes.size()) + " bytes for " + std::to_string(count) + " objects");
    std::vector<Pointer> items;
    items.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t length = reader.count<std::uint64_t>(1);
      items.push_back(std::make_shared<const T>(Complete<Serializer>::Type::load(reader.bytes(length))));
    }
    reader.finish();
    return items;
  }

 private:
  template <class S>
  struct Complete {
    static_assert(
        requires { sizeof(S); },
        "a snapshot of objects needs their Serializer: for the default, CerealSerializer, "
        "include <troop/serialization/cereal.hpp>");
    using Type = S;
  };

  static std::vector<Pointer> make(std::size_t capacity) {
    require(capacity >= 1, "capacity", capacity, "a positive integer");
    const std::size_t bytes = checked_bytes("capacity", capacity, sizeof(Pointer));
    try {
      return std::vector<Pointer>(capacity);
    } catch (const std::bad_alloc&) {
      throw Error("cannot allocate " + std::to_string(bytes) + " bytes");
    }
  }

  std::vector<Pointer> objects_;
};

}  // namespace troop
