/// @file
/// Several replays, each behind a lock of its own, that are added to and drawn from as one.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/hash.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/fwd.hpp>
#include <troop/replay/batch.hpp>
#include <troop/replay/detail/priorities.hpp>
#include <troop/replay/detail/scratch.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/replay_options.hpp>

namespace troop {

namespace detail {

template <class S>
concept TakesBytes = std::same_as<typename S::Element, std::byte> &&
    requires(S& shard, const BatchView& records, std::span<const float> priorities) {
  { shard.add(records, priorities) } -> std::same_as<Key>;
  { shard.layout() } -> std::same_as<const RecordLayout&>;
};

template <class S>
concept TakesObjects = requires(S& shard, std::span<const typename S::Element> records,
                                std::span<const float> priorities) {
  { shard.add(records, priorities) } -> std::same_as<Key>;
};

template <class S>
concept TakesRecords = TakesBytes<S> || TakesObjects<S>;

}  // namespace detail

/// What a sharded replay asks of a shard, which is a PrioritizedReplay of this process or a client of one
/// elsewhere. Any thread may call anything at any time.
///
/// - `SampledBatch`, `Element`: what is sampled into, and what a record is drawn into (see DrawTarget).
/// - `kDivisible`: whether draws that go to the shards in proportion to their totals are draws from all
///   items.
/// - `add(records, priorities)`: item i gets the key `returned key + i`. For bytes records are a BatchView,
///   and `layout()` is theirs; else they are a span of elements.
/// - `draw(parts, random, target)`: fills the target with one draw for each uniform part in [0, 1), which it
///   may overwrite, and returns the smallest probability, as PrioritizedReplay::draw does. There may be no
///   parts: the answer is then about the items alone. Throws EmptyReplay when nothing can be drawn.
/// - `total_priority()`: the sum that probabilities are relative to; 0 when nothing can be drawn.
/// - `check_priorities(priorities)`: throws InvalidArgument for the first that `add` or `update` would
///   refuse. It is asked before every update, so it should need neither lock nor network.
/// - `next_key()`: greater than every key that was given. It may lag behind by keys of which nobody has heard
///   yet.
/// - `update`, `trim`, `clear`, `size`, `statistics`, `priority_histogram`, `options`, and
///   `max_priority`, whose argument is the answer when no priority was given yet: as those of
///   PrioritizedReplay.
template <class S>
concept ReplayShard = detail::TakesRecords<S> &&
    requires(S& shard, Random& random, std::span<double> parts, const DrawTarget<typename S::Element>& target,
             std::span<const Key> keys, std::span<const float> priorities) {
  typename S::SampledBatch;
  { S::kDivisible } -> std::convertible_to<bool>;
  { shard.draw(parts, random, target) } -> std::same_as<double>;
  { shard.total_priority() } -> std::same_as<double>;
  shard.check_priorities(priorities);
  { shard.next_key() } -> std::same_as<Key>;
  { shard.update(keys, priorities) } -> std::same_as<std::size_t>;
  { shard.trim() } -> std::same_as<std::size_t>;
  shard.clear();
  { shard.size() } -> std::same_as<std::size_t>;
  { shard.statistics() } -> std::same_as<ReplayStatistics>;
  { shard.priority_histogram() } -> std::same_as<PriorityHistogram>;
  { shard.options() } -> std::convertible_to<ReplayOptions>;
  { shard.max_priority(0.0f) } -> std::same_as<float>;
};

namespace detail {

template <class S>
concept WorksApart = requires(S& shard, Random& random, std::span<const double> parts,
                              const DrawTarget<typename S::Element>& target, std::span<const Key> keys,
                              std::span<const float> priorities, typename S::PendingDraw& draw,
                              typename S::PendingUpdate& update) {
  shard.begin_draw(parts, random, target, draw);
  { shard.finish_draw(draw) } -> std::same_as<double>;
  shard.begin_update(keys, priorities, update);
  { shard.finish_update(update) } -> std::same_as<std::size_t>;
};

}  // namespace detail

/// A shard that works while its caller does something else: draws and updates of a sharded replay are begun
/// in all such shards before the first is waited for. `begin_draw(parts, random, target, pending)` and
/// `finish_draw(pending)` are the two halves of `draw`, `begin_update(keys, priorities, pending)` and
/// `finish_update(pending)` those of `update`; the first halves throw nothing that the second might. A
/// pending call is default-constructed in the caller's memory, and neither copied nor moved; when it is
/// destroyed unfinished, or has been finished, its target is not written to any more.
template <class S>
concept RemoteReplayShard = ReplayShard<S> && detail::WorksApart<S>;

/// Keeps items in S shards and draws from them as from one replay: item i with probability p_i^alpha / sum_k
/// p_k^alpha over all shards. Threads that add, sample and update wait for each other only where they meet in
/// a shard. For a learner and a sink it is what a PrioritizedReplay is.
///
/// - A batch that is added goes to one shard as a whole. Shards take turns: in each round of S turns each
///   shard gets one, in an order that changes from round to round, so that no rhythm of batch sizes favours a
///   shard. A turn is a thread's and lasts for a 64th of a shard's capacity, at least one batch, so that what
///   a thread writes to stays near its core. Batches of one size thus fill all shards alike; other sizes make
///   shards differ as sums of random sizes do, less and less beside the capacity.
/// - Capacity and soft capacity are divided, and "oldest first" and `trim` are of a shard: the items held are
///   the newest of each shard, and a shard may evict while another still has room. A batch that is larger
///   than a shard evicts its own first items.
/// - A key is the shard's key times S plus the shard's number: unique, never given again, and growing within
///   a shard only. Of a batch that was added at once, item i has the key `first + i * S`: see `nth_key`.
/// - Items of a batch stand by shard, from a random one on. Shuffle them if their order matters: that of a
///   PrioritizedReplay is not random either.
/// - Rank-based and newest-first samplers are refused by the compiler: the first ranks of the shards are not
///   the first ranks of the whole.
///
/// What a sampled probability means while others write: the totals T_s of all shards are read, one after the
/// other; a place falls to shard s with probability T_s / T; the shard draws from what it holds by then, item
/// i with probability q_i, known exactly under the shard's lock. The probability is reported as T_s / T *
/// q_i, which is the one by which just this draw was made, whatever happened between the two; so
/// importance-sampling weights correct for what was done, not for an estimate of it. With no other writer q_i
/// = p_i^alpha / T_s, and T cancels to the formula above. Places that fell to a shard which turned out to be
/// empty are drawn again, independently of each other, from totals that are read anew; theirs is the
/// probability of the second draw.
///
/// Thread-safe as its shards are: any number of threads may call anything. No lock is held over more than one
/// shard, so that what concerns all shards, such as `size` and `statistics`, is no picture of one moment
/// while others write. Costs beside those of the shards: a sample takes every shard's lock for its total,
/// then again to draw; an update twice that of each shard concerned. Allocates nothing in a steady state but
/// where its shards do.
///
///     ShardedReplay<PrioritizedReplay<Transition>> replay({.capacity = 1'000'000, .alpha = 0.6}, 16);
///     replay.add(transitions, priorities);                              // spans
///     auto batch = replay.sample(512, {.beta = 0.4}, random);
///     replay.update(batch.keys, new_priorities);
template <class Shard>
class ShardedReplay {
  static_assert(
      ReplayShard<Shard>,
      "Shard must be a PrioritizedReplay or have its SampledBatch, Element, kDivisible, add, draw, update, "
      "trim, clear, size, options, statistics, priority_histogram, max_priority, total_priority, "
      "next_key, check_priorities and, for records of bytes, layout");
  static_assert(Shard::kDivisible,
                "the sampler's draws from parts of the items are not draws from all of them: shards need a "
                "ProportionalSampler, a UniformSampler or another one that says kDivisible");

