/// @file
/// The two conversions of the toolkit's half precision that troop uses.
#pragma once

#include <cstdint>

#include <troop/core/float16.hpp>

struct __half {
  std::uint16_t bits;
};

inline __half __float2half_rn(float value) {
  // troop::to_float16 keeps finite values finite; the device's conversion overflows from 65520 on.
  if (value >= 65520.0f) return {0x7c00};
  if (value <= -65520.0f) return {0xfc00};
  return {troop::to_float16(value)};
}
inline std::uint16_t __half_as_ushort(__half half) {
  return half.bits;
}
