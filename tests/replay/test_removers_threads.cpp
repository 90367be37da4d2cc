#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rank_based.hpp>
#include <troop/replay/removers.hpp>
#include <troop/replay/samplers.hpp>

#include "replay_policies.hpp"
#include "replay_records.hpp"
#include "testing.hpp"

using troop::ArrayStorage;
using troop::Batch;
using troop::InversePriorityRemover;
using troop::Key;
using troop::NewestFirstSampler;
using troop::PrioritizedReplay;
using troop::ProportionalSampler;
using troop::Random;
using troop::RankBasedSampler;
using troop::UniformRemover;
using troop::UniformSampler;
using troop::testing::Failures;
using troop::testing::kTorn;
using troop::testing::LargeRecord;
using troop::testing::number_of;
using troop::testing::Policies;
using troop::testing::records_from;
using troop::testing::SmallRecord;

TEST_CASE_TEMPLATE("with items going in any order, threads see whole records under their own keys", P,
                   Policies<SmallRecord, UniformSampler, InversePriorityRemover>,
                   Policies<LargeRecord, ProportionalSampler, InversePriorityRemover>,
                   Policies<LargeRecord, NewestFirstSampler, UniformRemover>,
                   Policies<LargeRecord, RankBasedSampler, UniformRemover>) {
  using Record = typename P::Record;
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t capacity : {1u, 5u, 64u}) {
    CAPTURE(capacity);
    PrioritizedReplay<Record, ArrayStorage, typename P::Sampler, typename P::Remover> replay(
        {.capacity = capacity, .soft_capacity = capacity - capacity / 3, .seed = seed});
    Failures failures;
    std::vector<std::vector<std::pair<Key, std::uint32_t>>> written(3), drawn(3);
    std::atomic<std::uint64_t> samples{0}, updates{0}, stale{0}, trimmed{0};
    std::vector<std::thread> threads;
    for (std::uint64_t writer = 0; writer < written.size(); ++writer) {
      threads.emplace_back([&, writer] {
        Random random(seed, "writer", writer);
        for (std::uint64_t round = 0; round < 600; ++round) {
          const std::size_t count = 1 + random.below(std::min<std::size_t>(2 * capacity, 12));
          const std::uint64_t number = writer * 1'000'000 + round * 100;
          const Key first = replay.add(records_from<Record>(number, count), std::vector<float>(count, 1.0f));
          for (std::size_t i = 0; i < count; ++i)
            written[writer].emplace_back(first + i, static_cast<std::uint32_t>(number + i));
        }
      });
    }
    for (std::uint64_t sampler = 0; sampler < drawn.size(); ++sampler) {
      threads.emplace_back([&, sampler] {
        Random random(seed, "sampler", sampler);
        Batch<Record> batch;
        for (int round = 0; round < 800; ++round) {
          try {
            replay.sample(8, {}, random, batch);
          } catch (const troop::EmptyReplay&) {
            std::this_thread::yield();
            continue;
          }
          samples += 8;
          for (std::size_t i = 0; i < batch.size(); ++i) {
            const std::uint32_t number = number_of(batch.records()[i]);
            if (number == kTorn) failures.add("torn: key " + std::to_string(batch.keys[i]));
            drawn[sampler].emplace_back(batch.keys[i], number);
          }
          for (float& weight : batch.weights) weight = static_cast<float>(random.uniform(0.1, 5.0));
          const std::size_t gone = replay.update(batch.keys, batch.weights);
          updates += 8 - gone;
          stale += gone;
        }
      });
    }
    threads.emplace_back([&] {
      for (int round = 0; round < 400; ++round) {
        trimmed += replay.trim();
        if (round == 240) replay.clear();
        if (replay.size() > capacity) failures.add("more items than the capacity");
        replay.priority_histogram();
      }
    });
    for (auto& thread : threads) thread.join();
    TROOP_CHECK_NONE(failures);

    std::map<Key, std::uint32_t> number_of_key;
    std::size_t inserted = 0;
    for (const auto& items : written) {
      for (const auto& [key, number] : items) number_of_key[key] = number;
      inserted += items.size();
    }
    CHECK(number_of_key.size() == inserted);  // no key came twice
    CHECK(number_of_key.rbegin()->first == inserted - 1);
    Failures foreign;
    for (const auto& items : drawn)
      for (const auto& [key, number] : items)
        if (number_of_key.at(key) != number) foreign.add("key " + std::to_string(key));
    TROOP_CHECK_NONE(foreign);
    const auto s = replay.statistics();
    CHECK(s.inserts == inserted);
    CHECK(s.evictions + s.size == inserted);
    CHECK(s.samples == samples);
    CHECK(s.updates == updates);
    CHECK(s.stale_updates == stale);
    CHECK(s.trimmed == trimmed);
    replay.clear();
    CHECK(replay.statistics().total_priority == 0.0);
    CHECK(replay.statistics().evictions == inserted);
  }
}
