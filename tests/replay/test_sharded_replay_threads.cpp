#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sharded_replay.hpp>

#include "replay_records.hpp"
#include "testing.hpp"

using troop::Batch;
using troop::Draws;
using troop::Key;
using troop::PrioritizedReplay;
using troop::Random;
using troop::ShardedReplay;
using troop::WeightNormalizer;
using troop::testing::Failures;
using troop::testing::kTorn;
using troop::testing::LargeRecord;
using troop::testing::number_of;
using troop::testing::records_from;
using troop::testing::SmallRecord;

namespace {

/// A record that was drawn or added, and its key.
struct Item {
  Key key;
  std::uint32_t number;
};

struct Setting {
  std::size_t shards, capacity, soft_capacity, largest_batch, rounds;
  WeightNormalizer normalizer = WeightNormalizer::batch;
};

/// Writers, samplers that write priorities back, a trimmer that clears now and then, all at once.
template <class Record>
void run_everything_at_once(const Setting& setting) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  constexpr std::size_t kWriters = 3, kSamplers = 3;
  ShardedReplay<PrioritizedReplay<Record>> replay({.capacity = setting.capacity,
                                                   .soft_capacity = setting.soft_capacity,
                                                   .normalizer = setting.normalizer},
                                                  setting.shards);
  Failures failures;
  std::atomic<std::uint32_t> next_number{0};
  std::atomic<std::uint64_t> priorities_sent{0}, found_stale{0}, drawn{0}, trimmed{0}, batches{0};
  std::vector<std::vector<Item>> written(kWriters), sampled(kSamplers);
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
        ++batches;
        for (std::uint32_t i = 0; i < count; ++i) written[w].push_back({replay.nth_key(key, i), first + i});
      }
    });
  }
  for (std::size_t s = 0; s < kSamplers; ++s) {
    threads.emplace_back([&, s] {
      Random random(seed, "sampler", s);
      Batch<Record> batch;
      while (batches < 4) std::this_thread::yield();
      for (std::size_t round = 0; round < setting.rounds; ++round) {
        const std::size_t count = 1 + random.below(24);
        try {
          replay.sample(count, {.draws = s == 0 ? Draws::stratified : Draws::independent}, random, batch);
        } catch (const troop::EmptyReplay&) {  // all were just cleared, or are being written
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
    for (std::size_t round = 0; round < setting.rounds; ++round) {
      trimmed += replay.trim();
      if (replay.size() > replay.capacity()) failures.add("more items than the capacity");
      if (round % 50 == 49) replay.clear();
      if (!(replay.statistics().total_priority >= 0.0)) failures.add("a total");
      std::this_thread::yield();
    }
  });
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);

  std::map<Key, std::uint32_t> number_of_key;
  std::vector<Key> inserted(setting.shards, 0);
  std::size_t all = 0;
  for (const auto& writer : written) {
    for (const Item& item : writer) {
      number_of_key[item.key] = item.number;
      ++inserted[item.key % setting.shards];
    }
    all += writer.size();
  }
  CHECK(number_of_key.size() == all);  // no key came twice
  for (std::size_t s = 0; s < setting.shards; ++s) CHECK(replay.shards()[s]->next_key() == inserted[s]);
  Failures foreign;
  for (const auto& sampler : sampled) {
    for (const Item& item : sampler)
      if (number_of_key.at(item.key) != item.number) foreign.add("key " + std::to_string(item.key));
  }
  TROOP_CHECK_NONE(foreign);

  const auto statistics = replay.statistics();
  CHECK(statistics.inserts == all);
  CHECK(statistics.evictions + statistics.size == all);
  CHECK(statistics.trimmed == trimmed);
  CHECK(statistics.samples >= drawn);  // those of samples that ended with EmptyReplay may be counted in part
  CHECK(statistics.updates + statistics.stale_updates == priorities_sent);
  CHECK(statistics.stale_updates == found_stale);
  replay.clear();
  CHECK(replay.total_priority() == 0.0);
}

}  // namespace

TEST_CASE("writers, samplers, updates, trims and clears at once: nothing torn, lost or counted twice") {
  SUBCASE("44 bytes, 2 shards of 3") {
    run_everything_at_once<SmallRecord>({2, 6, 4, 4, 300});
  }
  SUBCASE("44 bytes, 3 shards of 50") {
    run_everything_at_once<SmallRecord>({3, 150, 100, 40, 300});
  }
  SUBCASE("44 bytes, 8 shards, weights of the whole replay") {
    run_everything_at_once<SmallRecord>({8, 300, 200, 40, 300, WeightNormalizer::replay});
  }
  SUBCASE("2 KiB, 2 shards of 3") {
    run_everything_at_once<LargeRecord>({2, 6, 0, 4, 200});
  }
  SUBCASE("2 KiB, 4 shards of 50, weights of the whole replay") {
    run_everything_at_once<LargeRecord>({4, 200, 150, 40, 150, WeightNormalizer::replay});
  }
}

TEST_CASE("while others write, weights correct for the draws that were made") {
  // Half of the items are "marked"; all have a priority that two threads keep changing. Whatever the
  // priorities are at a draw, the mean of 1 / P(i) over the draws of a marked item is the number of marked
  // items.
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  constexpr std::size_t kItems = 64, kShards = 4, kSamples = 4000, kCount = 32;
  ShardedReplay<PrioritizedReplay<SmallRecord>> replay({.capacity = kItems, .alpha = 1.0}, kShards);
  for (const auto& record : records_from<SmallRecord>(0, kItems)) replay.add(record, 1.0f);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::size_t w = 0; w < 2; ++w) {
    threads.emplace_back([&, w] {
      Random random(seed, "changes", w);
      std::vector<Key> keys(8);
      std::vector<float> priorities(8);
      while (!stop) {
        for (auto& key : keys) key = random.below(kItems);
        for (auto& priority : priorities) priority = random.below(2) == 0 ? 1.0f : 4.0f;
        replay.update(keys, priorities);
      }
    });
  }
  Random random(seed, "draws");
  Batch<SmallRecord> batch;
  double sum = 0.0, squares = 0.0;
  for (std::size_t round = 0; round < kSamples; ++round) {
    replay.sample(kCount, {.draws = Draws::independent}, random, batch);
    for (std::size_t i = 0; i < kCount; ++i) {
      const double term = batch.keys[i] % (2 * kShards) < kShards ? 1.0 / batch.probabilities[i] : 0.0;
      sum += term;
      squares += term * term;
    }
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  constexpr double kDraws = kSamples * kCount;
  const double mean = sum / kDraws;
  const double deviation = std::sqrt((squares / kDraws - mean * mean) / kDraws);
  CHECK(std::abs(mean - kItems / 2.0) < 5.0 * deviation);
}
