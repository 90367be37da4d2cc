#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/detail/wide_node.hpp>

#include "testing.hpp"

using troop::Random;
using troop::detail::kFanout;
using troop::detail::PlainNode;
using troop::testing::Failures;

namespace {

template <class Value>
struct alignas(64) Children {
  std::array<Value, kFanout> of{};
};

/// Every sixteen numbers that a test should see: dense, sparse, a single one, denormal, huge, of mixed size.
template <class Value>
Children<Value> draw_children(Random& random) {
  Children<Value> children;
  const std::uint64_t kind = random.below(7);
  for (auto& child : children.of) {
    const double uniform = 1.0 - random.uniform();
    double value = 0.0;
    switch (kind) {
      case 0:
        value = uniform;
        break;
      case 1:
        value = random.below(4) == 0 ? uniform : 0.0;
        break;
      case 2:
        value = std::pow(10.0, random.uniform(-9.0, 9.0));
        break;
      case 3:
        value = static_cast<double>(std::numeric_limits<Value>::denorm_min()) *
                static_cast<double>(random.below(100));
        break;
      case 4:
        value = static_cast<double>(std::numeric_limits<Value>::max()) / 32.0 * uniform;
        break;
      case 5:
        value = static_cast<double>(random.below(8));
        break;
      default:
        value = random.below(2) == 0 ? 0.0 : std::pow(2.0, random.uniform(-140.0, 120.0));
    }
    child = static_cast<Value>(value);
  }
  if (random.below(8) == 0) {  // one alone
    const Value kept = children.of[random.below(kFanout)];
    children.of.fill(Value{0});
    children.of[random.below(kFanout)] = kept;
  }
  return children;
}

/// Masses at, below and above each boundary between children, beyond both ends, and some between.
template <class Value>
std::vector<double> masses_for(const Children<Value>& children, Random& random) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double total = PlainNode(children.of.data()).sum();
  std::vector<double> masses{0.0, -0.0, -1.0, -infinity, infinity, total * 2.0};
  double before = 0.0;
  for (const Value child : children.of) {
    before += static_cast<double>(child);
    masses.insert(masses.end(), {before, std::nextafter(before, 0.0), std::nextafter(before, infinity)});
  }
  masses.insert(masses.end(), {total, std::nextafter(total, 0.0), std::nextafter(total, infinity),
                               total * (1.0 + 0x1p-50)});
  for (int i = 0; i < 4; ++i) masses.push_back(random.uniform() * total);
  return masses;
}

template <class Node, class Value>
void check_choices(const char* name) {
  CAPTURE(name);
  Failures failures;
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "choices");
  for (int round = 0; round < 3000; ++round) {
    const auto children = draw_children<Value>(random);
    const Node node(children.of.data());
    std::size_t first = kFanout, last = kFanout;
    for (std::size_t i = 0; i < kFanout; ++i) {
      if (!(children.of[i] > 0)) continue;
      if (first == kFanout) first = i;
      last = i;
    }
    for (const double mass : masses_for(children, random)) {
      double rest = mass;
      const std::size_t chosen = node.select(rest);
      const std::string where = "round " + std::to_string(round) + ", mass " + std::to_string(mass);
      if (first == kFanout) continue;  // nothing to choose
      if (chosen >= kFanout || !(children.of[chosen] > 0)) failures.add(where + ": a dead child");
      if (mass <= 0.0 && chosen != first) failures.add(where + ": not the first");
      if (mass >= node.sum() * (1.0 + 0x1p-50) && chosen != last) failures.add(where + ": not the last");
      if (!(rest >= 0.0)) failures.add(where + ": a negative rest");
    }
  }
  TROOP_CHECK_NONE(failures);
}

}  // namespace

TEST_CASE("a child is chosen by the half-open ranges of the children's running sum") {
  const Children<float> children{{0, 1, 2, 0, 0, 4, 0.5f, 0, 8, 0, 0, 0, 0, 16, 1, 0}};
  const PlainNode node(children.of.data());
  CHECK(node.sum() == 32.5);
  const auto choose = [&](double mass, unsigned child, double rest) {
    CAPTURE(mass);
    CHECK(node.select(mass) == child);
    CHECK(mass == rest);
  };
  choose(-5.0, 1, 0.0);
  choose(0.0, 1, 0.0);
  choose(0.75, 1, 0.75);
  choose(1.0, 2, 0.0);
  choose(2.75, 2, 1.75);
  choose(3.0, 5, 0.0);
  choose(7.0, 6, 0.0);
  choose(7.5, 8, 0.0);
  choose(15.25, 8, 7.75);
  choose(15.5, 13, 0.0);
  choose(31.5, 14, 0.0);
  choose(32.25, 14, 0.75);
  choose(32.5, 14, 1.0);
  choose(1e9, 14, 1e9 - 31.5);
}

