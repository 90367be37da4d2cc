#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <type_traits>
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
using troop::Draws;
using troop::Key;
using troop::NewestFirstSampler;
using troop::OldestFirstRemover;
using troop::PrioritizedReplay;
using troop::ProportionalSampler;
using troop::Random;
using troop::RankBasedSampler;
using troop::UniformRemover;
using troop::UniformSampler;
using troop::WeightNormalizer;
using troop::testing::chi_square;
using troop::testing::chi_square_bound;
using troop::testing::Failures;
using troop::testing::LargeRecord;
using troop::testing::number_of;
using troop::testing::Policies;
using troop::testing::records_from;
using troop::testing::SmallRecord;

namespace {

/// Different for each key, 0 for every seventh.
float priority_of(Key key) {
  if (key % 7 == 3) return 0.0f;
  const double part = static_cast<double>(key) * 0.6180339887498949;
  return static_cast<float>(0.1 + 9.0 * (part - std::floor(part)));
}

/// The keys that are still there; asking changes nothing.
template <class Replay>
std::vector<Key> live_keys(Replay& replay) {
  std::vector<Key> keys;
  for (Key key = 0; key < replay.next_key(); ++key) {
    const float priority = priority_of(key);
    if (replay.update(std::span(&key, 1), std::span(&priority, 1)) == 0) keys.push_back(key);
  }
  return keys;
}

/// P(i) as the papers have it, of items of positive priority.
template <class Sampler>
std::map<Key, double> expected_probabilities(const std::vector<Key>& keys, double alpha) {
  std::vector<Key> positive;
  for (const Key key : keys)
    if (priority_of(key) > 0.0f) positive.push_back(key);
  std::sort(positive.begin(), positive.end(), [](Key a, Key b) { return priority_of(a) > priority_of(b); });
  std::map<Key, double> probabilities;
  double total = 0.0;
  for (std::size_t i = 0; i < positive.size(); ++i) {
    double share = 1.0;
    if (std::is_same_v<Sampler, ProportionalSampler>)
      share = std::pow(double{priority_of(positive[i])}, alpha);
    if (std::is_same_v<Sampler, RankBasedSampler>) share = std::pow(static_cast<double>(i + 1), -alpha);
    total += probabilities[positive[i]] = share;
  }
  for (auto& [key, probability] : probabilities) probability /= total;
  return probabilities;
}

}  // namespace

TEST_CASE_TEMPLATE("items are drawn as often as their probabilities say, those of priority 0 never", P,
                   Policies<SmallRecord, ProportionalSampler, UniformRemover>,
                   Policies<LargeRecord, ProportionalSampler, OldestFirstRemover>,
                   Policies<SmallRecord, RankBasedSampler, OldestFirstRemover>,
                   Policies<LargeRecord, RankBasedSampler, UniformRemover>,
                   Policies<SmallRecord, UniformSampler, OldestFirstRemover>,
                   Policies<LargeRecord, UniformSampler, UniformRemover>) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t inserts : {20u, 60u, 333u}) {  // not full, full, around more than once
    for (const Draws draws : {Draws::stratified, Draws::independent}) {
      CAPTURE(inserts);
      PrioritizedReplay<typename P::Record, ArrayStorage, typename P::Sampler, typename P::Remover> replay(
          {.capacity = 60, .alpha = 0.7});
      for (Key key = 0; key < inserts; ++key)
        replay.add(records_from<typename P::Record>(key, 1), std::array{priority_of(key)});
      const auto expected = expected_probabilities<typename P::Sampler>(live_keys(replay), 0.7);

      Random random(seed, "draws");
      std::map<Key, std::size_t> counts;
      Failures failures;
      constexpr std::size_t kDraws = 60'000, kBatch = 150;
      for (std::size_t done = 0; done < kDraws; done += kBatch) {
        const auto batch = replay.sample(kBatch, {.draws = draws}, random);
        for (std::size_t i = 0; i < kBatch; ++i) {
          const Key key = batch.keys[i];
          if (number_of(batch.records()[i]) != key) failures.add("record " + std::to_string(key));
          if (!expected.contains(key)) {
            failures.add("drew " + std::to_string(key));
          } else if (std::abs(batch.probabilities[i] / expected.at(key) - 1.0) > 1e-6) {
            failures.add("probability of " + std::to_string(key));
          }
          ++counts[key];
        }
      }
      TROOP_CHECK_NONE(failures);
      std::vector<std::size_t> observed;
      std::vector<double> wanted;
      for (const auto& [key, probability] : expected) {
        observed.push_back(counts[key]);
        wanted.push_back(probability * kDraws);
      }
      CHECK(chi_square<std::size_t>(observed, wanted) < chi_square_bound(wanted.size() - 1));
    }
  }
}