  static constexpr bool kFlat = std::is_same_v<typename Shard::Element, std::byte>;

 public:
  using SampledBatch = typename Shard::SampledBatch;
  using Element = typename Shard::Element;

  /// Makes the shards, with what the shard's constructor takes after the options: a layout, policies.
  /// Capacity and soft capacity are divided, remainders going to the first shards; each shard has a seed of
  /// its own.
  ///
  /// Throws what that constructor throws, and InvalidArgument when there is less than one item for a shard.
  template <class... Arguments>
  ShardedReplay(const ReplayOptions& options, std::size_t num_shards, const Arguments&... arguments) requires
      std::constructible_from<Shard, const ReplayOptions&, const Arguments&...>
      : ShardedReplay(make_shards(options, num_shards, arguments...)) {
    options_.seed = options.seed;
  }

  /// Draws from shards that were made elsewhere, which others may use as well. The order of the shards is
  /// part of the keys. Throws InvalidArgument when there are none, one is null, or they differ in alpha or
  /// normalizer, LayoutMismatch when they differ in their records.
  explicit ShardedReplay(std::vector<std::shared_ptr<Shard>> shards) : shards_(std::move(shards)) {
    require(!shards_.empty(), "number of shards", 0, "a positive integer");
    reciprocal_ = std::numeric_limits<std::uint64_t>::max() / shards_.size();
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      const std::string name = "shards[" + std::to_string(s) + "]";
      require(shards_[s] != nullptr, name, "null", "a pointer to a shard");
      const ReplayOptions options = shards_[s]->options();
      if (s == 0) {
        options_ = options;
        continue;
      }
      require(options.alpha == options_.alpha, name + ".alpha", options.alpha,
              "that of shards[0], " + detail::to_text(options_.alpha));
      require(options.normalizer == options_.normalizer, name + ".normalizer",
              static_cast<int>(options.normalizer), "that of shards[0]");
      if constexpr (kFlat) shards_[s]->layout().require_equal(layout());
      options_.capacity += options.capacity;
      options_.soft_capacity += options.soft_capacity;
    }
    items_a_turn_ = std::max<std::size_t>(1, options_.capacity / shards_.size() / kTurnsARound);
  }

