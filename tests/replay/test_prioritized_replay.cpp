#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/replay/prioritized_replay.hpp>

#include "allocation_counter.hpp"
#include "replay_records.hpp"
#include "testing.hpp"

using troop::Batch;
using troop::BatchView;
using troop::Draws;
using troop::DType;
using troop::DynamicRecord;
using troop::EmptyReplay;
using troop::InvalidArgument;
using troop::Key;
using troop::LayoutMismatch;
using troop::PrioritizedReplay;
using troop::Random;
using troop::RecordLayout;
using troop::ReplayOptions;
using troop::SampleOptions;
using troop::testing::BoundaryRecord;
using troop::testing::error_of;
using troop::testing::Failures;
using troop::testing::LargeRecord;
using troop::testing::number_of;
using troop::testing::record_of;
using troop::testing::records_from;
using troop::testing::SmallRecord;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class Replay>
void add(Replay& replay, const std::vector<float>& priorities) {
  replay.add(records_from<SmallRecord>(replay.statistics().inserts, priorities.size()), priorities);
}

/// Everything of a replay that an outside can see, but for the count of samples.
template <class Record>
struct Snapshot {
  explicit Snapshot(PrioritizedReplay<Record>& replay) {
    const auto s = replay.statistics();
    numbers = {s.size, s.inserts, s.evictions, s.trimmed, s.updates, s.stale_updates};
    total = s.total_priority;
    if (!(total > 0.0)) return;
    Random random(4711);
    const auto batch = replay.sample(64, {}, random);
    keys = batch.keys;
    probabilities = batch.probabilities;
  }
  friend bool operator==(const Snapshot&, const Snapshot&) = default;

  std::vector<std::uint64_t> numbers;
  double total;
  std::vector<Key> keys;
  std::vector<double> probabilities;
};

template <class Record>
Snapshot(PrioritizedReplay<Record>&) -> Snapshot<Record>;

/// Draws every item once, by one draw from each part of equal priorities; checks keys, records and numbers.
template <class Record>
void check_holds_newest(PrioritizedReplay<Record>& replay, std::size_t inserted) {
  const std::size_t size = std::min(inserted, replay.capacity());
  CHECK(replay.size() == size);
  CHECK(replay.statistics().total_priority == static_cast<double>(size));
  Random random(troop::testing::seed(), "all");
  const auto batch = replay.sample(size, {.beta = 1.0}, random);
  Failures failures;
  std::set<Key> keys;
  for (std::size_t i = 0; i < size; ++i) {
    keys.insert(batch.keys[i]);
    if (number_of(batch.records()[i]) != batch.keys[i]) failures.add("key " + std::to_string(batch.keys[i]));
    if (batch.probabilities[i] != 1.0 / static_cast<double>(size)) failures.add("a probability");
    if (batch.weights[i] != 1.0f) failures.add("a weight");
  }
  TROOP_CHECK_NONE(failures);
  CHECK(keys.size() == size);
  CHECK(*keys.begin() == inserted - size);
  CHECK(*keys.rbegin() == inserted - 1);
}

template <class Record>
void go_around_ten_times() {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t capacity : {1u, 2u, 3u, 7u, 16u, 50u, 100u, 1000u}) {
    CAPTURE(capacity);
    Random random(seed, "around", capacity);
    PrioritizedReplay<Record> replay({.capacity = capacity, .alpha = 1.0});
    std::size_t inserted = 0;
    bool larger_than_capacity = false;
    while (inserted < 10 * capacity || !larger_than_capacity) {
      const std::size_t count = random.below(2 * capacity + 2);
      larger_than_capacity = larger_than_capacity || count > capacity;
      const auto records = records_from<Record>(inserted, count);
      CHECK(replay.add(records, std::vector<float>(count, 1.0f)) == inserted);
      inserted += count;
      if (inserted > 0) check_holds_newest(replay, inserted);
    }
    const auto statistics = replay.statistics();
    CHECK(statistics.inserts == inserted);
    CHECK(statistics.evictions == inserted - capacity);
    CHECK(statistics.trimmed == 0);
    CHECK(statistics.capacity == capacity);
  }
}

}  // namespace

