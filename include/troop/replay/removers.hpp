/// @file
/// What decides which item of a full replay has to go: the oldest, one of low priority, or any.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>

#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/replay/detail/power.hpp>
#include <troop/replay/detail/slot_set.hpp>
#include <troop/replay/sum_tree.hpp>

namespace troop {

/// What a replay asks of a remover that chooses among all items. It is told which slots hold items and what
/// their priorities are, and names the slot whose item is to go. Calls come one at a time, under the replay's
/// lock.
template <class R>
concept ReplayRemover = std::default_initializable<typename R::Options> &&
    std::constructible_from<R, std::size_t, const typename R::Options&> &&
    requires(R& remover, const R& constant, std::size_t slot, std::span<const std::size_t> slots,
             std::span<const float> priorities, Random& random, const typename R::Options& options) {
  { R::kName } -> std::convertible_to<std::string_view>;
  options.validate();
  remover.set(slots, priorities);
  remover.erase(slot);
  remover.clear();
  { constant.choose(random) } -> std::same_as<std::size_t>;
  { constant.priority(slot) } -> std::same_as<float>;
};

/// The oldest item goes first: the usual choice, and the fastest, for the slots are a ring and no memory is
/// needed.
struct OldestFirstRemover {
  static constexpr std::string_view kName = "oldest first";

  struct Options {
    void validate() const noexcept {}
  };
};

/// An item goes with a probability in proportion to priority^exponent; with the negative exponent of Ape-X
/// DPG (Horgan et al. 2018, appendix: -0.4), items of low priority go first. Priorities below 1e-12 count as
/// that: else the first item of priority 0 would keep all others from ever being chosen. 8.54 bytes an item,
/// and 14 of the replay for keys in any order.
class InversePriorityRemover {
 public:
  static constexpr std::string_view kName = "inverse priority";

  struct Options {
    double exponent = -0.4;  ///< of the priorities, from -2 to 0

    void validate() const { require_between("exponent", exponent, -2.0, 0.0); }
  };

  InversePriorityRemover(std::size_t capacity, const Options& options)
      : exponent_((options.validate(), options.exponent)),
        tree_(capacity),
        priorities_(checked_bytes("capacity", capacity, sizeof(float))) {}

  /// Notes items, or their new priorities.
  void set(std::span<const std::size_t> slots, std::span<const float> priorities) noexcept {
    constexpr std::size_t kChunk = detail::kPowersAtOnce;
    float clamped[kChunk], values[kChunk];
    double powers[kChunk];
    for (std::size_t first = 0; first < slots.size(); first += kChunk) {
      const std::size_t count = std::min(kChunk, slots.size() - first);
      for (std::size_t i = 0; i < count; ++i) {
        const float priority = priorities[first + i];
        priorities_.as<float>()[slots[first + i]] = priority;
        clamped[i] = std::clamp(priority, kSmallest, kLargest);
      }
      detail::powers(std::span(clamped, count), exponent_, powers);
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(powers[i]);
      tree_.set(slots.subspan(first, count), std::span(values, count));
    }
  }
  void erase(std::size_t slot) noexcept { tree_.set(slot, 0.0f); }
  void clear() noexcept { tree_.fill(0, tree_.capacity(), 0.0f); }

  /// The slot whose item is to go; there must be an item.
  std::size_t choose(Random& random) const noexcept { return tree_.find(random.uniform() * tree_.total()); }

  float priority(std::size_t slot) const noexcept { return priorities_.as<float>()[slot]; }

 private:
  static constexpr float kSmallest = 1e-12f, kLargest = 1e12f;

  double exponent_;
  SumTree tree_;
  Block priorities_;
};

/// Any item goes with the same probability. 8 bytes an item, and 14 of the replay for keys in any order.
class UniformRemover {
 public:
  static constexpr std::string_view kName = "uniform";

  struct Options {
    void validate() const noexcept {}
  };

  UniformRemover(std::size_t capacity, const Options&) : items_(capacity) {}

  void set(std::span<const std::size_t> slots, std::span<const float>) noexcept {
    for (const std::size_t slot : slots) items_.insert(slot);
  }
  void erase(std::size_t slot) noexcept { items_.erase(slot); }
  void clear() noexcept { items_.clear(); }
  std::size_t choose(Random& random) const noexcept {
    return items_[static_cast<std::size_t>(random.below(items_.size()))];
  }
  float priority(std::size_t) const noexcept { return 0.0f; }

 private:
  detail::SlotSet items_;
};

}  // namespace troop
