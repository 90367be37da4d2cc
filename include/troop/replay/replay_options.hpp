/// @file
/// What a replay and its samples are told, and what a replay tells about itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/replay/sum_tree.hpp>

namespace troop {

/// What importance-sampling weights are divided by.
enum class WeightNormalizer {
  batch,  ///< the greatest weight of the batch
  replay  ///< the greatest weight that any item of the replay would have
};

struct ReplayOptions {
  /// Most items held at once (hard capacity): a further insert evicts an item.
  std::size_t capacity = 1'000'000;
  /// `trim()` evicts items down to this number; 0 means `capacity`. Between two trims inserts go beyond it,
  /// as in Ape-X.
  std::size_t soft_capacity = 0;
  /// Exponent of the priorities, at least 0: 0 draws uniformly among the items of positive priority, 1 in
  /// proportion to the priorities (rank-based: to 1 / rank).
  double alpha = 0.6;
  /// `replay` costs about half a byte an item and a few per cent of an update's time.
  WeightNormalizer normalizer = WeightNormalizer::batch;
  /// Of the remover's draws.
  std::uint64_t seed = 0;

  /// Throws InvalidArgument naming the field.
  void validate() const {
    require(capacity >= 1 && capacity <= SumTree::kMaxCapacity, "capacity", capacity,
            "an integer from 1 to 2^40");
    require(soft_capacity <= capacity, "soft_capacity", soft_capacity,
            "at most capacity, " + std::to_string(capacity) + ", or 0");
    require_between("alpha", alpha, 0.0, 10.0);
    require(normalizer == WeightNormalizer::batch || normalizer == WeightNormalizer::replay, "normalizer",
            static_cast<int>(normalizer), "batch or replay");
  }
};

/// How the draws of one sample are spread.
enum class Draws {
  stratified,  ///< one draw from each n-th part of the total priority: the same expectation, less variance
  independent  ///< each draw from the whole
};

struct SampleOptions {
  /// Exponent of the importance-sampling weights, at least 0: 1 corrects the bias of prioritized draws in
  /// full, 0 not at all.
  double beta = 0.4;
  Draws draws = Draws::stratified;

  void validate() const { require_between("beta", beta, 0.0, 10.0); }
};

/// Counters since construction, and the present state.
struct ReplayStatistics {
  std::size_t size = 0;  ///< items held
  std::size_t capacity = 0;
  std::size_t soft_capacity = 0;
  double total_priority = 0.0;      ///< what probabilities are relative to: for proportional draws the sum of
                                    ///< priority^alpha
  float max_priority = 0.0f;        ///< the greatest priority ever given, 1 before the first
  std::uint64_t inserts = 0;        ///< items added
  std::uint64_t evictions = 0;      ///< items that had to go, `trimmed` ones included
  std::uint64_t trimmed = 0;        ///< items evicted by `trim`
  std::uint64_t samples = 0;        ///< items drawn
  std::uint64_t redraws = 0;        ///< draws repeated because the item was overwritten while it was copied
  std::uint64_t updates = 0;        ///< priorities applied
  std::uint64_t stale_updates = 0;  ///< priorities for items that were gone already
  std::uint64_t lock_waits = 0;     ///< calls that found the replay's lock taken
  double lock_wait_seconds = 0.0;   ///< how long these waited, all together

  /// Of two replays together.
  ReplayStatistics& operator+=(const ReplayStatistics& other) {
    size += other.size;
    capacity += other.capacity;
    soft_capacity += other.soft_capacity;
    total_priority += other.total_priority;
    max_priority = std::max(max_priority, other.max_priority);
    inserts += other.inserts;
    evictions += other.evictions;
    trimmed += other.trimmed;
    samples += other.samples;
    redraws += other.redraws;
    updates += other.updates;
    stale_updates += other.stale_updates;
    lock_waits += other.lock_waits;
    lock_wait_seconds += other.lock_wait_seconds;
    return *this;
  }
};

/// How many items have a priority in [2^exponent, 2^(exponent + 1)), one entry for each exponent from the
/// lowest to the highest that occurs; items of priority 0 are counted apart.
struct PriorityHistogram {
  struct Bin {
    int exponent;
    std::uint64_t count;
  };
  std::vector<Bin> bins;
  std::uint64_t zeros = 0;

  /// Of two replays together.
  PriorityHistogram& operator+=(const PriorityHistogram& other) {
    zeros += other.zeros;
    if (other.bins.empty()) return *this;
    if (bins.empty()) bins.push_back({other.bins.front().exponent, 0});
    while (bins.front().exponent > other.bins.front().exponent)
      bins.insert(bins.begin(), {bins.front().exponent - 1, 0});
    while (bins.back().exponent < other.bins.back().exponent) bins.push_back({bins.back().exponent + 1, 0});
    const int lowest = bins.front().exponent;
    for (const Bin& bin : other.bins)
      bins[static_cast<std::size_t>(bin.exponent - lowest)].count += bin.count;
    return *this;
  }
};

}  // namespace troop
