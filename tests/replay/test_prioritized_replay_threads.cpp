#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/array_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "replay_records.hpp"
#include "testing.hpp"

using troop::ArrayStorage;
using troop::Batch;
using troop::BatchView;
using troop::Draws;
using troop::Key;
using troop::PrioritizedReplay;
using troop::Random;
using troop::RecordLayout;
using troop::testing::BoundaryRecord;
using troop::testing::Failures;
using troop::testing::kTorn;
using troop::testing::LargeRecord;
using troop::testing::number_of;
using troop::testing::record_of;
using troop::testing::records_from;
using troop::testing::SmallRecord;

namespace {

/// What to do once, before the first access to a slot.
struct Hook {
  std::size_t slot = 0;
  std::function<void()> action;
};

/// An array storage whose reads and writes call a hook before they happen, so that a test can let another
/// thread do something at just that moment.
class HookedStorage {
 public:
  using Options = ArrayStorage::Options;
  static std::string format() { return ArrayStorage::format(); }

  HookedStorage(std::size_t capacity, RecordLayout layout, const Options& options)
      : storage_(capacity, std::move(layout), options) {}

  const RecordLayout& layout() const noexcept { return storage_.layout(); }
  std::size_t capacity() const noexcept { return storage_.capacity(); }
  void write(std::size_t slot, const BatchView& batch) noexcept {
    fire(on_write, slot);
    storage_.write(slot, batch);
  }
  void gather(std::span<const std::size_t> slots, std::byte* records) const noexcept {
    for (const std::size_t slot : slots) fire(on_read, slot);
    storage_.gather(slots, records);
  }
  void prefetch(std::size_t slot) const noexcept { storage_.prefetch(slot); }
  void save(std::span<const std::size_t> slots, std::vector<std::byte>& out) const {
    storage_.save(slots, out);
  }
  void validate(std::size_t count, std::span<const std::byte> bytes) const {
    storage_.validate(count, bytes);
  }
  void load(std::span<const std::size_t> slots, std::span<const std::byte> bytes) {
    storage_.load(slots, bytes);
  }

  static inline thread_local Hook on_write, on_read;

 private:
  static void fire(Hook& hook, std::size_t slot) {
    if (!hook.action || hook.slot != slot) return;
    std::thread(std::exchange(hook.action, nullptr)).join();
  }

  ArrayStorage storage_;
};

using HookedReplay = PrioritizedReplay<LargeRecord, HookedStorage>;

void add(HookedReplay& replay, Key first, std::size_t count, float priority) {
  replay.add(records_from<LargeRecord>(first, count), std::vector<float>(count, priority));
}

/// A record that was drawn, and by which key.
struct Draw {
  Key key;
  std::uint32_t number;
};

struct Setting {
  std::size_t capacity, soft_capacity, largest_batch, rounds;
};

/// Writers, samplers that write priorities back, an updater of guessed keys and a trimmer, all at once.
template <class Record>
void run_everything_at_once(const Setting& setting) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  CAPTURE(setting.capacity);
  constexpr std::size_t kWriters = 3, kSamplers = 2;
  PrioritizedReplay<Record> replay({.capacity = setting.capacity, .soft_capacity = setting.soft_capacity});
  replay.add(record_of<Record>(0), 1.0f);

