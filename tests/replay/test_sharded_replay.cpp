#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/replay/heap_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sharded_replay.hpp>

#include "allocation_counter.hpp"
#include "replay_records.hpp"
#include "testing.hpp"

using troop::ArrayStorage;
using troop::Batch;
using troop::BatchView;
using troop::Draws;
using troop::DType;
using troop::DynamicRecord;
using troop::EmptyReplay;
using troop::Key;
using troop::PrioritizedReplay;
using troop::Random;
using troop::RecordLayout;
using troop::ReplayOptions;
using troop::ShardedReplay;
using troop::WeightNormalizer;
using troop::testing::Failures;
using troop::testing::LargeRecord;
using troop::testing::number_of;
using troop::testing::records_from;
using troop::testing::SmallRecord;

namespace {

using Shard = PrioritizedReplay<SmallRecord>;
using Sharded = ShardedReplay<Shard>;
using troop::testing::error_of;

/// A shard that calls a function just before it draws: after the totals were read.
class HookedShard : public Shard {
 public:
  using Shard::Shard;

  double draw(std::span<double> parts, Random& random, const troop::DrawTarget<std::byte>& target) {
    ++draws;
    if (before_draw) before_draw();
    return Shard::draw(parts, random, target);
  }

  std::function<void()> before_draw;
  std::size_t draws = 0;
};

/// A shard that answers when it is waited for; a lost one never does.
class ApartShard : public Shard {
 public:
  struct PendingDraw {
    std::vector<double> parts;
    Random random{0};
    troop::DrawTarget<std::byte> target;
  };
  struct PendingUpdate {
    std::vector<Key> keys;
    std::vector<float> priorities;
  };
  using Shard::Shard;

  void begin_draw(std::span<const double> parts, Random& random, const troop::DrawTarget<std::byte>& target,
                  PendingDraw& pending) {
    ++begun;
    pending = {{parts.begin(), parts.end()}, random, target};
  }
  double finish_draw(PendingDraw& pending) {
    ++finished;
    if (at_finish) at_finish();
    if (!is_lost) return draw(pending.parts, pending.random, pending.target);
    clear();
    for (Key& key : pending.target.keys) key = 999;  // whatever came before it was lost
    throw EmptyReplay("lost");
  }
  void begin_update(std::span<const Key> keys, std::span<const float> priorities, PendingUpdate& pending) {
    ++begun;
    pending = {{keys.begin(), keys.end()}, {priorities.begin(), priorities.end()}};
  }
  std::size_t finish_update(PendingUpdate& pending) {
    ++finished;
    if (at_finish) at_finish();
    return update(pending.keys, pending.priorities);
  }

  std::function<void()> at_finish;
  bool is_lost = false;
  std::size_t begun = 0, finished = 0;
};
static_assert(troop::RemoteReplayShard<ApartShard> && !troop::RemoteReplayShard<Shard>);

/// Adds a batch and notes what priority each of its keys has.
template <class Replay>
void add(Replay& replay, const std::vector<float>& priorities, std::map<Key, float>& priority_of) {
  const Key first = replay.add(records_from<SmallRecord>(priority_of.size(), priorities.size()), priorities);
  for (std::size_t i = 0; i < priorities.size(); ++i) priority_of[replay.nth_key(first, i)] = priorities[i];
}

/// Adds as many items to each shard, one by one.
template <class Replay>
void add_one_each(Replay& replay, std::size_t rounds, float priority) {
  for (const auto& record : records_from<SmallRecord>(0, rounds * replay.shards().size()))
    replay.add(record, priority);
}

/// Pearson's test of 200 samples of 500 against probabilities by key; keys that expect few draws share a
/// cell.
template <class Replay>
void check_frequencies(
    Replay& replay, const std::map<Key, double>& probability_of, Draws draws, Random& random,
    const std::function<void()>& after_sample = [] {}) {
  constexpr std::size_t kSamples = 200, kCount = 500;
  std::map<Key, std::size_t> counts;
  typename Replay::SampledBatch batch;
  Failures failures;
  for (std::size_t round = 0; round < kSamples; ++round) {
    replay.sample(kCount, {.draws = draws}, random, batch);
    after_sample();
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto found = probability_of.find(batch.keys[i]);
      if (found == probability_of.end()) {
        failures.add("key " + std::to_string(batch.keys[i]));
      } else if (std::abs(batch.probabilities[i] / found->second - 1.0) > 3e-6) {
        failures.add("probability " + std::to_string(batch.probabilities[i]));
      }
      if (number_of(batch.records()[i]) == troop::testing::kTorn) failures.add("a record");
      ++counts[batch.keys[i]];
    }
  }
  TROOP_CHECK_NONE(failures);
  std::vector<double> expected{0.0};  // the first cell is that of the improbable
  std::vector<std::size_t> found{0};
  for (const auto& [key, probability] : probability_of) {
    const double expects = probability * static_cast<double>(kSamples * kCount);
    if (expects < 5.0) {
      expected[0] += expects;
      found[0] += counts[key];
    } else {
      expected.push_back(expects);
      found.push_back(counts[key]);
    }
  }
  if (expected[0] < 1.0) {  // too few for the statistic
    CHECK(found[0] <= 12);
    expected.erase(expected.begin());
    found.erase(found.begin());
  }
  CHECK(troop::testing::chi_square<std::size_t>(found, expected) <
        troop::testing::chi_square_bound(expected.size() - 1));
}

