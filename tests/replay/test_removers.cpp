#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/removers.hpp>

#include "replay_records.hpp"
#include "testing.hpp"

using troop::ArrayStorage;
using troop::InversePriorityRemover;
using troop::Key;
using troop::PrioritizedReplay;
using troop::ProportionalSampler;
using troop::Random;
using troop::UniformRemover;
using troop::testing::chi_square;
using troop::testing::chi_square_bound;
using troop::testing::Failures;
using troop::testing::LargeRecord;
using troop::testing::records_from;
using troop::testing::SmallRecord;

namespace {

template <class Remover, class Record = SmallRecord>
using Replay = PrioritizedReplay<Record, ArrayStorage, ProportionalSampler, Remover>;

template <class Record_, class Remover_>
struct Policies {
  using Record = Record_;
  using Remover = Remover_;
};

/// The share of each item in what is evicted next.
template <class Remover>
std::vector<double> shares(const std::vector<float>& priorities, double exponent) {
  std::vector<double> shares;
  for (const float priority : priorities)
    shares.push_back(std::is_same_v<Remover, UniformRemover> ? 1.0 : std::pow(double{priority}, exponent));
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= total;
  return shares;
}

/// The only one of the keys below `count` that is gone.
template <class R>
std::size_t victim(R& replay, const std::vector<float>& priorities) {
  std::size_t found = priorities.size();
  for (Key key = 0; key < priorities.size(); ++key)
    if (replay.update(std::span(&key, 1), std::span(&priorities[key], 1)) == 1) {
      CHECK(found == priorities.size());
      found = key;
    }
  REQUIRE(found < priorities.size());
  return found;
}

}  // namespace

TEST_CASE_TEMPLATE("what goes from a full replay is chosen by the priorities of the moment", P,
                   Policies<SmallRecord, InversePriorityRemover>,
                   Policies<LargeRecord, InversePriorityRemover>, Policies<SmallRecord, UniformRemover>) {
  using Remover = typename P::Remover;
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  const std::vector<float> before{5, 5, 5, 5, 5, 5, 5}, after{0.001f, 0.1f, 1, 10, 100, 1000, 0.3f};
  const auto expected = shares<Remover>(after, -0.4);
  for (const bool by_trim : {false, true}) {
    CAPTURE(by_trim);
    std::vector<std::size_t> counts(after.size());
    constexpr std::size_t kTrials = 20'000;
    for (std::size_t trial = 0; trial < kTrials; ++trial) {
      Replay<Remover, typename P::Record> replay({.capacity = 7, .soft_capacity = 6, .seed = seed + trial});
      replay.add(records_from<typename P::Record>(0, 7), before);
      std::vector<Key> keys(7);
      std::iota(keys.begin(), keys.end(), Key{0});
      replay.update(keys, after);
      if (by_trim) {
        CHECK(replay.trim() == 1);
      } else {
        replay.add(records_from<typename P::Record>(7, 1), std::array{2.0f});
      }
      ++counts[victim(replay, after)];
    }
    std::vector<double> wanted;
    for (const double share : expected) wanted.push_back(share * kTrials);
    CHECK(chi_square<std::size_t>(counts, wanted) < chi_square_bound(wanted.size() - 1));
  }
}

TEST_CASE("the exponent of the inverse priorities is an option") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  const std::vector<float> priorities{0.5f, 1, 2, 4, 1e-20f, 1e30f, 8};
  const std::vector<float> counted{0.5f, 1, 2, 4, 1e-12f, 1e12f, 8};
  for (const double exponent : {-2.0, -1.0, -0.1, 0.0}) {
    CAPTURE(exponent);
    InversePriorityRemover remover(priorities.size() + 3, {.exponent = exponent});
    std::vector<std::size_t> slots(priorities.size());
    std::iota(slots.begin(), slots.end(), 2u);
    remover.set(slots, priorities);
    remover.erase(6);  // the one that would hide all others
    auto expected = shares<InversePriorityRemover>(
        [&] {
          auto rest = counted;
          rest.erase(rest.begin() + 4);
          return rest;
        }(),
        exponent);
    expected.insert(expected.begin() + 4, 0.0);
    Random random(seed, "choose");
    std::vector<std::size_t> counts(priorities.size());
    for (int i = 0; i < 100'000; ++i) ++counts.at(remover.choose(random) - 2);
    // Cells that expect less than a few are no test.
    std::vector<std::size_t> observed;
    std::vector<double> wanted;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] * 100'000 < 5.0) {
        CHECK(counts[i] < 30);
      } else {
        observed.push_back(counts[i]);
        wanted.push_back(expected[i] * 100'000);
      }
    }
    CHECK(chi_square<std::size_t>(observed, wanted) < chi_square_bound(wanted.size() - 1));
    for (std::size_t i = 0; i < slots.size(); ++i) CHECK(remover.priority(slots[i]) == priorities[i]);
  }
  CHECK_THROWS_WITH_AS(InversePriorityRemover(1, {.exponent = 0.4}),
                       "exponent: 0.4 is not allowed; expected a number from -2 to 0",
                       troop::InvalidArgument);
  CHECK_THROWS_AS(Replay<InversePriorityRemover>({.capacity = 1}, {.remover = {.exponent = -3.0}}),
                  troop::InvalidArgument);
}