TEST_CASE("keys count the inserts, and after ten rounds the newest items are held, whole") {
  SUBCASE("44 bytes") {
    go_around_ten_times<SmallRecord>();
  }
  SUBCASE("1 KiB") {
    go_around_ten_times<BoundaryRecord>();
  }
  SUBCASE("2 KiB") {
    go_around_ten_times<LargeRecord>();
  }
}

TEST_CASE("one item at a time does the same as batches") {
  PrioritizedReplay<LargeRecord> replay({.capacity = 5, .alpha = 1.0});
  for (std::uint32_t number = 0; number < 23; ++number)
    CHECK(replay.add(record_of<LargeRecord>(number), 1.0f) == number);
  check_holds_newest(replay, 23);
}

TEST_CASE("a batch much larger than the capacity leaves its own last items") {
  PrioritizedReplay<SmallRecord> small({.capacity = 7, .alpha = 1.0});
  PrioritizedReplay<LargeRecord> large({.capacity = 7, .alpha = 1.0});
  small.add(records_from<SmallRecord>(0, 3), std::vector<float>(3, 5.0f));
  large.add(records_from<LargeRecord>(0, 3), std::vector<float>(3, 5.0f));
  CHECK(small.add(records_from<SmallRecord>(3, 100), std::vector<float>(100, 1.0f)) == 3);
  CHECK(large.add(records_from<LargeRecord>(3, 100), std::vector<float>(100, 1.0f)) == 3);
  check_holds_newest(small, 103);
  check_holds_newest(large, 103);
  CHECK(small.statistics().evictions == 96);
  CHECK(large.statistics().evictions == 96);
}

TEST_CASE("a stale key is ignored and counted") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 4, .alpha = 1.0});
  add(replay, {1, 1, 1, 1});
  add(replay, {2, 2});  // keys 4 and 5 in the places of 0 and 1
  CHECK(replay.update(std::array<Key, 4>{0, 1, 2, 4}, std::array<float, 4>{64, 64, 8, 16}) == 2);
  const auto statistics = replay.statistics();
  CHECK(statistics.total_priority == 8.0 + 1.0 + 16.0 + 2.0);
  CHECK(statistics.updates == 2);
  CHECK(statistics.stale_updates == 2);
  CHECK(replay.update(std::array<Key, 1>{1}, std::array<float, 1>{64}) == 1);
  CHECK(replay.update(std::span<const Key>(), std::span<const float>()) == 0);
  CHECK(replay.statistics().stale_updates == 3);
  CHECK(replay.statistics().total_priority == 27.0);
}

TEST_CASE("of a key that is updated twice in a call the last priority stays") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 4, .alpha = 1.0});
  add(replay, {1, 1});
  CHECK(replay.update(std::array<Key, 3>{1, 0, 1}, std::array<float, 3>{32, 2, 4}) == 0);
  CHECK(replay.statistics().total_priority == 6.0);
  CHECK(replay.statistics().updates == 3);
}

TEST_CASE("a key that was never given is an error, and nothing of the call is applied") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 4, .alpha = 1.0});
  CHECK(error_of([&] { replay.update(std::array<Key, 1>{0}, std::array<float, 1>{1}); }) ==
        "key: 0 is not allowed; expected the key of an item that was added");
  add(replay, {1, 1, 1, 1, 1});
  const Snapshot before(replay);
  CHECK(error_of([&] {
          replay.update(std::array<Key, 3>{1, 0, 5}, std::array<float, 3>{9, 9, 9});
        }) == "key: 5 is not allowed; expected the key of an item that was added");
  CHECK(Snapshot(replay) == before);
}

