/// @file
/// A replay of any sampler and remover beside a slow one that is plainly right.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rank_based.hpp>
#include <troop/replay/removers.hpp>
#include <troop/replay/samplers.hpp>

#include "replay_records.hpp"
#include "testing.hpp"

namespace troop::testing {

/// Does at random what users do, and compares. Which items a remover chose is asked of the replay, by updates
/// that change nothing; that it chose as many as it had to, and only among those that were there, is checked.
template <class Record, class Sampler, class Remover>
class ReplayOracle {
 public:
  using Replay = PrioritizedReplay<Record, ArrayStorage, Sampler, Remover>;

  ReplayOracle(const ReplayOptions& options, std::uint64_t seed)
      : replay_(options), options_(options), random_(seed, "oracle", options.capacity) {
    if (options_.soft_capacity == 0) options_.soft_capacity = options_.capacity;
  }

  const Failures& failures() const { return failures_; }

  void step() {
    switch (random_.below(8)) {
      case 0:
      case 1:
        return add(1 + random_.below(random_.below(20) == 0 ? 3 * options_.capacity : 8));
      case 2:
        return add_at_maximum(random_.below(4));
      case 3:
      case 4:
        return update();
      case 5:
        return random_.below(4) == 0 ? trim() : compare_statistics();
      case 6:
        if (random_.below(300) == 0) clear();
        return;
      default:
        return sample();
    }
  }

 private:
  static constexpr bool kRing = std::is_same_v<Remover, OldestFirstRemover>;
  static constexpr bool kNewest = std::is_same_v<Sampler, NewestFirstSampler>;
  static constexpr bool kUniform = std::is_same_v<Sampler, UniformSampler>;
  static constexpr bool kRanked = std::is_same_v<Sampler, RankBasedSampler>;

  float some_priority() {
    if (random_.below(6) == 0) return 0.0f;
    return static_cast<float>(std::pow(10.0, random_.uniform(-4.5, 4.5)));
  }

  void fail(const std::string& what) {
    failures_.add("operation " + std::to_string(operations_) + ": " + what);
  }
  void require_equal(double got, double expected, const std::string& what, double tolerance = 0.0) {
    if (std::abs(got - expected) <= tolerance * std::abs(expected)) return;
    fail(what + ": " + std::to_string(got) + ", expected " + std::to_string(expected));
  }

  void add(std::size_t count) {
    std::vector<float> priorities(count);
    for (float& priority : priorities) priority = some_priority();
    note_added(replay_.add(records_from<Record>(next_, count), priorities), priorities);
  }
  void add_at_maximum(std::size_t count) {
    const std::vector<float> priorities(count, max_ > 0.0f ? max_ : 1.0f);
    note_added(replay_.add(records_from<Record>(next_, count)), priorities);
  }

  void note_added(Key first, const std::vector<float>& priorities) {
    ++operations_;
    if (first != next_) fail("key " + std::to_string(first));
    for (const float priority : priorities) {
      items_[next_] = priority;
      if (priority > 0.0f) order_.push_back(next_);
      ++next_;
      max_ = std::max(max_, priority);
    }
    settle(std::min(items_.size(), options_.capacity));
    if (!priorities.empty() && !items_.contains(next_ - 1)) fail("the last item is gone");
  }

  /// Finds out which items are gone and checks that `left` are left.
  void settle(std::size_t left) {
    if (items_.size() == left) return;
    evictions_ += items_.size() - left;
    if constexpr (kRing) {
      while (items_.size() > left) forget(items_.begin()->first);
    }
    std::vector<Key> gone;
    for (const auto& [key, priority] : items_) {
      const std::size_t stale = replay_.update(std::span(&key, 1), std::span(&priority, 1));
      updates_ += 1 - stale;
      stale_ += stale;
      if (stale == 1) gone.push_back(key);
    }
    for (const Key key : gone) forget(key);
    if (items_.size() != left)
      fail(std::to_string(items_.size()) + " items left, expected " + std::to_string(left));
  }

