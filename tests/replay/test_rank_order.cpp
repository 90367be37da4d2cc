#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/detail/rank_order.hpp>

#include "testing.hpp"

using troop::Random;
using troop::detail::RankOrder;
using troop::testing::Failures;

namespace {

constexpr std::size_t kCapacities[] = {1, 2, 3, 63, 64, 65, 127, 129, 1000, 3000, 20000};

/// The same, kept by the standard library: descending priorities, then ascending slots.
class SlowOrder {
 public:
  explicit SlowOrder(std::size_t capacity) : priorities_(capacity) {}

  void set(std::size_t slot, float priority) {
    if (priorities_[slot] > 0.0f) order_.erase({-priorities_[slot], slot});
    if (priority > 0.0f) order_.insert({-priority, slot});
    priorities_[slot] = priority;
  }
  const std::vector<float>& priorities() const { return priorities_; }
  std::vector<std::size_t> slots() const {
    std::vector<std::size_t> slots;
    for (const auto& entry : order_) slots.push_back(entry.second);
    return slots;
  }

 private:
  std::vector<float> priorities_;
  std::set<std::pair<float, std::size_t>> order_;
};

std::vector<std::size_t> slots_of(const RankOrder& order) {
  std::vector<std::size_t> slots(order.size());
  std::iota(slots.begin(), slots.end(), std::size_t{0});
  order.slots_at(slots, slots);
  return slots;
}

void compare(const RankOrder& order, const SlowOrder& slow, Failures& failures, const std::string& where) {
  if (slots_of(order) != slow.slots()) failures.add(where + ": the order");
  for (std::size_t slot = 0; slot < order.capacity(); ++slot)
    if (order.priority(slot) != slow.priorities()[slot]) failures.add(where + ": a priority");
}

enum class Kind { spread, tied, growing, shrinking };

float draw_priority(Kind kind, int step, Random& random) {
  switch (kind) {
    case Kind::spread:
      return random.below(20) == 0 ? 0.0f : static_cast<float>(std::pow(10.0, random.uniform(-45.0, 38.0)));
    case Kind::tied:
      return static_cast<float>(random.below(4));
    case Kind::growing:
      return static_cast<float>(step + 1);
    default:
      return random.below(10) == 0 ? 1.0f / static_cast<float>(step + 1) : 0.0f;
  }
}

}  // namespace

TEST_CASE("an order has no slots at first, and capacities of 0 and beyond 2^32 - 1 are refused") {
  for (const std::size_t capacity : kCapacities) {
    const RankOrder order(capacity);
    CHECK(order.capacity() == capacity);
    CHECK(order.size() == 0);
    CHECK(order.priority(capacity - 1) == 0.0f);
  }
  CHECK_THROWS_WITH_AS(RankOrder(0), "capacity: 0 is not allowed; expected an integer from 1 to 2^32 - 1",
                       troop::InvalidArgument);
  CHECK_THROWS_WITH_AS(RankOrder(std::size_t{1} << 32),
                       "capacity: 4294967296 is not allowed; expected an integer from 1 to 2^32 - 1",
                       troop::InvalidArgument);
}

TEST_CASE("slots stand by descending priority, tied ones by slot, those of 0 nowhere") {
  RankOrder order(10);
  const std::vector<std::size_t> slots{3, 9, 0, 5, 4, 3};
  const std::vector<float> priorities{
      9.0f, 2.0f, 2.0f, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(), 0.5f};
  order.set(slots, priorities);  // of slot 3 the last one stays
  CHECK(slots_of(order) == std::vector<std::size_t>{4, 0, 9, 3, 5});
  CHECK(order.priority(3) == 0.5f);
  order.set(4, 0.0f);
  order.set(0, -0.0f);
  order.set(7, 0.0f);
  CHECK(slots_of(order) == std::vector<std::size_t>{9, 3, 5});
  order.set(7, 2.0f);
  order.set(9, 2.0f);
  CHECK(slots_of(order) == std::vector<std::size_t>{7, 9, 3, 5});
  // Ranks in any order, repeated, into other memory.
  const std::vector<std::size_t> ranks{3, 0, 3, 1};
  std::vector<std::size_t> found(4);
  order.slots_at(ranks, found);
  CHECK(found == std::vector<std::size_t>{5, 7, 5, 9});
  order.slots_at({}, {});
}