TEST_CASE("priorities are raised to alpha, or refused, as documented") {
  constexpr float kDenormal = 1e-42f, kSmallest = std::numeric_limits<float>::min(),
                  kLargest = std::numeric_limits<float>::max();
  const float refused = kNan;
  struct Case {
    double alpha;
    float priority, power;
  };
  const Case cases[] = {
      {0.0, 0.0f, 0.0f},
      {0.0, -0.0f, 0.0f},
      {0.0, kDenormal, 1.0f},
      {0.0, 5.0f, 1.0f},
      {0.0, kLargest, 1.0f},
      {0.6, 0.0f, 0.0f},
      {0.6, -0.0f, 0.0f},
      {0.6, 1.0f, 1.0f},
      {0.6, 32.0f, 8.0f},
      {0.6, kDenormal, static_cast<float>(std::pow(double{kDenormal}, 0.6))},
      {0.6, kLargest, static_cast<float>(std::pow(double{kLargest}, 0.6))},
      {1.0, 0.0f, 0.0f},
      {1.0, -0.0f, 0.0f},
      {1.0, 0.1f, 0.1f},
      {1.0, kDenormal, kSmallest},
      {1.0, kLargest, kLargest},
      {2.0, -0.0f, 0.0f},
      {2.0, 3.0f, 9.0f},
      {2.0, kDenormal, kSmallest},
      {2.0, 1e-30f, kSmallest},
      {2.0, 1e19f, std::pow(1e19f, 2.0f)},
      {2.0, 1e20f, refused},
      {2.0, kLargest, refused},
  };
  for (const Case& c : cases) {
    CAPTURE(c.alpha);
    CAPTURE(c.priority);
    PrioritizedReplay<SmallRecord> replay({.capacity = 4, .alpha = c.alpha});
    add(replay, {1, 1});
    const Snapshot before(replay);
    const auto by_update = [&] {
      replay.update(std::array<Key, 2>{0, 1}, std::array<float, 2>{0.0f, c.priority});
    };
    const auto by_add = [&] { add(replay, {0.0f, c.priority}); };
    if (std::isnan(c.power)) {
      CHECK_THROWS_AS(by_update(), InvalidArgument);
      CHECK_THROWS_AS(by_add(), InvalidArgument);
      CHECK(Snapshot(replay) == before);
    } else {
      const auto power = static_cast<double>(c.power);
      by_update();
      CHECK(std::abs(replay.statistics().total_priority - power) <= 1e-6 * power);
      by_add();
      CHECK(std::abs(replay.statistics().total_priority - 2.0 * power) <= 1e-6 * power);
    }
  }
}

TEST_CASE("a priority that is no finite number of at least 0 is named, and nothing of the call is applied") {
  for (const double alpha : {0.0, 0.6, 1.0, 2.0}) {
    CAPTURE(alpha);
    PrioritizedReplay<SmallRecord> replay({.capacity = 4, .alpha = alpha});
    add(replay, {1, 2, 3, 4, 5});
    const Snapshot before(replay);
    struct Refused {
      float priority;
      std::string text;
    };
    const Refused bad[] = {{kNan, "nan"},        {-kNan, "-nan"}, {kInfinity, "inf"},
                           {-kInfinity, "-inf"}, {-1.0f, "-1"},   {-1e-44f, ""}};
    for (const Refused& refused : bad) {
      CAPTURE(refused.priority);
      for (const std::size_t place : {0u, 2u}) {
        std::array<float, 3> priorities{7, 8, 9};
        priorities[place] = refused.priority;
        const auto added = error_of([&] { replay.add(records_from<SmallRecord>(5, 3), priorities); });
        const auto updated = error_of([&] { replay.update(std::array<Key, 3>{2, 3, 4}, priorities); });
        CHECK(added == updated);
        const std::string start = "priorities[" + std::to_string(place) + "]: " + refused.text;
        CHECK(added.substr(0, start.size()) == start);
        CHECK(added.ends_with("is not allowed; expected a finite number that is not negative"));
        CHECK(Snapshot(replay) == before);
      }
    }
  }
  PrioritizedReplay<SmallRecord> replay({.capacity = 4, .alpha = 2.0});
  CHECK(
      error_of([&] {
        add(replay, {1.0f, 1e30f});
      }) ==
      "priorities[1]: 1.00000002e+30 is not allowed; expected a number whose power alpha is finite in single "
      "precision");
  CHECK(replay.size() == 0);
}

