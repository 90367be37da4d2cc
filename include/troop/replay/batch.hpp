/// @file
/// What a replay's sample fills: keys, probabilities, weights and records.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/fwd.hpp>
#include <troop/replay/detail/power.hpp>
#include <troop/replay/replay_options.hpp>

namespace troop {

namespace detail {

/// Whether items of this type are kept as blocks of bytes; others are kept as objects behind pointers.
template <class T>
inline constexpr bool kIsFlat = Record<T>;
template <>
inline constexpr bool kIsFlat<DynamicRecord> = true;

/// The records of a batch as one block.
template <class Record>
class BatchItems {
 public:
  using Element = std::byte;

  /// The records as one block, whatever their type. Throws Error when nothing was sampled into the batch.
  BatchView view() const {
    if (array_ == nullptr) throw Error("view of a batch into which nothing was sampled");
    return array_->view();
  }

  /// The records, adjacent to each other.
  std::span<const Record> records() const requires(!std::is_same_v<Record, DynamicRecord>) {
    if (array_ == nullptr) return {};
    return {reinterpret_cast<const Record*>(array_->data()), array_->size()};
  }

 protected:
  template <class Replay>
  void prepare(const Replay& replay, std::size_t count) {
    if (array_ == nullptr || array_->layout() != layout_of(replay))
      array_ = std::make_unique<RecordArray>(layout_of(replay));
    array_->resize(count);
  }
  Element* items() noexcept { return array_->data(); }

 private:
  template <class Replay>
  static const RecordLayout& layout_of(const Replay& replay) {
    if constexpr (requires { replay.sample_layout(); }) {
      return replay.sample_layout();
    } else {
      return replay.layout();
    }
  }

  std::unique_ptr<RecordArray> array_;
};

/// The records of a batch as pointers to objects that the replay and the batch share.
template <class Record>
requires(!kIsFlat<Record>) class BatchItems<Record> {
 public:
  using Element = std::shared_ptr<const Record>;

  /// The records; an object lives as long as the replay or a batch holds it.
  std::span<const Element> records() const noexcept { return items_; }

 protected:
  /// The objects of the batch before are let go here, not under the lock of a replay.
  template <class Replay>
  void prepare(const Replay&, std::size_t count) {
    items_.clear();
    items_.resize(count);
  }
  Element* items() noexcept { return items_.data(); }

 private:
  std::vector<Element> items_;
};

/// A sample was asked of so many items, none of which can be drawn.
[[noreturn]] inline void throw_empty(std::size_t items) {
  throw EmptyReplay(items == 0 ? "sample from an empty replay"
                               : "sample from a replay in which every item has priority 0");
}

/// w_i = (N P(i))^-beta / max_j w_j = (P(i) / min_j P(j))^-beta: N cancels (Schaul et al. 2015, section 3.4).
inline void weigh(std::span<const double> probabilities, double smallest, double beta,
                  std::span<float> weights) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  float ratios[kPowersAtOnce];
  double weight[kPowersAtOnce];
  for (std::size_t first = 0; first < probabilities.size(); first += kPowersAtOnce) {
    const std::size_t count = std::min(kPowersAtOnce, probabilities.size() - first);
    for (std::size_t i = 0; i < count; ++i)
      ratios[i] = static_cast<float>(std::min(probabilities[first + i] / smallest, kLargest));
    powers(std::span(ratios, count), -beta, weight);
    for (std::size_t i = 0; i < count; ++i) weights[first + i] = static_cast<float>(weight[i]);
  }
}

}  // namespace detail

/// A place for draws in somebody else's memory: one key, one probability and one record for each. What one
/// shard fills of a batch.
template <class Element>
struct DrawTarget {
  std::span<Key> keys;
  std::span<double> probabilities;
  Element* records = nullptr;  ///< bytes of adjacent records, or pointers to objects, null before
};

/// What `sample` fills. May be used again and again; memory grows to the largest batch and stays.
template <class Record>
class Batch : public detail::BatchItems<Record> {
 public:
  std::size_t size() const noexcept { return keys.size(); }

  std::vector<Key> keys;
  std::vector<double> probabilities;  ///< P(i) at the time of the draw
  std::vector<float> weights;         ///< w_i = (N P(i))^-beta / max_j w_j, at most 1

 private:
  template <class, class, class, class>
  friend class PrioritizedReplay;
  template <class>
  friend class ShardedReplay;

  static constexpr std::size_t kMaxSize = std::size_t{1} << 24;

  /// `sample` of a replay.
  template <class Replay>
  void fill(Replay& replay, std::size_t count, const SampleOptions& options, Random& random) {
    require(count >= 1 && count <= kMaxSize, "count", count, "an integer from 1 to 2^24");
    options.validate();
    this->prepare(replay, count);
    keys.resize(count);
    probabilities.resize(count);
    weights.resize(count);
    parts_.resize(count);
    const bool stratified = options.draws == Draws::stratified;
    for (std::size_t i = 0; i < count; ++i) {
      const double part = random.uniform();
      parts_[i] = stratified ? (static_cast<double>(i) + part) / static_cast<double>(count) : part;
    }
    const double smallest =
        replay.draw(parts_, random, DrawTarget<typename Batch::Element>{keys, probabilities, this->items()});
    detail::weigh(probabilities, smallest, options.beta, weights);
  }

  std::vector<double> parts_;  // where the draws fall
};

}  // namespace troop
