// Threads at one sharded replay, each doing the same work: what all of them together get done.
//
// - add50  50 transitions with given priorities go in, the oldest 50 of a shard go out
// - mix    a learner step at one insert a draw: sample 512, update them, add 512 in chunks of 50
//
// Records are those of bench_prioritized_replay (cart_pole), 2^20 entries, alpha 0.6. Names:
// verb/record/shards:S/entries:N/threads:T, T from 1 to twice the number of cores. items_per_second is of all
// threads: inserts of add50, draws of mix. lock_waits is how often a call had to wait for the lock of a
// shard.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sharded_replay.hpp>

#include "../support/replay_workload.hpp"

namespace {

using namespace troop::bench;
using Replay = troop::ShardedReplay<troop::PrioritizedReplay<CartPoleTransition>>;

constexpr std::size_t kEntries = std::size_t{1} << 20;

/// The full replay of as many shards as the benchmarks that follow each other share.
struct Full {
  explicit Full(std::size_t shards)
      : replay({.capacity = kEntries, .alpha = 0.6}, shards), supply(troop::Random(1, "supply")) {
    for (std::size_t turn = 0; turn < kEntries / kChunk + shards; ++turn) add(turn);
  }

  void add(std::size_t turn) { replay.add(supply.chunk(turn), supply.chunk_priorities(turn)); }

  Replay replay;
  Supply<CartPoleTransition> supply;
};

std::unique_ptr<Full> full;
std::uint64_t waits_before;

void set_up(const benchmark::State& state) {
  const auto shards = static_cast<std::size_t>(state.range(0));
  if (full == nullptr || full->replay.shards().size() != shards) {
    full.reset();
    full = std::make_unique<Full>(shards);
  }
  waits_before = full->replay.statistics().lock_waits;
}

/// Of the first thread alone, for counters of all threads are added up.
void count(benchmark::State& state, std::size_t items_a_call) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(items_a_call));
  if (state.thread_index() != 0) return;
  const std::uint64_t waits = full->replay.statistics().lock_waits - waits_before;
  state.counters["lock_waits"] =
      static_cast<double>(waits) / static_cast<double>(state.iterations() * state.threads());
}

void add50(benchmark::State& state) {
  auto turn = static_cast<std::size_t>(state.thread_index()) * 7;
  for (auto _ : state) full->add(turn++);
  count(state, kChunk);
}

void mix(benchmark::State& state) {
  auto turn = static_cast<std::size_t>(state.thread_index()) * 7;
  troop::Random random(1, "draws", turn);
  troop::Batch<CartPoleTransition> batch;
  std::size_t owed = 0;
  for (auto _ : state) {
    full->replay.sample(kBatch, {.beta = 0.4}, random, batch);
    benchmark::DoNotOptimize(full->replay.update(batch.keys, full->supply.batch_priorities(turn)));
    for (owed += kBatch; owed >= kChunk; owed -= kChunk) full->add(turn++);
  }
  count(state, kBatch);
}

[[maybe_unused]] const bool registered = [] {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::pair<const char*, void (*)(benchmark::State&)> verbs[] = {{"add50", add50}, {"mix", mix}};
  for (const std::int64_t shards : {1, 4, 16}) {
    for (const auto& [verb, function] : verbs) {
      benchmark::RegisterBenchmark((std::string(verb) + "/cart_pole").c_str(), function)
          ->ArgNames({"shards", "entries"})
          ->Args({shards, static_cast<std::int64_t>(kEntries)})
          ->Setup(set_up)
          ->ThreadRange(1, 2 * cores)
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}();

}  // namespace