TEST_CASE("records of another layout are refused with what differs, and nothing is added") {
  const RecordLayout layout({{"observation", DType::f32, {4}}, {"action", DType::i32, {}}});
  const RecordLayout other({{"observation", DType::f32, {5}}});
  PrioritizedReplay<DynamicRecord> replay({.capacity = 4}, layout);
  const std::array<float, 10> memory{};
  replay.add(BatchView(layout, memory.data(), 1), std::array{1.0f});
  const Snapshot before(replay);
  CHECK(error_of([&] {
          replay.add(BatchView(other, memory.data(), 2), std::array{1.0f, 1.0f});
        }) == "record layouts differ: field 0: observation f32[5], expected observation f32[4]");
  CHECK_THROWS_AS(replay.add(BatchView(other, memory.data(), 0), std::span<const float>()), LayoutMismatch);
  CHECK(Snapshot(replay) == before);
  // An equal layout that is another object is the same layout.
  const RecordLayout equal = layout;
  CHECK(replay.add(BatchView(equal, memory.data(), 1), std::array{1.0f}) == 1);
}

TEST_CASE("a replay of a known type is not made with another layout") {
  CHECK(error_of([] {
          PrioritizedReplay<SmallRecord> replay({.capacity = 4}, RecordLayout({{"x", DType::f32, {11}}}));
        }) == "record layouts differ: field 0: x f32[11], expected observation u32[4]");
}

TEST_CASE("different numbers of records, keys and priorities are refused") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 4});
  add(replay, {1, 2});
  const Snapshot before(replay);
  CHECK(error_of([&] {
          replay.add(records_from<SmallRecord>(2, 3), std::array{1.0f, 1.0f});
        }) == "number of priorities: 2 is not allowed; expected 3, one for each of the records");
  CHECK(error_of([&] {
          replay.update(std::array<Key, 1>{0}, std::array{1.0f, 1.0f});
        }) == "number of priorities: 2 is not allowed; expected 1, one for each of the keys");
  CHECK(Snapshot(replay) == before);
}

TEST_CASE("there is nothing to sample from an empty replay or when every priority is 0") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 4});
  Random random(1);
  CHECK(error_of([&] { replay.sample(1, {}, random); }) == "sample from an empty replay");
  add(replay, {0, 0});
  CHECK(error_of([&] { replay.sample(1, {}, random); }) ==
        "sample from a replay in which every item has priority 0");
  CHECK_THROWS_AS(replay.sample(1, {}, random), EmptyReplay);
  CHECK(replay.statistics().samples == 0);
  replay.update(std::array<Key, 1>{1}, std::array{1.0f});
  CHECK(replay.sample(3, {}, random).keys == std::vector<Key>{1, 1, 1});
  replay.clear();
  CHECK(error_of([&] { replay.sample(1, {}, random); }) == "sample from an empty replay");
  CHECK(replay.statistics().samples == 3);
}

TEST_CASE("a count or beta that is not allowed is refused by name") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 4});
  add(replay, {1});
  Random random(1);
  CHECK(error_of([&] { replay.sample(0, {}, random); }) ==
        "count: 0 is not allowed; expected an integer from 1 to 2^24");
  CHECK(error_of([&] { replay.sample((1u << 24) + 1, {}, random); }) ==
        "count: 16777217 is not allowed; expected an integer from 1 to 2^24");
  CHECK(error_of([&] { replay.sample(1, {.beta = -0.5}, random); }) ==
        "beta: -0.5 is not allowed; expected a number from 0 to 10");
  CHECK_THROWS_AS(replay.sample(1, {.beta = std::numeric_limits<double>::quiet_NaN()}, random),
                  InvalidArgument);
}

