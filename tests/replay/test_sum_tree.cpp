#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/sum_tree.hpp>

#include "testing.hpp"

using troop::Random;
using troop::SumTree;
using troop::testing::Failures;

namespace {

constexpr std::size_t kCapacities[] = {1,   2,    3,    15,   16,    17,    255,   256,
                                       257, 4095, 4096, 4097, 65536, 65537, 100003};
/// The running sums of arbitrary floats are rounded, so a leaf's range is known to about this factor only.
constexpr double kBeyondRounding = 1.0 + 0x1p-48;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<float> leaves_of(const SumTree& tree) {
  std::vector<float> leaves(tree.capacity());
  for (std::size_t i = 0; i < leaves.size(); ++i) leaves[i] = tree[i];
  return leaves;
}

SumTree tree_with(const std::vector<float>& leaves) {
  SumTree tree(leaves.size());
  tree.set_range(0, leaves);
  return tree;
}

/// The tree is the same, in every node that a total or a draw could show, as one freshly built.
bool is_like_new(const SumTree& tree) {
  const SumTree fresh = tree_with(leaves_of(tree));
  if (std::bit_cast<std::uint64_t>(tree.total()) != std::bit_cast<std::uint64_t>(fresh.total())) return false;
  if (!(tree.total() > 0.0)) return true;
  std::vector<double> masses(257);
  for (std::size_t i = 0; i < masses.size(); ++i)
    masses[i] = tree.total() * static_cast<double>(i) / static_cast<double>(masses.size() - 1);
  std::vector<std::size_t> found(masses.size()), expected(masses.size());
  tree.find(masses, found);
  fresh.find(masses, expected);
  return found == expected;
}

/// For leaves whose running sums are exact: the leaf whose half-open range holds the mass.
std::size_t slow_find(const std::vector<float>& leaves, double mass) {
  double before = 0.0;
  std::size_t last = leaves.size();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!(leaves[i] > 0.0f)) continue;
    last = i;
    before += static_cast<double>(leaves[i]);
    if (mass < before) return i;
  }
  return last;
}

/// Probes masses that a tree with errors in a node, or with a wrong tie, would answer with a dead leaf.
void probe_for_dead_leaves(const SumTree& tree, Random& random, Failures& failures, const std::string& what) {
  const double total = tree.total();
  std::vector<double> masses{-kInfinity,
                             -1.0,
                             -0.0,
                             0.0,
                             std::numeric_limits<double>::denorm_min(),
                             std::nextafter(total, 0.0),
                             total,
                             std::nextafter(total, kInfinity),
                             total * kBeyondRounding,
                             2.0 * total,
                             kInfinity};
  double before = 0.0;
  for (std::size_t i = 0; i < std::min<std::size_t>(tree.capacity(), 3000); ++i) {
    if (tree[i] == 0.0f) continue;
    before += static_cast<double>(tree[i]);
    masses.insert(masses.end(), {std::nextafter(before, 0.0), before, std::nextafter(before, kInfinity)});
  }
  for (int i = 0; i < 200; ++i) masses.push_back(random.uniform() * total);
  std::vector<std::size_t> found(masses.size());
  tree.find(masses, found);
  const auto leaves = leaves_of(tree);
  const auto alive = [](float leaf) { return leaf > 0.0f; };
  const auto first =
      static_cast<std::size_t>(std::find_if(leaves.begin(), leaves.end(), alive) - leaves.begin());
  const auto last =
      leaves.size() - 1 -
      static_cast<std::size_t>(std::find_if(leaves.rbegin(), leaves.rend(), alive) - leaves.rbegin());
  for (std::size_t i = 0; i < masses.size(); ++i) {
    const std::string where = what + ", mass " + std::to_string(masses[i]);
    if (found[i] >= tree.capacity()) {
      failures.add(where + ": outside of the tree");
    } else if (!(tree[found[i]] > 0.0f)) {
      failures.add(where + ": dead leaf " + std::to_string(found[i]));
    }
    if (masses[i] <= 0.0 && found[i] != first) failures.add(where + ": not the first leaf");
    if (masses[i] >= total * kBeyondRounding && found[i] != last) failures.add(where + ": not the last leaf");
    if (tree.find(masses[i]) != found[i]) failures.add(where + ": alone found elsewhere than in a batch");
  }
}

}  // namespace

