#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/rank_based.hpp>
#include <troop/replay/samplers.hpp>

#include "testing.hpp"

using troop::Random;
using troop::RankBasedSampler;
using troop::testing::Failures;

static_assert(troop::ReplaySampler<RankBasedSampler>);

namespace {

RankBasedSampler sampler_of(std::size_t capacity, double alpha) {
  return RankBasedSampler(troop::ReplayOptions{.capacity = capacity, .alpha = alpha});
}

/// P(i) by the formula, from priorities: 0 for a priority of 0.
std::vector<double> closed_form(std::span<const float> priorities, double alpha) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < priorities.size(); ++i)
    if (priorities[i] > 0.0f) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return priorities[a] > priorities[b]; });
  double total = 0.0;
  std::vector<double> probabilities(priorities.size());
  for (std::size_t rank = 1; rank <= order.size(); ++rank)
    total += probabilities[order[rank - 1]] = std::pow(static_cast<double>(rank), -alpha);
  for (double& probability : probabilities) probability /= total;
  return probabilities;
}

/// Draws many times and compares frequencies and reported probabilities with the formula.
void check_draws(const RankBasedSampler& sampler, std::span<const float> priorities, double alpha,
                 bool stratified, Random& random) {
  CAPTURE(alpha);
  CAPTURE(stratified);
  constexpr std::size_t kBatch = 600, kBatches = 1000;
  const auto expected = closed_form(priorities, alpha);
  std::vector<std::uint64_t> counts(priorities.size());
  std::vector<double> parts(kBatch), probabilities(kBatch);
  std::vector<std::size_t> slots(kBatch);
  Failures failures;
  for (std::size_t batch = 0; batch < kBatches; ++batch) {
    for (std::size_t i = 0; i < kBatch; ++i)
      parts[i] = stratified ? (static_cast<double>(i) + random.uniform()) / kBatch : random.uniform();
    sampler.draw(parts, slots, probabilities);
    for (std::size_t i = 0; i < kBatch; ++i) {
      if (slots[i] >= priorities.size() || !(priorities[slots[i]] > 0.0f)) {
        failures.add("drawn: " + std::to_string(slots[i]));
        continue;
      }
      ++counts[slots[i]];
      if (std::abs(probabilities[i] - expected[slots[i]]) > 1e-6 * expected[slots[i]])
        failures.add("probability of " + std::to_string(slots[i]));
    }
  }
  TROOP_CHECK_NONE(failures);
  std::vector<double> wanted(expected);
  for (double& count : wanted) count *= static_cast<double>(kBatch * kBatches);
  const auto living = static_cast<std::size_t>(
      std::count_if(priorities.begin(), priorities.end(), [](float priority) { return priority > 0.0f; }));
  const double statistic = troop::testing::chi_square(std::span<const std::uint64_t>(counts), wanted);
  CHECK(statistic < troop::testing::chi_square_bound(living - 1));
}

}  // namespace

TEST_CASE(
    "slots are drawn by (1/rank)^alpha, whatever the priorities are, and however the draws are spread") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "draws");
  for (const double alpha : {0.0, 0.7, 1.0}) {
    std::vector<float> priorities(700);
    for (float& priority : priorities)  // nine decades, some zeros, some ties
      priority = random.below(5) == 0 ? static_cast<float>(random.below(3))
                                      : static_cast<float>(std::pow(10.0, random.uniform(-6.0, 3.0)));
    RankBasedSampler sampler = sampler_of(700, alpha);
    sampler.set_range(0, priorities);
    for (const bool stratified : {false, true}) check_draws(sampler, priorities, alpha, stratified, random);
    // After changes that move, remove and bring back slots.
    for (int i = 0; i < 3000; ++i) {
      const std::size_t slot = random.below(700);
      const float value = random.below(3) == 0 ? 0.0f : static_cast<float>(random.uniform());
      sampler.set(std::span(&slot, 1), std::span(&value, 1));
      priorities[slot] = value;
    }
    check_draws(sampler, priorities, alpha, true, random);
  }
}

