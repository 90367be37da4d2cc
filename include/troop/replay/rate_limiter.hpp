/// @file
/// Keeps the numbers of samples and inserts in a given ratio, so that neither actors nor learner starve the
/// other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>

namespace troop {

namespace detail {

/// 12345 as "12,345".
inline std::string grouped(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

inline void print_to_stderr(const std::string& line) {
  std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace detail

struct RateLimiterOptions {
  /// Items that must have been inserted before the first sample.
  std::uint64_t min_inserts = 1000;
  /// Samples (items drawn) an insert that are aimed at. 0 means no bound on either side.
  double samples_per_insert = 8.0;
  /// How many inserts either side may be ahead of the ratio.
  double tolerance = 1000.0;
  /// A call that has waited so long says who waits for what, and again every further `report_after`.
  Clock::duration report_after = std::chrono::seconds(5);
  /// Takes that sentence, without an end of line; empty: nothing is said. Called by the waiting thread, which
  /// holds no lock meanwhile but keeps its turn; it should be quick, and what it throws is ignored.
  std::function<void(const std::string&)> report = detail::print_to_stderr;

  void validate() const {
    require(min_inserts >= 1, "min_inserts", min_inserts, "a positive integer");
    require_between("samples_per_insert", samples_per_insert, 0.0, 1e9);
    require_between("tolerance", tolerance, 1.0, 1e12);
    require(report_after > Clock::duration::zero(), "report_after",
            std::chrono::duration<double>(report_after).count(), "a positive duration");
  }
};

/// Since construction. A call that is turned away at once has not waited; one that waits still is in it.
struct RateLimiterStatistics {
  std::uint64_t inserts = 0, samples = 0;            ///< items, as counted by the limiter
  std::uint64_t insert_waits = 0, sample_waits = 0;  ///< calls that had to wait
  double insert_wait_seconds = 0.0, sample_wait_seconds = 0.0;
};

/// Counts inserts I and samples S and lets a call go on only while |(I - min_inserts) * samples_per_insert -
/// S| stays within tolerance * samples_per_insert. Until `min_inserts` there are no samples and inserts are
/// free.
///
/// Both sides count before they act: `await_insert(50)` returns ok when the 50 may be inserted, and has
/// counted them. `insert` does the inserting as well, and lets nobody sample before it is done. A call larger
/// than the whole tolerance is let through as soon as the other side has caught up, so that it cannot wait
/// for ever.
///
/// The calls of one side go on in the order in which they came, so that a large one is not starved by small
/// ones. One that gave up and calls again has lost its turn: wait with a stop token rather than in many short
/// waits.
///
/// Thread-safe. A call that may go on at once goes on, whatever its deadline and stop token say, and costs
/// one lock (`insert` two). Waiting calls end at their deadline (timeout), when a stop is requested
/// (cancelled), or when `close` is called (closed); none of these counts for anything, and the next in turn
/// goes on if it may. `name` is what the reports of long waits call the caller.
///
///     RateLimiter limiter({.min_inserts = 1000, .samples_per_insert = 8});
///     limiter.insert(50, Deadline::after(1s), [&] { replay.add(...); });
///     if (limiter.await_sample(512, Deadline::never(), stop) == Outcome::ok) replay.sample(512, ...);
class RateLimiter {
 public:
  /// What a snapshot keeps.
  struct State {
    std::uint64_t inserts = 0, samples = 0;

    friend bool operator==(const State&, const State&) = default;
  };

  static constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 53;  ///< doubles are exact up to there

  explicit RateLimiter(const RateLimiterOptions& options) : options_((options.validate(), options)) {}

  RateLimiter(const RateLimiter&) = delete;
  RateLimiter& operator=(const RateLimiter&) = delete;

  const RateLimiterOptions& options() const noexcept { return options_; }

  Outcome await_insert(std::uint64_t count, Deadline deadline = Deadline::never(),
                       const std::stop_token& stop = {}, std::string_view name = "actor") {
    return insert(
        count, deadline, [] {}, stop, name);
  }

  /// Calls `add()` as soon as `count` items may be inserted. For other inserts they count before it, for
  /// samples after it: nobody is sent to a replay that the items have not reached yet. When `add` throws,
  /// they count for nothing.
  template <class Add>
  Outcome insert(std::uint64_t count, Deadline deadline, Add&& add, const std::stop_token& stop = {},
                 std::string_view name = "actor") {
    const Outcome outcome = pass(Side::insert, count, deadline, stop, name);
    if (outcome != Outcome::ok) return outcome;
    try {
      add();
    } catch (...) {
      arrive(count, 0);
      throw;
    }
    arrive(count, count);
    return Outcome::ok;
  }

  Outcome await_sample(std::uint64_t count, Deadline deadline = Deadline::never(),
                       const std::stop_token& stop = {}, std::string_view name = "learner") {
    return pass(Side::sample, count, deadline, stop, name);
  }

  /// Counts items that were inserted elsewhere, without asking whether they might be: for replays of other
  /// processes, which `insert_room` holds back.
  void count_inserts(std::uint64_t count) {
    const std::lock_guard lock(mutex_);
    inserts_ += count;
    serve();
  }

  /// How many more items may be inserted now: those before `min_inserts` and `tolerance` more, then as many
  /// as are paid for; kMaxCount when there is no bound, 0 after `close`.
  std::uint64_t insert_room() const {
    const std::lock_guard lock(mutex_);
    if (closed_) return 0;
    if (options_.samples_per_insert == 0.0) return kMaxCount;
    const double room = options_.tolerance - balance(inserts_, samples_) / options_.samples_per_insert;
    return static_cast<std::uint64_t>(std::clamp(room, 0.0, static_cast<double>(kMaxCount)));
  }

  /// Ends all waiting with Outcome::closed; nothing may go on afterwards.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (Queue* queue : {&insert_queue_, &sample_queue_}) {
      while (!queue->waiting.empty()) end_wait(*queue, queue->waiting.front(), Outcome::closed);
    }
  }

  std::uint64_t inserts() const {
    const std::lock_guard lock(mutex_);
    return inserts_;
  }

  std::uint64_t samples() const {
    const std::lock_guard lock(mutex_);
    return samples_;
  }

  RateLimiterStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return {.inserts = inserts_,
            .samples = samples_,
            .insert_waits = insert_queue_.waits,
            .sample_waits = sample_queue_.waits,
            .insert_wait_seconds = insert_queue_.total_seconds(),
            .sample_wait_seconds = sample_queue_.total_seconds()};
  }

