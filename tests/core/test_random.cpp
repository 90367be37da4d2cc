#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/random.hpp>

#include "testing.hpp"

using troop::Random;

namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

/// A generator whose next output is `output`: with a first word of 0 it is the last word, rotated by 23.
Random about_to_give(std::uint64_t output) {
  Random random;
  random.set_state({0, 1, 2, std::rotr(output, 23)});
  return random;
}

}  // namespace

TEST_CASE("the outputs are those of the reference implementation of xoshiro256++") {
  Random random;
  random.set_state({1, 2, 3, 4});
  const std::uint64_t expected[] = {41943041u,
                                    58720359u,
                                    3588806011781223u,
                                    3591011842654386u,
                                    9228616714210784205u,
                                    9973669472204895162u,
                                    14011001112246962877u,
                                    12406186145184390807u,
                                    15849039046786891736u,
                                    10450023813501588000u};
  for (const std::uint64_t value : expected) CHECK(random() == value);
}

TEST_CASE("it is a uniform random bit generator for the standard library") {
  static_assert(std::uniform_random_bit_generator<Random>);
  Random random(1);
  std::vector<int> values{1, 2, 3, 4, 5, 6, 7, 8};
  std::shuffle(values.begin(), values.end(), random);
  std::sort(values.begin(), values.end());
  CHECK(values == std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("streams of different seed, name or index differ, the same stream repeats itself") {
  std::set<std::vector<std::uint64_t>> beginnings;
  std::size_t streams = 0;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, kMax}) {
    for (const std::string name : {"", "actor", "learner", "actor "}) {
      for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, kMax}) {
        Random random(seed, name, index), again(seed, name, index);
        CHECK(random == again);
        std::vector<std::uint64_t> beginning;
        for (int i = 0; i < 3; ++i) beginning.push_back(random());
        CHECK(again() == beginning[0]);
        beginnings.insert(std::move(beginning));
        ++streams;
      }
    }
  }
  CHECK(beginnings.size() == streams);
}

TEST_CASE("neighbouring streams are not correlated bit by bit") {
  // Each of 64 bits agrees in about half of 4096 draws: 2048 +- 32. Seven deviations bound all 64 bits of
  // three pairs at 1e-9.
  const std::pair<Random, Random> pairs[] = {{Random(7, "actor", 0), Random(7, "actor", 1)},
                                             {Random(7, "actor", 0), Random(8, "actor", 0)},
                                             {Random(7, "actor", 0), Random(7, "learner", 0)}};
  for (auto [a, b] : pairs) {
    std::array<int, 64> agree{};
    for (int draw = 0; draw < 4096; ++draw) {
      const std::uint64_t same = ~(a() ^ b());
      for (std::size_t bit = 0; bit < 64; ++bit) agree[bit] += static_cast<int>(same >> bit & 1);
    }
    const auto [low, high] = std::minmax_element(agree.begin(), agree.end());
    CHECK(*low > 2048 - 7 * 32);
    CHECK(*high < 2048 + 7 * 32);
  }
}

TEST_CASE("a saved state continues the stream exactly") {
  Random random(troop::testing::seed(), "saved");
  for (int i = 0; i < 10; ++i) random();
  const Random::State state = random.state();
  std::vector<double> expected;
  for (int i = 0; i < 5; ++i) expected.push_back(random.normal());
  Random restored;
  CHECK_FALSE(restored == random);
  restored.set_state(state);
  for (const double value : expected) CHECK(restored.normal() == value);
  CHECK(restored == random);
}

TEST_CASE("a state of zeros, which would give zeros for ever, is refused") {
  Random random(5);
  const Random before = random;
  CHECK_THROWS_AS(random.set_state({0, 0, 0, 0}), troop::InvalidArgument);
  CHECK(random == before);
}

TEST_CASE("uniform reaches 0 and the last number below 1, and nothing beyond") {
  CHECK(about_to_give(0).uniform() == 0.0);
  CHECK(about_to_give(kMax).uniform() == 1.0 - 0x1p-53);
  CHECK(about_to_give(std::uint64_t{1} << 63).uniform() == 0.5);
  CHECK(about_to_give(2048).uniform() == 0x1p-53);
}

