/// @file
/// The prioritized replay: items are kept, drawn in proportion to their priorities, and given new priorities.
#pragma once

#include <algorithm>
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
#include <troop/replay/batch.hpp>
#include <troop/replay/detail/power.hpp>
#include <troop/replay/detail/priorities.hpp>
#include <troop/replay/detail/scratch.hpp>
#include <troop/replay/detail/slots.hpp>
#include <troop/replay/detail/timed_mutex.hpp>
#include <troop/replay/removers.hpp>
#include <troop/replay/replay_options.hpp>
#include <troop/replay/samplers.hpp>
#include <troop/replay/storage.hpp>

namespace troop {

/// Options of a replay's storage and remover.
template <class Storage, class Remover>
struct ReplayPolicies {
  typename Storage::Options storage{};
  typename Remover::Options remover{};
};

/// Keeps up to `capacity` items and draws them by their priorities: with the default policies with
/// probability P(i) = p_i^alpha / sum_k p_k^alpha (Schaul et al. 2015, arXiv:1511.05952, equation 1), oldest
/// items going first.
///
/// - `Record` is a trivially copyable aggregate, DynamicRecord for a layout known at run time, or, with a
///   HeapStorage, any object.
/// - `Storage` holds the records: ArrayStorage, FrameStorage, HeapStorage. `Sampler` draws:
///   ProportionalSampler, RankBasedSampler, UniformSampler, NewestFirstSampler. `Remover` chooses what goes
///   from a full replay: OldestFirstRemover, InversePriorityRemover, UniformRemover.
/// - Keys are the numbers of inserts, from 0. A priority update that comes after its item was evicted is
///   recognised by the key, counted, and not applied to the newcomer in the same place.
/// - A priority of 0 keeps the item but never draws it, whatever the sampler. A priority whose power is below
///   the smallest normal float, 1.2e-38, counts as that. Priorities that are NaN, infinite, negative, or
///   whose power overflows are refused with an error that names the item; nothing of that call is applied.
/// - A sample may hold an item more than once.
///
/// Thread-safe: any number of threads may call anything. One lock guards the tree; a call with small records
/// copies them under it (a few microseconds for a batch of 512). Records of 1 KiB or more are copied outside:
/// writers and samplers then only exclude each other on the same 64th part of the slots, and an item that was
/// overwritten while a sampler was about to copy it is drawn anew, never returned torn.
///
/// Costs of a batch of n with the default policies: add, sample and update are O(n log16 capacity). Memory:
/// the record and about 5 bytes an item (13 from 1 KiB on); other policies say what they take.
///
///     PrioritizedReplay<Transition> replay({.capacity = 1'000'000, .alpha = 0.6});
///     replay.add(transitions, priorities);                              // spans
///     auto batch = replay.sample(512, {.beta = 0.4}, random);           // batch.records(), .weights, .keys
///     replay.update(batch.keys, new_priorities);
template <class Record, class Storage, class Sampler, class Remover>
class PrioritizedReplay {
  static constexpr bool kFlat = detail::kIsFlat<Record>;
  static constexpr bool kDynamic = std::is_same_v<Record, DynamicRecord>;
  static constexpr bool kRing = std::is_same_v<Remover, OldestFirstRemover>;
  static_assert(
      kFlat || !ReplayStorage<Storage>,
      "Record is no trivially copyable aggregate: give the replay a HeapStorage<Record> as Storage");
  static_assert(!kFlat || !ObjectStorage<Storage>,
                "Record is a trivially copyable aggregate: give the replay an ArrayStorage as Storage");
  static_assert(
      !kFlat || ReplayStorage<Storage>,
      "Storage must have Options, layout(), capacity(), write, noexcept gather and prefetch, and format, "
      "save, validate and load for snapshots");
  static_assert(kFlat || ReplayStorage<Storage> || ObjectStorage<Storage>,
                "Storage must have Options, Item, capacity(), noexcept exchange and gather, and static "
                "format, save and load for snapshots");
  static_assert(
      ReplaySampler<Sampler>,
      "Sampler must be constructible from ReplayOptions and have kTakesPowers, set, set_range, fill, total, "
      "value, smallest_probability and draw");
  static_assert(kRing || ReplayRemover<Remover>,
                "Remover must have Options, set, erase, choose and priority");