TEST_CASE("a slot is found by just its own part of the total") {
  RankBasedSampler sampler = sampler_of(10, 1.0);
  const std::vector<std::size_t> slots{8, 2, 5, 1};
  const std::vector<float> values{1e30f, 1e-30f, 2.0f, 2.0f};
  sampler.set(slots, values);  // ranks: 8, 1, 5, 2
  CHECK(sampler.total() == doctest::Approx(25.0 / 12.0));
  CHECK(sampler.smallest_probability() == doctest::Approx(0.25 / (25.0 / 12.0)));
  CHECK(sampler.value(8) == 1e30f);
  CHECK(sampler.value(0) == 0.0f);
  std::vector<double> parts{0.0, 0.479, 0.481, 0.719, 0.721, 0.879, 0.881, 0.9999999999999999};
  std::vector<std::size_t> drawn(8);
  std::vector<double> probabilities(8);
  sampler.draw(parts, drawn, probabilities);
  CHECK(drawn == std::vector<std::size_t>{8, 8, 1, 1, 5, 5, 2, 2});
  CHECK(probabilities[0] == doctest::Approx(0.48));
  CHECK(probabilities[2] == doctest::Approx(0.24));
  CHECK(probabilities[4] == doctest::Approx(0.16));
  CHECK(probabilities[6] == doctest::Approx(0.12));
}

TEST_CASE("the total is that of as many ranks as there are positive priorities, after growth and shrinking") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "total");
  for (const std::size_t capacity : {std::size_t{1}, std::size_t{5}, std::size_t{3000}}) {
    CAPTURE(capacity);
    RankBasedSampler sampler = sampler_of(capacity, 0.7);
    CHECK(sampler.total() == 0.0);
    std::vector<float> priorities(capacity);
    Failures failures;
    for (int step = 0; step < 200; ++step) {
      const std::size_t first = random.below(capacity), count = random.below(capacity - first + 1);
      const auto begin = priorities.begin() + static_cast<std::ptrdiff_t>(first);
      if (step % 3 == 0) {
        const float value = step % 2 == 0 ? 0.0f : 3.0f;
        sampler.fill(first, count, value);
        std::fill_n(begin, count, value);
      } else {
        std::vector<float> values(count);
        for (float& value : values) value = static_cast<float>(random.below(4));
        sampler.set_range(first, values);
        std::copy(values.begin(), values.end(), begin);
      }
      double total = 0.0, last = 0.0;
      std::size_t rank = 0;
      for (const float priority : priorities)
        if (priority > 0.0f) total += last = std::pow(static_cast<double>(++rank), -0.7);
      if (std::abs(sampler.total() - total) > 1e-6 * total) failures.add("step " + std::to_string(step));
      if (rank > 0 && std::abs(sampler.smallest_probability() * total - last) > 1e-6 * last)
        failures.add("smallest probability, step " + std::to_string(step));
      for (std::size_t i = 0; i < capacity; ++i)
        if (sampler.value(i) != priorities[i]) failures.add("value, step " + std::to_string(step));
    }
    sampler.fill(0, capacity, 0.0f);
    CHECK(sampler.total() == 0.0);
    TROOP_CHECK_NONE(failures);
  }
}

TEST_CASE("a rank whose power is too small for a float32 can still be drawn") {
  RankBasedSampler sampler = sampler_of(100000, 10.0);  // 100000^-10 = 1e-50
  sampler.fill(0, 100000, 1.0f);
  CHECK(sampler.smallest_probability() > 0.0);
  std::vector<double> parts{0.0, 1.0 - 0x1p-53};
  std::vector<std::size_t> drawn(2);
  std::vector<double> probabilities(2);
  sampler.draw(parts, drawn, probabilities);
  CHECK(drawn[0] == 0);
  CHECK(probabilities[0] == doctest::Approx(0.999).epsilon(1e-3));
  CHECK(drawn[1] < 100000);
}

TEST_CASE("a rank-based sampler of 2^32 slots is refused") {
  CHECK_THROWS_WITH_AS(sampler_of(std::size_t{1} << 32, 1.0),
                       "capacity: 4294967296 is not allowed; expected an integer from 1 to 2^32 - 1",
                       troop::InvalidArgument);
}
