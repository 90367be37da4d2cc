// The records, priorities and sizes that the benchmarks of the replay have in common.
#pragma once

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

#include "available_memory.hpp"

namespace troop::bench {

inline constexpr std::size_t kBatch = 512;
inline constexpr std::size_t kChunk = 50;
inline constexpr std::size_t kTurns = 64;        // ready-made inputs that take turns
inline constexpr std::size_t kHeldBatches = 16;  // earlier samples whose keys are updated

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
void randomize(std::array<float, N>& values, Random& random) {
  for (float& value : values) value = static_cast<float>(random.normal());
}

template <std::size_t N>
void randomize(std::array<std::uint8_t, N>& values, Random& random) {
  static_assert(N % sizeof(std::uint64_t) == 0);
  for (std::size_t i = 0; i < N; i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random();
    std::memcpy(values.data() + i, &bits, sizeof bits);
  }
}

inline std::vector<float> random_priorities(std::size_t count, Random& random) {
  std::vector<float> priorities(count);
  for (float& priority : priorities) priority = static_cast<float>(-std::log1p(-random.uniform()) + 1e-3);
  return priorities;
}

/// Chunks of records to add, and priorities for them and for batches; any number of threads may read it.
template <class Record>
class Supply {
 public:
  static constexpr std::size_t kBytes = kTurns * kChunk * sizeof(Record);

  explicit Supply(Random random) : records_(kTurns * kChunk) {
    for (Record& record : records_) {
      randomize(record.observation, random);
      randomize(record.next_observation, random);
      record.action = static_cast<std::int32_t>(random.below(2));
      record.reward = static_cast<float>(random.normal());
      record.discount = 0.99f;
    }
    for (auto& priorities : added_) priorities = random_priorities(kChunk, random);
    for (auto& priorities : updated_) priorities = random_priorities(kBatch, random);
  }

  std::span<const Record> chunk(std::size_t turn) const noexcept {
    return std::span<const Record>(records_).subspan(turn % kTurns * kChunk, kChunk);
  }
  std::span<const float> chunk_priorities(std::size_t turn) const noexcept { return added_[turn % kTurns]; }
  std::span<const float> batch_priorities(std::size_t turn) const noexcept { return updated_[turn % kTurns]; }

 private:
  std::vector<Record> records_;
  std::array<std::vector<float>, kTurns> added_, updated_;
};

/// False, with the benchmark told to stop, when `bytes` do not fit into the available memory.
inline bool fits_into_memory(benchmark::State& state, std::size_t bytes) {
  const std::size_t available = available_memory();
  if (bytes <= available - available / 10) return true;
  const std::string reason = "needs " + std::to_string(bytes >> 20) + " MiB of memory, " +
                             std::to_string(available >> 20) + " MiB are available";
  state.SkipWithError(reason.c_str());
  return false;
}

/// What one size needs, made once and shared by the benchmarks that follow each other.
struct Workload {
  Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;
  virtual ~Workload() = default;
};

inline std::unique_ptr<Workload> last_workload;

/// The workload of as many entries as the benchmark's first argument says, the last one if it is that; null,
/// with the benchmark told to stop, when it does not fit into memory. `Made` has `bytes_for(entries)`, a
/// constructor from `entries`, and `entries()`.
template <class Made>
Made* workload(benchmark::State& state) {
  const auto entries = static_cast<std::size_t>(state.range(0));
  auto* made = dynamic_cast<Made*>(last_workload.get());
  if (made != nullptr && made->entries() == entries) return made;
  last_workload.reset();
  if (!fits_into_memory(state, Made::bytes_for(entries))) return nullptr;
  auto fresh = std::make_unique<Made>(entries);
  made = fresh.get();
  last_workload = std::move(fresh);
  return made;
}

// The verbs, for any workload with `Record`, `add()`, `sample()`, which gives a `Handle` of the drawn items,
// and `update(handle)`, which gives the number of those that are gone.

inline void count(benchmark::State& state, std::size_t items_a_call, std::size_t record_bytes) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(items_a_call));
  state.counters["record_bytes"] = static_cast<double>(record_bytes);
}

template <class Made>
void add50(benchmark::State& state) {
  auto* full = workload<Made>(state);
  if (full == nullptr) return;
  for (auto _ : state) full->add();
  count(state, kChunk, sizeof(typename Made::Record));
}

template <class Made>
void sample512(benchmark::State& state) {
  auto* full = workload<Made>(state);
  if (full == nullptr) return;
  for (auto _ : state) benchmark::DoNotOptimize(full->sample());
  count(state, kBatch, sizeof(typename Made::Record));
}

template <class Made>
void update512(benchmark::State& state) {
  auto* full = workload<Made>(state);
  if (full == nullptr) return;
  std::array<typename Made::Handle, kHeldBatches> held;
  for (auto& handle : held) handle = full->sample();
  std::size_t next = 0, stale = 0;
  for (auto _ : state) stale += full->update(held[next++ % kHeldBatches]);
  if (stale != 0) state.SkipWithError("some of the updated items were gone");
  count(state, kBatch, sizeof(typename Made::Record));
}

template <class Made>
void mix(benchmark::State& state) {
  auto* full = workload<Made>(state);
  if (full == nullptr) return;
  for (auto _ : state) {
    benchmark::DoNotOptimize(full->update(full->sample()));
    for (full->owed += kBatch; full->owed >= kChunk; full->owed -= kChunk) full->add();
  }
  count(state, kBatch, sizeof(typename Made::Record));
}

/// How each record is called in the names of benchmarks, and its sizes: 2^kSmallest to 2^kLargest.
template <class Record>
struct Sizes;
template <>
struct Sizes<CartPoleTransition> {
  static constexpr const char* kName = "cart_pole";
  static constexpr int kSmallest = 14, kLargest = 23;
};
template <>
struct Sizes<AtariTransition> {
  static constexpr const char* kName = "atari";
  static constexpr int kSmallest = 12, kLargest = 17;
};

/// Registers verb/record/entries:N. Sizes outside, verbs inside, so that the verbs of one size follow each
/// other and share its workload.
template <class Made>
void register_verbs() {
  const std::pair<const char*, void (*)(benchmark::State&)> verbs[] = {{"add50", add50<Made>},
                                                                       {"sample512", sample512<Made>},
                                                                       {"update512", update512<Made>},
                                                                       {"mix", mix<Made>}};
  using OfRecord = Sizes<typename Made::Record>;
  for (int log2 = OfRecord::kSmallest; log2 <= OfRecord::kLargest; ++log2) {
    for (const auto& [verb, function] : verbs) {
      benchmark::RegisterBenchmark((std::string(verb) + "/" + OfRecord::kName).c_str(), function)
          ->ArgName("entries")
          ->Arg(std::int64_t{1} << log2)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace troop::bench
