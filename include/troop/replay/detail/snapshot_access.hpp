/// @file
/// How a snapshot reads and fills a replay, piece by piece, while others use it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/fwd.hpp>
#include <troop/replay/prioritized_replay.hpp>

namespace troop::detail {

/// Items on their way between a replay and a file.
struct SnapshotItems {
  std::vector<Key> keys;
  std::vector<float> values;      // as the sampler keeps them
  std::vector<float> priorities;  // as the remover keeps them; empty where the oldest item goes first
  std::vector<std::byte> records;
  std::vector<std::size_t> slots;
};

/// What a replay is beside its items.
struct SnapshotState {
  Key next_key = 0;
  std::uint64_t size = 0;
  float max_priority = 0.0f;
  std::uint64_t trimmed = 0, samples = 0, redraws = 0, updates = 0, stale_updates = 0;
  Random::State random{};
};

template <class Record, class Storage, class Sampler, class Remover>
class SnapshotAccess<PrioritizedReplay<Record, Storage, Sampler, Remover>> {
 public:
  using Replay = PrioritizedReplay<Record, Storage, Sampler, Remover>;
  static constexpr bool kRing = Replay::kRing;
  static constexpr bool kFlat = Replay::kFlat;
  using Objects = typename Replay::Evicted;

  static SnapshotState state(const Replay& replay) {
    const std::lock_guard lock(replay.mutex_);
    const ReplayStatistics& s = replay.statistics_;
    return {replay.slots_.next_key(),
            replay.slots_.size(),
            replay.max_priority_,
            s.trimmed,
            s.samples,
            s.redraws,
            s.updates,
            s.stale_updates,
            replay.random_.state()};
  }

  /// Items that a piece holds: enough to make a write worth its while, few enough to be copied in a moment.
  static std::size_t piece(const Replay& replay) {
    if constexpr (!kFlat) return 64;  // each may be large
    constexpr std::size_t kBytes = std::size_t{16} << 20, kMost = 4096;
    return std::clamp(kBytes / std::max<std::size_t>(Replay::record_bytes(replay.storage_), 1),
                      std::size_t{1}, kMost);
  }

  /// Reads the items of one replay from the first to the last that it held when the reading began.
  class Reader {
   public:
    explicit Reader(const Replay& replay, Key end) : replay_(replay), end_(end) {}

    /// The next items; false when there are no more. An item whose record is just being written is given the
    /// value 0.
    bool next(SnapshotItems& items) {
      Objects objects;
      items.keys.clear();
      items.records.clear();
      items.slots.clear();
      const bool large = !replay_.large_records_.empty();
      {
        const std::lock_guard lock(replay_.mutex_);
        if (!choose(items)) return false;
        items.values.resize(items.slots.size());
        for (std::size_t i = 0; i < items.slots.size(); ++i)
          items.values[i] = replay_.sampler_.value(items.slots[i]);
        if constexpr (!kRing) {
          items.priorities.resize(items.slots.size());
          for (std::size_t i = 0; i < items.slots.size(); ++i)
            items.priorities[i] = replay_.remover_.priority(items.slots[i]);
        }
        if constexpr (!kFlat) {
          objects.resize(items.slots.size());
          replay_.storage_.gather(items.slots, objects.data());
        } else if (!large) {
          replay_.storage_.save(items.slots, items.records);
        }
      }
      if constexpr (!kFlat) {
        Storage::save(objects, items.records);
      } else if (large) {
        copy_large(items);
      }
      return true;
    }

   private:
    /// The keys and slots of the next piece; false at the end.
    bool choose(SnapshotItems& items) {
      const std::size_t most = piece(replay_);
      if constexpr (kRing) {
        const Key first = std::max(next_, replay_.slots_.oldest_key());
        if (first >= end_) return false;
        const std::size_t count = std::min<std::size_t>(most, static_cast<std::size_t>(end_ - first));
        for (std::size_t i = 0; i < count; ++i) {
          items.keys.push_back(first + i);
          items.slots.push_back(replay_.slots_.slot_of(first + i));
        }
        next_ = first + count;
      } else {
        for (; next_ < replay_.options_.capacity && items.keys.size() < most; ++next_) {
          const auto slot = static_cast<std::size_t>(next_);
          if (!replay_.slots_.holds(slot) || replay_.slots_.key_of(slot) >= end_) continue;
          items.keys.push_back(replay_.slots_.key_of(slot));
          items.slots.push_back(slot);
        }
        if (items.keys.empty()) return false;
      }
      return true;
    }

    /// Takes the stripes of all slots, in order, so that no writer is in the middle of one of their records.
    void copy_large(SnapshotItems& items) requires(kFlat) {
      std::vector<std::shared_mutex*> stripes;
      for (const std::size_t slot : items.slots) stripes.push_back(&replay_.large_records_.stripe(slot));
      std::sort(stripes.begin(), stripes.end());
      stripes.erase(std::unique(stripes.begin(), stripes.end()), stripes.end());
      std::vector<std::shared_lock<std::shared_mutex>> locks;
      for (std::shared_mutex* stripe : stripes) locks.emplace_back(*stripe);
      for (std::size_t i = 0; i < items.slots.size(); ++i)
        if (replay_.large_records_.written(items.slots[i]) != items.keys[i] + 1) items.values[i] = 0.0f;
      replay_.storage_.save(items.slots, items.records);
    }