TEST_CASE_TEMPLATE("the newest come first, whatever was replaced, and then again", P,
                   Policies<SmallRecord, NewestFirstSampler, OldestFirstRemover>,
                   Policies<SmallRecord, NewestFirstSampler, UniformRemover>,
                   Policies<LargeRecord, NewestFirstSampler, OldestFirstRemover>,
                   Policies<LargeRecord, NewestFirstSampler, UniformRemover>) {
  PrioritizedReplay<typename P::Record, ArrayStorage, NewestFirstSampler, typename P::Remover> replay(
      {.capacity = 5});
  Random random(1);
  const auto add = [&](const std::vector<float>& priorities) {
    replay.add(records_from<typename P::Record>(replay.next_key(), priorities.size()), priorities);
  };
  add({1, 2, 0, 9});
  CHECK(replay.sample(5, {}, random).keys == std::vector<Key>{3, 1, 0, 3, 1});
  CHECK(replay.sample(2, {.beta = 1.0}, random).weights == std::vector<float>{1, 1});
  replay.update(std::array<Key, 3>{0, 2, 3}, std::array{5.0f, 1.0f, 0.0f});
  CHECK(replay.sample(4, {}, random).keys == std::vector<Key>{2, 1, 0, 2});
  replay.update(std::array<Key, 1>{3}, std::array{4.0f});
  CHECK(replay.sample(4, {}, random).keys == std::vector<Key>{3, 2, 1, 0});
  for (Key newest = 4; newest < 40; ++newest) {
    add({1});
    const auto batch = replay.sample(1, {}, random);
    CHECK(batch.keys == std::vector<Key>{newest});
    CHECK(number_of(batch.records()[0]) == newest);
  }
  add({1, 1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(replay.sample(1, {}, random).keys == std::vector<Key>{48});
}

TEST_CASE_TEMPLATE("a sampler changes what it is told to and nothing else", Sampler, ProportionalSampler,
                   RankBasedSampler, UniformSampler, NewestFirstSampler) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "sampler");
  constexpr std::size_t kSlots = 70;
  Sampler sampler({.capacity = kSlots, .normalizer = WeightNormalizer::replay});
  std::vector<float> values(kSlots);
  const bool kept = Sampler::kTakesPowers || std::is_same_v<Sampler, RankBasedSampler>;
  const auto some = [&] {
    return random.below(3) == 0 ? 0.0f : static_cast<float>(random.uniform(0.1, 9.0));
  };
  Failures failures;
  CHECK(sampler.total() == 0.0);
  for (int round = 0; round < 5000; ++round) {
    const std::size_t first = random.below(kSlots), count = random.below(kSlots - first + 1);
    switch (random.below(3)) {
      case 0: {
        std::vector<std::size_t> slots(random.below(9));
        std::vector<float> given(slots.size());
        for (std::size_t i = 0; i < slots.size(); ++i)
          values[slots[i] = random.below(kSlots)] = given[i] = some();
        sampler.set(slots, given);
        break;
      }
      case 1:
        for (std::size_t i = 0; i < count; ++i) values[first + i] = some();
        sampler.set_range(first, std::span(values).subspan(first, count));
        break;
      default: {
        const float value = some();
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(first), count, value);
        sampler.fill(first, count, value);
      }
    }
    std::size_t positive = 0;
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      positive += values[slot] > 0.0f;
      const float expected = kept || values[slot] == 0.0f ? values[slot] : 1.0f;
      if (sampler.value(slot) != expected) failures.add("slot " + std::to_string(slot));
    }
    if ((sampler.total() > 0.0) != (positive > 0)) failures.add("total");
    if (positive == 0) continue;
    std::array<double, 8> parts{0.0,   1.0 - 0x1p-53, 0.5, 0.25, random.uniform(), random.uniform(),
                                0.999, 0.001};
    std::array<std::size_t, 8> slots{};
    std::array<double, 8> probabilities{};
    sampler.draw(parts, slots, probabilities);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!(values[slots[i]] > 0.0f)) failures.add("drew slot " + std::to_string(slots[i]));
      if (!(probabilities[i] >= sampler.smallest_probability() * (1 - 1e-12)))
        failures.add("less probable than the least");
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("a uniform or newest-first replay of 2^32 slots is refused") {
  CHECK_THROWS_AS(UniformSampler({.capacity = std::size_t{1} << 32}), troop::InvalidArgument);
  CHECK_THROWS_AS(NewestFirstSampler({.capacity = std::size_t{1} << 32}), troop::InvalidArgument);
}
