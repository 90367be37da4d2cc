#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>
#include <troop/replay/frame_storage.hpp>

#include "frame_records.hpp"
#include "frame_storages.hpp"
#include "testing.hpp"

using troop::BatchView;
using troop::DType;
using troop::Field;
using troop::FrameStatistics;
using troop::FrameStorage;
using troop::InvalidArgument;
using troop::Random;
using troop::RawFrames;
using troop::RecordArray;
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
using troop::testing::SteeredCodec;
using troop::testing::write;

namespace {

/// All frames have the same digest: what raw frames must bear.
struct BlindHash {
  BlindHash(std::size_t, std::uint64_t) {}
  troop::detail::FrameDigest operator()(const std::byte*) const noexcept { return {1, 2}; }
};

}  // namespace

TEST_CASE_TEMPLATE("the frame storage is a replay storage", Storage, TROOP_FRAME_STORAGES) {
  static_assert(troop::ReplayStorage<Storage>);
  const Storage storage(9, RecordLayout::of<FrameItem>());
  CHECK(storage.capacity() == 9);
  CHECK(storage.layout() == RecordLayout::of<FrameItem>());
  CHECK(storage.statistics().frames == 0);
  CHECK(storage.statistics().sharing() == 0.0);
}

TEST_CASE("the format says what the bytes are") {
  CHECK(FrameStorage<RawFrames>::format() == "frames raw");
  CHECK(FrameStorage<SteeredCodec>::format() == "frames steered");
}

TEST_CASE_TEMPLATE("items of several environments are read back to the last byte, many rounds long", Storage,
                   TROOP_FRAME_STORAGES, FrameStorage<RawFrames, BlindHash>) {
  constexpr bool kBlind = std::is_same_v<Storage, FrameStorage<RawFrames, BlindHash>>;
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "frame storage");
  constexpr std::size_t kCapacity = 67;
  std::vector<FrameGame> games;
  for (std::size_t i = 0; i < 5; ++i) games.emplace_back(seed, i, 1 + i % 4);
  Storage storage(kCapacity, RecordLayout::of<FrameItem>());
  std::vector<FrameItem> expected(kCapacity);
  std::size_t written = 0, slot = 0;
  Failures failures;
  for (int round = 0; round < 300; ++round) {
    const std::size_t count = std::min<std::size_t>(1 + random.below(9), kCapacity - slot);
    std::vector<FrameItem> batch;
    for (std::size_t i = 0; i < count; ++i) batch.push_back(games[random.below(games.size())].next());
    storage.write(slot, BatchView(std::span<const FrameItem>(batch)));
    std::copy(batch.begin(), batch.end(), expected.begin() + static_cast<std::ptrdiff_t>(slot));
    written = std::max(written, slot + count);
    slot = (slot + count) % kCapacity;

    std::vector<std::size_t> slots(random.below(20));
    for (auto& one : slots) one = random.below(written);
    std::vector<FrameItem> drawn(slots.size());
    storage.gather(slots, reinterpret_cast<std::byte*>(drawn.data()));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      storage.prefetch(slots[i]);
      if (!same(drawn[i], expected[slots[i]]))
        failures.add("slot " + std::to_string(slots[i]) + " in round " + std::to_string(round));
    }
    if (round % 50 == 0 && !kBlind)
      check_statistics(storage.statistics(), std::span(expected).first(written));
  }
  TROOP_CHECK_NONE(failures);
  CHECK(storage.statistics().uses == 8 * kCapacity);
  if (!kBlind) {
    CHECK(storage.statistics().sharing() > 3.0);  // these games share most of their frames
    check_statistics(storage.statistics(), expected);
  }
}

TEST_CASE_TEMPLATE("frames go with the last item that has them", Storage, TROOP_FRAME_STORAGES) {
  constexpr std::size_t kCapacity = 20;
  FrameGame game(1, 0, 3);
  Storage storage(kCapacity, RecordLayout::of<FrameItem>());
  for (std::size_t i = 0; i < kCapacity; ++i) write(storage, i, game.next());
  CHECK(storage.statistics().frames > 8);
  const std::size_t most = storage.statistics().table_bytes;
  const FrameItem black{};
  for (std::size_t i = 0; i < kCapacity; ++i) write(storage, i, black);
  const FrameStatistics statistics = storage.statistics();
  CHECK(statistics.frames == 1);
  CHECK(statistics.uses == 8 * kCapacity);
  CHECK(statistics.frame_bytes <= sizeof(Picture) + 4);
  CHECK(statistics.table_bytes <= most + 4 * 28);  // grows no further: at most a few more buckets
  CHECK(same(read(storage, 7), black));
}

