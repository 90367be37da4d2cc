// What the memory alone allows: the copies and accesses that no replay can avoid, and nothing else: no tree,
// keys, probabilities, locks or checks. Verbs, records and sizes are those of bench_prioritized_replay.
//
// - add50       50 records and their priorities are copied to the next place of a ring
// - sample512   512 records, one from a random place of each 512th part of the ring, are copied next to each
//               other; the places were drawn beforehand
// - update512   512 floats at places drawn earlier are read, changed and written; sixteen batches take turns
// - mix         sample 512, change their 512 floats, copy 512 new ones in chunks of 50
// - copy, read  bandwidth over a block of 512 MiB; a byte that is copied counts once
//
// The ring lies on huge pages where the system grants them and is read with prefetches, by one thread. This
// is the least that we know how to do, not a proven bound.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>

#include "../support/replay_workload.hpp"

namespace {

using namespace troop::bench;

template <class R>
class Floor : public Workload {
 public:
  using Record = R;
  using Handle = std::vector<std::uint32_t>;

  static constexpr std::size_t bytes_for(std::size_t entries) {
    return entries * (sizeof(Record) + sizeof(float)) + Supply<Record>::kBytes + kBatch * sizeof(Record);
  }

  explicit Floor(std::size_t entries)
      : records_(entries * sizeof(Record)),
        priorities_(entries * sizeof(float)),
        out_(kBatch * sizeof(Record)),
        places_(kDrawn, Handle(kBatch)),
        supply_(troop::Random(1, "supply")) {
    for (std::size_t held = 0; held < entries; held += kChunk) add();
    troop::Random random(1, "draws");
    const std::size_t part = entries / kBatch;
    for (Handle& places : places_) {
      for (std::size_t i = 0; i < kBatch; ++i) {
        places[i] = static_cast<std::uint32_t>(i * part + random.below(part));
      }
    }
    sample();
  }

  std::size_t entries() const noexcept { return priorities_.as<float>().size(); }

  void add() {
    const auto records = supply_.chunk(next_chunk_);
    const auto priorities = supply_.chunk_priorities(next_chunk_);
    ++next_chunk_;
    for (std::size_t done = 0; done < kChunk;) {
      const std::size_t run = std::min(kChunk - done, entries() - head_);
      std::memcpy(records_.data() + head_ * sizeof(Record), &records[done], run * sizeof(Record));
      std::memcpy(priorities_.data() + head_ * sizeof(float), &priorities[done], run * sizeof(float));
      head_ = head_ + run < entries() ? head_ + run : 0;
      done += run;
    }
    benchmark::ClobberMemory();
  }

  const Handle& sample() {
    const Handle& places = places_[next_sample_++ % kDrawn];
    for (std::size_t i = 0; i < kAhead; ++i) prefetch(places[i]);
    for (std::size_t i = 0; i < kBatch; ++i) {
      prefetch(places[std::min(i + kAhead, kBatch - 1)]);
      std::memcpy(out_.data() + i * sizeof(Record), record(places[i]), sizeof(Record));
    }
    benchmark::ClobberMemory();
    return places;
  }

  std::size_t update(const Handle& places) {
    const auto values = supply_.batch_priorities(next_update_++);
    const auto floats = priorities_.as<float>();
    for (const std::uint32_t place : places) __builtin_prefetch(&floats[place], 1);
    for (std::size_t i = 0; i < kBatch; ++i) floats[places[i]] = 0.5f * floats[places[i]] + values[i];
    benchmark::ClobberMemory();
    return 0;
  }

  /// Records that `mix` has still to add.
  std::size_t owed = 0;

 private:
  /// Batches of places that take turns: enough of them to leave the caches.
  static constexpr std::size_t kDrawn = 4096;
  /// A few large records ahead are in the caches' way, a few small ones ahead come too late.
  static constexpr std::size_t kAhead = sizeof(Record) < 1024 ? 16 : 1;

  const std::byte* record(std::size_t place) const noexcept {
    return records_.data() + place * sizeof(Record);
  }
  void prefetch(std::size_t place) const noexcept {
    __builtin_prefetch(record(place));
    __builtin_prefetch(record(place) + std::min<std::size_t>(sizeof(Record) - 1, 64));
  }

  troop::Block records_, priorities_, out_;
  std::vector<Handle> places_;
  Supply<Record> supply_;
  std::size_t next_chunk_ = 0, next_sample_ = 0, next_update_ = 0, head_ = 0;
};

/// Two blocks that are too large for the caches.
class Blocks : public Workload {
 public:
  static constexpr std::size_t bytes_for(std::size_t bytes) { return 2 * bytes; }

  explicit Blocks(std::size_t bytes) : from(bytes), to(bytes) {
    std::memset(from.data(), 1, bytes);
    std::memset(to.data(), 2, bytes);
  }

  std::size_t entries() const noexcept { return from.bytes(); }

  const troop::Block from, to;
};

void copy_block(benchmark::State& state) {
  const auto* blocks = workload<Blocks>(state);
  if (blocks == nullptr) return;
  for (auto _ : state) {
    std::memcpy(blocks->to.data(), blocks->from.data(), blocks->from.bytes());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void read_block(benchmark::State& state) {
  const auto* blocks = workload<Blocks>(state);
  if (blocks == nullptr) return;
  for (auto _ : state) {
    std::uint64_t sums[8] = {};  // as many as a vector register holds
    const auto words = blocks->from.as<const std::uint64_t>();
    for (std::size_t i = 0; i < words.size(); i += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
    }
    benchmark::DoNotOptimize(sums);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

[[maybe_unused]] const bool registered = [] {
  register_verbs<Floor<CartPoleTransition>>();
  register_verbs<Floor<AtariTransition>>();
  constexpr std::int64_t kBytes = std::int64_t{1} << 29;
  for (auto* made :
       {benchmark::RegisterBenchmark("copy", copy_block), benchmark::RegisterBenchmark("read", read_block)}) {
    made->ArgName("bytes")->Arg(kBytes)->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