  Failures failures;
  std::atomic<std::uint32_t> next_number{1};
  std::atomic<std::uint64_t> priorities_sent{0}, found_stale{0}, drawn{0}, trimmed{0};
  std::vector<std::vector<Draw>> written(kWriters), sampled(kSamplers);
  std::vector<std::thread> threads;
  for (std::size_t w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      Random random(seed, "writer", w);
      for (std::size_t round = 0; round < setting.rounds; ++round) {
        const auto count = static_cast<std::uint32_t>(1 + random.below(setting.largest_batch));
        const std::uint32_t first = next_number.fetch_add(count);
        std::vector<float> priorities(count);
        for (auto& priority : priorities) priority = static_cast<float>(random.uniform(0.5, 2.0));
        const Key key = replay.add(records_from<Record>(first, count), priorities);
        for (std::uint32_t i = 0; i < count; ++i) written[w].push_back({key + i, first + i});
      }
    });
  }
  for (std::size_t s = 0; s < kSamplers; ++s) {
    threads.emplace_back([&, s] {
      Random random(seed, "sampler", s);
      Batch<Record> batch;
      for (std::size_t round = 0; round < setting.rounds; ++round) {
        const std::size_t count = 1 + random.below(16);
        try {
          replay.sample(count, {.draws = s == 0 ? Draws::stratified : Draws::independent}, random, batch);
        } catch (const troop::EmptyReplay&) {  // all are just being written, or trimmed
          continue;
        }
        drawn += count;
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint32_t number = number_of(batch.records()[i]);
          if (number == kTorn) failures.add("a torn record");
          if (!(batch.probabilities[i] > 0.0 && batch.probabilities[i] <= 1.0)) failures.add("a probability");
          if (!(batch.weights[i] > 0.0f && batch.weights[i] <= 1.0f)) failures.add("a weight");
          sampled[s].push_back({batch.keys[i], number});
        }
        found_stale += replay.update(batch.keys, batch.weights);
        priorities_sent += count;
      }
    });
  }
  threads.emplace_back([&] {
    Random random(seed, "updater");
    for (std::size_t round = 0; round < setting.rounds; ++round) {
      const std::uint64_t inserts = replay.statistics().inserts;
      std::vector<Key> keys(8);
      std::vector<float> priorities(8);
      for (auto& key : keys) key = inserts - 1 - random.below(std::min<std::uint64_t>(inserts, 40));
      for (auto& priority : priorities) priority = static_cast<float>(random.uniform(0.0, 3.0));
      found_stale += replay.update(keys, priorities);
      priorities_sent += keys.size();
      if (round % 4 == 0) trimmed += replay.trim();
      if (replay.size() > replay.capacity()) failures.add("more items than the capacity");
    }
  });
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);

  std::map<Key, std::uint32_t> number_of_key{{0, 0}};
  std::size_t inserted = 1;
  for (const auto& writer : written) {
    for (const Draw& item : writer) number_of_key[item.key] = item.number;
    inserted += writer.size();
  }
  CHECK(number_of_key.size() == inserted);  // no key came twice
  CHECK(number_of_key.rbegin()->first == inserted - 1);
  Failures foreign;
  for (const auto& sampler : sampled) {
    for (const Draw& draw : sampler)
      if (number_of_key.at(draw.key) != draw.number) foreign.add("key " + std::to_string(draw.key));
  }
  TROOP_CHECK_NONE(foreign);

  const auto statistics = replay.statistics();
  CHECK(statistics.inserts == inserted);
  CHECK(statistics.evictions + statistics.size == inserted);
  CHECK(statistics.trimmed == trimmed);
  CHECK(statistics.samples == drawn);
  CHECK(statistics.updates + statistics.stale_updates == priorities_sent);
  CHECK(statistics.stale_updates == found_stale);

  // Nothing is left in the tree from items that are gone: emptied, its total is 0.
  Random random(seed, "rest");
  if (statistics.total_priority > 0.0) {
    const auto batch = replay.sample(64, {}, random);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      CHECK(batch.keys[i] >= statistics.evictions);
      CHECK(number_of(batch.records()[i]) == number_of_key.at(batch.keys[i]));
    }
  }
  replay.clear();
  CHECK(replay.statistics().total_priority == 0.0);
}

}  // namespace

TEST_CASE(
    "writers, samplers, updaters and trims at once: nothing torn, nothing lost, nothing counted twice") {
  SUBCASE("44 bytes, 4 slots") {
    run_everything_at_once<SmallRecord>({4, 3, 6, 400});
  }
  SUBCASE("44 bytes, 100 slots") {
    run_everything_at_once<SmallRecord>({100, 60, 50, 400});
  }
  SUBCASE("1 KiB, 20 slots") {
    run_everything_at_once<BoundaryRecord>({20, 15, 8, 300});
  }
  SUBCASE("2 KiB, 3 slots") {
    run_everything_at_once<LargeRecord>({3, 0, 5, 300});
  }
  SUBCASE("2 KiB, 40 slots") {
    run_everything_at_once<LargeRecord>({40, 30, 60, 200});
  }
  SUBCASE("2 KiB, 2000 slots") {
    run_everything_at_once<LargeRecord>({2000, 1000, 50, 100});
  }
}

TEST_CASE("an item that is overwritten between draw and copy is drawn anew") {
  HookedReplay replay({.capacity = 64, .alpha = 1.0});
  add(replay, 0, 64, 0.0f);
  add(replay, 64, 32, 0.0f);  // the next insert evicts key 32, from slot 32
  replay.update(std::vector<Key>{64, 32}, std::vector<float>{1.0f, 1.0f});
  Random random(1);
  HookedStorage::on_read = {0, [&] { add(replay, 96, 1, 1.0f); }};
  const auto batch = replay.sample(2, {}, random);
  CHECK_FALSE(HookedStorage::on_read.action);
  REQUIRE(batch.size() == 2);
  CHECK(batch.keys[0] == 64);
  CHECK((batch.keys[1] == 64 || batch.keys[1] == 96));
  for (std::size_t i = 0; i < 2; ++i) CHECK(number_of(batch.records()[i]) == batch.keys[i]);
  CHECK(batch.probabilities == std::vector<double>{0.5, 0.5});
  CHECK(replay.statistics().redraws == 1);
  CHECK(replay.statistics().samples == 2);
}

