/// @file
/// The prioritized replay: items are kept, drawn in proportion to their priorities, and given new priorities.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/fwd.hpp>
#include <troop/replay/array_storage.hpp>
#include <troop/replay/detail/power.hpp>
#include <troop/replay/sum_tree.hpp>

namespace troop {

struct ReplayOptions {
  /// Most items held at once (hard capacity): a further insert evicts the oldest item.
  std::size_t capacity = 1'000'000;
  /// `trim()` evicts the oldest items down to this number; 0 means `capacity`. Between two trims inserts go
  /// beyond it, as in Ape-X.
  std::size_t soft_capacity = 0;
  /// Exponent of the priorities, at least 0: 0 draws uniformly among the items of positive priority, 1 in
  /// proportion to the priorities.
  double alpha = 0.6;

  /// Throws InvalidArgument naming the field.
  void validate() const {
    require(capacity >= 1 && capacity <= SumTree::kMaxCapacity, "capacity", capacity,
            "an integer from 1 to 2^40");
    require(soft_capacity <= capacity, "soft_capacity", soft_capacity,
            "at most capacity, " + std::to_string(capacity) + ", or 0");
    require_between("alpha", alpha, 0.0, 10.0);
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
  double total_priority = 0.0;      ///< sum of priority^alpha
  std::uint64_t inserts = 0;        ///< items added
  std::uint64_t evictions = 0;      ///< items that had to go, `trimmed` ones included
  std::uint64_t trimmed = 0;        ///< items evicted by `trim`
  std::uint64_t samples = 0;        ///< items drawn
  std::uint64_t redraws = 0;        ///< draws repeated because the item was overwritten while it was copied
  std::uint64_t updates = 0;        ///< priorities applied
  std::uint64_t stale_updates = 0;  ///< priorities for items that were gone already
};

/// What `sample` fills. May be used again and again; memory grows to the largest batch and stays.
template <class Record>
class Batch {
 public:
  std::size_t size() const noexcept { return keys.size(); }

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

  std::vector<Key> keys;
  std::vector<double> probabilities;  ///< P(i) = p_i^alpha / sum_k p_k^alpha at the time of the draw
  std::vector<float> weights;         ///< w_i = (N P(i))^-beta / max_j w_j over the batch, at most 1

 private:
  template <class, class>
  friend class PrioritizedReplay;

  std::unique_ptr<RecordArray> array_;
  std::vector<double> masses_;
  std::vector<std::size_t> slots_;
  std::vector<std::size_t> pending_;
};

/// Keeps up to `capacity` items and draws them with probability P(i) = p_i^alpha / sum_k p_k^alpha (Schaul et
/// al. 2015, arXiv:1511.05952, equation 1), oldest items going first.
///
/// - Keys are the numbers of inserts, from 0. A priority update that comes after its item was evicted is
///   recognised by the key, counted, and not applied to the newcomer in the same place.
/// - A priority of 0 keeps the item but never draws it. A priority whose power is below the smallest normal
///   float, 1.2e-38, counts as that. Priorities that are NaN, infinite, negative, or whose power overflows
///   are refused with an error that names the item; nothing of that call is applied.
/// - A sample may hold an item more than once.
///
/// Thread-safe: any number of threads may call anything. One lock guards the tree; a call with small records
/// copies them under it (a few microseconds for a batch of 512). Records of 1 KiB or more are copied outside:
/// writers and samplers then only exclude each other on the same 64th part of the slots, and an item that was
/// overwritten while a sampler was about to copy it is drawn anew, never returned torn.
///
/// Costs of a batch of n: add, sample and update are O(n log16 capacity). Memory: the record and about 5
/// bytes an item (13 from 1 KiB on).
///
///     PrioritizedReplay<Transition> replay({.capacity = 1'000'000, .alpha = 0.6});
///     replay.add(transitions, priorities);                              // spans
///     auto batch = replay.sample(512, {.beta = 0.4}, random);           // batch.records(), .weights, .keys
///     replay.update(batch.keys, new_priorities);
template <class Record, class Storage>
class PrioritizedReplay {
  static constexpr bool kDynamic = std::is_same_v<Record, DynamicRecord>;
  static_assert(ReplayStorage<Storage>,
                "Storage must have layout(), capacity(), and noexcept write, gather and prefetch");