std::map<Key, double> proportional(const std::map<Key, float>& priority_of, double alpha) {
  std::map<Key, double> result;
  double sum = 0.0;
  for (const auto& [key, priority] : priority_of) {
    if (priority > 0.0f) sum += result[key] = std::pow(static_cast<double>(priority), alpha);
  }
  for (auto& [key, probability] : result) probability /= sum;
  return result;
}

}  // namespace

TEST_CASE(
    "a key is the shard's key times the number of shards plus the shard, and each round serves all shards") {
  for (const std::size_t num_shards : {1u, 2u, 3u, 8u}) {
    CAPTURE(num_shards);
    Sharded replay({.capacity = 120 * num_shards, .alpha = 1.0}, num_shards);  // a turn is one batch
    std::map<Key, std::uint32_t> number_of_key;
    std::set<std::size_t> firsts;
    std::uint32_t number = 0;
    for (std::size_t round = 0; round < 20; ++round) {
      std::set<std::size_t> served;
      for (std::size_t turn = 0; turn < num_shards; ++turn) {
        const std::size_t count = 1 + number % 5;
        const Key first =
            replay.add(records_from<SmallRecord>(number, count), std::vector<float>(count, 1.0f));
        const std::size_t shard = first % num_shards;
        served.insert(shard);
        if (turn == 0) firsts.insert(shard);

        CHECK(replay.shards()[shard]->next_key() == first / num_shards + count);
        for (std::size_t i = 0; i < count; ++i) {
          CHECK(replay.nth_key(first, i) == first + i * num_shards);
          CHECK(number_of_key.emplace(replay.nth_key(first, i), number++).second);
        }
      }
      CHECK(served.size() == num_shards);
    }
    CHECK(2 * firsts.size() >= num_shards);  // rounds begin anywhere
    CHECK(replay.size() == number);
    Random random(troop::testing::seed(), "keys");
    const auto batch = replay.sample(number, {}, random);
    std::size_t changes = 0;  // of the shard, from an item to the next
    std::set<Key> drawn;
    for (std::size_t i = 0; i < number; ++i) {
      drawn.insert(batch.keys[i]);
      CHECK(number_of(batch.records()[i]) == number_of_key.at(batch.keys[i]));
      CHECK(batch.probabilities[i] == doctest::Approx(1.0 / number));
      if (i > 0 && batch.keys[i - 1] % num_shards != batch.keys[i] % num_shards) ++changes;
    }
    CHECK(changes == num_shards - 1);
  }
}

TEST_CASE("a thread stays with a shard for a 64th of its capacity, another thread takes the next turn") {
  Sharded replay({.capacity = 4 * 6400, .alpha = 1.0}, 4);  // turns of 100 items
  const auto add = [&](std::size_t count) {
    return replay.add(std::vector<SmallRecord>(count), std::vector<float>(count, 1.0f)) % 4;
  };
  std::map<std::size_t, std::size_t> items;
  for (int turn = 0; turn < 40; ++turn) {
    const auto shard = add(30);
    CHECK(add(30) == shard);
    std::thread other([&] {
      const auto others = add(100);
      items[others] += 100;
    });
    other.join();
    CHECK(add(30) == shard);
    CHECK(add(30) == shard);  // the last batch of a turn is not divided
    items[shard] += 120;
  }
  for (const auto& [shard, count] : items) CHECK(count == replay.shards()[shard]->size());
  CHECK(items.size() == 4);
}