TEST_CASE("a writer waits until the record that it overwrites has been read") {
  HookedReplay replay({.capacity = 16, .alpha = 1.0});
  add(replay, 0, 16, 0.0f);
  replay.update(std::vector<Key>{0}, std::vector<float>{1.0f});
  Random random(1);
  std::thread writer;
  HookedStorage::on_read = {0, [&] {
                              writer = std::thread([&] { add(replay, 16, 16, 1.0f); });
                              while (replay.statistics().inserts < 32) std::this_thread::yield();
                              // Time for the writer to do damage if nothing keeps it off.
                              std::this_thread::sleep_for(std::chrono::milliseconds(5));
                            }};
  const auto batch = replay.sample(1, {}, random);
  REQUIRE(writer.joinable());
  writer.join();
  CHECK(batch.keys == std::vector<Key>{0});
  CHECK(number_of(batch.records()[0]) == 0);
}

TEST_CASE("an item that is trimmed between draw and copy is still returned whole") {
  HookedReplay replay({.capacity = 64, .soft_capacity = 8, .alpha = 1.0});
  add(replay, 0, 64, 1.0f);
  Random random(1);
  HookedStorage::on_read = {0, [&] { CHECK(replay.trim() == 56); }};
  const auto batch = replay.sample(64, {}, random);
  for (std::size_t i = 0; i < 64; ++i) CHECK(number_of(batch.records()[i]) == i);
  CHECK(replay.statistics().redraws == 0);
}

TEST_CASE("a sample whose every item is evicted while it is copied says so and is not counted") {
  HookedReplay replay({.capacity = 64, .alpha = 1.0});
  add(replay, 0, 64, 0.0f);
  add(replay, 64, 32, 0.0f);
  replay.update(std::vector<Key>{64, 32}, std::vector<float>{1.0f, 1.0f});
  Random random(1);
  HookedStorage::on_read = {0, [&] {
                              add(replay, 96, 1, 0.0f);
                              replay.update(std::vector<Key>{64}, std::vector<float>{0.0f});
                            }};
  CHECK_THROWS_WITH_AS(replay.sample(2, {}, random), "every item was evicted while a sample was being copied",
                       troop::EmptyReplay);
  CHECK(replay.statistics().samples == 0);
}

TEST_CASE("items that were evicted while their batch was copied get no priority") {
  HookedReplay replay({.capacity = 64, .alpha = 1.0});
  HookedStorage::on_write = {63, [&] { add(replay, 64, 5, 0.0f); }};
  add(replay, 0, 64, 1.0f);
  CHECK(replay.statistics().total_priority == 59.0);
  CHECK(replay.statistics().evictions == 5);
  Random random(1);
  const auto batch = replay.sample(59, {}, random);
  for (std::size_t i = 0; i < 59; ++i) {
    CHECK(batch.keys[i] >= 5);
    CHECK(number_of(batch.records()[i]) == batch.keys[i]);
  }

  HookedStorage::on_write = {20, [&] { replay.clear(); }};
  add(replay, 69, 40, 1.0f);
  CHECK(replay.size() == 0);
  CHECK(replay.statistics().total_priority == 0.0);
}

TEST_CASE("an item cannot be drawn before its record is written") {
  HookedReplay replay({.capacity = 64, .alpha = 1.0});
  HookedStorage::on_write = {40, [&] {
                               CHECK(replay.size() == 64);
                               CHECK(replay.statistics().total_priority == 0.0);
                             }};
  add(replay, 0, 64, 1.0f);
  CHECK_FALSE(HookedStorage::on_write.action);
  CHECK(replay.statistics().total_priority == 64.0);
}

TEST_CASE("a writer that is overtaken by a whole round does not overwrite the newer records") {
  HookedReplay replay({.capacity = 32, .alpha = 1.0});
  std::thread blocked;
  HookedStorage::on_write = {0, [&] {
                               // Another thread takes keys 32 to 47 and waits for the slots that this one
                               // holds; keys 48 to 63 are then written ahead of keys 16 to 31.
                               blocked = std::thread([&] { add(replay, 32, 16, 2.0f); });
                               while (replay.statistics().inserts < 48) std::this_thread::yield();
                               add(replay, 48, 16, 2.0f);
                             }};
  add(replay, 0, 32, 1.0f);
  REQUIRE(blocked.joinable());
  blocked.join();
  CHECK(replay.statistics().total_priority == 64.0);
  Random random(1);
  const auto batch = replay.sample(32, {}, random);
  std::vector<Key> keys = batch.keys;
  std::sort(keys.begin(), keys.end());
  CHECK(keys.front() == 32);
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
  for (std::size_t i = 0; i < 32; ++i) CHECK(number_of(batch.records()[i]) == batch.keys[i]);
}