TEST_CASE("items of priority 0 go first, and do not keep others for ever") {
  Replay<InversePriorityRemover> replay({.capacity = 100, .soft_capacity = 1});
  std::vector<float> priorities(100, 1.0f);
  std::fill_n(priorities.begin(), 50, 0.0f);
  replay.add(records_from<SmallRecord>(0, 100), priorities);
  replay.add(records_from<SmallRecord>(100, 40), std::vector<float>(40, 1.0f));
  std::size_t left = 0;
  for (Key key = 0; key < 50; ++key) left += 1 - replay.update(std::span(&key, 1), std::array{0.0f});
  CHECK(left <= 12);  // about 10, if the others are hardly ever chosen
  CHECK(replay.trim() == 99);
  CHECK(replay.size() == 1);
}

TEST_CASE_TEMPLATE("keys are never given twice, and late updates are counted", Remover,
                   InversePriorityRemover, UniformRemover) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "keys");
  Replay<Remover> replay({.capacity = 30, .soft_capacity = 20, .alpha = 1.0, .seed = seed});
  Key next = 0;
  std::uint64_t stale = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::size_t count = random.below(12);
    CHECK(replay.add(records_from<SmallRecord>(next, count), std::vector<float>(count, 1.0f)) == next);
    next += count;
    if (round % 100 == 99) replay.clear();
    if (round % 10 == 0) replay.trim();
    std::vector<Key> keys;
    for (Key key = next > 60 ? next - 60 : 0; key < next; ++key) keys.push_back(key);
    const std::size_t gone = replay.update(keys, std::vector<float>(keys.size(), 1.0f));
    CHECK(keys.size() - gone <= replay.size());
    stale += gone;
    CHECK(replay.statistics().total_priority == static_cast<double>(replay.size()));
  }
  CHECK(replay.statistics().stale_updates == stale);
  CHECK(replay.statistics().inserts == next);
  CHECK(replay.statistics().evictions == next - replay.size());
  CHECK_THROWS_AS(replay.update(std::array{next}, std::array{1.0f}), troop::InvalidArgument);
}

TEST_CASE_TEMPLATE("inserts go beyond the soft capacity, and a trim goes down to it", Remover,
                   InversePriorityRemover, UniformRemover) {
  Replay<Remover, LargeRecord> replay({.capacity = 2000, .soft_capacity = 700});
  replay.add(records_from<LargeRecord>(0, 1500), std::vector<float>(1500, 1.0f));
  CHECK(replay.size() == 1500);
  CHECK(replay.trim() == 800);
  CHECK(replay.trim() == 0);
  CHECK(replay.size() == 700);
  replay.add(records_from<LargeRecord>(1500, 1000), std::vector<float>(1000, 1.0f));
  CHECK(replay.size() == 1700);
  CHECK(replay.statistics().trimmed == 800);
  CHECK(replay.statistics().evictions == 800);
  Random random(1);
  const auto batch = replay.sample(1700, {}, random);
  Failures failures;
  for (std::size_t i = 0; i < batch.size(); ++i)
    if (troop::testing::number_of(batch.records()[i]) != batch.keys[i]) failures.add("a record");
  TROOP_CHECK_NONE(failures);
  // Of equal priorities each stratified draw finds another one.
  CHECK(std::set<Key>(batch.keys.begin(), batch.keys.end()).size() == 1700);
  replay.clear();
  CHECK(replay.size() == 0);
  CHECK(replay.statistics().total_priority == 0.0);
  CHECK(replay.add(records_from<LargeRecord>(2500, 1), std::array{1.0f}) == 2500);
  CHECK(replay.sample(1, {}, random).keys == std::vector<Key>{2500});
}

TEST_CASE("the same seed evicts the same items, another seed others") {
  const auto left = [](std::uint64_t seed) {
    Replay<UniformRemover> replay({.capacity = 50, .seed = seed});
    replay.add(records_from<SmallRecord>(0, 200), std::vector<float>(200, 1.0f));
    std::set<Key> keys;
    for (Key key = 0; key < 200; ++key)
      if (replay.update(std::span(&key, 1), std::array{1.0f}) == 0) keys.insert(key);
    return keys;
  };
  CHECK(left(1) == left(1));
  CHECK(left(1) != left(2));
  CHECK(left(1).size() == 50);
}