TEST_CASE("options that are not allowed are refused by name, absurd sizes included") {
  const auto refusal = [](const ReplayOptions& options) {
    return error_of([&] { PrioritizedReplay<SmallRecord> replay(options); });
  };
  CHECK(refusal({.capacity = 0}) == "capacity: 0 is not allowed; expected an integer from 1 to 2^40");
  CHECK(refusal({.capacity = std::size_t{1} << 41}) ==
        "capacity: 2199023255552 is not allowed; expected an integer from 1 to 2^40");
  CHECK(refusal({.capacity = 10, .soft_capacity = 11}) ==
        "soft_capacity: 11 is not allowed; expected at most capacity, 10, or 0");
  CHECK(refusal({.capacity = 10, .alpha = -0.1}) ==
        "alpha: -0.1 is not allowed; expected a number from 0 to 10");
  CHECK(refusal({.capacity = 10, .alpha = std::numeric_limits<double>::quiet_NaN()}) ==
        "alpha: nan is not allowed; expected a number from 0 to 10");
  CHECK(error_of([] { PrioritizedReplay<LargeRecord> replay({.capacity = std::size_t{1} << 40}); }) ==
        "capacity: 1099511627776 is not allowed; expected at most 34359738368");
}

TEST_CASE("inserts go beyond the soft capacity and a trim evicts the oldest down to it") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 10, .soft_capacity = 4, .alpha = 1.0});
  CHECK(replay.statistics().soft_capacity == 4);
  CHECK(replay.trim() == 0);
  add(replay, {1, 1, 1, 1});
  CHECK(replay.trim() == 0);
  add(replay, {2, 2, 2, 2, 2});
  CHECK(replay.size() == 9);
  CHECK(replay.trim() == 5);
  CHECK(replay.trim() == 0);
  CHECK(replay.size() == 4);
  CHECK(replay.statistics().total_priority == 8.0);
  CHECK(replay.update(std::array<Key, 2>{4, 5}, std::array{7.0f, 3.0f}) == 1);
  CHECK(replay.statistics().total_priority == 9.0);
  add(replay, std::vector<float>(8, 4.0f));  // keys 9 to 16, evicting 5 and 6 at the hard capacity
  CHECK(replay.size() == 10);
  CHECK(replay.statistics().total_priority == 2.0 * 2.0 + 8 * 4.0);
  CHECK(replay.trim() == 6);
  const auto statistics = replay.statistics();
  CHECK(statistics.trimmed == 11);
  CHECK(statistics.evictions == 13);
  CHECK(statistics.inserts == 17);
  CHECK(statistics.size == 4);
  Random random(1);
  std::set<Key> keys;
  for (const Key key : replay.sample(4, {}, random).keys) keys.insert(key);
  CHECK(keys == std::set<Key>{13, 14, 15, 16});
}

TEST_CASE("without a soft capacity a trim does nothing") {
  PrioritizedReplay<LargeRecord> replay({.capacity = 3});
  replay.add(records_from<LargeRecord>(0, 7), std::vector<float>(7, 1.0f));
  CHECK(replay.options().soft_capacity == 3);
  CHECK(replay.trim() == 0);
  CHECK(replay.size() == 3);
}

TEST_CASE("clearing evicts everything, and keys go on") {
  PrioritizedReplay<LargeRecord> replay({.capacity = 5, .alpha = 1.0});
  replay.add(records_from<LargeRecord>(0, 8), std::vector<float>(8, 1.0f));
  replay.clear();
  replay.clear();
  CHECK(replay.size() == 0);
  CHECK(replay.statistics().total_priority == 0.0);
  CHECK(replay.statistics().evictions == 8);
  CHECK(replay.update(std::array<Key, 1>{7}, std::array{1.0f}) == 1);
  CHECK(replay.add(records_from<LargeRecord>(8, 2), std::array{1.0f, 1.0f}) == 8);
  Random random(1);
  const auto batch = replay.sample(2, {}, random);
  CHECK(batch.keys == std::vector<Key>{8, 9});
  CHECK(number_of(batch.records()[1]) == 9);
}

