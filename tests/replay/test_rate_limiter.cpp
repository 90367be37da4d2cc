#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <stop_token>
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

/// One sample an insert after the first one, and either side ahead by at most 5. Says nothing.
RateLimiterOptions balanced() {
  return {.min_inserts = 1, .samples_per_insert = 1.0, .tolerance = 5.0, .report = {}};
}

/// A call in a thread of its own; when the constructor has returned it waits in its turn, or is done.
class WaitingCall {
 public:
  enum class Kind { insert, sample };

  WaitingCall(RateLimiter& limiter, Kind kind, std::uint64_t count, Deadline deadline = Deadline::never()) {
    const auto waits = [&] {
      const auto statistics = limiter.statistics();
      return statistics.insert_waits + statistics.sample_waits;
    };
    const std::uint64_t before = waits();
    thread_ = std::thread([this, &limiter, kind, count, deadline] {
      outcome_ = kind == Kind::insert ? limiter.await_insert(count, deadline, source_.get_token())
                                      : limiter.await_sample(count, deadline, source_.get_token());
      done_ = true;
    });
    while (waits() == before && !done_) std::this_thread::yield();
  }
  ~WaitingCall() {
    if (thread_.joinable()) cancel();
  }

  Outcome join() {
    thread_.join();
    return outcome_;
  }

  Outcome cancel() {
    source_.request_stop();
    return join();
  }

