/// @file
/// What decides which items a replay draws: in proportion to their priorities, uniformly, or the newest
/// first.
#pragma once

#include <algorithm>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include <troop/replay/detail/slot_set.hpp>
#include <troop/replay/min_max_tree.hpp>
#include <troop/replay/replay_options.hpp>
#include <troop/replay/sum_tree.hpp>

namespace troop {

/// What a replay asks of its sampler, which keeps one value for each of the replay's slots: priority^alpha
/// where `kTakesPowers` is true, else the priority itself. A slot of value 0 is never drawn.
///
/// - `S(options)`: `options.capacity` slots; all values are 0. `S::kName` is what snapshots call it.
/// - `set(slots, values)`, `set_range(first, values)`, `fill(first, count, value)`: change values; of a slot
///   that is named twice the last stays.
/// - `draw(parts, slots, probabilities)`: for each part in [0, 1) a slot and the probability with which a
///   uniform part finds it; overwrites the parts. `total()` is greater than 0, or nothing can be drawn.
/// - `value(slot)`; `smallest_probability()`: that of the least probable slot that can be drawn, asked for
///   only with WeightNormalizer::replay.
///
/// - `S::kKeepsOrder`, where there is one, is true when the order matters in which slots come by a value: the
///   slot of an item that is replaced is then set to 0 before it gets the value of the new one.
///
/// Changes come one at a time, under the replay's lock, and so do draws. All are noexcept but where memory
/// may be taken.
///
/// A sampler may say `static constexpr bool kDivisible = true`: items that are divided among several samplers
/// are drawn with the same probabilities as by one, when each draw goes to one of them in proportion to
/// `total()`. A ShardedReplay needs that.
template <class S>
concept ReplaySampler = std::constructible_from<S, const ReplayOptions&> &&
    requires(S& sampler, const S& constant, std::size_t slot, float value, std::span<const std::size_t> slots,
             std::span<const float> values, std::span<double> parts, std::span<std::size_t> drawn) {
  { S::kTakesPowers } -> std::convertible_to<bool>;
  { S::kName } -> std::convertible_to<std::string_view>;
  sampler.set(slots, values);
  sampler.set_range(slot, values);
  sampler.fill(slot, slot, value);
  { constant.total() } -> std::same_as<double>;
  { constant.value(slot) } -> std::same_as<float>;
  { constant.smallest_probability() } -> std::same_as<double>;
  constant.draw(parts, drawn, parts);
};

/// Draws in proportion to priority^alpha (Schaul et al. 2015, arXiv:1511.05952, equation 1). 4.54 bytes an
/// item, and 0.54 for the smallest probability where WeightNormalizer::replay asks for it.
class ProportionalSampler {
 public:
  static constexpr std::string_view kName = "proportional";
  static constexpr bool kTakesPowers = true;
  static constexpr bool kDivisible = true;

  explicit ProportionalSampler(const ReplayOptions& options) : tree_(options.capacity) {
    if (options.normalizer == WeightNormalizer::replay) extremes_.emplace(options.capacity);
  }

  void set(std::span<const std::size_t> slots, std::span<const float> values) noexcept {
    tree_.set(slots, values);
    if (extremes_) extremes_->update(tree_.leaves(), slots);
  }
  void set_range(std::size_t first, std::span<const float> values) noexcept {
    tree_.set_range(first, values);
    if (extremes_) extremes_->update_range(tree_.leaves(), first, values.size());
  }
  void fill(std::size_t first, std::size_t count, float value) noexcept {
    tree_.fill(first, count, value);
    if (extremes_) extremes_->update_range(tree_.leaves(), first, count);
  }

  double total() const noexcept { return tree_.total(); }
  float value(std::size_t slot) const noexcept { return tree_[slot]; }
  double smallest_probability() const noexcept {
    assert(extremes_);
    return static_cast<double>(extremes_->min()) / tree_.total();
  }

  void draw(std::span<double> parts, std::span<std::size_t> slots,
            std::span<double> probabilities) const noexcept {
    const double total = tree_.total();
    for (double& part : parts) part *= total;
    tree_.find(parts, slots);
    for (std::size_t i = 0; i < slots.size(); ++i)
      probabilities[i] = static_cast<double>(tree_[slots[i]]) / total;
  }

 private:
  SumTree tree_;
  std::optional<MinMaxTree> extremes_;
};

namespace detail {

template <class Sampler>
inline constexpr bool kIsDivisible = requires {
  requires Sampler::kDivisible;
};

template <class Sampler>
inline constexpr bool kKeepsOrder = requires {
  requires Sampler::kKeepsOrder;
};

/// Keeps which slots have a value above 0 in a set of slots.
template <class Set>
class Membership {
 public:
  static constexpr bool kTakesPowers = false;

  explicit Membership(std::size_t capacity) : set_(capacity) {}

  void set(std::span<const std::size_t> slots, std::span<const float> values) noexcept {
    assert(slots.size() == values.size());
    for (std::size_t i = 0; i < slots.size(); ++i) change(slots[i], values[i]);
  }
  void set_range(std::size_t first, std::span<const float> values) noexcept {
    for (std::size_t i = 0; i < values.size(); ++i) change(first + i, values[i]);
  }
  void fill(std::size_t first, std::size_t count, float value) noexcept {
    for (std::size_t i = 0; i < count; ++i) change(first + i, value);
  }

  /// The number of slots that can be drawn.
  double total() const noexcept { return static_cast<double>(set_.size()); }
  float value(std::size_t slot) const noexcept { return set_.contains(slot) ? 1.0f : 0.0f; }
  double smallest_probability() const noexcept { return 1.0 / total(); }

 protected:
  Set set_;

 private:
  void change(std::size_t slot, float value) noexcept {
    if (value > 0.0f) {
      set_.insert(slot);
    } else {
      set_.erase(slot);
    }
  }
};

}  // namespace detail

/// Draws every item of positive priority with the same probability, whatever its priority. 8 bytes an item.
class UniformSampler : public detail::Membership<detail::SlotSet> {
 public:
  static constexpr std::string_view kName = "uniform";
  static constexpr bool kDivisible = true;

  explicit UniformSampler(const ReplayOptions& options) : Membership(options.capacity) {}

  void draw(std::span<double> parts, std::span<std::size_t> slots,
            std::span<double> probabilities) const noexcept {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto place = static_cast<std::size_t>(parts[i] * total());
      slots[i] = set_[std::min(place, set_.size() - 1)];
      probabilities[i] = 1.0 / total();
    }
  }
};

/// Draws no lot: a sample of n holds the n newest items of positive priority, the newest first; when there
/// are fewer, it goes round again. An item whose priority was 0 meanwhile counts from when it was raised
/// (after the loading of a snapshot, from when it was added). The probabilities are those of a uniform draw,
/// so that all weights are 1. 8 bytes an item.
class NewestFirstSampler : public detail::Membership<detail::SlotList> {
 public:
  static constexpr std::string_view kName = "newest first";
  static constexpr bool kKeepsOrder = true;

  explicit NewestFirstSampler(const ReplayOptions& options) : Membership(options.capacity) {}

  void draw(std::span<double>, std::span<std::size_t> slots, std::span<double> probabilities) const noexcept {
    std::size_t slot = set_.newest();
    for (std::size_t i = 0; i < slots.size(); ++i, slot = set_.older(slot)) {
      slots[i] = slot;
      probabilities[i] = 1.0 / total();
    }
  }
};

}  // namespace troop