TEST_CASE("no rhythm of batch sizes makes one shard much fuller than another") {
  for (const std::size_t num_shards : {2u, 3u, 4u}) {
    for (std::size_t rhythm = 2; rhythm <= 5; ++rhythm) {
      CAPTURE(num_shards);
      CAPTURE(rhythm);
      Sharded replay({.capacity = 120'000}, num_shards);
      const auto records = records_from<SmallRecord>(0, 50);
      const std::vector<float> priorities(50, 1.0f);
      for (std::size_t turn = 0; turn < 3000; ++turn) {
        const std::size_t count = turn % rhythm == 0 ? 50 : 5;
        replay.add(std::span(records).first(count), std::span(priorities).first(count));
      }
      std::size_t least = replay.size(), most = 0;
      for (const auto& shard : replay.shards()) {
        least = std::min(least, shard->size());
        most = std::max(most, shard->size());
      }
      CHECK(static_cast<double>(most) < 1.2 * static_cast<double>(least));
    }
  }
}

TEST_CASE("capacities are divided, remainders going to the first shards") {
  const Sharded replay({.capacity = 11, .soft_capacity = 7, .alpha = 0.5, .seed = 42}, 3);
  std::vector<std::size_t> capacities, soft;
  std::set<std::uint64_t> seeds;
  for (const auto& shard : replay.shards()) {
    capacities.push_back(shard->capacity());
    soft.push_back(shard->options().soft_capacity);
    seeds.insert(shard->options().seed);
    CHECK(shard->options().alpha == 0.5);
  }
  CHECK(capacities == std::vector<std::size_t>{4, 4, 3});
  CHECK(soft == std::vector<std::size_t>{3, 2, 2});
  CHECK(seeds.size() == 3);
  CHECK(replay.capacity() == 11);
  CHECK(replay.options().capacity == 11);
  CHECK(replay.options().soft_capacity == 7);
  CHECK(replay.options().alpha == 0.5);
  CHECK(replay.options().seed == 42);
  CHECK(Sharded({.capacity = 11}, 3).options().soft_capacity == 11);
  CHECK(Sharded({.capacity = 3}, 3).shards()[2]->capacity() == 1);
}

TEST_CASE("numbers of shards and options that are not allowed are refused by name") {
  const auto refusal = [](const ReplayOptions& options, std::size_t num_shards) {
    return error_of([&] { Sharded replay(options, num_shards); });
  };
  CHECK(refusal({.capacity = 3}, 4) ==
        "number of shards: 4 is not allowed; expected an integer from 1 to capacity, 3");
  CHECK(refusal({.capacity = 3}, 0) ==
        "number of shards: 0 is not allowed; expected an integer from 1 to capacity, 3");
  CHECK(refusal({.capacity = 0}, 1) == "capacity: 0 is not allowed; expected an integer from 1 to 2^40");
  CHECK(refusal({.capacity = 30, .soft_capacity = 3}, 4) ==
        "soft_capacity: 3 is not allowed; expected at least the number of shards, 4, or 0");
  CHECK(refusal({.capacity = 30, .alpha = -1.0}, 4) ==
        "alpha: -1 is not allowed; expected a number from 0 to 10");
}

TEST_CASE("shards that were made elsewhere must be there and be of one kind") {
  const auto refusal = [](std::vector<std::shared_ptr<Shard>> shards) {
    return error_of([&] { Sharded replay(std::move(shards)); });
  };
  const auto shard = [](const ReplayOptions& options) { return std::make_shared<Shard>(options); };
  CHECK(refusal({}) == "number of shards: 0 is not allowed; expected a positive integer");
  CHECK(refusal({shard({.capacity = 4}), nullptr}) ==
        "shards[1]: null is not allowed; expected a pointer to a shard");
  CHECK(refusal({shard({.capacity = 4}), shard({.capacity = 4, .alpha = 0.7})}) ==
        "shards[1].alpha: 0.7 is not allowed; expected that of shards[0], 0.6");
  CHECK(refusal({shard({.capacity = 4}), shard({.capacity = 4, .normalizer = WeightNormalizer::replay})}) ==
        "shards[1].normalizer: 1 is not allowed; expected that of shards[0]");

  using Dynamic = PrioritizedReplay<DynamicRecord>;
  std::vector<std::shared_ptr<Dynamic>> different;
  for (const std::size_t width : {4u, 5u})
    different.push_back(
        std::make_shared<Dynamic>(ReplayOptions{.capacity = 4}, RecordLayout({{"x", DType::f32, {width}}})));
  CHECK(error_of([&] { ShardedReplay<Dynamic> replay(different); }) ==
        "record layouts differ: field 0: x f32[5], expected x f32[4]");

  // Shards of any sizes, one of them filled before; others may use them too.
  auto first = shard({.capacity = 10, .alpha = 1.0}), second = shard({.capacity = 5, .alpha = 1.0});
  first->add(records_from<SmallRecord>(0, 7), std::vector<float>(7, 1.0f));
  Sharded replay({first, second});
  CHECK(replay.capacity() == 15);
  CHECK(replay.size() == 7);
  second->add(records_from<SmallRecord>(7, 3), std::vector<float>(3, 1.0f));
  CHECK(replay.total_priority() == 10.0);
  const std::array<Key, 2> keys{6 * 2, 2 * 2 + 1};  // the last of the first shard, the last of the second
  CHECK(replay.update(keys, std::array{2.0f, 3.0f}) == 0);
  CHECK(first->total_priority() == 8.0);
  CHECK(second->total_priority() == 5.0);
}

TEST_CASE("frequencies and probabilities are those of one replay, whatever the number of shards") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t num_shards : {1u, 2u, 3u, 8u}) {
    for (const Draws draws : {Draws::stratified, Draws::independent}) {
      CAPTURE(num_shards);
      CAPTURE(static_cast<int>(draws));
      Random random(seed, "frequencies", num_shards);
      Sharded replay({.capacity = 2400, .alpha = 0.6}, num_shards);
      std::map<Key, float> priority_of;
      while (priority_of.size() < 280) {
        std::vector<float> priorities(1 + random.below(12));
        for (auto& priority : priorities)
          priority = random.below(10) == 0 ? 0.0f : static_cast<float>(random.uniform(0.1, 10.0));
        add(replay, priorities, priority_of);
      }
      check_frequencies(replay, proportional(priority_of, 0.6), draws, random);
      // The same after updates, of which those of the first shard are a thousand times as large.
      std::vector<Key> keys;
      std::vector<float> priorities;
      for (auto& [key, priority] : priority_of) {
        priority = static_cast<float>(random.uniform(0.5, 2.0)) * (key % num_shards == 0 ? 1000.0f : 1.0f);
        keys.push_back(key);
        priorities.push_back(priority);
      }
      CHECK(replay.update(keys, priorities) == 0);
      check_frequencies(replay, proportional(priority_of, 0.6), draws, random);
    }
  }
}