TEST_CASE("after any history the order is that of a std::set, through growth, ties and removal of all") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Failures failures;
  for (const std::size_t capacity : kCapacities) {
    Random random(seed, "order", capacity);
    RankOrder order(capacity);
    SlowOrder slow(capacity);
    const auto steps = static_cast<int>(std::min<std::size_t>(4 * capacity + 500, 30000));
    for (int round = 0; round < 8; ++round) {
      const auto kind = static_cast<Kind>(round % 4);
      for (int step = 0; step < steps; ++step) {
        const std::size_t slot = random.below(capacity);
        const float priority = draw_priority(kind, step, random);
        order.set(slot, priority);
        slow.set(slot, priority);
        if (step % (steps / 4) == 0)
          compare(order, slow, failures,
                  "capacity " + std::to_string(capacity) + ", step " + std::to_string(step));
      }
      compare(order, slow, failures,
              "capacity " + std::to_string(capacity) + ", round " + std::to_string(round));
      if (round % 2 == 1) {  // all are removed: the smallest first, the largest first, by slot
        std::vector<std::size_t> all = slots_of(order);
        if (round == 1) std::reverse(all.begin(), all.end());
        if (round == 5) std::sort(all.begin(), all.end());
        for (const std::size_t slot : all) {
          order.set(slot, 0.0f);
          slow.set(slot, 0.0f);
        }
        if (order.size() != 0) failures.add("capacity " + std::to_string(capacity) + ": not all removed");
      }
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("a batch leaves the order of its last priorities, in trees of any height") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  // The last one is high enough for the nodes to be fetched before.
  for (const std::size_t capacity : {std::size_t{70}, std::size_t{5000}, std::size_t{900000}}) {
    CAPTURE(capacity);
    Random random(seed, "batches", capacity);
    RankOrder order(capacity);
    std::vector<float> priorities(capacity);
    for (float& priority : priorities) priority = static_cast<float>(random.uniform());
    order.build(0, priorities);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::size_t> slots(random.below(2000));
      std::vector<float> values(slots.size());
      for (std::size_t i = 0; i < slots.size(); ++i) {
        slots[i] = random.below(capacity);
        values[i] = static_cast<float>(random.below(3)) * static_cast<float>(random.uniform());
        priorities[slots[i]] = values[i];
      }
      order.set(slots, values);
    }
    std::vector<std::size_t> expected;
    for (std::size_t slot = 0; slot < capacity; ++slot)
      if (priorities[slot] > 0.0f) expected.push_back(slot);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](std::size_t a, std::size_t b) { return priorities[a] > priorities[b]; });
    CHECK(order.size() == expected.size());
    CHECK(slots_of(order) == expected);
  }
}

TEST_CASE("an order that is built at once is the one of single changes, and goes on working") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Failures failures;
  for (const std::size_t size : {0u, 1u, 63u, 64u, 65u, 96u, 97u, 2048u, 2049u, 3137u, 60000u}) {
    Random random(seed, "build", size);
    const std::size_t first = random.below(5), capacity = first + size + 1;
    RankOrder order(capacity);
    SlowOrder slow(capacity);
    for (int again = 0; again < 2; ++again) {
      std::vector<float> priorities(size);
      for (std::size_t i = 0; i < size; ++i) {
        priorities[i] = random.below(9) == 0 ? 0.0f : static_cast<float>(1 + random.below(size));
        slow.set(first + i, priorities[i]);
      }
      order.build(first, priorities);
      compare(order, slow, failures, "built, size " + std::to_string(size));
      for (std::size_t step = 0; step < 2 * size; ++step) {
        const std::size_t slot = random.below(capacity);
        const float priority = random.below(3) == 0 ? 0.0f : static_cast<float>(1 + random.below(size));
        order.set(slot, priority);
        slow.set(slot, priority);
      }
      compare(order, slow, failures, "changed, size " + std::to_string(size));
      for (std::size_t slot = 0; slot < capacity; ++slot) {
        order.set(slot, 0.0f);
        slow.set(slot, 0.0f);
      }
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("nodes that are half empty everywhere still find room in the memory that was set aside") {
  // Ascending insertion leaves every split node half full; then removals that just keep nodes from being
  // joined.
  constexpr std::size_t kCapacity = 200000;
  for (const bool ascending : {true, false}) {
    CAPTURE(ascending);
    RankOrder order(kCapacity);
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < kCapacity; ++i)
        order.set(i, static_cast<float>(ascending ? i + 1 : kCapacity - i) + static_cast<float>(round));
      CHECK(order.size() == kCapacity);
      const auto slots = slots_of(order);
      CHECK(slots.front() == (ascending ? kCapacity - 1 : 0));
      CHECK(slots.back() == (ascending ? 0 : kCapacity - 1));
      for (std::size_t i = round == 1 ? 1 : 0; i < kCapacity; i += 2) order.set(i, 0.0f);
      CHECK(order.size() == kCapacity / 2);
    }
  }
}