TEST_CASE("uniform in an interval stays below its upper end, however it rounds") {
  const double next = std::nextafter(1.0, 2.0);
  CHECK(about_to_give(kMax).uniform(1.0, next) == 1.0);
  CHECK(about_to_give(0).uniform(1.0, next) == 1.0);
  CHECK(about_to_give(kMax).uniform(-3.0, 1e17) < 1e17);
  CHECK(about_to_give(0).uniform(-3.0, 5.0) == -3.0);
  CHECK(about_to_give(std::uint64_t{1} << 63).uniform(-3.0, 5.0) == 1.0);
  CHECK(about_to_give(kMax).uniform(2.0, 2.0) == 2.0);
}

TEST_CASE("uniform draws fill the interval evenly") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "uniform");
  std::vector<std::size_t> counts(64);
  for (int i = 0; i < 64000; ++i) ++counts[static_cast<std::size_t>(random.uniform() * 64.0)];
  const std::vector<double> expected(64, 1000.0);
  CHECK(troop::testing::chi_square<std::size_t>(counts, expected) < troop::testing::chi_square_bound(63));
}

TEST_CASE("below gives the ends of its range for the ends of the generator's") {
  CHECK(about_to_give(kMax).below(1) == 0);
  CHECK(about_to_give(0).below(1) == 0);
  CHECK(about_to_give(kMax).below(10) == 9);
  CHECK(about_to_give(kMax).below(kMax) == kMax - 1);
  CHECK(about_to_give(1).below(kMax) == 0);
  CHECK(about_to_give(kMax).below(std::uint64_t{1} << 63) == (std::uint64_t{1} << 63) - 1);
}

TEST_CASE("below draws again where a value would come up too often") {
  // 2^64 = 1 mod 3, so exactly one of the outputs must be refused for the bound 3: output 0.
  Random random = about_to_give(0), next = random;
  next();
  const std::uint64_t third = random.below(3);
  CHECK(third == next.below(3));
  CHECK(random == next);
  // The same for the largest bound.
  random = about_to_give(0), next = random;
  next();
  CHECK(random.below(kMax) == next.below(kMax));
  CHECK(random == next);
}

TEST_CASE("below is not biased, neither for small bounds nor for bounds of 64 bits") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "below");
  for (const std::uint64_t bound : {2u, 3u, 7u, 10u, 50u}) {
    CAPTURE(bound);
    std::vector<std::size_t> counts(bound);
    for (std::uint64_t i = 0; i < 1000 * bound; ++i) ++counts[random.below(bound)];
    const std::vector<double> expected(bound, 1000.0);
    CHECK(troop::testing::chi_square<std::size_t>(counts, expected) <
          troop::testing::chi_square_bound(bound - 1));
  }
  // Without the second draw the multiples of 3 below 3 * 2^62 would come up twice as often as the others.
  std::vector<std::size_t> counts(3);
  for (int i = 0; i < 9000; ++i) ++counts[random.below(std::uint64_t{3} << 62) % 3];
  const std::vector<double> expected(3, 3000.0);
  CHECK(troop::testing::chi_square<std::size_t>(counts, expected) < troop::testing::chi_square_bound(2));
}

TEST_CASE("normal draws have the moments of the standard normal and are always finite") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "normal");
  const int n = 40000;
  double sum = 0.0, squares = 0.0, fourth = 0.0;
  int within = 0;
  for (int i = 0; i < n; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    within += std::abs(x) < 1.0 ? 1 : 0;
  }
  // Six standard deviations each: 1/200, sqrt(2)/200, sqrt(96)/200, sqrt(0.6827 * 0.3173)/200.
  CHECK(std::abs(sum / n) < 6.0 * 0.005);
  CHECK(std::abs(squares / n - 1.0) < 6.0 * 0.00708);
  CHECK(std::abs(fourth / n - 3.0) < 6.0 * 0.049);
  CHECK(std::abs(static_cast<double>(within) / n - 0.682689) < 6.0 * 0.00233);
  CHECK(std::isfinite(about_to_give(kMax).normal()));
  CHECK(std::isfinite(about_to_give(0).normal()));
}