TEST_CASE("priorities over nine decades are drawn in proportion, within a shard and between shards") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const Draws draws : {Draws::stratified, Draws::independent}) {
    CAPTURE(static_cast<int>(draws));
    Random random(seed, "decades");
    Sharded mixed({.capacity = 1000, .alpha = 1.0}, 3), apart({.capacity = 1000, .alpha = 1.0}, 10);
    std::map<Key, float> in_mixed, in_apart;
    for (int batch = 0; batch < 30; ++batch) {
      std::vector<float> priorities(10);
      for (auto& priority : priorities)
        priority = static_cast<float>(std::pow(10.0, random.uniform(-6.0, 3.0)));
      add(mixed, priorities, in_mixed);
    }
    for (int batch = 0; batch < 10; ++batch)  // each shard has a decade of its own
      add(apart, std::vector<float>(10, static_cast<float>(std::pow(10.0, batch - 6))), in_apart);
    check_frequencies(mixed, proportional(in_mixed, 1.0), draws, random);
    check_frequencies(apart, proportional(in_apart, 1.0), draws, random);
  }
}

TEST_CASE("a uniform sampler draws all items of all shards alike") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  using Uniform = PrioritizedReplay<SmallRecord, ArrayStorage, troop::UniformSampler>;
  for (const std::size_t num_shards : {1u, 3u, 8u}) {
    CAPTURE(num_shards);
    Random random(seed, "uniform", num_shards);
    ShardedReplay<Uniform> replay({.capacity = 2400}, num_shards);
    std::map<Key, float> priority_of;
    while (priority_of.size() < 250) {
      std::vector<float> priorities(1 + random.below(30));
      for (auto& priority : priorities) priority = random.below(4) == 0 ? 0.0f : 5.0f;
      add(replay, priorities, priority_of);
    }
    for (const Draws draws : {Draws::stratified, Draws::independent})
      check_frequencies(replay, proportional(priority_of, 0.0), draws, random);
  }
}

TEST_CASE("a stratified sample gives each shard its share, up to one item at each end") {
  Random random(troop::testing::seed(), "strata");
  Sharded replay({.capacity = 400, .alpha = 1.0}, 4);
  std::map<Key, float> priority_of;
  for (const float priority : {1.0f, 2.0f, 0.0f, 5.0f})
    add(replay, std::vector<float>(10, priority), priority_of);
  for (const std::size_t count : {1u, 7u, 100u, 1001u}) {
    for (int round = 0; round < 20; ++round) {
      std::array<double, 4> drawn{};
      const auto batch = replay.sample(count, {}, random);
      for (const Key key : batch.keys) drawn[key % 4] += 1.0;
      for (std::size_t s = 0; s < 4; ++s) {
        const double share = static_cast<double>(count) * replay.shards()[s]->total_priority() / 80.0;
        CHECK(std::abs(drawn[s] - share) < 2.0);
      }
    }
  }
}

TEST_CASE("the reported probability is that of the draw, even if a shard changes after its total was read") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const Draws draws : {Draws::stratified, Draws::independent}) {
    CAPTURE(static_cast<int>(draws));
    Random random(seed, "changes");
    ShardedReplay<HookedShard> replay({.capacity = 90, .alpha = 1.0}, 3);
    add_one_each(replay, 30, 1.0f);
    const std::array<Key, 3> local{0, 1, 2};
    HookedShard& busy = *replay.shards()[1];
    // Its total is read as 30, and is 27 + 3 + 60 + 0 when it draws.
    busy.before_draw = [&] { busy.update(local, std::array{3.0f, 60.0f, 0.0f}); };
    std::map<Key, double> probability_of;
    for (Key key = 0; key < 90; ++key) probability_of[key] = 1.0 / 90.0;
    for (Key key = 0; key < 30; ++key) probability_of[key * 3 + 1] = 1.0 / 3.0 / 90.0;
    probability_of[1] = 1.0 / 3.0 * 3.0 / 90.0;
    probability_of[4] = 1.0 / 3.0 * 60.0 / 90.0;
    probability_of.erase(7);
    check_frequencies(replay, probability_of, draws, random, [&] {
      busy.update(local, std::array{1.0f, 1.0f, 1.0f});
    });
  }
}

