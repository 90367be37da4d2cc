/// @file
/// Arrays of float32 as IEEE 754 binary16 and back, for sending parameters in half the bytes.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#if defined(__x86_64__) && !defined(__CUDACC__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace troop {

/// The nearest binary16, ties to even (IEEE 754-2019, section 4.3.1). A finite value beyond 65504 becomes
/// 65504 with its sign, not infinity; infinities and NaN stay what they are. The error is at most 2^-11 of
/// the value from 2^-14 (6.1e-5) on, and at most 2^-25 (3e-8) below.
inline std::uint16_t to_float16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u)
    return static_cast<std::uint16_t>(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7bffu);
  if (magnitude <
      0x38800000u) {  // below 2^-14: adding 1/2 leaves the rounded multiple of 2^-24 in the last bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u;
  return static_cast<std::uint16_t>(sign | rounded >> 13);
}

/// The value of a binary16, exactly.
inline float from_float16(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

namespace detail {

#if defined(__x86_64__) && !defined(__CUDACC__)
inline bool has_float16_instructions() noexcept {
  static const bool has = [] {  // Clang 14 does not know this one in __builtin_cpu_supports
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
  return has;
}

/// Converts eights of values and returns how many values those were.
[[gnu::target("avx,f16c")]] inline std::size_t to_float16_by_instruction(std::span<const float> values,
                                                                         std::uint16_t* out) noexcept {
  const __m256 most = _mm256_set1_ps(65504.0f), no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256 infinity = _mm256_set1_ps(__builtin_inff());
  std::size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    const __m256 x = _mm256_loadu_ps(values.data() + i);
    const __m256 magnitude = _mm256_and_ps(x, no_sign);
    const __m256 is_large = _mm256_and_ps(_mm256_cmp_ps(magnitude, most, _CMP_GT_OQ),
                                          _mm256_cmp_ps(magnitude, infinity, _CMP_LT_OQ));
    const __m256 clipped = _mm256_blendv_ps(x, _mm256_or_ps(most, _mm256_andnot_ps(no_sign, x)), is_large);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(clipped, _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}

[[gnu::target("avx,f16c")]] inline std::size_t from_float16_by_instruction(
    std::span<const std::uint16_t> halves, float* out) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= halves.size(); i += 8) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves.data() + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(x));
  }
  return i;
}
#endif

}  // namespace detail

/// Converts an array; `out` is as long as `values`.
inline void to_float16(std::span<const float> values, std::span<std::uint16_t> out) noexcept {
  assert(out.size() == values.size());
  std::size_t i = 0;
#if defined(__x86_64__) && !defined(__CUDACC__)
  if (detail::has_float16_instructions()) i = detail::to_float16_by_instruction(values, out.data());
#endif
  for (; i < values.size(); ++i) out[i] = to_float16(values[i]);
}

/// Converts an array; `out` is as long as `halves`.
inline void from_float16(std::span<const std::uint16_t> halves, std::span<float> out) noexcept {
  assert(out.size() == halves.size());
  std::size_t i = 0;
#if defined(__x86_64__) && !defined(__CUDACC__)
  if (detail::has_float16_instructions()) i = detail::from_float16_by_instruction(halves, out.data());
#endif
  for (; i < halves.size(); ++i) out[i] = from_float16(halves[i]);
}

}  // namespace troop
