#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/frame_storage.hpp>

#include "frame_records.hpp"
#include "frame_storages.hpp"
#include "testing.hpp"

using troop::BatchView;
using troop::DType;
using troop::Error;
using troop::FrameStorage;
using troop::Random;
using troop::RecordLayout;
using troop::testing::check_statistics;
using troop::testing::Failures;
using troop::testing::first_slots;
using troop::testing::FrameGame;
using troop::testing::FrameItem;
using troop::testing::Picture;
using troop::testing::read;
using troop::testing::same;
using troop::testing::save;
using troop::testing::write;

TEST_CASE_TEMPLATE("saved items come back from any slots, and saved again they give the same bytes", Storage,
                   TROOP_FRAME_STORAGES) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "save");
  constexpr std::size_t kCapacity = 40;
  FrameGame one(seed, 0, 3), two(seed, 1, 1);
  Storage storage(kCapacity, RecordLayout::of<FrameItem>());
  for (std::size_t round = 0; round < 4; ++round)
    for (std::size_t slot = 0; slot < kCapacity; ++slot)
      write(storage, slot, slot % 3 == 0 ? two.next() : one.next());

  for (const std::size_t count : {0, 1, 7, 40}) {
    CAPTURE(count);
    std::vector<std::size_t> slots(count);
    for (auto& slot : slots) slot = random.below(kCapacity);
    std::vector<std::byte> bytes = {std::byte{9}};  // stays: save appends
    storage.save(slots, bytes);
    CHECK(bytes.front() == std::byte{9});
    bytes.erase(bytes.begin());
    CHECK_NOTHROW(storage.validate(count, bytes));

    Storage other(kCapacity + 5, RecordLayout::of<FrameItem>());
    std::vector<std::size_t> loaded(count);
    std::vector<FrameItem> expected;
    for (std::size_t i = 0; i < count; ++i) loaded[i] = (7 * i + 5) % (kCapacity + 5);  // here and there
    other.load(loaded, bytes);
    for (std::size_t i = 0; i < count; ++i) {
      expected.push_back(read(storage, slots[i]));
      CHECK(same(read(other, loaded[i]), expected[i]));
    }
    check_statistics(other.statistics(), expected);
    CHECK(save(other, loaded) == bytes);
  }
}

TEST_CASE_TEMPLATE("items may be loaded over others, whose frames they share or end", Storage,
                   TROOP_FRAME_STORAGES) {
  FrameGame game(8, 0, 3);
  constexpr std::size_t kCapacity = 30;
  Storage storage(kCapacity, RecordLayout::of<FrameItem>());
  std::vector<FrameItem> items;
  for (std::size_t i = 0; i < kCapacity; ++i) {
    items.push_back(game.next());
    write(storage, i, items.back());
  }
  const auto bytes = save(storage, first_slots(20));
  std::vector<std::size_t> slots(20);
  std::iota(slots.begin(), slots.end(), std::size_t{10});
  storage.load(slots, bytes);
  std::vector<FrameItem> expected(items.begin(), items.begin() + 10);
  expected.insert(expected.end(), items.begin(), items.begin() + 20);
  for (std::size_t i = 0; i < kCapacity; ++i) CHECK(same(read(storage, i), expected[i]));
  check_statistics(storage.statistics(), expected);
}

TEST_CASE_TEMPLATE("an empty slot is saved as zeros", Storage, TROOP_FRAME_STORAGES) {
  Storage storage(3, RecordLayout::of<FrameItem>());
  const auto bytes = save(storage, first_slots(2));
  FrameGame game(8, 0, 3);
  write(storage, 2, game.next());
  storage.load(std::array<std::size_t, 2>{1, 2}, bytes);
  CHECK(same(read(storage, 2), FrameItem{}));
  CHECK(storage.statistics().frames == 0);
}

TEST_CASE("each frame is saved once") {
  FrameStorage<> storage(50, RecordLayout::of<FrameItem>());
  FrameGame game(9, 0, 3);
  for (std::size_t i = 0; i < 50; ++i) write(storage, i, game.next());
  constexpr std::size_t kRest = sizeof(FrameItem) - 8 * sizeof(Picture);
  CHECK(save(storage, first_slots(50)).size() ==
        12 + storage.statistics().frames * (4 + sizeof(Picture)) + 50 * (8 * 4 + kRest));
}

