/// @file
/// A 128-bit hash by which equal frames are recognised.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <troop/core/random.hpp>

namespace troop::detail {

struct FrameDigest {
  std::uint64_t low = 0, high = 0;

  friend bool operator==(const FrameDigest&, const FrameDigest&) = default;
};

/// NH of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway 1999) with 32-bit words and four passes: over every
/// 64-bit word of the frame, sum (low half + key's low half mod 2^32) * (high half + key's high half mod
/// 2^32) mod 2^64; each pass takes the key one word further on. Its 256 bits become 128 by two multilinear
/// hashes with 128-bit keys, of which the upper halves count (Lemire and Kaser 2014, theorem 3.1).
///
/// For a random key, any two different frames of the same size share a digest with a probability of at most
/// 2^-127: 2^-128 (both from the four passes, and from the two reductions). The key is drawn anew for each
/// storage, so that whoever chooses the frames does not know it. Both versions of the loop give the same
/// bits.
class FrameHash {
 public:
  FrameHash(std::size_t frame_bytes, std::uint64_t seed)
      : bytes_(frame_bytes), keys_((frame_bytes + kStep - 1) / kStep * kStepWords + kPasses - 1) {
    Random random(seed, "frame hash");
    for (auto& key : keys_) key = random();
    for (auto& key : reduction_) key = (static_cast<Wide>(random()) << 64) | random();
  }

  FrameDigest operator()(const std::byte* frame) const noexcept {
    Sums sums{};
    const std::size_t whole = bytes_ / kStep * kStep;
    add(frame, keys_.data(), whole / sizeof(std::uint64_t), sums);
    if (whole < bytes_) {
      std::byte last[kStep] = {};
      std::memcpy(last, frame + whole, bytes_ - whole);
      add(last, keys_.data() + whole / sizeof(std::uint64_t), kStepWords, sums);
    }
    return {reduce(sums, reduction_.data()), reduce(sums, reduction_.data() + kPasses + 1)};
  }

 private:
  __extension__ using Wide = unsigned __int128;

  static constexpr std::size_t kPasses = 4;
  static constexpr std::size_t kStep = 32;  // bytes, those of a vector
  static constexpr std::size_t kStepWords = kStep / sizeof(std::uint64_t);

  using Sums = std::array<std::uint64_t, kPasses>;

  static std::uint64_t reduce(const Sums& sums, const Wide* keys) noexcept {
    Wide sum = keys[kPasses];
    for (std::size_t pass = 0; pass < kPasses; ++pass) sum += keys[pass] * sums[pass];
    return static_cast<std::uint64_t>(sum >> 64);
  }

#if defined(__AVX2__)
  static void add(const std::byte* bytes, const std::uint64_t* keys, std::size_t words, Sums& sums) noexcept {
    __m256i lanes[kPasses] = {};
    for (std::size_t i = 0; i < words; i += kStepWords) {
      const __m256i part = load(bytes + i * sizeof(std::uint64_t));
      for (std::size_t pass = 0; pass < kPasses; ++pass) {
        const __m256i keyed = _mm256_add_epi32(part, load(keys + i + pass));
        lanes[pass] = _mm256_add_epi64(lanes[pass], _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
      }
    }
    for (std::size_t pass = 0; pass < kPasses; ++pass) {
      std::uint64_t lane[kStepWords];
      std::memcpy(lane, &lanes[pass], sizeof(lane));
      sums[pass] += (lane[0] + lane[1]) + (lane[2] + lane[3]);
    }
  }

  static __m256i load(const void* from) noexcept {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
#else
  static void add(const std::byte* bytes, const std::uint64_t* keys, std::size_t words, Sums& sums) noexcept {
    for (std::size_t i = 0; i < words; ++i) {
      std::uint64_t word;
      std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
      for (std::size_t pass = 0; pass < kPasses; ++pass) {
        const std::uint64_t key = keys[i + pass];
        const std::uint32_t low = static_cast<std::uint32_t>(word) + static_cast<std::uint32_t>(key);
        const std::uint32_t high =
            static_cast<std::uint32_t>(word >> 32) + static_cast<std::uint32_t>(key >> 32);
        sums[pass] += std::uint64_t{low} * high;
      }
    }
  }
#endif

  std::size_t bytes_;
  std::vector<std::uint64_t> keys_;
  std::array<Wide, 2 * (kPasses + 1)> reduction_;
};

}  // namespace troop::detail
