#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/rate_limiter.hpp>

#include "testing.hpp"

using namespace std::chrono_literals;
using troop::Deadline;
using troop::Outcome;
using troop::Random;
using troop::RateLimiter;
using troop::RateLimiterOptions;
using troop::testing::Failures;

namespace {

bool insert_now(RateLimiter& limiter, std::uint64_t count) {
  return limiter.await_insert(count, Deadline::now()) == Outcome::ok;
}

bool sample_now(RateLimiter& limiter, std::uint64_t count) {
  return limiter.await_sample(count, Deadline::now()) == Outcome::ok;
}

std::string refusal(const RateLimiterOptions& options) {
  try {
    const RateLimiter limiter(options);
  } catch (const troop::InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("there are no samples before the first inserts, and inserts are free until then") {
  RateLimiter limiter({.min_inserts = 100, .samples_per_insert = 1.0, .tolerance = 10.0});
  CHECK_FALSE(sample_now(limiter, 1));
  CHECK(insert_now(limiter, 99));
  CHECK_FALSE(sample_now(limiter, 1));
  CHECK(insert_now(limiter, 1));
  CHECK(sample_now(limiter, 1));
  CHECK(limiter.inserts() == 100);
  CHECK(limiter.samples() == 1);
}

TEST_CASE("either side goes ahead by just the tolerance") {
  RateLimiter limiter({.min_inserts = 1, .samples_per_insert = 4.0, .tolerance = 10.0});
  CHECK(insert_now(limiter, 1));
  CHECK(insert_now(limiter, 10));  // 40 samples are paid for
  CHECK_FALSE(insert_now(limiter, 1));
  CHECK(sample_now(limiter, 4));
  CHECK(insert_now(limiter, 1));
  CHECK_FALSE(insert_now(limiter, 1));
  CHECK(sample_now(limiter, 40));  // balanced
  CHECK(sample_now(limiter, 40));  // as far ahead as it may be
  CHECK_FALSE(sample_now(limiter, 1));
  CHECK(insert_now(limiter, 1));
  CHECK_FALSE(sample_now(limiter, 5));
  CHECK(sample_now(limiter, 4));
  CHECK_FALSE(sample_now(limiter, 1));
}

TEST_CASE("a call that is turned away is not counted") {
  RateLimiter limiter({.min_inserts = 1, .samples_per_insert = 1.0, .tolerance = 5.0});
  CHECK(limiter.await_sample(1, Deadline::after(1ms)) == Outcome::timeout);
  CHECK(insert_now(limiter, 6));
  CHECK(limiter.await_insert(1, Deadline::after(1ms)) == Outcome::timeout);
  CHECK(limiter.inserts() == 6);
  CHECK(limiter.samples() == 0);
}

TEST_CASE("a call larger than the tolerance waits only until the other side has caught up") {
  RateLimiter limiter({.min_inserts = 1, .samples_per_insert = 1.0, .tolerance = 5.0});
  CHECK(insert_now(limiter, 1));
  CHECK(sample_now(limiter, 1000));
  CHECK_FALSE(sample_now(limiter, 1));
  CHECK(insert_now(limiter, 999));
  CHECK_FALSE(sample_now(limiter, 1000));
  CHECK(insert_now(limiter, 2));
  CHECK_FALSE(insert_now(limiter, 1000));  // ahead by one
  CHECK(sample_now(limiter, 1));
  CHECK(insert_now(limiter, 1000));
}

TEST_CASE("a ratio of 0 bounds neither side, once the first inserts are there") {
  RateLimiter limiter({.min_inserts = 3, .samples_per_insert = 0.0, .tolerance = 1.0});
  CHECK_FALSE(sample_now(limiter, 1));
  CHECK(insert_now(limiter, 1000000));
  CHECK(insert_now(limiter, 1000000));
  CHECK(sample_now(limiter, 1000000000));
  CHECK(sample_now(limiter, 1000000000));
}

TEST_CASE("items that are on their way count for other inserts, for samples only once they have come") {
  RateLimiter limiter({.min_inserts = 10, .samples_per_insert = 1.0, .tolerance = 5.0});
  const auto check_before = [&] {
    CHECK(limiter.inserts() == 15);
    CHECK_FALSE(insert_now(limiter, 1));
    CHECK_FALSE(sample_now(limiter, 1));
  };
  CHECK(limiter.insert(15, Deadline::now(), check_before) == Outcome::ok);
  CHECK_FALSE(insert_now(limiter, 1));
  CHECK(sample_now(limiter, 1));
  CHECK(limiter.insert(2, Deadline::now(), [] { FAIL("called"); }) == Outcome::timeout);
}

TEST_CASE("items whose insertion fails count for nothing") {
  RateLimiter limiter({.min_inserts = 10, .samples_per_insert = 1.0, .tolerance = 5.0});
  CHECK_THROWS_AS(limiter.insert(15, Deadline::now(), [] { throw troop::Error("full"); }), troop::Error);
  CHECK(limiter.inserts() == 0);
  CHECK_FALSE(sample_now(limiter, 1));
  CHECK(insert_now(limiter, 10));
  CHECK(sample_now(limiter, 1));
}

TEST_CASE("a closed limiter lets nobody through") {
  RateLimiter limiter({.min_inserts = 1, .samples_per_insert = 1.0, .tolerance = 5.0});
  limiter.close();
  limiter.close();
  CHECK(limiter.await_insert(1) == Outcome::closed);
  CHECK(limiter.await_sample(1) == Outcome::closed);
  CHECK(limiter.await_insert(1, Deadline::now()) == Outcome::closed);
  CHECK(limiter.inserts() == 0);
}

TEST_CASE("closing wakes those who wait on either side") {
  RateLimiter starved({.min_inserts = 10}),
      full({.min_inserts = 1, .samples_per_insert = 1.0, .tolerance = 1.0});
  CHECK(full.await_insert(2) == Outcome::ok);
  std::atomic<int> closed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] { closed += starved.await_sample(1) == Outcome::closed ? 1 : 0; });
    threads.emplace_back([&] { closed += full.await_insert(1) == Outcome::closed ? 1 : 0; });
  }
  std::this_thread::sleep_for(5ms);  // so that most of them wait; the outcome is the same if they do not
  starved.close();
  full.close();
  for (auto& thread : threads) thread.join();
  CHECK(closed == 4);
}

