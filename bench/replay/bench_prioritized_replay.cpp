// A prioritized replay under the load that a learner and its actors make, in one thread.
//
// add50      50 transitions with given priorities go in, the oldest 50 go out sample512  a batch of 512:
// keys, probabilities, importance-sampling weights, records update512  new priorities for a batch drawn
// earlier; sixteen such batches take turns mix        a learner step at one insert a draw: sample 512, update
// them, add 512 in chunks of 50
//
// Records: cart_pole (44 bytes) and atari (56,460 bytes: two stacks of four 84 x 84 frames). The replay is
// full, alpha is 0.6, beta 0.4, priorities are exponentially distributed. A name is verb/record/entries:N, so
// that --benchmark_filter='^mix/cart_pole/' or 'entries:131072$' chooses.
#include <benchmark/benchmark.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "../support/available_memory.hpp"

namespace {

using troop::Key;
using troop::PrioritizedReplay;

constexpr std::size_t kBatch = 512;
constexpr std::size_t kChunk = 50;
constexpr std::size_t kChunks = 64;       // ready-made input that takes turns
constexpr std::size_t kHeldBatches = 16;  // earlier samples whose keys are updated
constexpr troop::SampleOptions kSampling{.beta = 0.4};

struct CartPoleTransition {
  std::array<float, 4> observation;
  std::array<float, 4> next_observation;
  std::int32_t action;
  float reward;
  float discount;
};
static_assert(sizeof(CartPoleTransition) == 44);

struct AtariTransition {
  std::array<std::uint8_t, 4 * 84 * 84> observation;
  std::array<std::uint8_t, 4 * 84 * 84> next_observation;
  std::int32_t action;
  float reward;
  float discount;
};
static_assert(sizeof(AtariTransition) == 56'460);

template <std::size_t N>
void randomize(std::array<float, N>& values, troop::Random& random) {
  for (float& value : values) value = static_cast<float>(random.normal());
}

template <std::size_t N>
void randomize(std::array<std::uint8_t, N>& values, troop::Random& random) {
  static_assert(N % sizeof(std::uint64_t) == 0);
  for (std::size_t i = 0; i < N; i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random();
    std::memcpy(values.data() + i, &bits, sizeof bits);
  }
}

std::vector<float> random_priorities(std::size_t count, troop::Random& random) {
  std::vector<float> priorities(count);
  for (float& priority : priorities) priority = static_cast<float>(-std::log1p(-random.uniform()) + 1e-3);
  return priorities;
}

/// What one size needs, made once and shared by its verbs.
struct Workload {
  Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;
  virtual ~Workload() = default;
};

template <class Record>
class FullReplay : public Workload {
 public:
  static constexpr std::size_t bytes_for(std::size_t entries) {
    constexpr std::size_t kTreeAndKeys = 16;
    return entries * (sizeof(Record) + kTreeAndKeys) + (kChunks * kChunk + kBatch) * sizeof(Record);
  }

  explicit FullReplay(std::size_t entries)
      : replay_({.capacity = entries, .alpha = 0.6}), random_(1, "bench replay"), records_(kChunks * kChunk) {
    for (Record& record : records_) {
      randomize(record.observation, random_);
      randomize(record.next_observation, random_);
      record.action = static_cast<std::int32_t>(random_.below(2));
      record.reward = static_cast<float>(random_.normal());
      record.discount = 0.99f;
    }
    for (auto& priorities : added_) priorities = random_priorities(kChunk, random_);
    for (auto& priorities : updated_) priorities = random_priorities(kBatch, random_);
    for (std::size_t held = 0; held < entries; held += kChunk) add();
    sample();  // a batch takes its memory the first time
  }

  std::size_t entries() const noexcept { return replay_.capacity(); }

  void add() {
    const std::size_t chunk = next_chunk_++ % kChunks;
    replay_.add(std::span<const Record>(records_).subspan(chunk * kChunk, kChunk), added_[chunk]);
  }

  const troop::Batch<Record>& sample() {
    replay_.sample(kBatch, kSampling, random_, batch_);
    return batch_;
  }

  std::size_t update(std::span<const Key> keys) {
    return replay_.update(keys, updated_[next_update_++ % kChunks]);
  }

  /// Transitions that `mix` has still to add.
  std::size_t owed = 0;

 private:
  PrioritizedReplay<Record> replay_;
  troop::Random random_;
  troop::Batch<Record> batch_;
  std::vector<Record> records_;
  std::array<std::vector<float>, kChunks> added_, updated_;
  std::size_t next_chunk_ = 0, next_update_ = 0;
};

std::unique_ptr<Workload> current;

/// The full replay of this size, or null, with the benchmark told to stop, when it does not fit into memory.
template <class Record>
FullReplay<Record>* full_replay(benchmark::State& state) {
  const auto entries = static_cast<std::size_t>(state.range(0));
  state.counters["record_bytes"] = sizeof(Record);
  auto* full = dynamic_cast<FullReplay<Record>*>(current.get());
  if (full != nullptr && full->entries() == entries) return full;
  current.reset();
  const std::size_t needed = FullReplay<Record>::bytes_for(entries);
  const std::size_t available = troop::bench::available_memory();
  if (needed > available - available / 10) {
    const std::string reason = "needs " + std::to_string(needed >> 20) + " MiB of memory, " +
                               std::to_string(available >> 20) + " MiB are available";
    state.SkipWithError(reason.c_str());
    return nullptr;
  }
  auto made = std::make_unique<FullReplay<Record>>(entries);
  full = made.get();
  current = std::move(made);
  return full;
}

template <class Record>
void consume(const troop::Batch<Record>& batch) {
  benchmark::DoNotOptimize(batch.records().data());
  benchmark::DoNotOptimize(batch.weights.data());
  benchmark::ClobberMemory();
}

void count_items(benchmark::State& state, std::size_t items_a_call) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(items_a_call));
}