 public:
  using SampledBatch = Batch<Record>;
  using Policies = ReplayPolicies<Storage, Remover>;
  /// What a record is drawn into: bytes, or a shared pointer to an object.
  using Element = typename SampledBatch::Element;
  /// Whether several such replays can be drawn from as one: see the sampler.
  static constexpr bool kDivisible = detail::kIsDivisible<Sampler>;

  /// Records of a type known at compile time. Throws InvalidArgument for bad options, Error when the memory
  /// is not to be had.
  explicit PrioritizedReplay(const ReplayOptions& options, const Policies& policies = {}) requires(!kDynamic)
      : PrioritizedReplay(options, make_storage(options, policies), policies) {}

  /// Records of any layout; throws LayoutMismatch when `layout` is not that of `Record`.
  PrioritizedReplay(const ReplayOptions& options, RecordLayout layout,
                    const Policies& policies = {}) requires(kFlat)
      : PrioritizedReplay(options, make_storage(options, policies, std::move(layout)), policies) {}

  PrioritizedReplay(const PrioritizedReplay&) = delete;
  PrioritizedReplay& operator=(const PrioritizedReplay&) = delete;

  const ReplayOptions& options() const noexcept { return options_; }
  const RecordLayout& layout() const noexcept requires(kFlat) { return storage_.layout(); }
  /// Of what is sampled: as a rule the same. See ReplayStorage.
  const RecordLayout& sample_layout() const noexcept requires(kFlat) {
    if constexpr (requires { storage_.sample_layout(); }) {
      static_assert(kDynamic, "a Storage with a sample_layout needs DynamicRecord as Record");
      return storage_.sample_layout();
    } else {
      return storage_.layout();
    }
  }
  std::size_t capacity() const noexcept { return options_.capacity; }
  const Storage& storage() const noexcept { return storage_; }

  /// Items held.
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return slots_.size();
  }

  /// Adds a batch; item i gets the key `returned key + i`. Evicts items when the replay is full.
  ///
  /// Throws InvalidArgument when the numbers of records and priorities differ or a priority is not allowed,
  /// LayoutMismatch when the records are not of the replay's layout; then nothing was added.
  Key add(const BatchView& records, std::span<const float> priorities) requires(kFlat) {
    if (&records.layout() != &layout()) records.layout().require_equal(layout());
    detail::require_as_many(priorities.size(), records.size(), "records");
    const Powers powers(*this, priorities);
    return large_records_.empty() ? add_small(records, powers) : add_large(records, powers);
  }

  Key add(std::span<const Record> records, std::span<const float> priorities) requires(kFlat && !kDynamic) {
    return add(BatchView(layout(), records.data(), records.size()), priorities);
  }

  /// Adds objects, which are copied. Copies are made, and objects that are evicted destroyed, outside the
  /// lock; if a copy throws, nothing was added.
  Key add(std::span<const Record> records, std::span<const float> priorities) requires(!kFlat) {
    std::vector<Element> items;
    items.reserve(records.size());
    for (const Record& record : records) items.push_back(std::make_shared<const Record>(record));
    return add_objects(items, priorities);
  }

  /// Adds objects that the caller and the replay share from now on. Throws InvalidArgument for a null
  /// pointer.
  Key add(std::span<const Element> records, std::span<const float> priorities) requires(!kFlat) {
    std::vector<Element> items(records.begin(), records.end());
    return add_objects(items, priorities);
  }

  /// Adds a batch at the running maximum: the greatest priority that was ever given here, 1 before the first
  /// (Schaul et al. 2015, algorithm 1), so that a new item is drawn soon.
  template <class Records>
  Key add(const Records& records) requires
      requires(PrioritizedReplay& self, std::span<const float> priorities) {
    self.add(records, priorities);
  }
  {
    const std::vector<float> priorities(std::size(records), max_priority());
    return add(records, priorities);
  }

  /// Adds one item. Batches are much cheaper.
  Key add(const Record& record, float priority) requires(!kDynamic) {
    return add(std::span(&record, 1), std::span(&priority, 1));
  }
  Key add(const Element& record, float priority) requires(!kFlat) {
    return add(std::span(&record, 1), std::span(&priority, 1));
  }

