/// @file
/// Arithmetic on the 16 children of a sum-tree node, with AVX-512, with AVX2 or with neither, with the same
/// result to the last bit.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace troop::detail {

/// Children of a node.
inline constexpr std::size_t kFanout = 16;

/// The children of one node. The memory that they are read from is aligned to a cache line.
///
/// Prefix sums are those of two halves of eight, each by three rounds of adding the element 1, 2 and 4 places
/// before (Hillis and Steele 1986), then the first half's total is added to the second half; the last of them
/// is the node's sum. All versions below add in just this order. Rounding can make a prefix smaller than the
/// one before it by an ulp, so a child is chosen by two conditions, "prefix > mass" and "child > 0": a child
/// of zero is out of reach whatever the rounding.
class PlainNode {
 public:
  template <class Value>
  explicit PlainNode(const Value* children) noexcept {
    for (std::size_t i = 0; i < kFanout; ++i) child_[i] = static_cast<double>(children[i]);
  }

  double sum() const noexcept {
    const auto half = [](const double* x) {
      return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    };
    return half(child_ + 8) + half(child_);
  }

  /// The child on which `mass` falls; leaves in `mass` what remains within the child.
  unsigned select(double& mass) const noexcept { return Chooser(*this).select(mass); }

  /// The prefix sums of a node, for several choices in it.
  class Chooser {
   public:
    Chooser() = default;
    explicit Chooser(const PlainNode& node) noexcept {
      double* prefix = before_ + 1;
      for (std::size_t i = 0; i < kFanout; ++i) {
        prefix[i] = node.child_[i];
        alive_ |= (node.child_[i] > 0.0 ? 1u : 0u) << i;
      }
      for (double* half : {prefix, prefix + 8}) {
        for (std::size_t step = 1; step < 8; step *= 2) {
          for (std::size_t i = 7; i >= step; --i) half[i] += half[i - step];
        }
      }
      for (std::size_t i = 8; i < kFanout; ++i) prefix[i] += prefix[7];
    }

    unsigned select(double& mass) const noexcept {
      unsigned beyond = 0;
      for (unsigned i = 0; i < kFanout; ++i) beyond |= (before_[i + 1] > mass ? 1u : 0u) << i;
      beyond &= alive_;
      const unsigned child = beyond != 0 ? static_cast<unsigned>(std::countr_zero(beyond))
                                         : static_cast<unsigned>(std::bit_width(alive_ | 1u)) - 1u;
      const double rest = mass - before_[child];
      mass = rest > 0.0 ? rest : 0.0;
      return child;
    }

   private:
    double before_[kFanout + 1]{};  // the sum of the children before each, then of all
    unsigned alive_ = 0;
  };

 private:
  double child_[kFanout];
};

#ifdef __AVX2__

class Avx2Node {
  using Four [[gnu::vector_size(32), gnu::may_alias]] = double;
  using FourFloats [[gnu::vector_size(16), gnu::may_alias]] = float;
  using FourMasks [[gnu::vector_size(32)]] = std::int64_t;

 public:
  explicit Avx2Node(const float* children) noexcept
      : a_(widen(children)), b_(widen(children + 4)), c_(widen(children + 8)), d_(widen(children + 12)) {}
  explicit Avx2Node(const double* children) noexcept
      : a_(*reinterpret_cast<const Four*>(children)),
        b_(*reinterpret_cast<const Four*>(children + 4)),
        c_(*reinterpret_cast<const Four*>(children + 8)),
        d_(*reinterpret_cast<const Four*>(children + 12)) {}

  double sum() const noexcept {
    const Four first = _mm256_hadd_pd(a_, b_), second = _mm256_hadd_pd(c_, d_);
    const Four fours =
        Four(_mm256_permute2f128_pd(first, second, 0x20)) + Four(_mm256_permute2f128_pd(first, second, 0x31));
    return (fours[2] + fours[3]) + (fours[0] + fours[1]);
  }

  unsigned select(double& mass) const noexcept { return Chooser(*this).select(mass); }

  /// The prefix sums of a node, for several choices in it.
  class Chooser {
   public:
    Chooser() = default;
    explicit Chooser(const Avx2Node& node) noexcept : prefix_{node.a_, node.b_, node.c_, node.d_} {
      const Four zero{};
      alive_ = beyond(zero);
      add_prefixes(prefix_[0], prefix_[1]);
      add_prefixes(prefix_[2], prefix_[3]);
      const Four half = __builtin_shufflevector(prefix_[1], prefix_[1], 3, 3, 3, 3);
      prefix_[2] += half;
      prefix_[3] += half;
    }

