/// @file
/// The frame storages that are tried, and how a test writes, reads and checks them.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include <troop/core/view.hpp>
#include <troop/replay/frame_storage.hpp>

#ifdef TROOP_WITH_COMPRESSION
#include <troop/compression/lz4.hpp>
#include <troop/compression/zstd.hpp>
#endif

#include "frame_records.hpp"

namespace troop::testing {

#ifdef TROOP_WITH_COMPRESSION
#define TROOP_FRAME_STORAGES                                                                \
  troop::FrameStorage<troop::RawFrames>, troop::FrameStorage<troop::testing::SteeredCodec>, \
      troop::FrameStorage<troop::Lz4>, troop::FrameStorage<troop::Zstd>
#else
#define TROOP_FRAME_STORAGES \
  troop::FrameStorage<troop::RawFrames>, troop::FrameStorage<troop::testing::SteeredCodec>
#endif

inline bool same(const FrameItem& a, const FrameItem& b) {
  return std::memcmp(static_cast<const void*>(&a), static_cast<const void*>(&b), sizeof(FrameItem)) == 0;
}

template <class Storage>
void write(Storage& storage, std::size_t slot, const FrameItem& item) {
  storage.write(slot, BatchView(std::span(&item, 1)));
}

template <class Storage>
FrameItem read(const Storage& storage, std::size_t slot) {
  FrameItem item;
  storage.gather(std::span(&slot, 1), reinterpret_cast<std::byte*>(&item));
  return item;
}

/// What a storage with these items must report.
inline void check_statistics(const FrameStatistics& statistics, std::span<const FrameItem> items) {
  std::set<Picture> pictures;
  for (const FrameItem& item : items) {
    pictures.insert(item.observation.begin(), item.observation.end());
    pictures.insert(item.next_observation.begin(), item.next_observation.end());
  }
  CHECK(statistics.frames == pictures.size());
  CHECK(statistics.uses == 8 * items.size());
  CHECK(statistics.sharing() * static_cast<double>(pictures.size()) ==
        doctest::Approx(8.0 * static_cast<double>(items.size())));
}

inline std::vector<std::size_t> first_slots(std::size_t count) {
  std::vector<std::size_t> slots(count);
  std::iota(slots.begin(), slots.end(), std::size_t{0});
  return slots;
}

template <class Storage>
std::vector<std::byte> save(const Storage& storage, std::span<const std::size_t> slots) {
  std::vector<std::byte> bytes;
  storage.save(slots, bytes);
  return bytes;
}

}  // namespace troop::testing