 private:
  std::stop_source source_;
  Outcome outcome_ = Outcome::ok;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

/// The sentence with N in place of the seconds.
std::string without_seconds(const std::string& text) {
  const std::string begin = "waited ";
  const auto from = text.find(begin) + begin.size(), to = text.find(" s to ");
  return text.substr(0, from) + "N" + text.substr(to);
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

TEST_CASE("a requested stop cancels a call that would wait, and no other") {
  RateLimiter limiter(balanced());
  std::stop_source source;
  source.request_stop();
  CHECK(limiter.await_sample(1, Deadline::never(), source.get_token()) == Outcome::cancelled);
  CHECK(limiter.await_insert(6, Deadline::never(), source.get_token()) == Outcome::ok);
  CHECK(limiter.await_insert(1, Deadline::never(), source.get_token()) == Outcome::cancelled);
  const auto add = [] { FAIL("called"); };
  CHECK(limiter.insert(1, Deadline::never(), add, source.get_token()) == Outcome::cancelled);
  CHECK(limiter.await_sample(1, Deadline::never(), source.get_token()) == Outcome::ok);
  CHECK(limiter.state() == RateLimiter::State{.inserts = 6, .samples = 1});
  limiter.close();
  CHECK(limiter.await_sample(1, Deadline::never(), source.get_token()) == Outcome::closed);
}

TEST_CASE("a stop ends the wait of the call that has its token, and the call counts for nothing") {
  RateLimiter limiter(balanced());
  WaitingCall first(limiter, WaitingCall::Kind::sample, 1), second(limiter, WaitingCall::Kind::sample, 2);
  CHECK(first.cancel() == Outcome::cancelled);
  CHECK(insert_now(limiter, 1));
  CHECK(second.join() == Outcome::ok);
  CHECK(limiter.samples() == 2);
}

TEST_CASE("a small call does not overtake a large one of its side") {
  RateLimiter limiter(balanced());
  CHECK(insert_now(limiter, 4));
  WaitingCall large(limiter, WaitingCall::Kind::insert, 4);
  CHECK_FALSE(insert_now(limiter, 1));  // there would be room for it
  CHECK(sample_now(limiter, 1));        // still not enough for 4
  CHECK_FALSE(insert_now(limiter, 1));
  CHECK(sample_now(limiter, 1));
  CHECK(large.join() == Outcome::ok);
  CHECK(limiter.inserts() == 8);
}

TEST_CASE("waiting calls go on in the order in which they came") {
  RateLimiter limiter(balanced());
  CHECK(insert_now(limiter, 6));
  WaitingCall first(limiter, WaitingCall::Kind::insert, 3), second(limiter, WaitingCall::Kind::insert, 1),
      third(limiter, WaitingCall::Kind::insert, 2);
  CHECK(sample_now(limiter, 2));
  CHECK(limiter.inserts() == 6);
  CHECK(sample_now(limiter, 1));
  CHECK(limiter.inserts() == 9);  // counted on its behalf, before its thread has woken up
  CHECK(first.join() == Outcome::ok);
  CHECK(sample_now(limiter, 1));
  CHECK(second.join() == Outcome::ok);
  CHECK(sample_now(limiter, 2));
  CHECK(third.join() == Outcome::ok);
  CHECK(limiter.inserts() == 12);
}

TEST_CASE("one change lets through all that may go, of either side") {
  RateLimiter limiter({.min_inserts = 10, .samples_per_insert = 1.0, .tolerance = 5.0, .report = {}});
  CHECK(insert_now(limiter, 9));
  WaitingCall a(limiter, WaitingCall::Kind::sample, 3), b(limiter, WaitingCall::Kind::sample, 2),
      c(limiter, WaitingCall::Kind::sample, 6);
  CHECK(insert_now(limiter, 6));  // 5 are paid for, 5 more are within the tolerance
  CHECK(a.join() == Outcome::ok);
  CHECK(b.join() == Outcome::ok);
  CHECK(limiter.samples() == 5 + 6);  // the last is larger than what is left, but the sides were even
  CHECK(c.join() == Outcome::ok);
}

TEST_CASE("the next in turn goes on when the first gives up, for whatever reason") {
  for (const bool by_stop : {true, false}) {
    CAPTURE(by_stop);
    RateLimiter limiter(balanced());
    CHECK(insert_now(limiter, 4));
    WaitingCall large(limiter, WaitingCall::Kind::insert, 100,
                      by_stop ? Deadline::never() : Deadline::after(30ms));
    WaitingCall small(limiter, WaitingCall::Kind::insert, 2);
    CHECK((by_stop ? large.cancel() : large.join()) == (by_stop ? Outcome::cancelled : Outcome::timeout));
    CHECK(small.join() == Outcome::ok);
    CHECK(limiter.inserts() == 6);
  }
}

TEST_CASE("an insertion that fails gives its place to those who wait") {
  RateLimiter limiter(balanced());
  std::optional<WaitingCall> waiting;
  const auto fail = [&] {
    waiting.emplace(limiter, WaitingCall::Kind::insert, 6);
    throw troop::Error("full");
  };
  CHECK_THROWS_AS(limiter.insert(6, Deadline::now(), fail), troop::Error);
  CHECK(waiting->join() == Outcome::ok);
  CHECK(limiter.inserts() == 6);
}

TEST_CASE("a long wait says who waits for what, again and again, without a lock") {
  std::vector<std::string> said;
  std::stop_source source;
  std::function<std::uint64_t()> look;  // would never return if the lock were held
  RateLimiter limiter({.min_inserts = 1000, .report_after = 1ms, .report = [&](const std::string& text) {
                         said.push_back(without_seconds(text) + " " + std::to_string(look()));
                         if (said.size() == 3) source.request_stop();
                       }});
  look = [&] { return limiter.inserts(); };
  CHECK(limiter.await_insert(300) == Outcome::ok);
  CHECK(limiter.await_sample(512, Deadline::never(), source.get_token(), "learner 2") == Outcome::cancelled);
  CHECK(said == std::vector<std::string>(3,
                                         "learner 2 has waited N s to sample 512: 300 of 1,000 items "
                                         "inserted before the first sample 300"));
}

TEST_CASE("a report names the counts of both sides and who is ahead") {
  std::vector<std::string> said;
  std::optional<std::stop_source> source;
  RateLimiter limiter({.min_inserts = 1000,
                       .samples_per_insert = 8.0,
                       .tolerance = 1000.0,
                       .report_after = 1ms,
                       .report = [&](const std::string& text) {
                         said.push_back(without_seconds(text));
                         source->request_stop();
                       }});
  const auto insert = [&](std::string_view name) {
    source.emplace();
    return limiter.await_insert(50, Deadline::never(), source->get_token(), name);
  };
  const auto sample = [&] {
    source.emplace();
    return limiter.await_sample(512, Deadline::never(), source->get_token());
  };
  limiter.restore({.inserts = 12'000, .samples = 80'000});
  CHECK(insert("actor 3") == Outcome::cancelled);
  limiter.restore({.inserts = 11'000, .samples = 88'000});
  CHECK(sample() == Outcome::cancelled);
  limiter.restore({.inserts = 2'000, .samples = 1});  // ahead by 999.9 inserts: no room for 50
  CHECK(insert("actor") == Outcome::cancelled);
  CHECK(said ==
        std::vector<std::string>{
            "actor 3 has waited N s to insert 50: 12,000 inserts are 1,000 ahead of 80,000 samples at 8 "
            "samples an insert after the first 1,000; waits for samples",
            "learner has waited N s to sample 512: 88,000 samples are 8,000 ahead of 11,000 inserts at 8 "
            "samples an insert after the first 1,000; waits for inserts",
            "actor has waited N s to insert 50: 2,000 inserts are 1,000 ahead of 1 samples at 8 samples "
            "an insert after the first 1,000; waits for samples"});
}

TEST_CASE("a call that is not the first in turn says so") {
  std::mutex mutex;
  std::string said;
  std::stop_source source;
  RateLimiter limiter({.min_inserts = 10, .report_after = 1ms, .report = [&](const std::string& text) {
                         const std::lock_guard lock(mutex);
                         if (text.find("sample 7") == std::string::npos) return;
                         said = without_seconds(text);
                         source.request_stop();
                       }});
  WaitingCall first(limiter, WaitingCall::Kind::sample, 1), second(limiter, WaitingCall::Kind::sample, 1);
  CHECK(limiter.await_sample(7, Deadline::never(), source.get_token()) == Outcome::cancelled);
  CHECK(said == "learner has waited N s to sample 7: 2 calls came before it");
}

TEST_CASE("what a report throws is ignored, and no call waits for a report beyond its deadline") {
  int reports = 0;
  std::stop_source source;
  RateLimiter limiter({.report_after = 1ms, .report = [&](const std::string&) {
                         if (++reports == 2) source.request_stop();
                         throw troop::Error("the terminal is gone");
                       }});
  CHECK(limiter.await_sample(1, Deadline::never(), source.get_token()) == Outcome::cancelled);
  CHECK(reports == 2);
  RateLimiter patient({.report = [&](const std::string&) { ++reports; }});
  CHECK(patient.await_sample(1, Deadline::after(2ms)) == Outcome::timeout);
  CHECK(reports == 2);
}

TEST_CASE("waits are counted, and their time, while they last and afterwards") {
  RateLimiter limiter(balanced());
  CHECK_FALSE(sample_now(limiter, 1));  // turned away, not made to wait
  CHECK(limiter.await_sample(1, Deadline::after(2ms)) == Outcome::timeout);
  const auto before = limiter.statistics();
  CHECK(before.sample_waits == 1);
  CHECK(before.insert_waits == 0);
  CHECK(before.sample_wait_seconds > 0.0);
  CHECK(before.insert_wait_seconds == 0.0);
  WaitingCall call(limiter, WaitingCall::Kind::sample, 1);
  std::this_thread::sleep_for(1ms);
  const double during = limiter.statistics().sample_wait_seconds;
  CHECK(during >= before.sample_wait_seconds + 0.001);
  CHECK(insert_now(limiter, 1));
  CHECK(call.join() == Outcome::ok);
  const auto after = limiter.statistics();
  CHECK(after.sample_waits == 2);
  CHECK(after.sample_wait_seconds >= during);
  CHECK(after.inserts == 1);
  CHECK(after.samples == 1);
}

TEST_CASE("a restored limiter goes on where the other one was") {
  RateLimiter limiter(balanced());
  CHECK(insert_now(limiter, 6));
  CHECK(sample_now(limiter, 3));
  const RateLimiter::State state = limiter.state();
  CHECK(state == RateLimiter::State{.inserts = 6, .samples = 3});
  RateLimiter restored(balanced());
  restored.restore(state);
  CHECK(restored.state() == state);
  CHECK_FALSE(insert_now(restored, 4));
  CHECK(insert_now(restored, 3));
  CHECK(sample_now(restored, 10));
  CHECK_FALSE(sample_now(restored, 1));
}

TEST_CASE("restoring lets go on who may go by the new counts, and keeps inserts in flight") {
  RateLimiter limiter(balanced());
  WaitingCall call(limiter, WaitingCall::Kind::sample, 3);
  const auto restore_before = [&] {
    CHECK(limiter.state() == RateLimiter::State{});
    limiter.restore({.inserts = 10, .samples = 9});
    CHECK(call.join() == Outcome::ok);
    CHECK(limiter.inserts() == 12);
    CHECK(limiter.state() == RateLimiter::State{.inserts = 10, .samples = 12});
  };
  CHECK(limiter.insert(2, Deadline::now(), restore_before) == Outcome::ok);
  CHECK(limiter.state() == RateLimiter::State{.inserts = 12, .samples = 12});
}

TEST_CASE("counts that no limiter can have had are not restored") {
  RateLimiter limiter(balanced());
  CHECK(insert_now(limiter, 2));
  const auto message = [&](const RateLimiter::State& state) {
    try {
      limiter.restore(state);
    } catch (const troop::InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  CHECK(message({.inserts = 0, .samples = 1}) ==
        "samples: 1 is not allowed; expected 0, as there were no inserts");
  CHECK(message({.inserts = RateLimiter::kMaxCount + 1}) ==
        "inserts: 9007199254740993 is not allowed; expected an integer from 0 to 2^53");
  CHECK(message({.inserts = 1, .samples = RateLimiter::kMaxCount + 1}) ==
        "samples: 9007199254740993 is not allowed; expected an integer from 0 to 2^53");
  CHECK(limiter.state() == RateLimiter::State{.inserts = 2, .samples = 0});
  CHECK(message({}) == "nothing was thrown");
}

TEST_CASE("calls that time out, are cancelled, go on or are closed at random lose no wake-up and no count") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  RateLimiter limiter({.min_inserts = 50,
                       .samples_per_insert = 2.0,
                       .tolerance = 20.0,
                       .report_after = 20us,
                       .report = [](const std::string&) {}});
  // Every wait without a deadline and a stop ends only when another thread makes it end; so a lost wake-up
  // is a test that hangs.
  constexpr std::size_t kThreads = 3;
  constexpr std::int64_t kInserts = 6000, kSamples = (kInserts - 50) * 2;
  std::atomic<std::int64_t> inserts_left{kInserts}, samples_left{kSamples};
  Failures failures;
  const auto work = [&](bool inserting, std::size_t index) {
    Random random(seed, inserting ? "inserts" : "samples", index);
    auto& left = inserting ? inserts_left : samples_left;
    while (true) {
      const auto wanted = static_cast<std::int64_t>(1 + random.below(random.below(20) == 0 ? 100 : 8));
      const std::int64_t before = left.fetch_sub(wanted);
      if (before <= 0) return;
      const auto count = static_cast<std::uint64_t>(std::min(before, wanted));
      Outcome outcome;
      do {
        std::stop_source source;
        const std::uint64_t kind = random.below(5);
        const Deadline deadline = kind == 0   ? Deadline::now()
                                  : kind == 1 ? Deadline::after(std::chrono::microseconds(random.below(100)))
                                              : Deadline::never();
        std::jthread canceller;
        if (kind == 2 && random.below(8) == 0)
          canceller = std::jthread([source]() mutable { source.request_stop(); });
        outcome = inserting ? limiter.insert(
                                  count, deadline, [] {}, source.get_token())
                            : limiter.await_sample(count, deadline, source.get_token());
      } while (outcome == Outcome::timeout || outcome == Outcome::cancelled);
      if (outcome != Outcome::ok) failures.add("a call did not go on");
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back(work, true, i);
    threads.emplace_back(work, false, i);
  }
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);
  CHECK(limiter.state() == RateLimiter::State{.inserts = kInserts, .samples = kSamples});
}

TEST_CASE("bad options are refused by name") {
  CHECK(refusal({.min_inserts = 0}) == "min_inserts: 0 is not allowed; expected a positive integer");
  CHECK(refusal({.samples_per_insert = -1.0}) ==
        "samples_per_insert: -1 is not allowed; expected a number from 0 to 1e+09");
  CHECK(refusal({.samples_per_insert = std::numeric_limits<double>::quiet_NaN()}) ==
        "samples_per_insert: nan is not allowed; expected a number from 0 to 1e+09");
  CHECK(refusal({.tolerance = 0.5}) == "tolerance: 0.5 is not allowed; expected a number from 1 to 1e+12");
  CHECK(refusal({.report_after = 0s}) == "report_after: 0 is not allowed; expected a positive duration");
  CHECK(refusal({.report_after = -1ms}) ==
        "report_after: -0.001 is not allowed; expected a positive duration");
  CHECK(refusal({.report_after = troop::Clock::duration::max(), .report = {}}) == "nothing was thrown");
  CHECK(refusal({}) == "nothing was thrown");
}

TEST_CASE("inserts that were made elsewhere count without being asked, and let samples go on") {
  RateLimiter limiter({.min_inserts = 10, .samples_per_insert = 2.0, .tolerance = 5.0, .report = nullptr});
  CHECK(limiter.insert_room() == 15);
  limiter.count_inserts(4);
  CHECK(limiter.insert_room() == 11);
  CHECK(limiter.await_sample(1, Deadline::now()) == Outcome::timeout);
  std::thread learner([&] { CHECK(limiter.await_sample(10, Deadline::after(30s)) == Outcome::ok); });
  limiter.count_inserts(6);
  learner.join();
  CHECK(limiter.insert_room() == 10);  // five are paid for
  limiter.count_inserts(20);           // more than there is room for
  CHECK(limiter.insert_room() == 0);
  CHECK(limiter.inserts() == 30);
  CHECK(limiter.await_insert(1, Deadline::now()) == Outcome::timeout);
  CHECK(limiter.await_sample(30, Deadline::now()) == Outcome::ok);
  CHECK(limiter.insert_room() == 5);
  limiter.close();
  CHECK(limiter.insert_room() == 0);
  CHECK(RateLimiter({.samples_per_insert = 0.0}).insert_room() == RateLimiter::kMaxCount);
}
