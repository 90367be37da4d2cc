#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>

#include <troop/core/clock.hpp>

using namespace std::chrono_literals;
using troop::Clock;
using troop::Deadline;

namespace {

/// Stands for a condition variable: notes how it was waited on, and that it waits until `ready`.
struct FakeCondition {
  int plain_waits = 0;
  std::optional<Clock::time_point> until;
  bool expires = false;

  template <class Lock, class Ready>
  void wait(Lock&, Ready ready) {
    ++plain_waits;
    while (!ready()) {
    }
  }
  template <class Lock, class Ready>
  bool wait_until(Lock&, Clock::time_point time, Ready ready) {
    until = time;
    while (!expires && !ready()) {
    }
    return ready();
  }
};

struct FakeLock {};

}  // namespace

TEST_CASE("never has not passed and now has") {
  CHECK(Deadline::never().is_never());
  CHECK_FALSE(Deadline::never().has_passed());
  CHECK_FALSE(Deadline::now().is_never());
  CHECK(Deadline::now().has_passed());
}

TEST_CASE("a deadline after a duration lies that far from now") {
  const auto before = Clock::now();
  const Deadline deadline = Deadline::after(1h);
  const auto after = Clock::now();
  CHECK(deadline.time() >= before + 1h);
  CHECK(deadline.time() <= after + 1h);
  CHECK_FALSE(deadline.has_passed());
  CHECK_FALSE(deadline.is_never());
  CHECK(Deadline(before).has_passed());
}

TEST_CASE("durations too long for the clock mean never") {
  CHECK(Deadline::after(std::chrono::hours::max()).is_never());
  CHECK(Deadline::after(Clock::duration::max()).is_never());
  CHECK(Deadline::after(std::chrono::duration<double>(1e300)).is_never());
  CHECK(Deadline::after(std::chrono::duration<double>(std::numeric_limits<double>::infinity())).is_never());
  CHECK_FALSE(Deadline::after(std::chrono::hours(24 * 365 * 100)).is_never());
}

TEST_CASE("durations that are zero, negative or not a number have passed at once") {
  CHECK(Deadline::after(0s).has_passed());
  CHECK(Deadline::after(-1ns).has_passed());
  CHECK(Deadline::after(std::chrono::hours::min()).has_passed());
  CHECK(Deadline::after(Clock::duration::min()).has_passed());
  CHECK(Deadline::after(std::chrono::duration<double>(-1e300)).has_passed());
  CHECK(
      Deadline::after(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN())).has_passed());
}

TEST_CASE("waiting without a deadline uses the plain wait") {
  FakeCondition condition;
  FakeLock lock;
  int asked = 0;
  CHECK(Deadline::never().wait(condition, lock, [&] { return ++asked == 3; }));
  CHECK(condition.plain_waits == 1);
  CHECK_FALSE(condition.until.has_value());
}

TEST_CASE("waiting with a deadline in the future waits until just that time and returns the last answer") {
  FakeCondition condition;
  FakeLock lock;
  const Deadline deadline = Deadline::after(1h);
  int asked = 0;
  CHECK(deadline.wait(condition, lock, [&] { return ++asked >= 3; }));
  CHECK(condition.until == deadline.time());
  CHECK(condition.plain_waits == 0);
  condition.expires = true;
  CHECK_FALSE(deadline.wait(condition, lock, [] { return false; }));
}

TEST_CASE("waiting after the deadline asks once and does not wait") {
  FakeCondition condition;
  FakeLock lock;
  for (const bool answer : {false, true}) {
    int asked = 0;
    CHECK(Deadline::now().wait(condition, lock, [&] {
      ++asked;
      return answer;
    }) == answer);
    CHECK(asked == 1);
  }
  CHECK(condition.plain_waits == 0);
  CHECK_FALSE(condition.until.has_value());
}

TEST_CASE("waiting on a real condition variable ends with its deadline") {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const Deadline deadline = Deadline::after(2ms);
  CHECK_FALSE(deadline.wait(condition, lock, [] { return false; }));
  CHECK(deadline.has_passed());
  CHECK(lock.owns_lock());
}

TEST_CASE("seconds since a time in the past are counted in seconds") {
  const double seconds = troop::seconds_since(Clock::now() - 90s);
  CHECK(seconds >= 90.0);
  CHECK(seconds < 90.0 + 3600.0);
}