TEST_CASE_TEMPLATE("records of which no frame is like another fill the storage again and again", Storage,
                   TROOP_FRAME_STORAGES) {
  constexpr std::size_t kCapacity = 9;
  Random random(5);
  Storage storage(kCapacity, RecordLayout::of<FrameItem>());
  std::vector<FrameItem> items(kCapacity);
  for (int round = 0; round < 20; ++round) {
    for (auto& item : items) {
      auto* bytes = reinterpret_cast<std::uint8_t*>(&item);
      for (std::size_t i = 0; i < sizeof(item); ++i) bytes[i] = static_cast<std::uint8_t>(random());
    }
    storage.write(0, BatchView(std::span<const FrameItem>(items)));
    CHECK(storage.statistics().frames == 8 * kCapacity);
    for (std::size_t i = 0; i < kCapacity; ++i) CHECK(same(read(storage, i), items[i]));
  }
  CHECK(storage.statistics().sharing() == 1.0);
  CHECK(storage.statistics().frame_bytes <=
        8 * kCapacity * (sizeof(Picture) + 4));  // no packed frame is larger
}

TEST_CASE_TEMPLATE("a slot without a record holds zeros", Storage, TROOP_FRAME_STORAGES) {
  Storage storage(3, RecordLayout::of<FrameItem>());
  FrameGame game(2, 0, 1);
  write(storage, 1, game.next());
  CHECK(same(read(storage, 0), FrameItem{}));
  CHECK(same(read(storage, 2), FrameItem{}));
}

TEST_CASE_TEMPLATE(
    "layouts of run time: stacks of one frame, of different heights, of floats, beside other fields", Storage,
    TROOP_FRAME_STORAGES) {
  struct Case {
    std::vector<Field> fields;
    std::vector<std::string> stacks;
    std::size_t frames;  // of a record
  };
  const std::vector<Case> cases = {
      {{{"observation", DType::u8, {1, 5, 3}}}, {}, 1},
      {{{"reward", DType::f64, {}},
        {"observation", DType::u8, {3, 4, 4}},
        {"small", DType::u8, {7}},
        {"map", DType::u8, {5, 2, 8}}},
       {},
       8},
      {{{"observation", DType::f32, {4, 6}}, {"image", DType::u8, {4, 9, 9}}, {"action", DType::i32, {}}},
       {"observation"},
       4},
      {{{"b", DType::f64, {2, 3}}, {"a", DType::u8, {6, 24}}}, {"a", "b"}, 8},
      {{{"observation", DType::u8, {200, 3, 1}}}, {}, 200}};
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const Case& c : cases) {
    const RecordLayout layout(c.fields);
    CAPTURE(layout.describe());
    Random random(seed, "layouts");
    Storage storage(13, layout, {.fields = c.stacks});
    RecordArray records(layout, 13);
    for (int round = 0; round < 10; ++round) {
      for (std::size_t i = 0; i < 13 * layout.size(); ++i)
        records.data()[i] =
            random.below(layout.size() / 2) == 0 ? static_cast<std::byte>(random()) : std::byte{3};
      storage.write(0, records.view());
      RecordArray back(layout, 13);
      storage.gather(first_slots(13), back.data());
      CHECK(std::memcmp(back.data(), records.data(), 13 * layout.size()) == 0);
      CHECK(storage.statistics().uses == 13 * c.frames);
      const auto bytes = save(storage, first_slots(13));
      storage.validate(13, bytes);
    }
  }
}

TEST_CASE_TEMPLATE("records that lie apart are taken", Storage, TROOP_FRAME_STORAGES) {
  struct Wide {
    FrameItem item;
    std::array<double, 3> between;
  };
  FrameGame game(3, 0, 2);
  std::vector<Wide> wide(4);
  for (auto& one : wide) one.item = game.next();
  Storage storage(5, RecordLayout::of<FrameItem>());
  storage.write(1, BatchView(RecordLayout::of<FrameItem>(), wide.data(), 4, sizeof(Wide)));
  for (std::size_t i = 0; i < 4; ++i) CHECK(same(read(storage, 1 + i), wide[i].item));
}