TEST_CASE("an item of priority 0 is kept but not drawn until it is given another") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 100, .alpha = 0.0});
  std::vector<float> priorities(100, 0.0f);
  priorities[3] = 1e-30f;
  priorities[98] = 1e30f;
  add(replay, priorities);
  CHECK(replay.size() == 100);
  Random random(1);
  const auto batch = replay.sample(1000, {.draws = Draws::independent}, random);
  CHECK(std::all_of(batch.keys.begin(), batch.keys.end(), [](Key key) { return key == 3 || key == 98; }));
  CHECK(batch.probabilities[0] == 0.5);
  replay.update(std::array<Key, 3>{3, 98, 50}, std::array{0.0f, 0.0f, 2.0f});
  CHECK(replay.sample(2, {}, random).keys == std::vector<Key>{50, 50});
}

TEST_CASE("probabilities and weights are those of the paper's formulas") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "formulas");
  for (const double alpha : {0.0, 0.6, 1.0, 2.0}) {
    for (const double beta : {0.0, 0.4, 1.0, 2.5}) {
      CAPTURE(alpha);
      CAPTURE(beta);
      PrioritizedReplay<SmallRecord> replay({.capacity = 200, .alpha = alpha});
      std::vector<float> priorities(150);
      for (auto& priority : priorities)
        priority =
            random.below(5) == 0 ? 0.0f : static_cast<float>(std::pow(10.0, random.uniform(-3.0, 3.0)));
      priorities[0] = 0.125f;
      add(replay, priorities);
      double sum = 0.0;
      for (const float p : priorities) sum += p > 0.0f ? std::pow(static_cast<double>(p), alpha) : 0.0;
      const auto batch = replay.sample(64, {.beta = beta}, random);
      REQUIRE(batch.size() == 64);
      REQUIRE(batch.weights.size() == 64);
      REQUIRE(batch.records().size() == 64);
      const auto weight = [&](std::size_t i) { return std::pow(150.0 * batch.probabilities[i], -beta); };
      double largest = 0.0;
      for (std::size_t i = 0; i < 64; ++i) largest = std::max(largest, weight(i));
      for (std::size_t i = 0; i < 64; ++i) {
        const auto p = static_cast<double>(priorities[batch.keys[i]]);
        CHECK(batch.probabilities[i] == doctest::Approx(std::pow(p, alpha) / sum).epsilon(3e-6).scale(0.0));
        CHECK(static_cast<double>(batch.weights[i]) ==
              doctest::Approx(weight(i) / largest).epsilon(1e-5).scale(0.0));
        CHECK(batch.weights[i] <= 1.0f);
        if (beta == 0.0) CHECK(batch.weights[i] == 1.0f);
      }
      CHECK(*std::max_element(batch.weights.begin(), batch.weights.end()) == 1.0f);
    }
  }
}

TEST_CASE("weights of priorities as far apart as floats can be stay positive numbers") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 2, .alpha = 1.0});
  add(replay, {2e-38f, 3e38f});
  for (const double beta : {0.0, 0.4, 1.0}) {
    CAPTURE(beta);
    Random random;
    random.set_state({0, 1, 2, 0});  // gives 0 first: the mass of the tiny item
    const auto batch = replay.sample(4, {.beta = beta}, random);
    CHECK(batch.keys == std::vector<Key>{0, 1, 1, 1});
    CHECK(batch.weights[0] == 1.0f);
    CHECK(std::isfinite(batch.weights[1]));
    CHECK(batch.weights[1] > 0.0f);
    CHECK((batch.weights[1] == 1.0f) == (beta == 0.0));
  }
}