TEST_CASE("a node of zeros has no sum and is survived") {
  const Children<double> children;
  const PlainNode node(children.of.data());
  CHECK(node.sum() == 0.0);
  double mass = 1.0;
  CHECK(node.select(mass) == 0);
}

TEST_CASE("a child of zero is never chosen, the ends of the mass find the first and the last") {
  check_choices<PlainNode, float>("plain, float");
  check_choices<PlainNode, double>("plain, double");
#ifdef __AVX2__
  check_choices<troop::detail::Avx2Node, float>("AVX2, float");
  check_choices<troop::detail::Avx2Node, double>("AVX2, double");
#endif
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  check_choices<troop::detail::Avx512Node, float>("AVX-512, float");
  check_choices<troop::detail::Avx512Node, double>("AVX-512, double");
#endif
}

TEST_CASE("sums of small integers are exact") {
  Random random(3, "integers");
  Failures failures;
  for (int round = 0; round < 2000; ++round) {
    Children<float> children;
    double sum = 0.0;
    for (auto& child : children.of) sum += child = static_cast<float>(random.below(1u << 24));
    if (PlainNode(children.of.data()).sum() != sum) failures.add("round " + std::to_string(round));
  }
  TROOP_CHECK_NONE(failures);
}

namespace {

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

/// Compares a version with the plain one.
template <class Node, class Value>
void compare_with_plain(const char* name) {
  CAPTURE(name);
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "versions");
  Failures failures;
  for (int round = 0; round < 20000; ++round) {
    const auto children = draw_children<Value>(random);
    const PlainNode plain(children.of.data());
    const Node wide(children.of.data());
    const std::string where = "round " + std::to_string(round);
    if (!same_bits(plain.sum(), wide.sum())) failures.add(where + ": sums differ");
    const PlainNode::Chooser plain_chooser(plain);
    const typename Node::Chooser wide_chooser(wide);
    for (const double mass : masses_for(children, random)) {
      double plain_rest = mass, wide_rest = mass;
      const unsigned plain_child = plain_chooser.select(plain_rest);
      const unsigned wide_child = wide_chooser.select(wide_rest);
      if (plain_child != wide_child || !same_bits(plain_rest, wide_rest))
        failures.add(where + ": mass " + std::to_string(mass));
    }
  }
  TROOP_CHECK_NONE(failures);
}

/// A hash of what a version answers to children over 2^-70 to 2^70, which are made without a rounding.
template <class Node, class Value>
std::uint64_t fingerprint() {
  Random random(1, "fingerprint");
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a over words
  const auto add = [&](std::uint64_t word) { hash = (hash ^ word) * 1099511628211u; };
  for (int round = 0; round < 5000; ++round) {
    Children<Value> children;
    for (auto& child : children.of) {
      const auto mantissa = static_cast<double>(random.below(1u << 24));
      const auto exponent = static_cast<int>(random.below(round % 2 == 0 ? 4 : 116));
      child = random.below(5) == 0 ? Value{0} : static_cast<Value>(std::ldexp(mantissa, exponent - 70));
    }
    const Node node(children.of.data());
    add(std::bit_cast<std::uint64_t>(node.sum()));
    for (int i = 0; i < 8; ++i) {
      double mass = node.sum() > 0.0 ? std::ldexp(random.uniform(), std::ilogb(node.sum()) + 1) : 0.0;
      add(node.select(mass));
      add(std::bit_cast<std::uint64_t>(mass));
    }
  }
  return hash;
}

}  // namespace

TEST_CASE("the plain, the AVX2 and the AVX-512 version give the same bits") {
#ifdef __AVX2__
  compare_with_plain<troop::detail::Avx2Node, float>("AVX2, float");
  compare_with_plain<troop::detail::Avx2Node, double>("AVX2, double");
#endif
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  compare_with_plain<troop::detail::Avx512Node, float>("AVX-512, float");
  compare_with_plain<troop::detail::Avx512Node, double>("AVX-512, double");
#endif
  compare_with_plain<troop::detail::WideNode, float>("of this processor, float");
}

// So that builds for different processors, with different compilers and with or without the optimiser's own
// vectors, agree with each other and not only within themselves.
TEST_CASE("every build gives the bits that were written down here") {
  constexpr std::uint64_t kWritten = 7622571796420337528u;
  CHECK(fingerprint<PlainNode, float>() == kWritten);
  CHECK(fingerprint<PlainNode, double>() == kWritten);
  CHECK(fingerprint<troop::detail::WideNode, float>() == kWritten);
  CHECK(fingerprint<troop::detail::WideNode, double>() == kWritten);
}
