#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <type_traits>

#include <troop/core/dtype.hpp>

using troop::DType;
using troop::dtype_of;

namespace {

enum class Small : std::uint8_t { a };
enum class Wide : std::int64_t { a };
enum class Flag : bool { no, yes };
struct NotAnElement {};

template <class T>
void check_type(DType dtype, int number, const char* name) {
  CAPTURE(name);
  CHECK(dtype_of<T>() == dtype);
  CHECK(static_cast<int>(dtype) == number);
  CHECK(size_of(dtype) == sizeof(T));
  CHECK(size_of(dtype) == alignof(T));
  CHECK(name_of(dtype) == name);
}

}  // namespace

TEST_CASE("each dtype has the number, the size and the name that files and fingerprints rely on") {
  check_type<std::uint8_t>(DType::u8, 1, "u8");
  check_type<std::uint16_t>(DType::u16, 2, "u16");
  check_type<std::uint32_t>(DType::u32, 3, "u32");
  check_type<std::uint64_t>(DType::u64, 4, "u64");
  check_type<std::int8_t>(DType::i8, 5, "i8");
  check_type<std::int16_t>(DType::i16, 6, "i16");
  check_type<std::int32_t>(DType::i32, 7, "i32");
  check_type<std::int64_t>(DType::i64, 8, "i64");
  check_type<float>(DType::f32, 9, "f32");
  check_type<double>(DType::f64, 10, "f64");
  check_type<bool>(DType::boolean, 11, "bool");
}

TEST_CASE("integer types of other names count by size and sign, enumerations by their underlying type") {
  CHECK(dtype_of<long>() == (sizeof(long) == 8 ? DType::i64 : DType::i32));
  CHECK(dtype_of<unsigned long long>() == DType::u64);
  CHECK(dtype_of<char>() == (std::is_signed_v<char> ? DType::i8 : DType::u8));
  CHECK(dtype_of<std::byte>() == DType::u8);
  CHECK(dtype_of<Small>() == DType::u8);
  CHECK(dtype_of<Wide>() == DType::i64);
  CHECK(dtype_of<Flag>() == DType::boolean);
}

TEST_CASE("only fixed-size numbers and enumerations are elements") {
  static_assert(troop::Element<float> && troop::Element<bool> && troop::Element<Small>);
  static_assert(!troop::Element<long double>);
  static_assert(!troop::Element<float*>);
  static_assert(!troop::Element<NotAnElement>);
  static_assert(!troop::Element<std::string>);
  CHECK(troop::Element<std::int8_t>);
}

TEST_CASE("numbers outside the enumeration are recognised, names are distinct") {
  std::set<std::string> names;
  for (int number = 0; number < 256; ++number) {
    CAPTURE(number);
    const auto dtype = static_cast<DType>(number);
    CHECK(is_valid(dtype) == (number >= 1 && number <= 11));
    if (is_valid(dtype)) names.insert(std::string(name_of(dtype)));
  }
  CHECK(names.size() == 11);
}
