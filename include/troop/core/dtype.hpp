/// @file
/// The element types of records and observations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace troop {

/// Type of one element. The numbers are part of layout fingerprints and of files: they never change.
enum class DType : std::uint8_t {
  u8 = 1,
  u16 = 2,
  u32 = 3,
  u64 = 4,
  i8 = 5,
  i16 = 6,
  i32 = 7,
  i64 = 8,
  f32 = 9,
  f64 = 10,
  boolean = 11
};

namespace detail {

struct DTypeInfo {
  DType dtype;
  std::size_t size;
  std::string_view name;
};

inline constexpr std::array<DTypeInfo, 11> kDTypes{{{DType::u8, 1, "u8"},
                                                    {DType::u16, 2, "u16"},
                                                    {DType::u32, 4, "u32"},
                                                    {DType::u64, 8, "u64"},
                                                    {DType::i8, 1, "i8"},
                                                    {DType::i16, 2, "i16"},
                                                    {DType::i32, 4, "i32"},
                                                    {DType::i64, 8, "i64"},
                                                    {DType::f32, 4, "f32"},
                                                    {DType::f64, 8, "f64"},
                                                    {DType::boolean, 1, "bool"}}};

}  // namespace detail

/// Bytes of one element; also its alignment.
constexpr std::size_t size_of(DType dtype) noexcept {
  return detail::kDTypes[static_cast<std::size_t>(dtype) - 1].size;
}

/// "f32", "u8", ...
constexpr std::string_view name_of(DType dtype) noexcept {
  return detail::kDTypes[static_cast<std::size_t>(dtype) - 1].name;
}

/// True for the values that DType enumerates; a number read from a file or from the wire may be another.
constexpr bool is_valid(DType dtype) noexcept {
  const auto number = static_cast<std::size_t>(dtype);
  return number >= 1 && number <= detail::kDTypes.size();
}

/// C++ types that have a DType: the arithmetic types of a fixed size, and enumerations, which count as their
/// underlying type.
template <class T>
concept Element = (std::is_integral_v<T> && sizeof(T) <= 8) || std::is_same_v<T, float> ||
                  std::is_same_v<T, double> || std::is_enum_v<T>;

/// The DType of an element type: `dtype_of<float>() == DType::f32`.
template <Element T>
constexpr DType dtype_of() noexcept {
  if constexpr (std::is_enum_v<T>) {
    return dtype_of<std::underlying_type_t<T>>();
  } else if constexpr (std::is_same_v<T, bool>) {
    return DType::boolean;
  } else if constexpr (std::is_same_v<T, float>) {
    return DType::f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return DType::f64;
  } else {
    constexpr std::size_t log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return static_cast<DType>((std::is_signed_v<T> ? 5 : 1) + log2);
  }
}

}  // namespace troop
