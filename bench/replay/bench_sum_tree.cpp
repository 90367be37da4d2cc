// The sum tree alone: 512 draws, 512 changes of random leaves, 50 changes of adjacent leaves; and its
// companion of extremes: 512 changed leaves, without the sum tree's own part. All leaves are positive and
// exponentially distributed; masses, leaves and values are made beforehand and take turns.
#include <benchmark/benchmark.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/min_max_tree.hpp>
#include <troop/replay/sum_tree.hpp>

namespace {

using troop::SumTree;

constexpr std::size_t kBatch = 512;
constexpr std::size_t kRange = 50;
constexpr std::size_t kTurns = 64;

std::vector<float> random_values(std::size_t count, troop::Random& random) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(-std::log1p(-random.uniform()) + 1e-3);
  return values;
}

/// A tree of this size with every leaf set; the benchmarks of one size share it.
SumTree& full_tree(const benchmark::State& state) {
  static std::unique_ptr<SumTree> tree;
  const auto leaves = static_cast<std::size_t>(state.range(0));
  if (tree == nullptr || tree->capacity() != leaves) {
    tree.reset();
    tree = std::make_unique<SumTree>(leaves);
    troop::Random random(1, "leaves");
    tree->set_range(0, random_values(leaves, random));
  }
  return *tree;
}

void count_items(benchmark::State& state, std::size_t items_a_call) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(items_a_call));
}

void find512(benchmark::State& state) {
  const SumTree& tree = full_tree(state);
  troop::Random random(2, "masses");
  std::array<std::vector<double>, kTurns> masses;
  for (auto& batch : masses) {
    batch.resize(kBatch);
    for (double& mass : batch) mass = random.uniform() * tree.total();
  }
  std::vector<std::size_t> found(kBatch);
  std::size_t turn = 0;
  for (auto _ : state) {
    tree.find(masses[turn++ % kTurns], found);
    benchmark::DoNotOptimize(found.data());
    benchmark::ClobberMemory();
  }
  count_items(state, kBatch);
}

void set512(benchmark::State& state) {
  SumTree& tree = full_tree(state);
  troop::Random random(3, "changes");
  std::array<std::vector<std::size_t>, kTurns> leaves;
  std::array<std::vector<float>, kTurns> values;
  for (std::size_t i = 0; i < kTurns; ++i) {
    leaves[i].resize(kBatch);
    for (std::size_t& leaf : leaves[i]) leaf = static_cast<std::size_t>(random.below(tree.capacity()));
    values[i] = random_values(kBatch, random);
  }
  // The values move on by one a round, so that a leaf does not get what it has already.
  std::size_t turn = 0;
  for (auto _ : state) {
    tree.set(leaves[turn % kTurns], values[(turn + turn / kTurns) % kTurns]);
    ++turn;
    benchmark::DoNotOptimize(tree.total());
  }
  count_items(state, kBatch);
}

void set_range50(benchmark::State& state) {
  SumTree& tree = full_tree(state);
  troop::Random random(4, "ranges");
  std::array<std::vector<float>, kTurns> values;
  for (auto& batch : values) batch = random_values(kRange, random);
  std::size_t turn = 0, first = 0;
  for (auto _ : state) {
    tree.set_range(first, values[turn++ % kTurns]);
    benchmark::DoNotOptimize(tree.total());
    first = first + 2 * kRange <= tree.capacity() ? first + kRange : 0;
  }
  count_items(state, kRange);
}

void extremes512(benchmark::State& state) {
  const SumTree& tree = full_tree(state);
  troop::MinMaxTree extremes(tree.capacity());
  extremes.update_range(tree.leaves(), 0, tree.capacity());
  // Two sets of leaves by turns, so that nodes do change.
  std::array<std::vector<float>, 2> leaves;
  leaves.fill({tree.leaves().begin(), tree.leaves().end()});
  troop::Random random(5, "extremes");
  std::array<std::vector<std::size_t>, kTurns> changed;
  for (auto& batch : changed) {
    batch.resize(kBatch);
    for (std::size_t& leaf : batch) {
      leaf = static_cast<std::size_t>(random.below(tree.capacity()));
      leaves[1][leaf] = static_cast<float>(-std::log1p(-random.uniform()) + 1e-3);
    }
  }
  std::size_t turn = 0;
  for (auto _ : state) {
    extremes.update(leaves[(turn / kTurns + 1) % 2], changed[turn % kTurns]);
    ++turn;
    benchmark::DoNotOptimize(extremes.min());
  }
  count_items(state, kBatch);
}

[[maybe_unused]] const bool registered = [] {
  constexpr std::array<void (*)(benchmark::State&), 4> functions{find512, set512, set_range50, extremes512};
  constexpr std::array<const char*, 4> names{"find512", "set512", "set_range50", "extremes512"};
  for (int log2 = 14; log2 <= 23; ++log2) {
    for (std::size_t i = 0; i < functions.size(); ++i) {
      benchmark::RegisterBenchmark(names[i], functions[i])
          ->ArgName("leaves")
          ->Arg(std::int64_t{1} << log2)
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}();

}  // namespace