TEST_CASE("a new tree is all zeros") {
  for (const std::size_t capacity : kCapacities) {
    CAPTURE(capacity);
    const SumTree tree(capacity);
    CHECK(tree.capacity() == capacity);
    CHECK(tree.total() == 0.0);
    CHECK(tree[0] == 0.0f);
    CHECK(tree[capacity - 1] == 0.0f);
  }
}

TEST_CASE("capacities of 0 and beyond 2^40 are refused") {
  CHECK_THROWS_WITH_AS(SumTree(0), "capacity: 0 is not allowed; expected an integer from 1 to 2^40",
                       troop::InvalidArgument);
  CHECK_THROWS_WITH_AS(SumTree((std::size_t{1} << 40) + 1),
                       "capacity: 1099511627777 is not allowed; expected an integer from 1 to 2^40",
                       troop::InvalidArgument);
  CHECK_THROWS_AS(SumTree{std::numeric_limits<std::size_t>::max()}, troop::InvalidArgument);
}

TEST_CASE("each leaf is found by just its own range of masses, in trees of any capacity") {
  for (const std::size_t capacity : kCapacities) {
    CAPTURE(capacity);
    const std::uint64_t seed = troop::testing::seed();
    CAPTURE(seed);
    Random random(seed, "ranges", capacity);
    // Multiples of 1/4 with a third of zeros: all running sums are exact.
    std::vector<float> leaves(capacity);
    for (auto& leaf : leaves)
      leaf = random.below(3) == 0 ? 0.0f : static_cast<float>(random.below(64)) / 4.0f;
    leaves[random.below(capacity)] = 0.25f;
    const SumTree tree = tree_with(leaves);

    std::vector<double> masses;
    std::vector<std::size_t> expected;
    double before = 0.0;
    for (std::size_t i = 0; i < capacity; ++i) {
      if (leaves[i] == 0.0f) continue;
      const double after = before + static_cast<double>(leaves[i]);
      for (const double mass :
           {before, std::nextafter(before, kInfinity), (before + after) / 2, std::nextafter(after, 0.0)}) {
        masses.push_back(mass);
        expected.push_back(i);
      }
      before = after;
    }
    CHECK(tree.total() == before);
    std::vector<std::size_t> found(masses.size());
    tree.find(masses, found);
    CHECK(found == expected);

    CHECK(tree.find(0.0) == expected.front());
    CHECK(tree.find(-0.0) == expected.front());
    CHECK(tree.find(-1e300) == expected.front());
    CHECK(tree.find(std::nextafter(before, 0.0)) == expected.back());
    CHECK(tree.find(before) == expected.back());
    CHECK(tree.find(std::nextafter(before, kInfinity)) == expected.back());
    CHECK(tree.find(kInfinity) == expected.back());
  }
}

TEST_CASE("a single leaf is found from every place of it") {
  for (const std::size_t capacity : kCapacities) {
    SumTree tree(capacity);
    Failures failures;
    for (std::size_t step = std::max<std::size_t>(1, capacity / 257), leaf = 0; leaf < capacity;
         leaf += step) {
      for (const float value : {1e-45f, 1.0f, 3e38f}) {
        tree.set(leaf, value);
        if (tree.total() != static_cast<double>(value)) failures.add("total of leaf " + std::to_string(leaf));
        for (const double mass : {-1.0, 0.0, tree.total() / 2, tree.total(), 1e300})
          if (tree.find(mass) != leaf) failures.add("leaf " + std::to_string(leaf));
      }
      tree.set(leaf, 0.0f);
      if (tree.total() != 0.0) failures.add("a remainder after leaf " + std::to_string(leaf));
    }
    CAPTURE(capacity);
    TROOP_CHECK_NONE(failures);
  }
}