TEST_CASE("places of a shard that has become empty are drawn again from the others") {
  for (const WeightNormalizer normalizer : {WeightNormalizer::batch, WeightNormalizer::replay}) {
    CAPTURE(static_cast<int>(normalizer));
    Random random(troop::testing::seed(), "emptied");
    ShardedReplay<HookedShard> replay({.capacity = 40, .alpha = 1.0, .normalizer = normalizer}, 4);
    add_one_each(replay, 10, 1.0f);
    for (const std::size_t s : {0u, 2u}) {
      HookedShard& shard = *replay.shards()[s];
      shard.before_draw = [&shard] { shard.clear(); };
    }
    const auto batch = replay.sample(80, {.beta = 1.0}, random);
    REQUIRE(batch.size() == 80);
    std::size_t again = 0;
    for (std::size_t i = 0; i < 80; ++i) {
      CHECK(batch.keys[i] % 2 == 1);
      CHECK(number_of(batch.records()[i]) != troop::testing::kTorn);
      CHECK((batch.probabilities[i] == doctest::Approx(1.0 / 40) ||
             batch.probabilities[i] == doctest::Approx(1.0 / 20)));
      again += batch.probabilities[i] > 0.03;
      CHECK(batch.weights[i] == doctest::Approx(1.0 / 40 / batch.probabilities[i]));
    }
    CHECK(again == 40);
    CHECK(replay.statistics().samples == 80);

    // Everything goes, but in the meantime something comes to a shard that was empty.
    add_one_each(replay, 1, 1.0f);
    for (const std::size_t s : {1u, 3u}) {
      HookedShard& shard = *replay.shards()[s];
      shard.before_draw = [&shard] { shard.clear(); };
    }
    for (const std::size_t s : {0u, 2u}) {
      replay.shards()[s]->clear();
      replay.shards()[s]->before_draw = nullptr;
    }
    replay.shards()[3]->before_draw = [&] {
      replay.shards()[3]->clear();
      replay.shards()[0]->add(records_from<SmallRecord>(7, 1), std::array{1.0f});
    };
    for (const double probability : replay.sample(5, {}, random).probabilities) CHECK(probability == 1.0);

    // Everything goes.
    replay.shards()[0]->before_draw = [&] { replay.clear(); };
    CHECK(error_of([&] { replay.sample(5, {}, random); }) == "sample from an empty replay");
  }
}

TEST_CASE("shards that work apart are all begun before one is waited for; what a lost one owes others give") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (std::uint64_t round = 0; round < 20; ++round) {  // from other shards on
    Random random(seed, "apart", round);
    ShardedReplay<ApartShard> replay({.capacity = 40, .alpha = 1.0}, 4);
    add_one_each(replay, 10, 1.0f);
    std::size_t begun_together = 0;
    for (const auto& shard : replay.shards()) {
      shard->at_finish = [&] {
        std::size_t begun = 0;
        for (const auto& other : replay.shards()) begun += other->begun;
        begun_together = std::max(begun_together, begun);
      };
    }
    for (const std::size_t s : {0u, 2u}) replay.shards()[s]->is_lost = true;
    const auto batch = replay.sample(80, {.beta = 1.0}, random);
    CHECK(begun_together == 6);  // four, then the two that were not lost
    std::size_t again = 0;
    std::map<Key, std::uint32_t> numbers;
    for (std::size_t i = 0; i < 80; ++i) {
      CHECK(batch.keys[i] % 2 == 1);
      const auto number = number_of(batch.records()[i]);
      CHECK(number != troop::testing::kTorn);
      CHECK(numbers.emplace(batch.keys[i], number).first->second == number);
      again += batch.probabilities[i] > 0.03;
      CHECK(batch.weights[i] == doctest::Approx(1.0 / 40 / batch.probabilities[i]));
    }
    CHECK(again == 40);

    begun_together = 0;
    for (const auto& shard : replay.shards()) shard->begun = 0;
    CHECK(replay.update(std::vector<Key>{1, 3, 5}, std::vector<float>{2.0f, 3.0f, 4.0f}) == 0);
    CHECK(begun_together == 2);
    CHECK(replay.total_priority() == 26.0);
    CHECK(replay.next_key() == 40);
    for (const auto& shard : replay.shards()) shard->is_lost = true;
    CHECK(error_of([&] { replay.sample(5, {}, random); }) == "sample from an empty replay");
  }
}

TEST_CASE("shards without items, or with none of a positive priority, are passed over") {
  Random random(1);
  Sharded replay({.capacity = 40, .alpha = 1.0}, 4);
  CHECK(error_of([&] { replay.sample(1, {}, random); }) == "sample from an empty replay");
  CHECK_THROWS_AS(replay.sample(1, {}, random), EmptyReplay);
  const Key first =
      replay.add(records_from<SmallRecord>(0, 3), std::array{0.0f, 2.0f, 6.0f});  // all others empty
  for (const Draws draws : {Draws::stratified, Draws::independent}) {
    const auto batch = replay.sample(64, {.draws = draws}, random);
    for (std::size_t i = 0; i < 64; ++i) {
      CHECK(batch.keys[i] % 4 == first % 4);
      CHECK(batch.probabilities[i] ==
            doctest::Approx(batch.keys[i] == replay.nth_key(first, 1) ? 0.25 : 0.75));
    }
  }
  const Key second = replay.add(records_from<SmallRecord>(3, 1), std::array{0.0f});
  for (const Key key : replay.sample(64, {}, random).keys) CHECK(key % 4 == first % 4);
  replay.update(std::array<Key, 2>{replay.nth_key(first, 1), replay.nth_key(first, 2)},
                std::array{0.0f, 0.0f});
  CHECK(error_of([&] { replay.sample(1, {}, random); }) ==
        "sample from a replay in which every item has priority 0");
  replay.update(std::array<Key, 1>{second}, std::array{1e-30f});
  for (const Key key : replay.sample(64, {}, random).keys) CHECK(key == second);
  CHECK(error_of([&] { replay.sample(0, {}, random); }) ==
        "count: 0 is not allowed; expected an integer from 1 to 2^24");
  CHECK(error_of([&] { replay.sample(1, {.beta = -0.5}, random); }) ==
        "beta: -0.5 is not allowed; expected a number from 0 to 10");
}

