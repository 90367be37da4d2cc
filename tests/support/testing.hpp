/// @file
/// Small helpers of the tests: the seed of property tests, bounds of statistical tests, collected failures.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <troop/core/error.hpp>

namespace troop::testing {

/// The seed of a property test: TROOP_TEST_SEED where it is set, else a constant. Tests print it.
inline std::uint64_t seed() {
  const char* text = std::getenv("TROOP_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20180303u;
}

/// The value that a chi-square variable of `freedom` degrees exceeds with probability of about 1e-6 (Wilson
/// and Hilferty 1931; within 1 % from 2 degrees on).
inline double chi_square_bound(std::size_t freedom) {
  const double z = 4.7534;  // the standard normal's quantile of 1 - 1e-6
  const double f = static_cast<double>(freedom);
  return f * std::pow(1.0 - 2.0 / (9.0 * f) + z * std::sqrt(2.0 / (9.0 * f)), 3.0);
}

/// Pearson's statistic of `counts` against expected numbers; cells that expect nothing must be empty.
template <class Count>
double chi_square(std::span<const Count> counts, std::span<const double> expected) {
  double sum = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double count = static_cast<double>(counts[i]);
    if (expected[i] == 0.0) {
      if (count > 0.0) return INFINITY;
      continue;
    }
    sum += (count - expected[i]) * (count - expected[i]) / expected[i];
  }
  return sum;
}

/// What a call's error says, "no error" when it throws none.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Counts failures, keeping the first sentence; for loops too long for an assertion each, and for worker
/// threads, whose findings are checked after they are joined. Thread-safe.
class Failures {
 public:
  void add(const std::string& sentence) {
    const std::lock_guard lock(mutex_);
    if (count_++ == 0) first_ = sentence;
  }

  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

  std::string first() const {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  mutable std::mutex mutex_;
  std::size_t count_ = 0;
  std::string first_;
};

}  // namespace troop::testing

/// Passes when nothing was added to `failures`; otherwise shows the first.
#define TROOP_CHECK_NONE(failures)         \
  do {                                     \
    INFO("first: " << (failures).first()); \
    CHECK((failures).count() == 0);        \
  } while (false)
