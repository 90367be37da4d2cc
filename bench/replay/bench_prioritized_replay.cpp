// A prioritized replay under the load that a learner and its actors make, in one thread.
//
// - add50      50 transitions with given priorities go in, the oldest 50 go out
// - sample512  a batch of 512: keys, probabilities, importance-sampling weights, records
// - update512  new priorities for a batch drawn earlier; sixteen such batches take turns
// - mix        a learner step at one insert a draw: sample 512, update them, add 512 in chunks of 50
//
// Records: cart_pole (44 bytes) and atari (56,460 bytes: two stacks of four 84 x 84 frames). The replay is
// full, alpha is 0.6, beta 0.4, priorities are exponentially distributed. A name is verb/record/entries:N, so
// that --benchmark_filter='^mix/cart_pole/' or 'entries:131072$' chooses.
#include <cstddef>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "../support/replay_workload.hpp"

namespace {

using namespace troop::bench;

template <class R>
class FullReplay : public Workload {
 public:
  using Record = R;
  using Handle = std::vector<troop::Key>;

  static constexpr std::size_t bytes_for(std::size_t entries) {
    constexpr std::size_t kTreeAndKeys = 16;
    return entries * (sizeof(Record) + kTreeAndKeys) + Supply<Record>::kBytes + kBatch * sizeof(Record);
  }

  explicit FullReplay(std::size_t entries)
      : replay_({.capacity = entries, .alpha = 0.6}), supply_(troop::Random(1, "supply")) {
    for (std::size_t held = 0; held < entries; held += kChunk) add();
    sample();  // a batch takes its memory the first time
  }

  std::size_t entries() const noexcept { return replay_.capacity(); }

  void add() {
    replay_.add(supply_.chunk(next_chunk_), supply_.chunk_priorities(next_chunk_));
    ++next_chunk_;
  }

  const Handle& sample() {
    replay_.sample(kBatch, {.beta = 0.4}, random_, batch_);
    benchmark::DoNotOptimize(batch_.records().data());
    benchmark::DoNotOptimize(batch_.weights.data());
    benchmark::ClobberMemory();
    return batch_.keys;
  }

  std::size_t update(const Handle& keys) {
    return replay_.update(keys, supply_.batch_priorities(next_update_++));
  }

  /// Transitions that `mix` has still to add.
  std::size_t owed = 0;

 private:
  troop::PrioritizedReplay<Record> replay_;
  Supply<Record> supply_;
  troop::Random random_{1, "draws"};
  troop::Batch<Record> batch_;
  std::size_t next_chunk_ = 0, next_update_ = 0;
};

[[maybe_unused]] const bool registered = [] {
  register_verbs<FullReplay<CartPoleTransition>>();
  register_verbs<FullReplay<AtariTransition>>();
  return true;
}();

}  // namespace