TEST_CASE("whatever was counted, one side at least may go on with a call of any size") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "liveness");
  Failures failures;
  for (int round = 0; round < 200; ++round) {
    const RateLimiterOptions options{.min_inserts = 1 + random.below(50),
                                     .samples_per_insert = std::pow(10.0, random.uniform(-3.0, 3.0)),
                                     .tolerance = std::pow(10.0, random.uniform(0.0, 3.0))};
    RateLimiter limiter(options);
    for (int call = 0; call < 100; ++call) {
      const std::uint64_t inserts = 1 + random.below(2000), samples = 1 + random.below(2000);
      const bool inserts_first = random.below(2) == 0;
      bool went = inserts_first ? insert_now(limiter, inserts) : sample_now(limiter, samples);
      if (!went) went = inserts_first ? sample_now(limiter, samples) : insert_now(limiter, inserts);
      if (!went) failures.add("both sides are blocked in round " + std::to_string(round));
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("calls within the tolerance never leave its bounds, and both sides reach their end") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  constexpr double kRatio = 3.0, kTolerance = 64.0;
  constexpr std::uint64_t kMinInserts = 200, kInserts = 6000;
  RateLimiter limiter({.min_inserts = kMinInserts, .samples_per_insert = kRatio, .tolerance = kTolerance});
  // Each thread takes its calls from a common budget, so that in the end both sides have done all.
  constexpr auto kSamples = static_cast<std::int64_t>((kInserts - kMinInserts) * 3);
  std::atomic<std::int64_t> inserts_left{kInserts}, samples_left{kSamples};
  Failures failures;
  const auto work = [&](bool inserting, std::uint64_t index) {
    Random random(seed, inserting ? "inserts" : "samples", index);
    auto& left = inserting ? inserts_left : samples_left;
    const auto most = static_cast<std::uint64_t>(inserting ? kTolerance : kTolerance * kRatio);
    while (true) {
      const auto wanted = static_cast<std::int64_t>(1 + random.below(most));
      const std::int64_t before = left.fetch_sub(wanted);
      if (before <= 0) return;
      const auto count = static_cast<std::uint64_t>(std::min(before, wanted));
      const Outcome outcome = inserting ? limiter.await_insert(count) : limiter.await_sample(count);
      if (outcome != Outcome::ok) failures.add("a call did not go on");
    }
  };
  std::atomic<bool> done{false};
  std::thread observer([&] {
    while (!done) {
      // The counters only grow, so the samples read first are at most those at the time of the inserts, and
      // the bounds can be checked from both sides.
      const auto samples = static_cast<double>(limiter.samples());
      const auto inserts = static_cast<double>(limiter.inserts());
      const auto samples_later = static_cast<double>(limiter.samples());
      if (samples > 0.0 && inserts < static_cast<double>(kMinInserts)) failures.add("too early a sample");
      const double paid = std::max(0.0, inserts - static_cast<double>(kMinInserts)) * kRatio;
      if (samples > paid + kTolerance * kRatio)
        failures.add(std::to_string(samples) + " samples are too many for " + std::to_string(inserts) +
                     " inserts");
      if (paid > samples_later + kTolerance * kRatio) failures.add("too many inserts");
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 2; ++i) {
    threads.emplace_back(work, true, i);
    threads.emplace_back(work, false, i);
  }
  for (auto& thread : threads) thread.join();
  done = true;
  observer.join();
  TROOP_CHECK_NONE(failures);
  CHECK(limiter.inserts() == kInserts);
  CHECK(limiter.samples() == static_cast<std::uint64_t>(kSamples));
}

TEST_CASE("bad options are refused by name") {
  CHECK(refusal({.min_inserts = 0}) == "min_inserts: 0 is not allowed; expected a positive integer");
  CHECK(refusal({.samples_per_insert = -1.0}) ==
        "samples_per_insert: -1 is not allowed; expected a number from 0 to 1e+09");
  CHECK(refusal({.samples_per_insert = std::numeric_limits<double>::quiet_NaN()}) ==
        "samples_per_insert: nan is not allowed; expected a number from 0 to 1e+09");
  CHECK(refusal({.tolerance = 0.5}) == "tolerance: 0.5 is not allowed; expected a number from 1 to 1e+12");
  CHECK(refusal({}) == "nothing was thrown");
}