TEST_CASE("a dead leaf is never found, however few and however small the living ones are") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Failures failures;
  for (const std::size_t capacity : kCapacities) {
    Random random(seed, "dead", capacity);
    SumTree tree(capacity);
    const std::string name = "capacity " + std::to_string(capacity);
    for (int round = 0; round < 4; ++round) {
      // Full of large priorities over nine decades ...
      std::vector<float> values(capacity);
      for (auto& value : values) value = static_cast<float>(std::pow(10.0, random.uniform(-1.0, 8.0)));
      tree.set_range(0, values);
      probe_for_dead_leaves(tree, random, failures, name + ", full");
      // ... then all but a few tiny ones go, in pieces of different sizes.
      for (std::size_t first = 0; first < capacity;) {
        const std::size_t count = std::min<std::size_t>(1 + random.below(1000), capacity - first);
        tree.fill(first, count, 0.0f);
        first += count;
      }
      if (tree.total() != 0.0) failures.add(name + ": a remainder in an empty tree");
      for (int left = 0; left < 3; ++left) {
        tree.set(random.below(capacity), static_cast<float>(std::pow(10.0, random.uniform(-38.0, -30.0))));
        probe_for_dead_leaves(tree, random, failures, name + ", nearly empty");
      }
      // A tiny leaf beside huge ones: its range vanishes in the rounding, and yet nothing dead is found.
      tree.set(random.below(capacity), 1e30f);
      tree.set(random.below(capacity), 3e38f);
      probe_for_dead_leaves(tree, random, failures, name + ", mixed");
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("the leaves are seen where the tree keeps them, before and after it is moved") {
  SumTree tree(100);
  const std::span<const float> leaves = tree.leaves();
  REQUIRE(leaves.size() == 100);
  tree.set(42, 2.5f);
  CHECK(leaves[42] == 2.5f);
  SumTree moved(std::move(tree));
  moved.set(99u, 1.0f);
  CHECK(leaves[99] == 1.0f);
}

TEST_CASE("of a leaf that is set twice in a batch the last value stays") {
  SumTree tree(300);
  const std::vector<std::size_t> leaves{7, 299, 7, 8, 299, 7};
  const std::vector<float> values{1.0f, 2.0f, 4.0f, 8.0f, 0.0f, 16.0f};
  tree.set(leaves, values);
  CHECK(tree[7] == 16.0f);
  CHECK(tree[8] == 8.0f);
  CHECK(tree[299] == 0.0f);
  CHECK(tree.total() == 24.0);
  // The same far apart, across the pieces in which a large batch is worked off.
  std::vector<std::size_t> many(5000, 3);
  std::vector<float> last(5000, 1.0f);
  last.back() = 0.5f;
  tree.set(many, last);
  CHECK(tree[3] == 0.5f);
  CHECK(tree.total() == 24.5);
}

TEST_CASE("batches, ranges, fills and single changes all lead to the tree that its leaves define") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t capacity : kCapacities) {
    CAPTURE(capacity);
    Random random(seed, "ways", capacity);
    SumTree batched(capacity), single(capacity);
    std::vector<float> slow(capacity);
    Failures failures;
    for (int round = 0; round < 25; ++round) {
      const std::size_t count = random.below(round % 5 == 0 ? 3000 : 40);
      std::vector<std::size_t> leaves(count);
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) {
        leaves[i] = random.below(capacity);
        values[i] = random.below(4) == 0 ? 0.0f : static_cast<float>(random.uniform());
      }
      batched.set(leaves, values);
      for (std::size_t i = 0; i < count; ++i) {
        single.set(leaves[i], values[i]);
        slow[leaves[i]] = values[i];
      }
      const std::size_t first = random.below(capacity), run = random.below(capacity - first + 1);
      if (round % 2 == 0) {
        std::vector<float> range(run);
        for (auto& value : range) value = static_cast<float>(random.uniform());
        batched.set_range(first, range);
        std::vector<std::size_t> places(run);
        for (std::size_t i = 0; i < run; ++i) places[i] = first + i;
        single.set(places, range);
        std::copy(range.begin(), range.end(), slow.begin() + static_cast<std::ptrdiff_t>(first));
      } else {
        const std::size_t few = std::min<std::size_t>(run, 100);
        batched.fill(first, few, 0.75f);
        for (std::size_t i = 0; i < few; ++i) {
          single.set(first + i, 0.75f);
          slow[first + i] = 0.75f;
        }
      }
      if (leaves_of(batched) != slow || leaves_of(single) != slow) failures.add("leaves");
      if (batched.total() != single.total()) failures.add("totals");
      if (!is_like_new(batched)) failures.add("inner nodes");
    }
    TROOP_CHECK_NONE(failures);
  }
}