template <class Record>
void add50(benchmark::State& state) {
  auto* full = full_replay<Record>(state);
  if (full == nullptr) return;
  for (auto _ : state) full->add();
  count_items(state, kChunk);
}

template <class Record>
void sample512(benchmark::State& state) {
  auto* full = full_replay<Record>(state);
  if (full == nullptr) return;
  for (auto _ : state) consume(full->sample());
  count_items(state, kBatch);
}

template <class Record>
void update512(benchmark::State& state) {
  auto* full = full_replay<Record>(state);
  if (full == nullptr) return;
  std::array<std::vector<Key>, kHeldBatches> held;
  for (auto& keys : held) keys = full->sample().keys;
  std::size_t next = 0, stale = 0;
  for (auto _ : state) stale += full->update(held[next++ % kHeldBatches]);
  if (stale != 0) state.SkipWithError("some of the updated items were gone");
  count_items(state, kBatch);
}

template <class Record>
void mix(benchmark::State& state) {
  auto* full = full_replay<Record>(state);
  if (full == nullptr) return;
  for (auto _ : state) {
    const auto& batch = full->sample();
    consume(batch);
    benchmark::DoNotOptimize(full->update(batch.keys));
    for (full->owed += kBatch; full->owed >= kChunk; full->owed -= kChunk) full->add();
  }
  count_items(state, kBatch);
}

/// Sizes outside, verbs inside, so that the verbs of one size follow each other and share its replay.
template <class Record>
void register_all(const std::string& record, int smallest, int largest) {
  const std::pair<const char*, void (*)(benchmark::State&)> verbs[] = {{"add50", add50<Record>},
                                                                       {"sample512", sample512<Record>},
                                                                       {"update512", update512<Record>},
                                                                       {"mix", mix<Record>}};
  for (int log2 = smallest; log2 <= largest; ++log2) {
    for (const auto& [verb, function] : verbs) {
      benchmark::RegisterBenchmark((std::string(verb) + "/" + record).c_str(), function)
          ->ArgName("entries")
          ->Arg(std::int64_t{1} << log2)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

[[maybe_unused]] const bool registered = [] {
  register_all<CartPoleTransition>("cart_pole", 14, 23);
  register_all<AtariTransition>("atari", 12, 17);
  return true;
}();

}  // namespace