  ShardedReplay(const ShardedReplay&) = delete;
  ShardedReplay& operator=(const ShardedReplay&) = delete;

  /// Those of the whole.
  const ReplayOptions& options() const noexcept { return options_; }
  const RecordLayout& layout() const requires(kFlat) { return shards_.front()->layout(); }
  std::size_t capacity() const noexcept { return options_.capacity; }
  std::span<const std::shared_ptr<Shard>> shards() const noexcept { return shards_; }

  /// Items held.
  std::size_t size() const {
    return sum([](Shard& shard) { return shard.size(); });
  }

  /// Adds a batch or an item, in any of the forms in which a shard takes one with priorities, and returns the
  /// first key. Throws what the shard throws; then nothing was added.
  template <class Records, class Priorities>
  Key add(const Records& records, const Priorities& priorities) requires requires(Shard& shard) {
    shard.add(records, priorities);
  }
  {
    std::size_t count = 1;
    if constexpr (requires { std::size(priorities); }) count = std::size(priorities);
    const std::size_t shard = next_shard(count);
    return global(shards_[shard]->add(records, priorities), shard);
  }

  /// Adds a batch at the running maximum of all shards: the greatest priority that was ever given, 1 before
  /// the first.
  template <class Records>
  Key add(const Records& records) requires requires(Shard& shard, std::span<const float> priorities) {
    shard.add(records, priorities);
  }
  { return add(records, std::vector<float>(std::size(records), max_priority())); }

  /// The key of item `i` of a batch to which `add` gave the key `first`.
  Key nth_key(Key first, std::size_t i) const noexcept { return first + i * shards_.size(); }

  /// Draws `count` items into `batch`, each with its probability, whatever was drawn before.
  ///
  /// Throws InvalidArgument for a count of 0 or a bad beta, EmptyReplay when no item of any shard has a
  /// positive priority; what the batch holds is then unspecified.
  void sample(std::size_t count, const SampleOptions& options, Random& random, SampledBatch& batch) {
    batch.fill(*this, count, options, random);
  }

  SampledBatch sample(std::size_t count, const SampleOptions& options, Random& random) {
    SampledBatch batch;
    sample(count, options, random, batch);
    return batch;
  }

  /// Draws one item for each part in [0, 1), as PrioritizedReplay::draw does, but by shard: not in the order
  /// of the parts. Overwrites the parts.
  double draw(std::span<double> parts, Random& random, const DrawTarget<Element>& target) {
    auto& scratch = detail::of_this_thread<DrawScratch>();
    const bool ask_all = options_.normalizer == WeightNormalizer::replay;
    double smallest = 1.0;
    std::size_t done = 0;
    while (true) {
      const double total = divide(parts.subspan(done), scratch);
      // From a random shard on, so that threads do not queue up behind each other.
      const std::size_t start =
          shards_.size() > 1 ? static_cast<std::size_t>(random.below(shards_.size())) : 0;
      const DrawPlan plan{start, total, ask_all, done};
      done += draw_from_all(plan, scratch, random, target, smallest);
      if (done == parts.size()) return smallest;
      for (double& part : parts.subspan(done)) part = random.uniform();
    }
  }