  /// Draws `count` items into `batch`, each with its probability, whatever was drawn before.
  ///
  /// Throws InvalidArgument for a count of 0 or a bad beta, EmptyReplay when no item has a positive priority;
  /// what the batch holds is then unspecified.
  void sample(std::size_t count, const SampleOptions& options, Random& random, Batch<Record>& batch) {
    batch.fill(*this, count, options, random);
  }

  Batch<Record> sample(std::size_t count, const SampleOptions& options, Random& random) {
    Batch<Record> batch;
    sample(count, options, random, batch);
    return batch;
  }

  /// Draws one item for each part in [0, 1): what `sample` and a sharded replay are made of. A uniform part
  /// finds item i with probability P(i); those of one call may be chosen to spread the draws. Overwrites the
  /// parts. `random` serves draws that have to be repeated.
  ///
  /// Returns the smallest probability, from which the greatest weight follows: of all items that can be drawn
  /// with WeightNormalizer::replay, else of those that were drawn, 1 for no parts. Throws EmptyReplay when no
  /// item can be.
  double draw(std::span<double> parts, Random& random, const DrawTarget<Element>& target) {
    auto& scratch = detail::of_this_thread<DrawScratch>();
    scratch.slots.resize(parts.size());
    const std::span<std::size_t> slots(scratch.slots);
    const bool large = !large_records_.empty();
    double smallest = 1.0;
    {
      const std::lock_guard lock(mutex_);
      if (!(sampler_.total() > 0.0)) {
        detail::throw_empty(slots_.size());
      }
      sampler_.draw(parts, slots, target.probabilities);
      if (!large) prefetch(slots);
      find_keys(slots, target.keys);
      if (!large) storage_.gather(slots, target.records);
      if (options_.normalizer == WeightNormalizer::replay) smallest = sampler_.smallest_probability();
      statistics_.samples += parts.size();
    }
    if (large) copy_large(slots, random, target);
    // With WeightNormalizer::replay too: what was drawn again may be less probable than all that was there
    // before.
    for (const double probability : target.probabilities) smallest = std::min(smallest, probability);
    return smallest;
  }

  /// Gives items new priorities; of a key that is named twice the last priority stays. Returns how many of
  /// the items were gone already.
  ///
  /// Throws InvalidArgument when the numbers differ, a priority is not allowed, or a key was never given;
  /// then nothing was applied.
  std::size_t update(std::span<const Key> keys, std::span<const float> priorities) {
    detail::require_as_many(priorities.size(), keys.size(), "keys");
    Powers powers(*this, priorities);
    const std::lock_guard lock(mutex_);
    if (!keys.empty()) {
      const Key greatest = *std::max_element(keys.begin(), keys.end());
      require(greatest < slots_.next_key(), "key", greatest, "the key of an item that was added");
    }
    const std::size_t live = find_live(keys, priorities, powers);
    const std::span<const std::size_t> slots = std::span(powers.scratch.slots).first(live);
    sampler_.set(slots, powers.values().first(live));
    if constexpr (!kRing) remover_.set(slots, std::span(powers.scratch.priorities).first(live));
    max_priority_ = std::max(max_priority_, powers.greatest);
    const std::size_t stale = keys.size() - live;
    statistics_.updates += live;
    statistics_.stale_updates += stale;
    return stale;
  }

  /// Evicts items beyond the soft capacity and returns how many. Ape-X calls it every 100 learner steps.
  std::size_t trim() {
    constexpr bool kAtOnce = kRing && kFlat;
    std::size_t trimmed = 0;
    while (true) {
      Evicted evicted;
      const std::lock_guard lock(mutex_);
      const std::size_t held = slots_.size();
      const std::size_t excess = held > options_.soft_capacity ? held - options_.soft_capacity : 0;
      const std::size_t count = kAtOnce ? excess : std::min(excess, kTrimAtOnce);
      evict(count, evicted);
      statistics_.trimmed += count;
      trimmed += count;
      if (count == excess) return trimmed;
    }
  }

  /// Evicts everything. Keys go on from where they were.
  void clear() {
    Evicted evicted;
    const std::lock_guard lock(mutex_);
    evict_all(evicted);
  }

  /// Throws InvalidArgument for the first priority that `add` and `update` would refuse. Takes no lock.
  void check_priorities(std::span<const float> priorities) const {
    detail::check_priorities(priorities, exponent());
  }

