#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/min_max_tree.hpp>
#include <troop/replay/sum_tree.hpp>

#include "testing.hpp"

using troop::MinMaxTree;
using troop::Random;
using troop::SumTree;
using troop::testing::Failures;

namespace {

constexpr std::size_t kCapacities[] = {1, 2, 15, 16, 17, 255, 256, 257, 4095, 4097, 65537};

float slow_min(std::span<const float> leaves) {
  float min = 0.0f;
  for (const float leaf : leaves)
    if (leaf > 0.0f && (min == 0.0f || leaf < min)) min = leaf;
  return min;
}

float slow_max(std::span<const float> leaves) {
  return *std::max_element(leaves.begin(), leaves.end());
}

}  // namespace

TEST_CASE("without a positive leaf the smallest and the largest are 0") {
  for (const std::size_t capacity : kCapacities) {
    CAPTURE(capacity);
    MinMaxTree tree(capacity);
    CHECK(tree.capacity() == capacity);
    CHECK(tree.min() == 0.0f);
    CHECK(tree.max() == 0.0f);
    std::vector<float> leaves(capacity);
    leaves.back() = 0.5f;
    tree.update_range(leaves, capacity - 1, 1);
    CHECK(tree.min() == 0.5f);
    CHECK(tree.max() == 0.5f);
    leaves.back() = -0.0f;
    tree.update_range(leaves, capacity - 1, 1);
    CHECK(tree.min() == 0.0f);
    CHECK(tree.max() == 0.0f);
  }
}

TEST_CASE("capacities of 0 and beyond 2^40 have no smallest and largest leaf") {
  CHECK_THROWS_WITH_AS(MinMaxTree(0), "capacity: 0 is not allowed; expected an integer from 1 to 2^40",
                       troop::InvalidArgument);
  CHECK_THROWS_WITH_AS(MinMaxTree((std::size_t{1} << 40) + 1),
                       "capacity: 1099511627777 is not allowed; expected an integer from 1 to 2^40",
                       troop::InvalidArgument);
}

TEST_CASE("zeros do not count for the smallest, denormal and huge leaves do") {
  SumTree leaves(1000);
  MinMaxTree extremes(1000);
  const std::vector<std::size_t> slots{0, 999, 500, 16, 17};
  const auto set = [&](std::vector<float> values) {
    leaves.set(slots, values);
    extremes.update(leaves.leaves(), slots);
  };
  set({0.0f, 3.0f, 2.0f, 0.0f, 5.0f});
  CHECK(extremes.min() == 2.0f);
  CHECK(extremes.max() == 5.0f);
  const float denormal = std::numeric_limits<float>::denorm_min(), huge = std::numeric_limits<float>::max();
  set({huge, 0.0f, denormal, -0.0f, 5.0f});
  CHECK(extremes.min() == denormal);
  CHECK(extremes.max() == huge);
  set({1.0f, 1.0f, -0.0f, 1.0f, 0.0f});
  CHECK(extremes.min() == 1.0f);
  CHECK(extremes.max() == 1.0f);
  set({0.0f, 0.0f, 0.0f, 0.0f, -0.0f});
  CHECK(extremes.min() == 0.0f);
  CHECK(extremes.max() == 0.0f);
  extremes.update(leaves.leaves(), {});
  extremes.update_range(leaves.leaves(), 1000, 0);
  CHECK(extremes.max() == 0.0f);
}

TEST_CASE("after any history of batches and ranges the extremes are those of the leaves") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Failures failures;
  for (const std::size_t capacity : kCapacities) {
    Random random(seed, "history", capacity);
    SumTree leaves(capacity);
    MinMaxTree extremes(capacity);
    for (int operation = 0; operation < 400; ++operation) {
      // Few different values in some stretches, so that extremes are shared and vanish; few positive in
      // others.
      const bool ties = operation / 50 % 2 == 0, sparse = operation / 100 % 2 == 0;
      const auto draw = [&] {
        if (random.below(sparse ? 1 : 4) == 0 && random.below(8) != 0) return 0.0f;
        return ties ? static_cast<float>(1 + random.below(4))
                    : static_cast<float>(std::pow(10.0, random.uniform(-45.0, 38.0)));
      };
      if (operation % 4 != 0) {
        const std::size_t count = operation % 7 == 0 ? random.below(3000) : random.below(20);
        std::vector<std::size_t> slots(count);
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) {
          slots[i] = random.below(capacity);
          values[i] = draw();
        }
        leaves.set(slots, values);
        extremes.update(leaves.leaves(), slots);
      } else {
        const std::size_t first = random.below(capacity), count = random.below(capacity - first + 1);
        std::vector<float> values(count);
        for (float& value : values) value = draw();
        if (operation % 8 == 0) std::fill(values.begin(), values.end(), 0.0f);
        leaves.set_range(first, values);
        extremes.update_range(leaves.leaves(), first, count);
      }
      const std::string where =
          "capacity " + std::to_string(capacity) + ", operation " + std::to_string(operation);
      if (extremes.min() != slow_min(leaves.leaves())) failures.add(where + ": min");
      if (extremes.max() != slow_max(leaves.leaves())) failures.add(where + ": max");
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("a moved tree of extremes goes on working") {
  std::vector<float> leaves(300, 1.0f);
  MinMaxTree tree(300);
  tree.update_range(leaves, 0, 300);
  MinMaxTree moved(std::move(tree));
  leaves[7] = 0.25f;
  const std::vector<std::size_t> changed{7};
  moved.update(leaves, changed);
  CHECK(moved.min() == 0.25f);
  CHECK(moved.max() == 1.0f);
}