TEST_CASE("stale and repeated keys are recognised in every shard") {
  Sharded replay({.capacity = 6, .alpha = 1.0}, 3);
  add_one_each(replay, 3, 1.0f);  // the first of each shard is gone
  CHECK(replay.size() == 6);
  const auto key = [&](std::size_t shard, Key local) { return local * 3 + shard; };
  const std::vector<Key> updated{key(2, 1), key(0, 0), key(1, 2), key(2, 1), key(1, 0), key(1, 2), key(0, 2)};
  const std::vector<float> priorities{32, 64, 2, 8, 64, 4, 16};
  CHECK(replay.update(updated, priorities) == 2);
  CHECK(replay.shards()[0]->total_priority() == 1.0 + 16.0);
  CHECK(replay.shards()[1]->total_priority() == 1.0 + 4.0);
  CHECK(replay.shards()[2]->total_priority() == 8.0 + 1.0);
  CHECK(replay.total_priority() == 31.0);
  const auto statistics = replay.statistics();
  CHECK(statistics.updates == 5);
  CHECK(statistics.stale_updates == 2);
  CHECK(replay.update(std::span<const Key>(), std::span<const float>()) == 0);
}

TEST_CASE("an update that is refused is applied in no shard") {
  Sharded replay({.capacity = 30, .alpha = 2.0}, 3);
  add_one_each(replay, 2, 1.0f);  // keys 0 to 5
  const auto refusal = [&](std::vector<Key> keys, std::vector<float> priorities) {
    const std::string message = error_of([&] { replay.update(keys, priorities); });
    CHECK(replay.total_priority() == 6.0);
    CHECK(replay.statistics().updates == 0);
    CHECK(replay.max_priority() == 1.0f);
    return message;
  };
  CHECK(refusal({0, 1, 2}, {5.0f, 5.0f, -1.0f}) ==
        "priorities[2]: -1 is not allowed; expected a finite number that is not negative");
  CHECK(refusal({0, 1, 2}, {5.0f, std::numeric_limits<float>::infinity(), 5.0f}) ==
        "priorities[1]: inf is not allowed; expected a finite number that is not negative");
  CHECK(
      refusal({0, 1, 2}, {5.0f, 1e30f, std::nanf("")}) ==
      "priorities[1]: 1.00000002e+30 is not allowed; expected a number whose power alpha is finite in single "
      "precision");
  CHECK(refusal({0, 1, 8}, {5.0f, 5.0f, 5.0f}) ==
        "key: 8 is not allowed; expected the key of an item that was added");
  CHECK(refusal({6, 1, 2}, {5.0f, 5.0f, 5.0f}) ==
        "key: 6 is not allowed; expected the key of an item that was added");
  CHECK(refusal({0, 1}, {5.0f}) ==
        "number of priorities: 1 is not allowed; expected 2, one for each of the keys");
  for (const Key key : {Key{1} << 32, Key{1} << 63, ~Key{0} - 2, ~Key{0} - 1, ~Key{0}}) {
    CHECK(refusal({0, key, 1}, {5.0f, 5.0f, 5.0f}) ==
          "key: " + std::to_string(key) + " is not allowed; expected the key of an item that was added");
  }
  // A batch that is refused is added nowhere.
  CHECK_THROWS_AS(replay.add(records_from<SmallRecord>(0, 2), std::array{1.0f, -1.0f}),
                  troop::InvalidArgument);
  CHECK_THROWS_AS(replay.add(records_from<SmallRecord>(0, 2), std::array{1.0f}), troop::InvalidArgument);
  CHECK(replay.size() == 6);
}

TEST_CASE("the largest keys are told apart for any number of shards") {
  for (std::size_t num_shards = 1; num_shards <= 70; ++num_shards) {
    Sharded replay({.capacity = 100}, num_shards);
    for (Key back = 0; back < 2 * num_shards; ++back) {
      const Key key = ~Key{0} - back;
      CHECK(error_of([&] { replay.update(std::array{key}, std::array{1.0f}); }) ==
            "key: " + std::to_string(key) + " is not allowed; expected the key of an item that was added");
    }
  }
}