  /// Gives items new priorities; of a key that is named twice the last priority stays. Returns how many of
  /// the items were gone already.
  ///
  /// Throws InvalidArgument when the numbers differ, a priority is not allowed, or a key was never given;
  /// then nothing was applied in any shard. (Only a shard elsewhere that fails in the middle leaves those
  /// before it updated.)
  std::size_t update(std::span<const Key> keys, std::span<const float> priorities) {
    detail::require_as_many(priorities.size(), keys.size(), "keys");
    shards_.front()->check_priorities(priorities);
    auto& scratch = detail::of_this_thread<UpdateScratch>();
    auto& [shards, places, ends] = scratch.groups;
    shards.resize(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) shards[i] = keys[i] - local(keys[i]) * shards_.size();
    scratch.groups.arrange(shards_.size());
    scratch.keys.resize(keys.size());
    scratch.priorities.resize(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      scratch.keys[places[i]] = local(keys[i]);
      scratch.priorities[places[i]] = priorities[i];
    }
    for_groups(scratch, [&](std::size_t s, std::span<const Key> given, std::span<const float>) {
      const Key greatest = *std::max_element(given.begin(), given.end());
      require(greatest < shards_[s]->next_key(), "key", global(greatest, s),
              "the key of an item that was added");
    });
    std::size_t stale = 0;
    if constexpr (detail::WorksApart<Shard>) {
      std::vector<typename Shard::PendingUpdate> pending(shards_.size());
      for_groups(scratch,
                 [&](std::size_t s, std::span<const Key> given, std::span<const float> new_priorities) {
                   shards_[s]->begin_update(given, new_priorities, pending[s]);
                 });
      for_groups(scratch, [&](std::size_t s, std::span<const Key>, std::span<const float>) {
        stale += shards_[s]->finish_update(pending[s]);
      });
    } else {
      for_groups(scratch,
                 [&](std::size_t s, std::span<const Key> given, std::span<const float> new_priorities) {
                   stale += shards_[s]->update(given, new_priorities);
                 });
    }
    return stale;
  }

  /// Evicts what each shard holds beyond its soft capacity and returns how many items. Ape-X calls it every
  /// 100 learner steps.
  std::size_t trim() {
    return sum([](Shard& shard) { return shard.trim(); });
  }

  /// Evicts everything. Keys go on from where they were.
  void clear() {
    for (const auto& shard : shards_) shard->clear();
  }

  /// The greatest priority that was ever given, `before_first` before the first: what an item gets that is
  /// added without a priority.
  float max_priority(float before_first = 1.0f) const {
    float greatest = 0.0f;
    for (const auto& shard : shards_) greatest = std::max(greatest, shard->max_priority(0.0f));
    return greatest > 0.0f ? greatest : before_first;
  }

  /// Greater than every key that was given.
  Key next_key() const {
    Key next = 0;
    for (const auto& shard : shards_) next = std::max(next, shard->next_key());
    return next * shards_.size();
  }

  /// What probabilities are relative to: 0 when nothing can be drawn.
  double total_priority() const {
    return sum([](Shard& shard) { return shard.total_priority(); });
  }

  /// Those of all shards together. A sample that ended with EmptyReplay may have been counted in part.
  ReplayStatistics statistics() const {
    ReplayStatistics result = sum([](Shard& shard) { return shard.statistics(); });
    result.max_priority = max_priority();
    return result;
  }

  PriorityHistogram priority_histogram() const {
    return sum([](Shard& shard) { return shard.priority_histogram(); });
  }

 private:
  /// Turns in which a shard's whole content is renewed.
  static constexpr std::size_t kTurnsARound = 64;
  static constexpr double kBelowOne = 1.0 - std::numeric_limits<double>::epsilon() / 2;

  /// How the places from `done` on are drawn.
  struct DrawPlan {
    std::size_t start;  // shard
    double total;
    bool ask_all;  // the shards to which no place fell too
    std::size_t done;
  };

  /// Things to be arranged by shard, those of a shard in their order.
  struct Groups {
    std::vector<std::size_t> shards;  // of each thing
    std::vector<std::size_t> places;  // of each thing when they are arranged
    std::vector<std::size_t> ends;    // of each shard's things then

    void arrange(std::size_t num_shards) {
      ends.assign(num_shards, 0);
      for (const std::size_t shard : shards) ++ends[shard];
      for (std::size_t s = 0, begin = 0; s < num_shards; ++s) begin += std::exchange(ends[s], begin);
      places.resize(shards.size());
      for (std::size_t i = 0; i < shards.size(); ++i) places[i] = ends[shards[i]]++;
    }
  };