    unsigned select(double& mass) const noexcept {
      const Four masses{mass, mass, mass, mass};
      const unsigned alive_beyond = alive_ & beyond(masses);
      const unsigned child = alive_beyond != 0 ? static_cast<unsigned>(std::countr_zero(alive_beyond))
                                               : static_cast<unsigned>(std::bit_width(alive_ | 1u)) - 1u;
      double earlier;  // the sum of the children before
      std::memcpy(&earlier, reinterpret_cast<const std::byte*>(&none_) + (child + 3) * sizeof(double),
                  sizeof(double));
      const double rest = mass - earlier;
      mass = rest > 0.0 ? rest : 0.0;
      return child;
    }

   private:
    /// A bit for each number that is greater.
    unsigned beyond(const Four& limit) const noexcept {
      return bits_of(prefix_[0] > limit) | bits_of(prefix_[1] > limit) << 4 |
             bits_of(prefix_[2] > limit) << 8 | bits_of(prefix_[3] > limit) << 12;
    }

    // Read as one array: the sum before child c is the element c + 3.
    Four none_{}, prefix_[4]{};
    unsigned alive_ = 0;
  };

 private:
  static Four widen(const float* children) noexcept {
    return __builtin_convertvector(*reinterpret_cast<const FourFloats*>(children), Four);
  }

  static unsigned bits_of(FourMasks mask) noexcept {
    return static_cast<unsigned>(_mm256_movemask_pd(reinterpret_cast<__m256d>(mask)));
  }

  /// The prefix sums of eight numbers.
  static void add_prefixes(Four& low, Four& high) noexcept {
    const Four zero{};
    high += __builtin_shufflevector(low, high, 3, 4, 5, 6);
    low += __builtin_shufflevector(zero, low, 3, 4, 5, 6);
    high += __builtin_shufflevector(low, high, 2, 3, 4, 5);
    low += __builtin_shufflevector(zero, low, 2, 3, 4, 5);
    high += low;
  }

  Four a_, b_, c_, d_;
};

#endif

#if defined(__AVX512F__) && defined(__AVX512DQ__)

class Avx512Node {
  using Eight [[gnu::vector_size(64), gnu::may_alias]] = double;
  using EightFloats [[gnu::vector_size(32), gnu::may_alias]] = float;
  using EightMasks [[gnu::vector_size(64)]] = std::int64_t;

 public:
  explicit Avx512Node(const float* children) noexcept
      : low_(__builtin_convertvector(*reinterpret_cast<const EightFloats*>(children), Eight)),
        high_(__builtin_convertvector(*reinterpret_cast<const EightFloats*>(children + 8), Eight)) {}
  explicit Avx512Node(const double* children) noexcept
      : low_(*reinterpret_cast<const Eight*>(children)),
        high_(*reinterpret_cast<const Eight*>(children + 8)) {}

  double sum() const noexcept { return sum_half(high_) + sum_half(low_); }

  unsigned select(double& mass) const noexcept { return Chooser(*this).select(mass); }

  /// The prefix sums of a node, for several choices in it.
  class Chooser {
   public:
    Chooser() = default;
    explicit Chooser(const Avx512Node& node) noexcept
        : first_(prefix_half(node.low_)),
          second_(prefix_half(node.high_) + first_[7]),
          alive_(bits_of(node.low_ > 0.0) | bits_of(node.high_ > 0.0) << 8) {}

    unsigned select(double& mass) const noexcept {
      const unsigned beyond = alive_ & (bits_of(first_ > mass) | bits_of(second_ > mass) << 8);
      const unsigned child = beyond != 0 ? static_cast<unsigned>(std::countr_zero(beyond))
                                         : static_cast<unsigned>(std::bit_width(alive_ | 1u)) - 1u;
      double earlier;  // the sum of the children before
      std::memcpy(&earlier, reinterpret_cast<const std::byte*>(&none_) + (child + 7) * sizeof(double),
                  sizeof(double));
      const double rest = mass - earlier;
      mass = rest > 0.0 ? rest : 0.0;
      return child;
    }

   private:
    // Read as one array: the sum before child c is the element c + 7.
    Eight none_{}, first_{}, second_{};
    unsigned alive_ = 0;
  };

 private:
  static unsigned bits_of(EightMasks mask) noexcept {
    return _mm512_movepi64_mask(reinterpret_cast<__m512i>(mask));
  }

  static Eight prefix_half(Eight x) noexcept {
    const Eight zero{};
    x += __builtin_shufflevector(zero, x, 7, 8, 9, 10, 11, 12, 13, 14);
    x += __builtin_shufflevector(zero, x, 6, 7, 8, 9, 10, 11, 12, 13);
    return x + __builtin_shufflevector(zero, x, 4, 5, 6, 7, 8, 9, 10, 11);
  }

  static double sum_half(Eight x) noexcept {
    x += __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
    return x[0] + x[4];
  }

  Eight low_, high_;
};

using WideNode = Avx512Node;

#elif defined(__AVX2__)

using WideNode = Avx2Node;

#else

using WideNode = PlainNode;

#endif

}  // namespace troop::detail