TEST_CASE("items without a priority get the greatest that any shard was given") {
  Sharded replay({.capacity = 30, .alpha = 1.0}, 3);
  CHECK(replay.max_priority() == 1.0f);
  CHECK(replay.max_priority(7.0f) == 7.0f);
  replay.add(troop::testing::record_of<SmallRecord>(0), 0.25f);
  CHECK(replay.max_priority() == 0.25f);
  CHECK(replay.statistics().max_priority == 0.25f);
  replay.add(records_from<SmallRecord>(1, 2));
  CHECK(replay.total_priority() == 0.75);
  const Key key = replay.add(troop::testing::record_of<SmallRecord>(3), 0.0f);
  replay.update(std::array{key}, std::array{4.0f});
  for (int i = 0; i < 3; ++i) replay.add(records_from<SmallRecord>(4, 1));
  CHECK(replay.total_priority() == 0.75 + 4.0 * 4);
  const auto records = records_from<SmallRecord>(7, 2);
  replay.add(BatchView(replay.layout(), records.data(), 2));
  CHECK(replay.total_priority() == 0.75 + 4.0 * 6);
}

TEST_CASE("trims, clears, statistics and histogram are those of all shards") {
  Sharded replay({.capacity = 60, .soft_capacity = 31, .alpha = 0.5}, 3);
  Shard single({.capacity = 60, .alpha = 0.5});
  Random random(troop::testing::seed(), "histogram");
  for (std::uint32_t number = 0; number < 60; ++number) {
    const float priority =
        number % 7 == 0 ? 0.0f : static_cast<float>(std::pow(10.0, random.uniform(-4.0, 4.0)));
    replay.add(troop::testing::record_of<SmallRecord>(number), priority);
    single.add(troop::testing::record_of<SmallRecord>(number), priority);
  }
  const auto histogram = replay.priority_histogram(), expected = single.priority_histogram();
  CHECK(histogram.zeros == expected.zeros);
  REQUIRE(histogram.bins.size() == expected.bins.size());
  for (std::size_t i = 0; i < histogram.bins.size(); ++i) {
    CHECK(histogram.bins[i].exponent == expected.bins[i].exponent);
    CHECK(histogram.bins[i].count == expected.bins[i].count);
  }
  replay.sample(20, {}, random);
  CHECK(replay.trim() == 29);
  CHECK(replay.trim() == 0);
  CHECK(replay.size() == 31);
  auto statistics = replay.statistics();
  CHECK(statistics.size == 31);
  CHECK(statistics.capacity == 60);
  CHECK(statistics.soft_capacity == 31);
  CHECK(statistics.inserts == 60);
  CHECK(statistics.evictions == 29);
  CHECK(statistics.trimmed == 29);
  CHECK(statistics.samples == 20);
  CHECK(statistics.total_priority == replay.total_priority());
  CHECK(statistics.max_priority == single.max_priority());
  replay.clear();
  CHECK(replay.size() == 0);
  CHECK(replay.statistics().evictions == 60);
  CHECK(replay.total_priority() == 0.0);
  CHECK(replay.priority_histogram().bins.empty());
  const Key key = replay.add(troop::testing::record_of<SmallRecord>(0), 1.0f);
  CHECK(key >= 60);
}

TEST_CASE("statistics and histograms that are added up count everything") {
  troop::ReplayStatistics sum{.size = 1, .max_priority = 2.0f, .redraws = 3, .lock_waits = 4};
  sum += {.size = 10, .max_priority = 1.0f, .redraws = 30, .lock_waits = 40, .lock_wait_seconds = 0.5};
  CHECK(sum.size == 11);
  CHECK(sum.max_priority == 2.0f);
  CHECK(sum.redraws == 33);
  CHECK(sum.lock_waits == 44);
  CHECK(sum.lock_wait_seconds == 0.5);

  const auto counts = [](const troop::PriorityHistogram& histogram) {
    std::vector<std::pair<int, std::uint64_t>> result;
    for (const auto& bin : histogram.bins) result.emplace_back(bin.exponent, bin.count);
    return result;
  };
  troop::PriorityHistogram histogram{{}, 1};
  histogram += {{}, 2};
  CHECK(counts(histogram).empty());
  histogram += {{{3, 5}, {4, 6}}, 0};
  histogram += {{{1, 7}}, 4};
  histogram += {{{4, 1}, {5, 0}, {6, 2}}, 0};
  CHECK(histogram.zeros == 7);
  CHECK(counts(histogram) ==
        std::vector<std::pair<int, std::uint64_t>>{{1, 7}, {2, 0}, {3, 5}, {4, 7}, {5, 0}, {6, 2}});
}