 public:
  using SampledBatch = Batch<Record>;

  /// Records of a type known at compile time.
  explicit PrioritizedReplay(const ReplayOptions& options) requires(!kDynamic)
      : PrioritizedReplay(options, RecordLayout::of<Record>()) {}

  /// Records of any layout. Throws InvalidArgument for bad options, Error when the memory is not to be had,
  /// and LayoutMismatch when `layout` is not that of `Record`.
  PrioritizedReplay(const ReplayOptions& options, RecordLayout layout)
      : options_((options.validate(), options)),
        storage_(options.capacity, std::move(layout)),
        tree_(options.capacity),
        large_records_(storage_.layout().size() >= kLargeRecord ? options.capacity : 0) {
    if constexpr (!kDynamic) storage_.layout().require_equal(RecordLayout::of<Record>());
    if (options_.soft_capacity == 0) options_.soft_capacity = options_.capacity;
  }

  PrioritizedReplay(const PrioritizedReplay&) = delete;
  PrioritizedReplay& operator=(const PrioritizedReplay&) = delete;

  const ReplayOptions& options() const noexcept { return options_; }
  const RecordLayout& layout() const noexcept { return storage_.layout(); }
  std::size_t capacity() const noexcept { return options_.capacity; }

  /// Items held.
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return size_unlocked();
  }

  /// Adds a batch; item i gets the key `returned key + i`. Evicts the oldest items when the replay is full.
  ///
  /// Throws InvalidArgument when the numbers of records and priorities differ or a priority is not allowed,
  /// LayoutMismatch when the records are not of the replay's layout; then nothing was added.
  Key add(const BatchView& records, std::span<const float> priorities) {
    if (&records.layout() != &layout()) records.layout().require_equal(layout());
    require_as_many(priorities.size(), records.size(), "records");
    Powers powers(*this, priorities);
    return large_records_.empty() ? add_small(records, powers.values) : add_large(records, powers.values);
  }

  Key add(std::span<const Record> records, std::span<const float> priorities) requires(!kDynamic) {
    return add(BatchView(layout(), records.data(), records.size()), priorities);
  }

  /// Adds one item. Batches are much cheaper.
  Key add(const Record& record, float priority) requires(!kDynamic) {
    return add(std::span(&record, 1), std::span(&priority, 1));
  }

  /// Draws `count` items into `batch`, each with its probability, whatever was drawn before.
  ///
  /// Throws InvalidArgument for a count of 0 or a bad beta, EmptyReplay when no item has a positive priority;
  /// what the batch holds is then unspecified.
  void sample(std::size_t count, const SampleOptions& options, Random& random, Batch<Record>& batch) {
    require(count >= 1 && count <= kMaxBatch, "count", count, "an integer from 1 to 2^24");
    options.validate();
    prepare(batch, count);
    const bool stratified = options.draws == Draws::stratified;
    for (std::size_t i = 0; i < count; ++i) batch.masses_[i] = draw_part(i, count, stratified, random);
    {
      const std::lock_guard lock(mutex_);
      const double total = tree_.total();
      if (!(total > 0.0)) {
        throw EmptyReplay(size_unlocked() == 0 ? "sample from an empty replay"
                                               : "sample from a replay in which every item has priority 0");
      }
      for (double& mass : batch.masses_) mass *= total;
      tree_.find(batch.masses_, batch.slots_);
      const Newest newest(*this);
      for (std::size_t i = 0; i < count; ++i) {
        if (large_records_.empty()) storage_.prefetch(batch.slots_[i]);
        record_draw(batch, i, newest, total);
      }
      if (large_records_.empty()) storage_.gather(batch.slots_, batch.array_->data());
      statistics_.samples += count;
    }
    if (!large_records_.empty()) copy_large(batch, random, stratified);
    weigh(batch, options.beta);
  }

  Batch<Record> sample(std::size_t count, const SampleOptions& options, Random& random) {
    Batch<Record> batch;
    sample(count, options, random, batch);
    return batch;
  }

