// The rank-based sampler alone: 512 stratified draws, 512 new priorities of random slots. All slots have a
// priority, exponentially distributed; parts, slots and priorities are made beforehand and take turns.
#include <benchmark/benchmark.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/rank_based.hpp>

namespace {

using troop::RankBasedSampler;

constexpr std::size_t kBatch = 512;
constexpr std::size_t kTurns = 64;

std::vector<float> random_priorities(std::size_t count, troop::Random& random) {
  std::vector<float> priorities(count);
  for (float& priority : priorities) priority = static_cast<float>(-std::log1p(-random.uniform()) + 1e-3);
  return priorities;
}

/// A sampler of this size; the benchmarks of one size share it.
RankBasedSampler& full_sampler(std::size_t slots) {
  static std::unique_ptr<RankBasedSampler> sampler;
  static std::size_t capacity = 0;
  if (capacity != slots) {
    sampler.reset();
    sampler = std::make_unique<RankBasedSampler>(troop::ReplayOptions{.capacity = slots, .alpha = 0.7});
    capacity = slots;
    troop::Random random(1, "priorities");
    sampler->set_range(0, random_priorities(slots, random));
  }
  return *sampler;
}

void rank_draw512(benchmark::State& state) {
  const RankBasedSampler& sampler = full_sampler(static_cast<std::size_t>(state.range(0)));
  troop::Random random(2, "parts");
  std::vector<double> parts(kBatch), probabilities(kBatch);
  std::vector<std::size_t> slots(kBatch);
  for (auto _ : state) {
    for (std::size_t i = 0; i < kBatch; ++i)
      parts[i] = (static_cast<double>(i) + random.uniform()) / static_cast<double>(kBatch);
    sampler.draw(parts, slots, probabilities);
    benchmark::DoNotOptimize(slots.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

void rank_set512(benchmark::State& state) {
  const auto capacity = static_cast<std::size_t>(state.range(0));
  RankBasedSampler& sampler = full_sampler(capacity);
  troop::Random random(3, "changes");
  std::array<std::vector<std::size_t>, kTurns> slots;
  std::array<std::vector<float>, kTurns> priorities;
  for (std::size_t i = 0; i < kTurns; ++i) {
    slots[i].resize(kBatch);
    for (std::size_t& slot : slots[i]) slot = static_cast<std::size_t>(random.below(capacity));
    priorities[i] = random_priorities(kBatch, random);
  }
  // The priorities move on by one a round, so that a slot does not get what it has already.
  std::size_t turn = 0;
  for (auto _ : state) {
    sampler.set(slots[turn % kTurns], priorities[(turn + turn / kTurns) % kTurns]);
    ++turn;
    benchmark::DoNotOptimize(sampler.total());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

[[maybe_unused]] const bool registered = [] {
  for (int log2 = 14; log2 <= 23; log2 += 3) {
    for (const bool draws : {true, false}) {
      benchmark::RegisterBenchmark(draws ? "rank_draw512" : "rank_set512", draws ? rank_draw512 : rank_set512)
          ->ArgName("slots")
          ->Arg(std::int64_t{1} << log2)
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}();

}  // namespace