  /// What a call needs for a moment; one for each thread, so that calls allocate nothing.
  struct DrawScratch {
    Groups groups;
    std::vector<double> totals, ends, parts;  // ends: of the shards' shares of the total
  };
  struct UpdateScratch {
    Groups groups;
    std::vector<Key> keys;
    std::vector<float> priorities;
  };

  template <class... Arguments>
  static std::vector<std::shared_ptr<Shard>> make_shards(const ReplayOptions& options, std::size_t num_shards,
                                                         const Arguments&... arguments) {
    options.validate();
    require(num_shards >= 1 && num_shards <= options.capacity, "number of shards", num_shards,
            "an integer from 1 to capacity, " + std::to_string(options.capacity));
    require(options.soft_capacity == 0 || options.soft_capacity >= num_shards, "soft_capacity",
            options.soft_capacity, "at least the number of shards, " + std::to_string(num_shards) + ", or 0");
    std::vector<std::shared_ptr<Shard>> shards;
    for (std::size_t s = 0; s < num_shards; ++s) {
      ReplayOptions part = options;
      part.capacity = options.capacity / num_shards + (s < options.capacity % num_shards ? 1 : 0);
      part.soft_capacity =
          options.soft_capacity / num_shards + (s < options.soft_capacity % num_shards ? 1 : 0);
      part.seed = Random(options.seed, "shard", s)();
      shards.push_back(std::make_shared<Shard>(part, arguments...));
    }
    return shards;
  }

  /// Where a thread is.
  struct Turn {
    std::uint64_t replay = 0;  // whose shard it is
    std::size_t shard = 0, items_left = 0;
  };

  /// The shard of the next batch: each round of turns begins at another one.
  std::size_t next_shard(std::size_t count) noexcept {
    auto& turn = detail::of_this_thread<Turn>();
    if (turn.replay != number_ || turn.items_left == 0) {
      const std::uint64_t next = turn_.fetch_add(1, std::memory_order_relaxed);
      std::uint64_t round = next / shards_.size();
      turn = {number_, static_cast<std::size_t>((split_mix(round) % shards_.size() + next) % shards_.size()),
              items_a_turn_};
    }
    turn.items_left -= std::min(count, turn.items_left);
    return turn.shard;
  }

  static std::uint64_t next_number() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  Key global(Key key, std::size_t shard) const noexcept { return key * shards_.size() + shard; }

  /// The shard's own key: key / S, by a product with 2^64 / S, which is several times as fast and at most 1
  /// too small.
  Key local(Key key) const noexcept {
    __extension__ using Wide = unsigned __int128;
    const Key quotient = static_cast<Key>(static_cast<Wide>(key) * reciprocal_ >> 64);
    return quotient + (key - quotient * shards_.size() >= shards_.size() ? 1 : 0);
  }

  Element* record(const DrawTarget<Element>& target, std::size_t i) const {
    if constexpr (kFlat) {
      return target.records + i * layout().size();
    } else {
      return target.records + i;
    }
  }