TEST_CASE("bytes that are no encoding are refused with the reason") {
  FrameStorage<> storage(4,
                         RecordLayout({{"observation", DType::u8, {2, 2, 2}}, {"action", DType::u8, {3}}}));
  const std::array<std::uint8_t, 22> two = {1, 1, 1, 1, 2, 2, 2, 2, 7, 8, 9, 2, 2, 2, 2, 3, 3, 3, 3, 4, 5, 6};
  storage.write(0, BatchView(storage.layout(), two.data(), 2));
  const auto good = save(storage, first_slots(2));
  // 8 fingerprint, 4 number, 3 x 4 sizes, 3 x 4 frames, then 2 items of 2 x 4 + 3
  REQUIRE(good.size() == 58);
  CHECK_NOTHROW(storage.validate(2, good));

  const auto refused = [&](std::size_t count, const std::vector<std::byte>& bytes, const char* message) {
    CHECK_THROWS_WITH_AS(storage.validate(count, bytes), message, Error);
    CHECK_THROWS_WITH_AS(storage.load(first_slots(count), bytes), message, Error);
  };
  const auto with = [&](std::size_t at, std::uint8_t value) {
    auto bytes = good;
    bytes[at] = std::byte{value};
    return bytes;
  };
  refused(2, {good.begin(), good.begin() + 11}, "frames raw: only 11 bytes");
  refused(2, with(0, std::to_integer<std::uint8_t>(~good[0])),
          "frames raw: items of another layout, or other fields were stacks");
  refused(2, with(11, 255), "frames raw: 4278190083 frames in too few bytes");
  refused(2, with(12, 3), "frames raw: frame 1 has an impossible size, 3");
  refused(2, with(16, 5), "frames raw: frame 2 has an impossible size, 5");
  refused(2, with(23, 1), "frames raw: frame 3 has an impossible size, 16777220");
  refused(2, {good.begin(), good.end() - 1}, "frames raw: 21 bytes are not those of 2 items of 11");
  refused(3, good, "frames raw: 22 bytes are not those of 3 items of 11");
  refused(1, good, "frames raw: 22 bytes are not those of 1 items of 11");
  refused(2, with(36, 2), "frames raw: item 0 names frame 2 out of order");
  refused(2, with(51, 4), "frames raw: item 1 names frame 4 out of order");
  refused(2, with(51, 1), "frames raw: frame 3 belongs to no item");

  const FrameStorage<> other(4, RecordLayout({{"a", DType::u8, {2, 2, 2}}, {"b", DType::u8, {2, 2, 2}}}),
                             {.fields = {"a"}});
  const FrameStorage<> swapped(4, other.layout(), {.fields = {"b"}});
  CHECK_THROWS_WITH_AS(swapped.validate(1, save(other, first_slots(1))),
                       "frames raw: items of another layout, or other fields were stacks", Error);
}

TEST_CASE_TEMPLATE("hostile bytes are refused or loaded, and never break anything", Storage,
                   TROOP_FRAME_STORAGES) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "hostile");
  constexpr std::size_t kCount = 6;
  FrameGame game(seed, 0, 3);
  Storage storage(2 * kCount, RecordLayout::of<FrameItem>());
  std::vector<FrameItem> kept;
  for (std::size_t i = 0; i < 2 * kCount; ++i) {
    kept.push_back(game.next());
    write(storage, i, kept.back());
  }
  const auto good = save(storage, first_slots(kCount));
  const std::size_t head = 12 + 4 * 12;
  std::size_t refused = 0, loaded = 0;
  Failures failures;
  for (int round = 0; round < 6000; ++round) {
    auto bytes = good;
    for (std::uint64_t i = 0; i <= random.below(3); ++i) {
      // In the sizes, in the items, anywhere.
      const std::size_t part = random.below(3);
      const std::size_t at = part == 0   ? random.below(head)
                             : part == 1 ? bytes.size() - 1 - random.below(bytes.size() / 3)
                                         : random.below(bytes.size());
      const std::uint64_t what = random.below(4);
      if (what == 0) bytes[at] ^= std::byte{1} << random.below(8);
      if (what == 1) bytes[at] = static_cast<std::byte>(random());
      if (what == 2) bytes[at] = random.below(2) == 0 ? std::byte{0} : std::byte{255};
      if (what == 3 && at + 4 < bytes.size()) std::memset(bytes.data() + at, 255, 4);
    }
    if (round % 10 == 0) bytes.resize(random.below(bytes.size()));
    if (round % 10 == 1) bytes.insert(bytes.end(), 1 + random.below(100), std::byte{1});
    bytes.shrink_to_fit();  // so that a read beyond the end is seen
    const std::size_t count = random.below(20) == 0 ? random.below(kCount) : kCount;
    bool valid = true;
    try {
      storage.validate(count, bytes);
    } catch (const Error&) {
      valid = false;
    }
    valid ? ++loaded : ++refused;
    std::vector<std::size_t> to(count);
    std::iota(to.begin(), to.end(), kCount);
    bool taken = true;
    try {
      storage.load(to, bytes);
    } catch (const Error&) {
      taken = false;
    }
    if (taken != valid) failures.add("load and validate differ in round " + std::to_string(round));
    for (std::size_t slot = 0; slot < 2 * kCount; ++slot) {
      const FrameItem item = read(storage, slot);
      if (slot < kCount && !same(item, kept[slot]))
        failures.add("another slot changed in round " + std::to_string(round));
    }
  }
  TROOP_CHECK_NONE(failures);
  CHECK(refused > 1000);
  CHECK(loaded > 500);  // changed pixels and rewards are nobody's business here
  storage.write(kCount, BatchView(std::span<const FrameItem>(kept)).records(kCount, kCount));
  check_statistics(storage.statistics(), kept);
}