TEST_CASE_TEMPLATE("a storage that is moved keeps its items", Storage, TROOP_FRAME_STORAGES) {
  FrameGame game(4, 0, 2);
  const FrameItem item = game.next();
  Storage first(5, RecordLayout::of<FrameItem>());
  write(first, 3, item);
  const Storage second(std::move(first));
  CHECK(same(read(second, 3), item));
}

TEST_CASE("options and layouts that do not go together are refused by name") {
  const auto refused = [](std::vector<Field> fields, std::vector<std::string> stacks, const char* message) {
    CHECK_THROWS_WITH_AS(FrameStorage<>(4, RecordLayout(std::move(fields)), {.fields = std::move(stacks)}),
                         message, InvalidArgument);
  };
  const std::vector<Field> fields = {
      {"observation", DType::u8, {4, 8, 8}}, {"reward", DType::f32, {}}, {"rows", DType::u8, {4, 7}}};
  refused(fields, {""}, "fields: \"\" is not allowed; expected names that are not empty");
  refused(fields, {"rows", "rows"}, "fields: rows is not allowed; expected each name once");
  refused(
      fields, {"screen"},
      "fields: \"screen\" is not allowed; expected some of: observation u8[4,8,8], reward f32, rows u8[4,7]");
  refused(fields, {"reward"},
          "fields: reward f32 is not allowed; expected stacks of frames: two or more dimensions, the first "
          "of which "
          "counts the frames");
  refused(fields, {"observation", "rows"},
          "fields: rows u8[4,7] is not allowed; expected frames of 64 bytes, like those of observation "
          "u8[4,8,8]");
  refused(
      {{"observation", DType::f32, {4, 8, 8}}}, {},
      "fields: none is not allowed; expected the names of stacks of frames, or a u8 field of three or more "
      "dimensions among: observation f32[4,8,8]");
}

TEST_CASE("a capacity of 0 and ones that cannot be addressed are refused") {
  const RecordLayout layout({{"observation", DType::u8, {4, 1024, 1024}}});
  CHECK_THROWS_WITH_AS(FrameStorage<>(0, layout), "capacity: 0 is not allowed; expected a positive integer",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(
      FrameStorage<>(std::size_t{1} << 30, layout),
      "capacity: 1073741824 is not allowed; expected at most 1073741823, for records of 4 frames",
      InvalidArgument);
  CHECK_THROWS_WITH_AS(FrameStorage<>(std::size_t{1} << 25, layout),
                       "capacity: 33554432 is not allowed; expected at most 16777216", InvalidArgument);
}

TEST_CASE("a write without memory leaves frames of zeros, and everything goes on") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "no memory");
  constexpr std::size_t kCapacity = 12;
  FrameGame game(seed, 0, 3);
  FrameStorage<SteeredCodec> storage(kCapacity, RecordLayout::of<FrameItem>());
  std::vector<FrameItem> expected(kCapacity);
  std::vector<bool> whole(kCapacity, false);
  std::size_t failed = 0;
  for (int round = 0; round < 500; ++round) {
    const std::size_t slot = random.below(kCapacity);
    const FrameItem item = game.next();
    SteeredCodec::fail_after = random.below(6);
    try {
      write(storage, slot, item);
      expected[slot] = item;
      whole[slot] = true;
    } catch (const std::bad_alloc&) {
      ++failed;
      whole[slot] = false;
      CHECK(read(storage, slot).observation == FrameItem{}.observation);
      CHECK(read(storage, slot).next_observation == FrameItem{}.next_observation);
    }
    std::vector<FrameItem> held;
    for (std::size_t i = 0; i < kCapacity; ++i) {
      if (!whole[i]) continue;
      held.push_back(expected[i]);
      REQUIRE(same(read(storage, i), expected[i]));
    }
    check_statistics(storage.statistics(), held);
    CHECK(storage.statistics().frame_bytes == storage.statistics().frames * (sizeof(Picture) + 4));
  }
  SteeredCodec::fail_after = static_cast<std::size_t>(-1);
  CHECK(failed > 50);
  CHECK(failed < 450);
}