  /// The counts, for a snapshot. Calls that wait are not in them, nor are inserts in flight, whose items may
  /// have reached the replay or not.
  State state() const {
    const std::lock_guard lock(mutex_);
    return {.inserts = inserts_ - arriving_, .samples = samples_};
  }

  /// Goes on from a state. Inserts in flight count in addition, as soon as they arrive; calls that wait keep
  /// their turn and are judged by the new counts. Where the options have changed since, the side that is
  /// ahead by them waits for the other. Throws InvalidArgument for counts that no limiter can have had; then
  /// nothing has changed.
  void restore(const State& state) {
    require(state.inserts <= kMaxCount, "inserts", state.inserts, "an integer from 0 to 2^53");
    require(state.samples <= kMaxCount, "samples", state.samples, "an integer from 0 to 2^53");
    require(state.samples == 0 || state.inserts > 0, "samples", state.samples, "0, as there were no inserts");
    const std::lock_guard lock(mutex_);
    inserts_ = state.inserts + arriving_;
    samples_ = state.samples;
    serve();
  }

 private:
  enum class Side { insert, sample };

  /// A call that waits, on its thread's stack.
  struct Waiter {
    std::uint64_t count;
    Clock::time_point since = Clock::now();
    std::condition_variable condition = {};
    std::optional<Outcome> outcome = {};  // set by whoever takes it out of its queue
  };

