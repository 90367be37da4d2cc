#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <shared_mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>
#include <troop/replay/frame_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "frame_records.hpp"
#include "frame_storages.hpp"
#include "testing.hpp"

using troop::DType;
using troop::FrameStorage;
using troop::PrioritizedReplay;
using troop::Random;
using troop::RecordArray;
using troop::RecordLayout;
using troop::testing::check_statistics;
using troop::testing::Failures;
using troop::testing::FrameGame;
using troop::testing::FrameItem;
using troop::testing::Picture;
using troop::testing::read;
using troop::testing::same;
using troop::testing::write;

TEST_CASE_TEMPLATE("a prioritized replay gives back what was added", Storage, TROOP_FRAME_STORAGES) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  constexpr std::size_t kCapacity = 50;
  troop::PrioritizedReplay<FrameItem, Storage> replay({.capacity = kCapacity, .alpha = 0.6});
  Random random(seed, "replay");
  FrameGame one(seed, 0, 3), two(seed, 1, 5);
  std::vector<FrameItem> all;
  Failures failures;
  for (int round = 0; round < 60; ++round) {
    std::vector<FrameItem> items;
    for (std::uint64_t i = 0; i < 1 + random.below(10); ++i)
      items.push_back(random.below(2) == 0 ? one.next() : two.next());
    replay.add(items, std::vector<float>(items.size(), 1.0f));
    all.insert(all.end(), items.begin(), items.end());
    const auto batch = replay.sample(16, {}, random);
    for (std::size_t i = 0; i < batch.size(); ++i)
      if (!same(batch.records()[i], all[batch.keys[i]])) failures.add("key " + std::to_string(batch.keys[i]));
  }
  TROOP_CHECK_NONE(failures);
  REQUIRE(all.size() > kCapacity);
  check_statistics(replay.storage().statistics(), std::span(all).last(kCapacity));
}

TEST_CASE("a prioritized replay of records of run time takes the options of its frames") {
  const RecordLayout layout({{"observation", DType::f32, {4, 3}}, {"action", DType::i32, {}}});
  troop::PrioritizedReplay<troop::DynamicRecord, FrameStorage<>> replay(
      {.capacity = 4}, layout, {.storage = {.fields = {"observation"}}, .remover = {}});
  RecordArray record(layout, 1);
  record.record(0)[5] = std::byte{7};
  replay.add(record.view(), std::array{1.0f});
  Random random(1);
  CHECK(std::memcmp(replay.sample(1, {}, random).view().record(0), record.record(0), layout.size()) == 0);
  CHECK(replay.storage().statistics().frames == 2);
}

TEST_CASE_TEMPLATE("threads write and read different slots that share frames", Storage,
                   TROOP_FRAME_STORAGES) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  // Few pictures and few slots: frames come and go all the time, and threads meet with the same new ones.
  constexpr std::size_t kThreads = 4, kSlots = 12, kPictures = 10;
  Random drawing(seed, "pictures");
  std::vector<Picture> pictures(kPictures);
  for (auto& picture : pictures)
    for (int i = 0; i < 30; ++i)
      picture[drawing.below(11)][drawing.below(12)] = static_cast<std::uint8_t>(drawing());
  Storage storage(kSlots, RecordLayout::of<FrameItem>());
  std::vector<FrameItem> expected(kSlots);
  std::vector<std::shared_mutex> locks(kSlots);
  Failures failures;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(seed, "thread", t);
      for (int round = 0; round < 2000; ++round) {
        const std::size_t slot = random.below(kSlots);
        if (random.below(2) == 0) {
          FrameItem item{};
          item.reward = static_cast<float>(round);
          for (auto& picture : item.observation) picture = pictures[random.below(kPictures)];
          for (auto& picture : item.next_observation) picture = pictures[random.below(kPictures)];
          const std::unique_lock lock(locks[slot]);
          write(storage, slot, item);
          expected[slot] = item;
        } else {
          const std::shared_lock lock(locks[slot]);
          if (!same(read(storage, slot), expected[slot])) failures.add("slot " + std::to_string(slot));
        }
        if (round % 100 == 0 && storage.statistics().frames > 8 * kSlots) failures.add("too many frames");
      }
    });
  }
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);
  for (std::size_t slot = 0; slot < kSlots; ++slot) write(storage, slot, expected[slot]);
  check_statistics(storage.statistics(), expected);
}

TEST_CASE_TEMPLATE("threads add and sample, and what is drawn is what was added", Storage,
                   TROOP_FRAME_STORAGES) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  constexpr std::size_t kItems = 300, kWriters = 3;
  std::vector<FrameItem> items;  // each knows its number
  FrameGame game(seed, 0, 3);
  for (std::size_t i = 0; i < kItems; ++i) {
    items.push_back(game.next());
    items.back().action = static_cast<std::int16_t>(i);
  }
  PrioritizedReplay<FrameItem, Storage> replay({.capacity = 40});
  replay.add(items[0], 1.0f);
  std::atomic<std::size_t> writing{kWriters};
  Failures failures;
  std::vector<std::thread> threads;
  for (std::size_t w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      Random random(seed, "writer", w);
      for (int round = 0; round < 150; ++round) {
        const std::size_t first = random.below(kItems - 10), count = 1 + random.below(10);
        replay.add(std::span<const FrameItem>(items).subspan(first, count), std::vector<float>(count, 1.0f));
      }
      --writing;
    });
  }
  for (std::size_t s = 0; s < 2; ++s) {
    threads.emplace_back([&, s] {
      Random random(seed, "sampler", s);
      troop::Batch<FrameItem> batch;
      while (writing > 0) {
        replay.sample(8, {}, random, batch);
        for (const FrameItem& item : batch.records())
          if (!same(item, items[static_cast<std::size_t>(item.action)]))
            failures.add("item " + std::to_string(item.action));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);
  CHECK(replay.size() == 40);
}