  /// Gives items new priorities; of a key that is named twice the last priority stays. Returns how many of
  /// the items were gone already.
  ///
  /// Throws InvalidArgument when the numbers differ, a priority is not allowed, or a key was never given;
  /// then nothing was applied.
  std::size_t update(std::span<const Key> keys, std::span<const float> priorities) {
    require_as_many(priorities.size(), keys.size(), "keys");
    Powers powers(*this, priorities);
    const std::lock_guard lock(mutex_);
    if (!keys.empty()) {
      const Key greatest = *std::max_element(keys.begin(), keys.end());
      require(greatest < next_key_, "key", greatest, "the key of an item that was added");
    }
    powers.slots.resize(keys.size());
    std::size_t live = 0;
    if (size_unlocked() > 0) {
      const Newest newest(*this);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (keys[i] < oldest_key_) continue;
        powers.slots[live] = newest.slot_of(keys[i]);
        powers.values[live++] = powers.values[i];
      }
    }
    tree_.set(std::span(powers.slots).first(live), std::span(powers.values).first(live));
    const std::size_t stale = keys.size() - live;
    statistics_.updates += live;
    statistics_.stale_updates += stale;
    return stale;
  }

  /// Evicts the oldest items beyond the soft capacity and returns how many. Ape-X calls it every 100 learner
  /// steps.
  std::size_t trim() {
    const std::lock_guard lock(mutex_);
    const std::size_t held = size_unlocked();
    const std::size_t excess = held > options_.soft_capacity ? held - options_.soft_capacity : 0;
    evict(excess);
    statistics_.trimmed += excess;
    return excess;
  }

  /// Evicts everything. Keys go on from where they were.
  void clear() {
    const std::lock_guard lock(mutex_);
    evict(size_unlocked());
  }

  ReplayStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    ReplayStatistics result = statistics_;
    result.size = size_unlocked();
    result.capacity = options_.capacity;
    result.soft_capacity = options_.soft_capacity;
    result.total_priority = tree_.total();
    result.inserts = next_key_;
    result.evictions = oldest_key_;
    return result;
  }

 private:
  static constexpr std::size_t kMaxBatch = std::size_t{1} << 24;
  /// Bytes from which records are copied outside the tree's lock.
  static constexpr std::size_t kLargeRecord = 1024;
  static constexpr std::size_t kStripes = 64;

  /// Guards the slots of large records. Adjacent slots share a stripe in groups of 16, so that a writer,
  /// which fills adjacent slots, and a sampler, which reads scattered ones, seldom meet.
  struct LargeRecords {
    explicit LargeRecords(std::size_t capacity)
        : memory(checked_bytes("capacity", capacity, sizeof(Key))), stripes(capacity > 0 ? kStripes : 0) {}
    bool empty() const noexcept { return stripes.empty(); }
    std::shared_mutex& stripe(std::size_t slot) noexcept { return stripes[slot / 16 % kStripes]; }

    /// One more than the key whose record is in the slot, 0 for none; guarded by the slot's stripe.
    Key& written(std::size_t slot) noexcept { return memory.as<Key>()[slot]; }

    Block memory;  // of keys; its pages are taken as they are first written, like those of the records
    std::vector<std::shared_mutex> stripes;
  };

  /// Checked priorities raised to alpha.
  struct Powers {
    Powers(const PrioritizedReplay& replay, std::span<const float> priorities)
        : values(scratch().values), slots(scratch().slots) {
      values.resize(priorities.size());
      slots.clear();
      const double alpha = replay.options_.alpha;
      constexpr std::size_t kChunk = 64;
      double powers[kChunk];
      bool refused = false;
      // In chunks, by loops that compilers turn into vector instructions.
      for (std::size_t first = 0; first < priorities.size(); first += kChunk) {
        const std::size_t count = std::min(kChunk, priorities.size() - first);
        const float* priority = priorities.data() + first;
        float* value = values.data() + first;
        if (alpha == 1.0) {
          std::copy_n(priority, count, powers);
        } else {
          for (std::size_t i = 0; i < count; ++i) powers[i] = detail::power(priority[i], alpha);
        }
        for (std::size_t i = 0; i < count; ++i) {
          refused |= !(priority[i] >= 0.0f) | !(priority[i] <= kLargest) |
                     ((priority[i] > 0.0f) & (powers[i] > double{kLargest}));
          const double power = std::min(std::max(powers[i], double{kSmallest}), double{kLargest});
          value[i] = priority[i] > 0.0f ? static_cast<float>(power) : 0.0f;
        }
      }
      if (refused) refuse_one(priorities, alpha);
    }

    static constexpr float kSmallest = std::numeric_limits<float>::min();
    static constexpr float kLargest = std::numeric_limits<float>::max();

    /// Names the first priority that is not allowed.
    [[noreturn]] static void refuse_one(std::span<const float> priorities, double alpha) {
      for (std::size_t i = 0; i < priorities.size(); ++i) {
        const float priority = priorities[i];
        if (!(priority >= 0.0f) || !(priority <= kLargest))
          refuse(i, priority, "a finite number that is not negative");
        if (priority > 0.0f && detail::power(priority, alpha) > static_cast<double>(kLargest)) {
          refuse(i, priority, "a number whose power alpha is finite in single precision");
        }
      }
      throw Error("a priority was refused and then not found");
    }
    [[noreturn]] static void refuse(std::size_t i, float priority, const char* expected) {
      throw InvalidArgument("priorities[" + std::to_string(i) + "]", detail::to_text(priority), expected);
    }
    struct Scratch {
      std::vector<float> values;
      std::vector<std::size_t> slots;
    };
    static Scratch& scratch() {
      thread_local Scratch instance;
      return instance;
    }
    std::vector<float>& values;
    std::vector<std::size_t>& slots;
  };

  static void require_as_many(std::size_t priorities, std::size_t wanted, const char* of_what) {
    if (priorities == wanted) return;
    throw InvalidArgument("priorities", std::to_string(priorities),
                          "one for each of " + std::to_string(wanted) + " " + of_what);
  }

  std::size_t slot_of(Key key) const noexcept { return static_cast<std::size_t>(key % options_.capacity); }
  std::size_t size_unlocked() const noexcept { return static_cast<std::size_t>(next_key_ - oldest_key_); }

  /// The newest item's place, from which keys and slots of the other live items follow without a division.
  struct Newest {
    explicit Newest(const PrioritizedReplay& replay) noexcept
        : key(replay.next_key_ - 1), slot(replay.slot_of(key)), capacity(replay.options_.capacity) {}

    std::size_t slot_of(Key live) const noexcept {
      const auto back = static_cast<std::size_t>(key - live);
      return slot >= back ? slot - back : slot + capacity - back;
    }
    Key key_of(std::size_t full) const noexcept {
      return key - (slot >= full ? slot - full : slot + capacity - full);
    }

    Key key;
    std::size_t slot, capacity;
  };

  /// Calls `f(slot, first, count)` for the one or two runs of adjacent slots of `count` keys from `key` on.
  template <class F>
  void for_runs(Key key, std::size_t count, F&& f) {
    for (std::size_t done = 0; done < count;) {
      const std::size_t slot = slot_of(key + done);
      const std::size_t run = std::min(count - done, options_.capacity - slot);
      f(slot, done, run);
      done += run;
    }
  }

  /// Sets the priorities of the oldest `count` items to zero and forgets them.
  void evict(std::size_t count) {
    for_runs(oldest_key_, count,
             [&](std::size_t slot, std::size_t, std::size_t run) { tree_.fill(slot, run, 0.0f); });
    oldest_key_ += count;
  }

  /// Takes keys for `count` items; the slots of those that stay may still hold older items.
  Key take_keys(std::size_t count) {
    const Key first = next_key_;
    next_key_ += count;
    if (next_key_ - oldest_key_ > options_.capacity) oldest_key_ = next_key_ - options_.capacity;
    return first;
  }

  Key add_small(const BatchView& records, std::span<const float> powers) {
    const std::lock_guard lock(mutex_);
    const Key first = next_key_;
    for (std::size_t done = 0; done < records.size();) {
      const std::size_t count = std::min(records.size() - done, options_.capacity);
      const Key key = take_keys(count);
      for_runs(key, count, [&](std::size_t slot, std::size_t offset, std::size_t run) {
        storage_.write(slot, records.records(done + offset, run));
        tree_.set_range(slot, powers.subspan(done + offset, run));
      });
      done += count;
    }
    return first;
  }

  /// Takes the keys and empties the slots under the lock, copies outside, then publishes the priorities of
  /// what is still live.
  Key add_large(const BatchView& records, std::span<const float> powers) {
    // Of a batch larger than the replay the first records are evicted by the batch itself.
    const std::size_t skip = records.size() - std::min(records.size(), options_.capacity);
    Key first;
    {
      const std::lock_guard lock(mutex_);
      first = take_keys(records.size());
      for_runs(first + skip, records.size() - skip,
               [&](std::size_t slot, std::size_t, std::size_t run) { tree_.fill(slot, run, 0.0f); });
    }
    for (std::size_t i = skip; i < records.size(); ++i) {
      const Key key = first + i;
      const std::size_t slot = slot_of(key);
      const std::unique_lock lock(large_records_.stripe(slot));
      Key& written = large_records_.written(slot);
      if (written > key + 1) continue;  // overtaken by a later round
      storage_.write(slot, records.records(i, 1));
      written = key + 1;
    }
    const std::lock_guard lock(mutex_);
    const Key end = first + records.size();
    const Key live = std::clamp(oldest_key_, first + skip, end);
    for_runs(live, static_cast<std::size_t>(end - live),
             [&](std::size_t slot, std::size_t offset, std::size_t run) {
               tree_.set_range(slot, powers.subspan(static_cast<std::size_t>(live - first) + offset, run));
             });
    return first;
  }

  void prepare(Batch<Record>& batch, std::size_t count) {
    if (batch.array_ == nullptr || batch.array_->layout() != layout())
      batch.array_ = std::make_unique<RecordArray>(layout());
    batch.array_->resize(count);
    batch.keys.resize(count);
    batch.probabilities.resize(count);
    batch.weights.resize(count);
    batch.masses_.resize(count);
    batch.slots_.resize(count);
  }

  /// Where draw `i` of `count` falls, as a part of the total priority.
  static double draw_part(std::size_t i, std::size_t count, bool stratified, Random& random) noexcept {
    const double part = random.uniform();
    return stratified ? (static_cast<double>(i) + part) / static_cast<double>(count) : part;
  }

  void record_draw(Batch<Record>& batch, std::size_t i, const Newest& newest, double total) const noexcept {
    batch.keys[i] = newest.key_of(batch.slots_[i]);
    batch.probabilities[i] = static_cast<double>(tree_[batch.slots_[i]]) / total;
  }

  /// Copies the drawn records under their stripes' locks; those that were overwritten since the draw are
  /// drawn again.
  void copy_large(Batch<Record>& batch, Random& random, bool stratified) {
    auto& pending = batch.pending_;
    pending.resize(batch.size());
    for (std::size_t i = 0; i < pending.size(); ++i) pending[i] = i;
    while (true) {
      std::erase_if(pending, [&](std::size_t i) {
        const std::size_t slot = batch.slots_[i];
        const std::shared_lock lock(large_records_.stripe(slot));
        if (large_records_.written(slot) != batch.keys[i] + 1) return false;
        storage_.gather(std::span(&slot, 1), batch.array_->record(i));
        return true;
      });
      if (pending.empty()) return;
      const std::lock_guard lock(mutex_);
      const double total = tree_.total();
      if (!(total > 0.0)) {
        statistics_.samples -= batch.size();
        throw EmptyReplay("every item was evicted while a sample was being copied");
      }
      for (const std::size_t i : pending) {
        batch.slots_[i] = tree_.find(draw_part(i, batch.size(), stratified, random) * total);
        record_draw(batch, i, Newest(*this), total);
      }
      statistics_.redraws += pending.size();
    }
  }

  /// w_i = (N P(i))^-beta / max_j w_j = (P(i) / min_j P(j))^-beta: N and the total cancel.
  static void weigh(Batch<Record>& batch, double beta) {
    const double smallest = *std::min_element(batch.probabilities.begin(), batch.probabilities.end());
    constexpr double kLargest = std::numeric_limits<float>::max();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const double ratio = std::min(batch.probabilities[i] / smallest, kLargest);
      batch.weights[i] = static_cast<float>(detail::power(static_cast<float>(ratio), -beta));
    }
  }

  ReplayOptions options_;
  Storage storage_;

  // Guards the members down to large_records_. Nobody holds it and a stripe's lock at once.
  mutable std::mutex mutex_;
  SumTree tree_;
  Key next_key_ = 0, oldest_key_ = 0;
  ReplayStatistics statistics_;

  LargeRecords large_records_;
};

}  // namespace troop