  /// The waiting calls of one side, first come first.
  struct Queue {
    double total_seconds() const {
      double total = seconds;
      for (const Waiter* waiter : waiting) total += seconds_since(waiter->since);
      return total;
    }

    std::vector<Waiter*> waiting = {};
    std::uint64_t waits = 0;
    double seconds = 0.0;  // of the waits that have ended
  };

  /// Lets a call of `side` through and counts it.
  Outcome pass(Side side, std::uint64_t count, Deadline deadline, const std::stop_token& stop,
               std::string_view name) {
    std::unique_lock lock(mutex_);
    if (closed_) return Outcome::closed;
    if (queue_of(side).waiting.empty() && may_go(side, count)) {
      go(side, count);
      serve();
      return Outcome::ok;
    }
    if (deadline.has_passed()) return Outcome::timeout;
    return wait(lock, side, count, deadline, stop, name);
  }

  /// Waits in turn. Whoever changes the counts lets the first ones through, on their behalf, so that a call
  /// that comes later finds the queue as it is and not as it will be when threads have woken up.
  Outcome wait(std::unique_lock<std::mutex>& lock, Side side, std::uint64_t count, Deadline deadline,
               const std::stop_token& stop, std::string_view name) {
    Queue& queue = queue_of(side);
    Waiter waiter{.count = count};
    queue.waiting.push_back(&waiter);
    ++queue.waits;
    lock.unlock();  // the callback takes the lock, and whoever makes or destroys one waits for it
    const std::stop_callback cancel(stop, [&] { give_up(queue, waiter, Outcome::cancelled); });
    lock.lock();
    Deadline report = next_report();
    while (!waiter.outcome) {
      const Deadline next(std::min(deadline.time(), report.time()));
      if (next.wait(waiter.condition, lock, [&] { return waiter.outcome.has_value(); })) break;
      lock.unlock();
      if (deadline.has_passed()) {
        give_up(queue, waiter, Outcome::timeout);
      } else if (report.has_passed()) {
        say(side, waiter, name);
        report = next_report();
      }
      lock.lock();
    }
    const Outcome outcome = *waiter.outcome;
    lock.unlock();
    return outcome;
  }

  Deadline next_report() const {
    return options_.report ? Deadline::after(options_.report_after) : Deadline::never();
  }

  /// Ends a wait that has not ended yet. Takes the lock.
  void give_up(Queue& queue, Waiter& waiter, Outcome outcome) {
    const std::lock_guard lock(mutex_);
    if (waiter.outcome) return;
    end_wait(queue, &waiter, outcome);
    serve();
  }

  /// Says what `waiter` waits for. Takes the lock, but not while it speaks.
  void say(Side side, const Waiter& waiter, std::string_view name) const noexcept {
    try {
      std::string text;
      {
        const std::lock_guard lock(mutex_);
        if (waiter.outcome) return;
        text = describe(side, waiter, name);
      }
      options_.report(text);
    } catch (...) {
    }
  }