  /// Reads all totals, finds the shard on whose share of their sum each part falls, and puts the place within
  /// that share, again a part in [0, 1), among those of the shard. Returns the sum.
  double divide(std::span<const double> parts, DrawScratch& scratch) const {
    auto& [groups, totals, ends, within] = scratch;
    totals.resize(shards_.size());
    ends.resize(shards_.size());
    double total = 0.0;
    std::size_t last = 0;
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      totals[s] = shards_[s]->total_priority();
      if (totals[s] > 0.0) last = s;
      ends[s] = total += totals[s];
    }
    if (!(total > 0.0)) {
      detail::throw_empty(size());
    }
    // An empty share ends where it begins, so it is never found; a mass that was rounded up to the total is
    // in the last.
    groups.shards.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto found = std::upper_bound(ends.begin(), ends.end(), parts[i] * total) - ends.begin();
      groups.shards[i] = std::min(static_cast<std::size_t>(found), last);
    }
    groups.arrange(shards_.size());
    within.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t s = groups.shards[i];
      const double part = (parts[i] * total - (s > 0 ? ends[s - 1] : 0.0)) / totals[s];
      within[groups.places[i]] = std::clamp(part, 0.0, kBelowOne);
    }
    return total;
  }

  /// Draws once from each shard that has something to say. Returns how many places were filled, which then
  /// stand first.
  std::size_t draw_from_all(const DrawPlan& plan, DrawScratch& scratch, Random& random,
                            const DrawTarget<Element>& target, double& smallest) {
    std::size_t done = plan.done;
    for_shares(plan, scratch, [&](std::size_t s, std::size_t begin, std::size_t count) {
      const DrawTarget<Element> slice = part_of(target, done, count);
      const double share = scratch.totals[s] / plan.total;
      try {
        smallest = std::min(smallest, share * shards_[s]->draw(std::span(scratch.parts).subspan(begin, count),
                                                               random, slice));
      } catch (const EmptyReplay&) {  // since its total was read
        return;
      }
      make_global(slice, s, share);
      done += count;
    });
    return done - plan.done;
  }

  /// As above, while all shards draw at the same time.
  std::size_t draw_from_all(const DrawPlan& plan, DrawScratch& scratch, Random& random,
                            const DrawTarget<Element>& target,
                            double& smallest) requires detail::WorksApart<Shard> {
    std::vector<typename Shard::PendingDraw> pending(shards_.size());
    std::size_t place = plan.done;
    for_shares(plan, scratch, [&](std::size_t s, std::size_t begin, std::size_t count) {
      shards_[s]->begin_draw(std::span<const double>(scratch.parts).subspan(begin, count), random,
                             part_of(target, place, count), pending[s]);
      place += count;
    });
    std::size_t done = plan.done;
    place = plan.done;
    for_shares(plan, scratch, [&](std::size_t s, std::size_t, std::size_t count) {
      const DrawTarget<Element> slice = part_of(target, place, count);
      const std::size_t from = std::exchange(place, place + count);
      const double share = scratch.totals[s] / plan.total;
      try {
        smallest = std::min(smallest, share * shards_[s]->finish_draw(pending[s]));
      } catch (const EmptyReplay&) {
        return;
      }
      make_global(slice, s, share);
      if (done != from) {  // into the places of a shard before
        const DrawTarget<Element> to = part_of(target, done, count);
        std::copy(slice.keys.begin(), slice.keys.end(), to.keys.begin());
        std::copy(slice.probabilities.begin(), slice.probabilities.end(), to.probabilities.begin());
        std::move(slice.records, record(target, from + count), to.records);
      }
      done += count;
    });
    return done - plan.done;
  }

  /// Calls `f(shard, begin, count)` for each shard that is to draw: `begin` is where its parts are.
  template <class F>
  void for_shares(const DrawPlan& plan, const DrawScratch& scratch, F f) const {
    for (std::size_t k = 0; k < shards_.size(); ++k) {
      const std::size_t s = (plan.start + k) % shards_.size();
      const std::size_t begin = s > 0 ? scratch.groups.ends[s - 1] : 0;
      const std::size_t count = scratch.groups.ends[s] - begin;
      if (scratch.totals[s] > 0.0 && (count > 0 || plan.ask_all)) f(s, begin, count);
    }
  }

  DrawTarget<Element> part_of(const DrawTarget<Element>& target, std::size_t first, std::size_t count) const {
    return {target.keys.subspan(first, count), target.probabilities.subspan(first, count),
            record(target, first)};
  }

  void make_global(const DrawTarget<Element>& drawn, std::size_t s, double share) const noexcept {
    for (Key& key : drawn.keys) key = global(key, s);
    for (double& probability : drawn.probabilities) probability *= share;
  }

  /// Calls `f(shard, keys, priorities)` for each shard that has some.
  template <class F>
  void for_groups(const UpdateScratch& scratch, F f) const {
    if (scratch.groups.shards.empty()) return;
    const std::size_t start = scratch.groups.shards.front();  // where the sample began, most likely
    for (std::size_t k = 0; k < shards_.size(); ++k) {
      const std::size_t s = (start + k) % shards_.size();
      const std::size_t begin = s > 0 ? scratch.groups.ends[s - 1] : 0;
      const std::size_t count = scratch.groups.ends[s] - begin;
      if (count == 0) continue;
      f(s, std::span(scratch.keys).subspan(begin, count),
        std::span(scratch.priorities).subspan(begin, count));
    }
  }

  /// What `f` says of the shards, added up.
  template <class F>
  auto sum(F f) const {
    auto result = f(*shards_.front());
    for (std::size_t s = 1; s < shards_.size(); ++s) result += f(*shards_[s]);
    return result;
  }

  std::vector<std::shared_ptr<Shard>> shards_;
  std::uint64_t reciprocal_;  // 2^64 / S, rounded down, less 1 where that is exact
  ReplayOptions options_;
  std::uint64_t number_ = next_number();  // of this object, for what threads remember
  std::size_t items_a_turn_ = 1;
  alignas(64) std::atomic<std::uint64_t> turn_{0};  // written often: not beside what all threads read
};

}  // namespace troop