  void forget(Key key) {
    items_.erase(key);
    std::erase(order_, key);
  }

  void update() {
    ++operations_;
    if (next_ == 0) return;
    const std::size_t count = random_.below(12);
    std::vector<Key> keys(count);
    std::vector<float> priorities(count);
    std::size_t stale = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Key recent = std::min<Key>(next_, 2 * options_.capacity);
      keys[i] = i > 0 && random_.below(5) == 0 ? keys[i - 1] : next_ - 1 - random_.below(recent);
      priorities[i] = some_priority();
      max_ = std::max(max_, priorities[i]);
      const auto at = items_.find(keys[i]);
      if (at == items_.end()) {
        ++stale;
        continue;
      }
      if (at->second == 0.0f && priorities[i] > 0.0f) order_.push_back(keys[i]);
      if (priorities[i] == 0.0f) std::erase(order_, keys[i]);
      at->second = priorities[i];
    }
    updates_ += count - stale;
    stale_ += stale;
    require_equal(static_cast<double>(replay_.update(keys, priorities)), static_cast<double>(stale),
                  "stale updates");
  }

  void trim() {
    ++operations_;
    const std::size_t left = std::min(items_.size(), options_.soft_capacity);
    const std::size_t excess = items_.size() - left;
    if (replay_.trim() != excess) fail("trimmed another number");
    trimmed_ += excess;
    settle(left);
  }

  void clear() {
    ++operations_;
    replay_.clear();
    evictions_ += items_.size();
    items_.clear();
    order_.clear();
  }

  void sample() {
    ++operations_;
    if (order_.empty()) return;
    const std::size_t count = 1 + random_.below(20);
    replay_.sample(count, {.beta = 0.7}, random_, batch_);
    samples_ += count;
    const auto probability = probabilities();
    double least = 1.0;
    if (options_.normalizer == WeightNormalizer::replay) {
      for (const Key key : order_) least = std::min(least, probability(items_.at(key)).first);
    } else {
      for (const double p : batch_.probabilities) least = std::min(least, p);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const Key key = batch_.keys[i];
      if (number_of(batch_.records()[i]) != key) fail("record of key " + std::to_string(key));
      const auto item = items_.find(key);
      if (item == items_.end() || item->second == 0.0f) {
        fail("drew key " + std::to_string(key));
        continue;
      }
      const auto [low, high] = probability(item->second);
      if (!(batch_.probabilities[i] >= low * (1 - 1e-6) && batch_.probabilities[i] <= high * (1 + 1e-6)))
        fail("probability " + std::to_string(batch_.probabilities[i]) + " of key " + std::to_string(key) +
             ", expected " + std::to_string(low) + " to " + std::to_string(high));
      require_equal(batch_.weights[i], std::pow(batch_.probabilities[i] / least, -0.7), "weight", 1e-5);
      if constexpr (kNewest)
        if (key != order_[order_.size() - 1 - i % order_.size()])
          fail("key " + std::to_string(key) + " is not the newest");
    }
  }