TEST_CASE("drawn frequencies follow the probabilities, for stratified and independent draws") {
  // Pearson's statistic over 300 items, 200 000 draws; a right sampler exceeds the bound with probability
  // 1e-6 if its draws are independent, and less often if they are stratified.
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const Draws draws : {Draws::stratified, Draws::independent}) {
    CAPTURE(static_cast<int>(draws));
    Random random(seed, "frequencies");
    PrioritizedReplay<SmallRecord> replay({.capacity = 256, .alpha = 0.6});
    std::vector<float> priorities(300);
    for (auto& priority : priorities)
      priority = random.below(10) == 0 ? 0.0f : static_cast<float>(random.uniform(0.1, 10.0));
    add(replay, priorities);  // the first 44 are evicted
    std::vector<double> expected(300);
    double sum = 0.0;
    for (std::size_t i = 44; i < 300; ++i)
      sum += expected[i] = priorities[i] > 0.0f ? std::pow(static_cast<double>(priorities[i]), 0.6) : 0.0;
    for (auto& e : expected) e *= 200000.0 / sum;
    std::vector<std::size_t> counts(300);
    Batch<SmallRecord> batch;
    for (int round = 0; round < 400; ++round) {
      replay.sample(500, {.draws = draws}, random, batch);
      for (const Key key : batch.keys) ++counts[key];
    }
    const auto alive = static_cast<std::size_t>(
        std::count_if(expected.begin(), expected.end(), [](double e) { return e > 0.0; }));
    CHECK(troop::testing::chi_square<std::size_t>(counts, expected) <
          troop::testing::chi_square_bound(alive - 1));
  }
}

TEST_CASE("each stratified draw stays in its own part of the total priority") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "strata");
  PrioritizedReplay<SmallRecord> replay({.capacity = 500, .alpha = 1.0});
  std::vector<float> priorities(500);
  std::vector<double> ends(500);
  double total = 0.0;
  for (std::size_t i = 0; i < 500; ++i) {
    priorities[i] = static_cast<float>(random.below(16));
    ends[i] = total += static_cast<double>(priorities[i]);
  }
  add(replay, priorities);
  Failures failures;
  for (const std::size_t count : {1u, 2u, 7u, 64u, 500u, 3000u}) {
    for (int round = 0; round < 20; ++round) {
      const auto batch = replay.sample(count, {}, random);
      for (std::size_t i = 0; i < count; ++i) {
        const double low = total * static_cast<double>(i) / static_cast<double>(count);
        const double high = total * static_cast<double>(i + 1) / static_cast<double>(count);
        const double end = ends[batch.keys[i]], begin = end - static_cast<double>(priorities[batch.keys[i]]);
        if (end < low - 1e-6 || begin > high + 1e-6)
          failures.add("draw " + std::to_string(i) + " of " + std::to_string(count));
      }
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("the same seed draws the same batch, another seed another") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 1000});
  add(replay, std::vector<float>(1000, 1.0f));
  for (const Draws draws : {Draws::stratified, Draws::independent}) {
    Random first(5), second(5), third(6);
    const auto a = replay.sample(100, {.draws = draws}, first),
               b = replay.sample(100, {.draws = draws}, second),
               c = replay.sample(100, {.draws = draws}, third);
    CHECK(a.keys == b.keys);
    CHECK(a.keys != c.keys);
    CHECK(first == second);
  }
}