  /// The greatest priority that was ever given, `before_first` before the first: what an item gets that is
  /// added without a priority.
  float max_priority(float before_first = 1.0f) const {
    const std::lock_guard lock(mutex_);
    return max_priority_ > 0.0f ? max_priority_ : before_first;
  }

  /// What probabilities are relative to: 0 when nothing can be drawn.
  double total_priority() const {
    const std::lock_guard lock(mutex_);
    return sampler_.total();
  }

  /// The key of the next item.
  Key next_key() const {
    const std::lock_guard lock(mutex_);
    return slots_.next_key();
  }

  ReplayStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    ReplayStatistics result = statistics_;
    result.size = slots_.size();
    result.capacity = options_.capacity;
    result.soft_capacity = options_.soft_capacity;
    result.total_priority = sampler_.total();
    result.max_priority = max_priority_ > 0.0f ? max_priority_ : 1.0f;
    result.inserts = slots_.next_key();
    result.evictions = slots_.next_key() - slots_.size();
    result.lock_waits = mutex_.waits();
    result.lock_wait_seconds = mutex_.wait_seconds();
    return result;
  }

  /// Counts the items' priorities by powers of two (with a uniform or newest-first sampler, which do not keep
  /// them, all positive ones as 1). Looks at the whole replay, in pieces of some ten microseconds under the
  /// lock: what changes meanwhile may be counted as it was or as it is.
  PriorityHistogram priority_histogram() const;

 private:
  template <class>
  friend class detail::SnapshotAccess;

  using Slots = std::conditional_t<kRing, detail::RingSlots, detail::TableSlots>;

  /// Bytes from which records are copied outside the tree's lock.
  static constexpr std::size_t kLargeRecord = 1024;
  static constexpr std::size_t kStripes = 64;
  /// Items that are chosen one by one, or whose objects are let go, under one lock.
  static constexpr std::size_t kTrimAtOnce = 256;

  /// Objects that were evicted. Stands before the lock, so that they are destroyed after it.
  struct Nothing {};
  using Evicted = std::conditional_t<kFlat, Nothing, std::vector<Element>>;

  /// Guards the slots of large records. Adjacent slots share a stripe in groups of 16, so that a writer,
  /// which fills adjacent slots, and a sampler, which reads scattered ones, seldom meet.
  struct LargeRecords {
    explicit LargeRecords(std::size_t capacity)
        : memory(checked_bytes("capacity", capacity, sizeof(Key))), stripes(capacity > 0 ? kStripes : 0) {}
    bool empty() const noexcept { return stripes.empty(); }
    std::shared_mutex& stripe(std::size_t slot) const noexcept { return stripes[slot / 16 % kStripes]; }

    /// One more than the key whose record is in the slot, 0 for none; guarded by the slot's stripe.
    Key& written(std::size_t slot) const noexcept { return memory.as<Key>()[slot]; }

    Block memory;  // of keys; its pages are taken as they are first written, like those of the records
    mutable std::vector<std::shared_mutex> stripes;
  };

  /// What a call needs for a moment; one for each thread, so that calls allocate nothing.
  struct DrawScratch {
    std::vector<std::size_t> slots, pending;
  };
  struct Scratch {
    std::vector<float> values, priorities;
    std::vector<std::size_t> slots;
  };

  /// Checked priorities as the sampler takes them.
  struct Powers {
    Powers(const PrioritizedReplay& replay, std::span<const float> given)
        : scratch(detail::of_this_thread<Scratch>()), priorities(given) {
      scratch.values.resize(given.size());
      if (detail::raise_priorities(given, replay.exponent(), scratch.values.data(), greatest)) return;
      replay.check_priorities(given);
      throw Error("a priority was refused and then not found");
    }

    std::span<const float> values() const noexcept { return scratch.values; }

    Scratch& scratch;
    std::span<const float> priorities;
    float greatest = 0.0f;
  };

  static Storage make_storage(const ReplayOptions& options, const Policies& policies) requires(!kDynamic) {
    if constexpr (kFlat) {
      return make_storage(options, policies, RecordLayout::of<Record>());
    } else {
      options.validate();
      policies.storage.validate();
      return Storage(options.capacity, policies.storage);
    }
  }
  static Storage make_storage(const ReplayOptions& options, const Policies& policies,
                              RecordLayout layout) requires(kFlat) {
    options.validate();
    policies.storage.validate();
    if constexpr (!kDynamic) layout.require_equal(RecordLayout::of<Record>());
    return Storage(options.capacity, std::move(layout), policies.storage);
  }

  static std::size_t record_bytes(const Storage& storage) {
    if constexpr (kFlat) return storage.layout().size();
    return 0;
  }

  PrioritizedReplay(const ReplayOptions& options, Storage&& storage, const Policies& policies)
      : options_(options),
        storage_(std::move(storage)),
        slots_(options.capacity),
        sampler_(options),
        remover_(make_remover(options, policies)),
        random_(options.seed, "remover"),
        large_records_(record_bytes(storage_) >= kLargeRecord ? options.capacity : 0) {
    if (options_.soft_capacity == 0) options_.soft_capacity = options_.capacity;
  }

  static Remover make_remover(const ReplayOptions& options, const Policies& policies) {
    if constexpr (kRing) {
      return Remover{};
    } else {
      return Remover(options.capacity, policies.remover);
    }
  }

  /// Of the priorities, as the sampler takes them.
  double exponent() const noexcept { return Sampler::kTakesPowers ? options_.alpha : 1.0; }

  void prefetch(std::span<const std::size_t> slots) const noexcept {
    if constexpr (kFlat)
      for (const std::size_t slot : slots) storage_.prefetch(slot);
  }

  void find_keys(std::span<const std::size_t> slots, std::span<Key> keys) const noexcept {
    if constexpr (kRing) {
      const typename Slots::Newest newest(slots_);
      for (std::size_t i = 0; i < slots.size(); ++i) keys[i] = newest.key_of(slots[i]);
    } else {
      for (std::size_t i = 0; i < slots.size(); ++i) keys[i] = slots_.key_of(slots[i]);
    }
  }

  /// Of the keys whose items are there: moves values and, for a remover, priorities to the front, beside
  /// their slots.
  std::size_t find_live(std::span<const Key> keys, std::span<const float> priorities, Powers& powers) const {
    Scratch& scratch = powers.scratch;
    scratch.slots.resize(keys.size());
    std::size_t live = 0;
    if (slots_.size() == 0) return live;
    if constexpr (kRing) {
      const typename Slots::Newest newest(slots_);
      const Key oldest = slots_.oldest_key();
      for (std::size_t i = 0; i < keys.size(); ++i) {
        scratch.slots[live] = newest.slot_of(keys[i]);  // of no meaning for a key that is gone
        scratch.values[live] = scratch.values[i];
        live += keys[i] >= oldest;
      }
    } else {
      scratch.priorities.resize(keys.size());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const std::size_t slot = slots_.find(keys[i]);
        if (slot == Slots::kNone) continue;
        scratch.slots[live] = slot;
        scratch.priorities[live] = priorities[i];
        scratch.values[live++] = scratch.values[i];
      }
    }
    return live;
  }

  /// Evicts `count` items, as the remover chooses.
  void evict(std::size_t count, Evicted& evicted) {
    make_room(evicted, count);
    if constexpr (kRing) {
      slots_.for_runs(slots_.oldest_key(), count, [&](std::size_t slot, std::size_t, std::size_t run) {
        sampler_.fill(slot, run, 0.0f);
        take_out(slot, run, evicted);
      });
      slots_.drop(count);
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t slot = remover_.choose(random_);
        sampler_.fill(slot, 1, 0.0f);
        remover_.erase(slot);
        slots_.erase(slot);
        take_out(slot, 1, evicted);
      }
    }
  }

  void evict_all(Evicted& evicted) {
    if constexpr (kRing) {
      evict(slots_.size(), evicted);
    } else {
      make_room(evicted, options_.capacity);
      sampler_.fill(0, options_.capacity, 0.0f);
      remover_.clear();
      slots_.clear(slots_.next_key());
      take_out(0, options_.capacity, evicted);
    }
  }

  static void make_room(Evicted& evicted, std::size_t count) {
    if constexpr (!kFlat) evicted.reserve(evicted.size() + count);
  }
  void take_out(std::size_t slot, std::size_t count, Evicted& evicted) noexcept {
    if constexpr (!kFlat) {
      const std::size_t before = evicted.size();
      evicted.resize(before + count);
      storage_.exchange(slot, std::span(evicted).subspan(before));
    }
  }

  void store(std::size_t slot, const BatchView& records, std::size_t first, std::size_t count) {
    storage_.write(slot, records.records(first, count));
  }
  void store(std::size_t slot, std::span<Element> items, std::size_t first,
             std::size_t count) requires(!kFlat) {
    storage_.exchange(slot, items.subspan(first, count));
  }

  /// Leaves in `items` what they displaced.
  Key add_objects(std::vector<Element>& items, std::span<const float> priorities) requires(!kFlat) {
    detail::require_as_many(priorities.size(), items.size(), "records");
    for (std::size_t i = 0; i < items.size(); ++i)
      require(items[i] != nullptr, "records[" + std::to_string(i) + "]", "null", "a pointer to an object");
    const Powers powers(*this, priorities);
    return add_small(std::span(items), powers);
  }

  template <class Records>
  Key add_small(const Records& records, const Powers& powers) {
    const std::lock_guard lock(mutex_);
    max_priority_ = std::max(max_priority_, powers.greatest);
    if constexpr (kRing) {
      const Key first = slots_.next_key();
      for (std::size_t done = 0; done < records.size();) {
        const std::size_t count = std::min(records.size() - done, options_.capacity);
        slots_.for_runs(slots_.take(count), count,
                        [&](std::size_t slot, std::size_t offset, std::size_t run) {
                          store(slot, records, done + offset, run);
                          if constexpr (detail::kKeepsOrder<Sampler>) sampler_.fill(slot, run, 0.0f);
                          sampler_.set_range(slot, powers.values().subspan(done + offset, run));
                        });
        done += count;
      }
      return first;
    } else {
      const Key first = take_slots(powers);
      for (std::size_t i = 0; i < records.size(); ++i) store(powers.scratch.slots[i], records, i, 1);
      const std::span<const std::size_t> slots = powers.scratch.slots;
      if constexpr (detail::kKeepsOrder<Sampler>) {
        for (std::size_t i = 0; i < slots.size(); ++i) {
          sampler_.fill(slots[i], 1, 0.0f);
          sampler_.set(slots.subspan(i, 1), powers.values().subspan(i, 1));
        }
      } else {
        sampler_.set(slots, powers.values());
      }
      return first;
    }
  }

  /// Takes a key and a slot for each of the priorities; whatever the slots held is gone.
  Key take_slots(const Powers& powers) requires(!kRing) {
    auto& slots = powers.scratch.slots;
    slots.resize(powers.priorities.size());
    const Key first = slots_.next_key();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots_.is_full()) {
        slots[i] = remover_.choose(random_);
        slots_.replace(slots[i]);
      } else {
        slots[i] = slots_.free_slot();
        slots_.put();
      }
      remover_.set(std::span(&slots[i], 1), powers.priorities.subspan(i, 1));
    }
    return first;
  }

  /// Takes the keys and empties the slots under the lock, copies outside, then publishes the priorities of
  /// what is still live.
  Key add_large(const BatchView& records, const Powers& powers) {
    auto& slots = powers.scratch.slots;
    // Of a batch larger than a ring the first records are evicted by the batch itself.
    std::size_t skip = 0;
    Key first;
    {
      const std::lock_guard lock(mutex_);
      max_priority_ = std::max(max_priority_, powers.greatest);
      if constexpr (kRing) {
        skip = records.size() - std::min(records.size(), options_.capacity);
        slots.resize(records.size());
        first = slots_.take(records.size());
        slots_.for_runs(first + skip, records.size() - skip,
                        [&](std::size_t slot, std::size_t offset, std::size_t run) {
                          sampler_.fill(slot, run, 0.0f);
                          for (std::size_t i = 0; i < run; ++i) slots[skip + offset + i] = slot + i;
                        });
      } else {
        first = take_slots(powers);
        for (const std::size_t slot : slots) sampler_.fill(slot, 1, 0.0f);
      }
    }
    for (std::size_t i = skip; i < records.size(); ++i) {
      const Key key = first + i;
      const std::unique_lock lock(large_records_.stripe(slots[i]));
      Key& written = large_records_.written(slots[i]);
      if (written > key + 1) continue;  // overtaken by a later item
      written = 0;                      // until it is whole, should the storage throw
      storage_.write(slots[i], records.records(i, 1));
      written = key + 1;
    }
    const std::lock_guard lock(mutex_);
    if constexpr (kRing) {
      const Key end = first + records.size();
      const Key live = std::clamp(slots_.oldest_key(), first + skip, end);
      slots_.for_runs(live, static_cast<std::size_t>(end - live),
                      [&](std::size_t slot, std::size_t offset, std::size_t run) {
                        const std::size_t from = static_cast<std::size_t>(live - first) + offset;
                        sampler_.set_range(slot, powers.values().subspan(from, run));
                      });
    } else {
      std::size_t live = 0;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots_.find(first + i) != slots[i]) continue;
        slots[live] = slots[i];
        powers.scratch.values[live++] = powers.scratch.values[i];
      }
      sampler_.set(std::span(slots).first(live), powers.values().first(live));
    }
    return first;
  }

  /// Copies the drawn records under their stripes' locks; those that were overwritten since the draw are
  /// drawn again, from the whole.
  void copy_large(std::span<std::size_t> slots, Random& random,
                  const DrawTarget<Element>& target) requires(kFlat) {
    auto& pending = detail::of_this_thread<DrawScratch>().pending;
    pending.resize(slots.size());
    for (std::size_t i = 0; i < pending.size(); ++i) pending[i] = i;
    while (true) {
      std::erase_if(pending, [&](std::size_t i) {
        const std::shared_lock lock(large_records_.stripe(slots[i]));
        if (large_records_.written(slots[i]) != target.keys[i] + 1) return false;
        storage_.gather(slots.subspan(i, 1), target.records + i * sample_layout().size());
        return true;
      });
      if (pending.empty()) return;
      const std::lock_guard lock(mutex_);
      if (!(sampler_.total() > 0.0)) {
        statistics_.samples -= slots.size();
        throw EmptyReplay("every item was evicted while a sample was being copied");
      }
      for (const std::size_t i : pending) {
        double part = random.uniform();
        sampler_.draw(std::span(&part, 1), slots.subspan(i, 1), target.probabilities.subspan(i, 1));
        find_keys(slots.subspan(i, 1), target.keys.subspan(i, 1));
      }
      statistics_.redraws += pending.size();
    }
  }
  void copy_large(std::span<std::size_t>, Random&, const DrawTarget<Element>&) requires(!kFlat) {}

  ReplayOptions options_;
  Storage storage_;

  // Guards the members down to large_records_. Nobody holds it and a stripe's lock at once.
  mutable detail::TimedMutex mutex_;
  Slots slots_;
  Sampler sampler_;
  Remover remover_;
  Random random_;
  float max_priority_ = 0.0f;
  ReplayStatistics statistics_;

  LargeRecords large_records_;
};