  std::string describe(Side side, const Waiter& waiter, std::string_view name) const {
    using detail::grouped;
    const bool inserting = side == Side::insert;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f", seconds_since(waiter.since));
    const std::string text = std::string(name) + " has waited " + seconds + " s to " +
                             (inserting ? "insert " : "sample ") + grouped(waiter.count) + ": ";
    const auto& waiting = queue_of(side).waiting;
    const auto before = std::find(waiting.begin(), waiting.end(), &waiter) - waiting.begin();
    if (before > 0)
      return text + std::to_string(before) + (before == 1 ? " call" : " calls") + " came before it";
    const std::uint64_t inserts = inserting ? inserts_ : inserts_ - arriving_;
    const std::string first = grouped(options_.min_inserts);
    if (inserts < options_.min_inserts)
      return text + grouped(inserts) + " of " + first + " items inserted before the first sample";
    const double surplus = balance(inserts, samples_);  // of samples that are paid for
    const auto ahead = grouped(
        static_cast<std::uint64_t>(std::ceil(inserting ? surplus / options_.samples_per_insert : -surplus)));
    const std::string of_inserts = grouped(inserts) + " inserts", of_samples = grouped(samples_) + " samples";
    return text + (inserting ? of_inserts : of_samples) + " are " + ahead + " ahead of " +
           (inserting ? of_samples : of_inserts) + " at " + detail::to_text(options_.samples_per_insert) +
           " samples an insert after the first " + first + "; waits for " +
           (inserting ? "samples" : "inserts");
  }

  Queue& queue_of(Side side) noexcept { return side == Side::insert ? insert_queue_ : sample_queue_; }
  const Queue& queue_of(Side side) const noexcept {
    return side == Side::insert ? insert_queue_ : sample_queue_;
  }

  /// Samples that so many inserts pay for, less so many.
  double balance(std::uint64_t inserts, std::uint64_t samples) const noexcept {
    const double paying = static_cast<double>(inserts) - static_cast<double>(options_.min_inserts);
    return paying * options_.samples_per_insert - static_cast<double>(samples);
  }

  bool may_go(Side side, std::uint64_t count) const noexcept {
    return side == Side::insert ? may_insert(count) : may_sample(count);
  }

  bool may_insert(std::uint64_t count) const noexcept {
    if (options_.samples_per_insert == 0.0 || inserts_ < options_.min_inserts) return true;
    const double bound = options_.tolerance * options_.samples_per_insert;
    return balance(inserts_ + count, samples_) <= bound || balance(inserts_, samples_) <= 0.0;
  }

  bool may_sample(std::uint64_t count) const noexcept {
    const std::uint64_t arrived = inserts_ - arriving_;
    if (arrived < options_.min_inserts) return false;
    if (options_.samples_per_insert == 0.0) return true;
    const double bound = options_.tolerance * options_.samples_per_insert;
    return balance(arrived, samples_ + count) >= -bound || balance(arrived, samples_) >= 0.0;
  }

  void go(Side side, std::uint64_t count) noexcept {
    if (side == Side::insert) {
      inserts_ += count;
      arriving_ += count;
    } else {
      samples_ += count;
    }
  }

  /// Lets all through that may go. Called whenever the counts or who is first have changed.
  void serve() {
    while (serve_first(Side::insert) || serve_first(Side::sample)) {
    }
  }

  bool serve_first(Side side) {
    Queue& queue = queue_of(side);
    if (queue.waiting.empty() || !may_go(side, queue.waiting.front()->count)) return false;
    go(side, queue.waiting.front()->count);
    end_wait(queue, queue.waiting.front(), Outcome::ok);
    return true;
  }

  /// Takes a call out of its queue and wakes its thread, which may destroy the waiter as soon as it has the
  /// lock.
  static void end_wait(Queue& queue, Waiter* waiter, Outcome outcome) {
    queue.seconds += seconds_since(waiter->since);
    queue.waiting.erase(std::find(queue.waiting.begin(), queue.waiting.end(), waiter));
    waiter->outcome = outcome;
    waiter->condition.notify_one();
  }

  /// Of `count` items that were on their way `added` have come.
  void arrive(std::uint64_t count, std::uint64_t added) {
    const std::lock_guard lock(mutex_);
    arriving_ -= count;
    inserts_ -= count - added;
    serve();
  }

  RateLimiterOptions options_;
  mutable std::mutex mutex_;
  Queue insert_queue_, sample_queue_;
  std::uint64_t inserts_ = 0, arriving_ = 0, samples_ = 0;  // arriving_: of inserts_, those not in the replay
  bool closed_ = false;
};

}  // namespace troop