TEST_CASE("records of a layout known at run time come back as they were, from memory with gaps") {
  for (const std::size_t pixels : {std::size_t{11}, std::size_t{1021}, std::size_t{3000}}) {
    CAPTURE(pixels);
    const RecordLayout layout({{"pixels", DType::u8, {pixels}}, {"reward", DType::f32, {}}});
    PrioritizedReplay<DynamicRecord> replay({.capacity = 7, .alpha = 1.0}, layout);
    CHECK(replay.layout() == layout);
    const std::size_t stride = layout.size() + 12;
    std::vector<float> memory(20 * stride / sizeof(float));
    std::byte* const bytes = std::as_writable_bytes(std::span(memory)).data();
    for (std::size_t i = 0; i < 20; ++i) {
      std::memset(bytes + i * stride, static_cast<int>(i), stride);
      const auto reward = static_cast<float>(i) / 2.0f;
      std::memcpy(bytes + i * stride + layout.field("reward").offset, &reward, sizeof(float));
    }
    const BatchView all(layout, bytes, 20, stride);
    for (std::size_t first = 0; first < 20; first += 4)
      replay.add(all.records(first, 4), std::vector<float>(4, 1.0f));

    Batch<DynamicRecord> batch;
    {
      Random random(1);
      replay.sample(7, {}, random, batch);
    }
    const BatchView view = batch.view();
    REQUIRE(view.size() == 7);
    CHECK(view.stride() == layout.size());
    const auto rewards = view.field<float>("reward");
    const auto frames = view.field<std::uint8_t>("pixels");
    for (std::size_t i = 0; i < 7; ++i) {
      CHECK(rewards(i) == static_cast<float>(batch.keys[i]) / 2.0f);
      CHECK(frames(i, 0) == batch.keys[i]);
      CHECK(frames(i, pixels - 1) == batch.keys[i]);
    }
  }
}

TEST_CASE("a batch can be used for replays of different layouts, and outlives them") {
  const RecordLayout one({{"x", DType::f32, {3}}}), two({{"y", DType::u8, {2000}}});
  const std::vector<float> memory(600);
  Batch<DynamicRecord> batch;
  CHECK_THROWS_AS(batch.view(), troop::Error);
  CHECK(batch.size() == 0);
  Random random(1);
  for (const RecordLayout& layout : {one, two, one}) {
    PrioritizedReplay<DynamicRecord> replay({.capacity = 7}, layout);
    replay.add(BatchView(layout, memory.data(), 1), std::array{1.0f});
    replay.sample(5, {}, random, batch);
  }
  CHECK(batch.view().layout() == one);
  CHECK(batch.view().field<float>("x").rows() == 5);
  CHECK(Batch<SmallRecord>().records().empty());
}

TEST_CASE("after the first batch, sampling, adding and updating allocate nothing") {
  const auto check = [](auto record) {
    using Record = decltype(record);
    PrioritizedReplay<Record> replay({.capacity = 300, .soft_capacity = 250});
    const auto records = records_from<Record>(0, 64);
    const std::vector<float> priorities(64, 1.0f);
    Random random(1);
    Batch<Record> batch;
    const auto work = [&] {
      for (int round = 0; round < 8; ++round) {
        replay.add(records, priorities);
        replay.sample(64, {}, random, batch);
        replay.sample(32, {.draws = Draws::independent}, random, batch);
        replay.sample(64, {}, random, batch);
        replay.update(batch.keys, batch.weights);
        replay.trim();
      }
    };
    work();
    const Record* const memory = batch.records().data();
    CHECK(troop::testing::allocations_in(work) == 0);
    CHECK(batch.records().data() == memory);
  };
  check(SmallRecord{});
  check(LargeRecord{});
}

TEST_CASE("statistics count what happened") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 8, .soft_capacity = 6, .alpha = 1.0});
  add(replay, std::vector<float>(7, 2.0f));
  Random random(1);
  replay.sample(5, {}, random);
  replay.sample(3, {}, random);
  const auto statistics = replay.statistics();
  CHECK(statistics.size == 7);
  CHECK(statistics.capacity == 8);
  CHECK(statistics.soft_capacity == 6);
  CHECK(statistics.total_priority == 14.0);
  CHECK(statistics.inserts == 7);
  CHECK(statistics.evictions == 0);
  CHECK(statistics.samples == 8);
  CHECK(statistics.redraws == 0);
}