template <class Record, class Storage, class Sampler, class Remover>
PriorityHistogram PrioritizedReplay<Record, Storage, Sampler, Remover>::priority_histogram() const {
  constexpr std::size_t kPiece = 4096;
  constexpr int kLowest = -150, kHighest = 150;
  const double exponent = this->exponent() > 0.0 ? 1.0 / this->exponent() : 1.0;
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(kHighest - kLowest + 1));
  std::vector<float> values(kPiece);
  std::size_t items = 0, positive = 0;
  for (std::size_t first = 0; first < options_.capacity; first += kPiece) {
    values.resize(std::min(kPiece, options_.capacity - first));
    {
      const std::lock_guard lock(mutex_);
      items = slots_.size();
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = sampler_.value(first + i);
    }
    for (const float value : values) {
      if (!(value > 0.0f)) continue;
      // A little more than the logarithm, for powers of powers of two are rounded.
      const double log2 = std::floor(std::log2(static_cast<double>(value)) * exponent + 1e-6);
      ++counts[static_cast<std::size_t>(std::clamp(log2, double{kLowest}, double{kHighest}) - kLowest)];
      ++positive;
    }
  }
  PriorityHistogram histogram;
  histogram.zeros = items > positive ? items - positive : 0;
  const auto occurs = [](std::uint64_t count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), occurs);
  const auto last = std::find_if(counts.rbegin(), counts.rend(), occurs).base();
  for (auto bin = first; bin < last; ++bin)
    histogram.bins.push_back({kLowest + static_cast<int>(bin - counts.begin()), *bin});
  return histogram;
}

}  // namespace troop
