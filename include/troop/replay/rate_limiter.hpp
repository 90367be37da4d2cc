/// @file
/// Keeps the numbers of samples and inserts in a given ratio, so that neither actors nor learner starve the
/// other.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>

namespace troop {

struct RateLimiterOptions {
  /// Items that must have been inserted before the first sample.
  std::uint64_t min_inserts = 1000;
  /// Samples (items drawn) an insert that are aimed at. 0 means no bound on either side.
  double samples_per_insert = 8.0;
  /// How many inserts either side may be ahead of the ratio.
  double tolerance = 1000.0;

  void validate() const {
    require(min_inserts >= 1, "min_inserts", min_inserts, "a positive integer");
    require_between("samples_per_insert", samples_per_insert, 0.0, 1e9);
    require_between("tolerance", tolerance, 1.0, 1e12);
  }
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
/// Thread-safe. A call that may go on at once costs one lock. Waiting calls end at their deadline or when
/// `close` is called.
///
///     RateLimiter limiter({.min_inserts = 1000, .samples_per_insert = 8});
///     limiter.insert(50, Deadline::after(1s), [&] { replay.add(...); });
///     if (limiter.await_sample(512, Deadline::after(1s)) == Outcome::ok) replay.sample(512, ...);
class RateLimiter {
 public:
  explicit RateLimiter(const RateLimiterOptions& options) : options_((options.validate(), options)) {}

  RateLimiter(const RateLimiter&) = delete;
  RateLimiter& operator=(const RateLimiter&) = delete;

  const RateLimiterOptions& options() const noexcept { return options_; }

  Outcome await_insert(std::uint64_t count, Deadline deadline = Deadline::never()) {
    return insert(count, deadline, [] {});
  }

  /// Calls `add()` as soon as `count` items may be inserted. For other inserts they count before it, for
  /// samples after it: nobody is sent to a replay that the items have not reached yet. When `add` throws,
  /// they count for nothing.
  template <class Add>
  Outcome insert(std::uint64_t count, Deadline deadline, Add&& add) {
    {
      std::unique_lock lock(mutex_);
      const Outcome outcome = await(lock, inserts_may_go_, deadline, [&] { return may_insert(count); });
      if (outcome != Outcome::ok) return outcome;
      inserts_ += count;
      arriving_ += count;
    }
    try {
      add();
    } catch (...) {
      arrive(count, 0);
      throw;
    }
    arrive(count, count);
    return Outcome::ok;
  }

  Outcome await_sample(std::uint64_t count, Deadline deadline = Deadline::never()) {
    {
      std::unique_lock lock(mutex_);
      const Outcome outcome = await(lock, samples_may_go_, deadline, [&] { return may_sample(count); });
      if (outcome != Outcome::ok) return outcome;
      samples_ += count;
    }
    inserts_may_go_.notify_all();
    return Outcome::ok;
  }

  /// Ends all waiting with Outcome::closed; nothing may go on afterwards.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    inserts_may_go_.notify_all();
    samples_may_go_.notify_all();
  }

  std::uint64_t inserts() const {
    const std::lock_guard lock(mutex_);
    return inserts_;
  }

  std::uint64_t samples() const {
    const std::lock_guard lock(mutex_);
    return samples_;
  }

 private:
  /// Samples that so many inserts pay for, less so many.
  double balance(std::uint64_t inserts, std::uint64_t samples) const noexcept {
    const double paying = static_cast<double>(inserts) - static_cast<double>(options_.min_inserts);
    return paying * options_.samples_per_insert - static_cast<double>(samples);
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

  template <class Ready>
  Outcome await(std::unique_lock<std::mutex>& lock, std::condition_variable& condition, Deadline deadline,
                Ready ready) {
    const bool may_go = deadline.wait(condition, lock, [&] { return closed_ || ready(); });
    return closed_ ? Outcome::closed : may_go ? Outcome::ok : Outcome::timeout;
  }

  /// Of `count` items that were on their way `added` have come.
  void arrive(std::uint64_t count, std::uint64_t added) {
    {
      const std::lock_guard lock(mutex_);
      arriving_ -= count;
      inserts_ -= count - added;
    }
    (added > 0 ? samples_may_go_ : inserts_may_go_).notify_all();
  }

  RateLimiterOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable inserts_may_go_, samples_may_go_;
  std::uint64_t inserts_ = 0, arriving_ = 0, samples_ = 0;  // arriving_: of inserts_, those not in the replay
  bool closed_ = false;
};

}  // namespace troop