TEST_CASE("weights are relative to the batch, or to all items of all shards") {
  for (const WeightNormalizer normalizer : {WeightNormalizer::batch, WeightNormalizer::replay}) {
    CAPTURE(static_cast<int>(normalizer));
    Random random(troop::testing::seed(), "weights");
    ShardedReplay<HookedShard> replay({.capacity = 300, .alpha = 1.0, .normalizer = normalizer}, 3);
    std::map<Key, float> priority_of;
    // The least probable item is in a shard that is drawn from one time in a million.
    for (const float priority : {1.0f, 1e-6f, 4.0f})
      add(replay, std::vector<float>(20, priority), priority_of);
    const auto batch = replay.sample(100, {.beta = 0.5}, random);
    double smallest = *std::min_element(batch.probabilities.begin(), batch.probabilities.end());
    if (normalizer == WeightNormalizer::replay) smallest = 1e-6 / 100.00002;
    std::size_t asked = 0;
    for (const auto& shard : replay.shards()) asked += shard->draws;
    CHECK(asked == (normalizer == WeightNormalizer::replay ? 3 : 2));
    for (std::size_t i = 0; i < 100; ++i) {
      CHECK(batch.weights[i] <= 1.0f);
      CHECK(static_cast<double>(batch.weights[i]) ==
            doctest::Approx(std::pow(batch.probabilities[i] / smallest, -0.5)).epsilon(1e-5).scale(0.0));
    }
  }
}

TEST_CASE("the same seed draws the same batch") {
  Sharded replay({.capacity = 1000}, 4);
  for (int i = 0; i < 16; ++i) replay.add(records_from<SmallRecord>(0, 20), std::vector<float>(20, 1.0f));
  for (const Draws draws : {Draws::stratified, Draws::independent}) {
    Random first(5), second(5);
    CHECK(replay.sample(100, {.draws = draws}, first).keys ==
          replay.sample(100, {.draws = draws}, second).keys);
    CHECK(first == second);
  }
}

TEST_CASE("shards take layouts and policies, and records of any kind come back whole") {
  const RecordLayout layout({{"x", DType::u8, {1500}}});
  using Any =
      PrioritizedReplay<DynamicRecord, ArrayStorage, troop::ProportionalSampler, troop::UniformRemover>;
  Any::Policies policies;
  policies.storage.prefault = true;
  ShardedReplay<Any> replay({.capacity = 20}, 4, layout, policies);
  CHECK(replay.layout() == layout);
  std::map<Key, std::uint8_t> content_of;
  for (std::uint8_t number = 1; number <= 60; ++number) {
    const std::vector<std::uint8_t> bytes(1500, number);
    content_of[replay.add(BatchView(layout, bytes.data(), 1), std::array{1.0f})] = number;
  }
  CHECK(replay.size() == 20);
  Random random(1);
  const auto batch = replay.sample(200, {}, random);
  const auto fields = batch.view().field<std::uint8_t>("x");
  for (std::size_t i = 0; i < 200; ++i) {
    CHECK(fields(i, 0) == content_of.at(batch.keys[i]));
    CHECK(fields(i, 1499) == content_of.at(batch.keys[i]));
  }
  const RecordLayout other({{"y", DType::f32, {}}});
  const float value = 1.0f;
  CHECK_THROWS_AS(replay.add(BatchView(other, &value, 1), std::array{1.0f}), troop::LayoutMismatch);
}

TEST_CASE("objects of any type are shared by shards and batches") {
  using Objects = PrioritizedReplay<std::string, troop::HeapStorage<std::string>>;
  ShardedReplay<Objects> replay({.capacity = 30, .alpha = 1.0}, 3);
  std::map<Key, std::string> text_of;
  for (int batch = 0; batch < 6; ++batch) {
    std::vector<std::string> texts;
    for (int i = 0; i < 5; ++i) texts.push_back("item " + std::to_string(batch * 5 + i));
    const Key first = replay.add(texts, std::vector<float>(5, 1.0f));
    for (std::size_t i = 0; i < 5; ++i) text_of[replay.nth_key(first, i)] = texts[i];
  }
  const auto shared = std::make_shared<const std::string>("shared");
  const Key key = replay.add(std::span(&shared, 1), std::array{1000.0f});
  text_of[key] = "shared";
  Random random(1);
  Batch<std::string> batch;
  for (int round = 0; round < 3; ++round) {
    replay.sample(100, {}, random, batch);
    REQUIRE(batch.records().size() == 100);
    for (std::size_t i = 0; i < 100; ++i) CHECK(*batch.records()[i] == text_of.at(batch.keys[i]));
  }
  CHECK(shared.use_count() > 50);
  replay.clear();
  batch = {};
  CHECK(shared.use_count() == 1);
}

TEST_CASE("after the first batch, sampling, adding and updating allocate nothing") {
  const auto check = [](auto record) {
    using Record = decltype(record);
    ShardedReplay<PrioritizedReplay<Record>> replay({.capacity = 300, .soft_capacity = 250}, 4);
    const auto records = records_from<Record>(0, 64);
    const std::vector<float> priorities(64, 1.0f);
    Random random(1);
    Batch<Record> batch;
    const auto work = [&](int rounds) {
      for (int round = 0; round < rounds; ++round) {
        replay.add(records, priorities);
        replay.sample(64, {}, random, batch);
        replay.sample(32, {.draws = Draws::independent}, random, batch);
        replay.sample(64, {}, random, batch);
        replay.update(batch.keys, batch.weights);
        replay.trim();
      }
    };
    work(200);  // the share of one shard varies
    CHECK(troop::testing::allocations_in([&] { work(20); }) == 0);
  };
  check(SmallRecord{});
  check(LargeRecord{});
}