  /// A function from a priority to the least and the greatest probability that an item of it may have: equal
  /// priorities have different ranks.
  std::function<std::pair<double, double>(float)> probabilities() const {
    const auto n = static_cast<double>(order_.size());
    if constexpr (kUniform || kNewest) {
      return [n](float) { return std::pair(1.0 / n, 1.0 / n); };
    } else if constexpr (kRanked) {
      std::vector<float> sorted;
      for (const Key key : order_) sorted.push_back(items_.at(key));
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      double total = 0.0;
      for (std::size_t rank = 1; rank <= sorted.size(); ++rank)
        total += std::pow(static_cast<double>(rank), -options_.alpha);
      return [=, this](float priority) {
        const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), priority, std::greater<>());
        const auto of_rank = [&](std::ptrdiff_t rank) {
          return std::pow(static_cast<double>(rank), -options_.alpha) / total;
        };
        return std::pair(of_rank(last - sorted.begin()), of_rank(first - sorted.begin() + 1));
      };
    } else {
      double total = 0.0;
      for (const Key key : order_) total += std::pow(double{items_.at(key)}, options_.alpha);
      return [=, this](float priority) {
        const double p = std::pow(double{priority}, options_.alpha) / total;
        return std::pair(p, p);
      };
    }
  }

  void compare_statistics() {
    const ReplayStatistics s = replay_.statistics();
    const auto same = [&](std::uint64_t got, std::uint64_t expected, const char* what) {
      if (got != expected)
        fail(std::string(what) + ": " + std::to_string(got) + ", expected " + std::to_string(expected));
    };
    same(s.size, items_.size(), "size");
    same(replay_.size(), items_.size(), "size()");
    same(s.inserts, next_, "inserts");
    same(s.evictions, evictions_, "evictions");
    same(s.trimmed, trimmed_, "trimmed");
    same(s.updates, updates_, "updates");
    same(s.stale_updates, stale_, "stale updates");
    same(s.samples, samples_, "samples");
    same(s.redraws, 0, "redraws");
    require_equal(s.max_priority, max_ > 0.0f ? max_ : 1.0f, "greatest priority");
    if (order_.empty()) require_equal(s.total_priority, 0.0, "total priority");

    const PriorityHistogram histogram = replay_.priority_histogram();
    same(histogram.zeros, items_.size() - order_.size(), "priorities of 0");
    std::map<int, std::uint64_t> bins;
    for (const Key key : order_) {
      const bool kept = !kUniform && !kNewest;
      ++bins[kept ? static_cast<int>(std::floor(std::log2(items_.at(key)))) : 0];
    }
    std::uint64_t counted = 0;
    for (const auto& bin : histogram.bins) {
      counted += bin.count;
      // Within rounding of a power of two either bin is right.
      if (bin.count != bins[bin.exponent]) ++inexact_bins_;
    }
    same(counted, order_.size(), "priorities above 0");
    if (inexact_bins_ > 2 + operations_ / 1000) fail("bins of the histogram");
  }

  Replay replay_;
  ReplayOptions options_;
  Random random_;
  Batch<Record> batch_;
  Failures failures_;

  std::map<Key, float> items_;
  std::vector<Key> order_;  // those of positive priority, as they came by it
  Key next_ = 0;
  float max_ = 0.0f;
  std::uint64_t operations_ = 0, evictions_ = 0, trimmed_ = 0, updates_ = 0, stale_ = 0, samples_ = 0,
                inexact_bins_ = 0;
};

template <class Record, class Sampler, class Remover>
void compare_with_oracle(const ReplayOptions& options, int operations) {
  const std::uint64_t seed = testing::seed();
  CAPTURE(seed);
  CAPTURE(options.capacity);
  ReplayOracle<Record, Sampler, Remover> oracle(options, seed);
  for (int i = 0; i < operations && oracle.failures().count() == 0; ++i) oracle.step();
  TROOP_CHECK_NONE(oracle.failures());
}

/// Small and large records, one slot and many, both normalizers.
template <class Sampler, class Remover>
void compare_policies_with_oracle() {
  compare_with_oracle<SmallRecord, Sampler, Remover>({.capacity = 1, .normalizer = WeightNormalizer::replay},
                                                     3000);
  compare_with_oracle<SmallRecord, Sampler, Remover>({.capacity = 23, .soft_capacity = 15}, 50'000);
  compare_with_oracle<SmallRecord, Sampler, Remover>(
      {.capacity = 300, .soft_capacity = 290, .alpha = 1.0, .normalizer = WeightNormalizer::replay}, 8000);
  compare_with_oracle<BoundaryRecord, Sampler, Remover>({.capacity = 1}, 1000);
  compare_with_oracle<BoundaryRecord, Sampler, Remover>(
      {.capacity = 20, .soft_capacity = 10, .normalizer = WeightNormalizer::replay}, 40'000);
}

}  // namespace troop::testing