TEST_CASE(
    "after any history the total of multiples of a unit is exactly their sum, and draws agree with it") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t capacity : {std::size_t{5}, std::size_t{300}, std::size_t{4097}}) {
    CAPTURE(capacity);
    Random random(seed, "oracle", capacity);
    SumTree tree(capacity);
    std::vector<float> slow(capacity);
    double sum = 0.0;
    Failures failures;
    for (int operation = 0; operation < 100000; ++operation) {
      const std::size_t leaf = random.below(capacity);
      const float value = random.below(3) == 0 ? 0.0f : static_cast<float>(random.below(1u << 20)) / 1024.0f;
      tree.set(leaf, value);
      sum += static_cast<double>(value) - static_cast<double>(slow[leaf]);  // exact: multiples of 2^-10
      slow[leaf] = value;
      if (tree.total() != sum) failures.add("total after operation " + std::to_string(operation));
      if (operation % 512 == 0 && sum > 0.0) {
        for (int i = 0; i < 4; ++i) {
          const double mass = random.uniform() * sum;
          if (tree.find(mass) != slow_find(slow, mass)) failures.add("mass " + std::to_string(mass));
        }
      }
    }
    TROOP_CHECK_NONE(failures);
    CHECK(is_like_new(tree));
  }
}

TEST_CASE("after any history of arbitrary floats the tree is bit for bit the one built from its leaves") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t capacity : {std::size_t{17}, std::size_t{1000}, std::size_t{65537}}) {
    CAPTURE(capacity);
    Random random(seed, "drift", capacity);
    SumTree tree(capacity);
    for (int part = 0; part < 5; ++part) {
      std::vector<std::size_t> leaves(50);
      std::vector<float> values(50);
      for (int operation = 0; operation < 400; ++operation) {
        for (std::size_t i = 0; i < leaves.size(); ++i) {
          leaves[i] = random.below(capacity);
          values[i] =
              random.below(5) == 0 ? 0.0f : static_cast<float>(std::pow(10.0, random.uniform(-38.0, 38.0)));
        }
        tree.set(leaves, values);
      }
      CHECK(is_like_new(tree));
    }
    long double sum = 0.0L;
    for (const float leaf : leaves_of(tree)) sum += static_cast<long double>(leaf);
    CHECK(std::abs(tree.total() - static_cast<double>(sum)) <= 0x1p-50 * static_cast<double>(sum));
  }
}

TEST_CASE("the total of many different priorities is close to their exact sum") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "total");
  std::vector<float> leaves(1u << 20);
  long double sum = 0.0L;
  for (auto& leaf : leaves) {
    leaf = static_cast<float>(std::pow(10.0, random.uniform(-6.0, 3.0)));
    sum += static_cast<long double>(leaf);
  }
  const SumTree tree = tree_with(leaves);
  CHECK(std::abs(static_cast<long double>(tree.total()) - sum) <= 0x1p-50L * sum);
}

TEST_CASE("a batch of any size is found, the empty one included") {
  SumTree tree(1000);
  tree.fill(0, 1000, 1.0f);
  for (const std::size_t count : {0u, 1u, 127u, 128u, 129u, 1000u}) {
    CAPTURE(count);
    std::vector<double> masses(count);
    for (std::size_t i = 0; i < count; ++i) masses[i] = static_cast<double>(i) + 0.5;
    std::vector<std::size_t> found(count, 12345);
    tree.find(masses, found);
    bool all = true;
    for (std::size_t i = 0; i < count; ++i) all = all && found[i] == i;
    CHECK(all);
  }
  tree.set({}, {});  // no leaves, not the leaf 0
  tree.set_range(1000, {});
  tree.fill(1000, 0, 1.0f);
  CHECK(tree.total() == 1000.0);
}

TEST_CASE("a moved tree keeps its leaves and goes on working") {
  SumTree tree(5000);
  tree.set(4321, 2.0f);
  SumTree moved(std::move(tree));
  CHECK(moved.find(1.0) == 4321);
  moved.set(17, 3.0f);
  CHECK(moved.total() == 5.0);
  tree = std::move(moved);
  CHECK(tree.find(2.5) == 17);
  CHECK(tree.find(3.5) == 4321);
}