    const Replay& replay_;
    Key next_ = 0;  // key or slot
    Key end_;
  };

  /// Empties the replay; what `append` adds from then on makes its content.
  static void begin(Replay& replay) {
    Objects evicted;
    const std::lock_guard lock(replay.mutex_);
    replay.evict_all(evicted);
    if constexpr (kRing) {
      replay.slots_.restore(0, 0);
    } else {
      replay.slots_.clear(0);
    }
    // Else a record that is added under a smaller key than the slot has seen would count as overtaken.
    if (!replay.large_records_.empty())
      for (std::size_t slot = 0; slot < replay.capacity(); ++slot)
        if (replay.large_records_.written(slot) != 0) replay.large_records_.written(slot) = 0;
  }

  /// Adds checked items under their old keys.
  static void append(Replay& replay, SnapshotItems& items) {
    Objects objects, evicted;
    if constexpr (!kFlat) objects = Storage::load(items.keys.size(), items.records);
    const std::lock_guard lock(replay.mutex_);
    items.slots.clear();
    if constexpr (kRing) {
      // After a gap, what stood before it had gone already when the snapshot was made.
      if (replay.slots_.next_key() != items.keys.front()) {
        replay.evict(replay.slots_.size(), evicted);
        replay.slots_.restore(items.keys.front(), items.keys.front());
      }
      const Key first = replay.slots_.take(items.keys.size());
      for (std::size_t i = 0; i < items.keys.size(); ++i)
        items.slots.push_back(replay.slots_.slot_of(first + i));
    } else {
      for (const Key key : items.keys) items.slots.push_back(replay.slots_.restore(key));
      replay.remover_.set(items.slots, items.priorities);
    }
    if constexpr (kFlat) {
      replay.storage_.load(items.slots, items.records);
    } else {
      for (std::size_t i = 0; i < objects.size(); ++i)
        replay.storage_.exchange(items.slots[i], std::span(objects).subspan(i, 1));
    }
    if (!replay.large_records_.empty())
      for (std::size_t i = 0; i < items.slots.size(); ++i)
        replay.large_records_.written(items.slots[i]) = items.keys[i] + 1;
    replay.sampler_.set(items.slots, items.values);
  }

  /// The replay, where the oldest item goes first, is empty and the next item gets this key.
  static void continue_at(Replay& replay, Key key) requires(kRing) {
    Objects evicted;
    const std::lock_guard lock(replay.mutex_);
    replay.evict_all(evicted);
    replay.slots_.restore(key, key);
  }

  /// The values, as the sampler keeps them, of the items from `first` on; those that are gone have 0.
  static void read_values(const Replay& replay, Key first, std::span<float> values) requires(kRing) {
    const std::lock_guard lock(replay.mutex_);
    const Key oldest = replay.slots_.oldest_key(), next = replay.slots_.next_key();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Key key = first + i;
      values[i] = key >= oldest && key < next ? replay.sampler_.value(replay.slots_.slot_of(key)) : 0.0f;
    }
  }

  /// Gives the items from `first` on such values; what is said of items that are gone is passed over.
  static void write_values(Replay& replay, Key first, std::span<const float> values) requires(kRing) {
    const std::lock_guard lock(replay.mutex_);
    const Key oldest = replay.slots_.oldest_key(), next = replay.slots_.next_key();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Key key = first + i;
      if (key < oldest || key >= next) continue;
      const std::size_t slot = replay.slots_.slot_of(key);
      replay.sampler_.set(std::span(&slot, 1), values.subspan(i, 1));
    }
  }

  static void finish(Replay& replay, const SnapshotState& state) {
    Objects evicted;
    const std::lock_guard lock(replay.mutex_);
    if constexpr (kRing) {
      // Items before a gap at the end had gone already, too.
      if (replay.slots_.next_key() != state.next_key) {
        replay.evict(replay.slots_.size(), evicted);
        replay.slots_.restore(state.next_key, state.next_key);
      }
    } else {
      replay.slots_.restore_next(state.next_key);
      if constexpr (kKeepsOrder<Sampler>) order_by_keys(replay);
    }
    replay.max_priority_ = state.max_priority;
    ReplayStatistics& s = replay.statistics_;
    s.trimmed = state.trimmed;
    s.samples = state.samples;
    s.redraws = state.redraws;
    s.updates = state.updates;
    s.stale_updates = state.stale_updates;
    replay.random_.set_state(state.random);
  }

 private:
  /// Gives the sampler its values once more, as if the items had been added now, the oldest first.
  static void order_by_keys(Replay& replay) {
    std::vector<std::size_t> slots;
    for (std::size_t slot = 0; slot < replay.capacity(); ++slot)
      if (replay.slots_.holds(slot)) slots.push_back(slot);
    std::sort(slots.begin(), slots.end(), [&](std::size_t a, std::size_t b) {
      return replay.slots_.key_of(a) < replay.slots_.key_of(b);
    });
    for (const std::size_t slot : slots) {
      const float value = replay.sampler_.value(slot);
      replay.sampler_.fill(slot, 1, 0.0f);
      replay.sampler_.fill(slot, 1, value);
    }
  }
};

}  // namespace troop::detail
