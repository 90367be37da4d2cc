#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/random.hpp>

#include "testing.hpp"

using troop::ByteReader;
using troop::ByteWriter;
using troop::DType;
using troop::RecordLayout;
using troop::testing::error_of;

namespace {

std::vector<std::byte> example() {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.number(std::uint8_t{7});
  writer.number(-3.5);
  writer.text("hello");
  writer.text("");
  const std::array<float, 2> floats{1.0f, 2.0f};
  writer.numbers(std::span(floats));
  writer.layout(RecordLayout({{"observation", DType::u8, {4, 84, 84}}, {"reward", DType::f32, {}}}));
  return bytes;
}

/// Reads the example whole; whether it is what was written.
bool read_example(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  bool same = reader.number<std::uint8_t>() == 7;
  same &= reader.number<double>() == -3.5;
  same &= reader.text() == "hello";
  same &= reader.text().empty();
  std::array<float, 2> floats{};
  reader.numbers(std::span(floats));
  same &= floats == std::array<float, 2>{1.0f, 2.0f};
  same &= reader.layout().describe() == "observation u8[4,84,84], reward f32";
  reader.finish();
  return same;
}

}  // namespace

TEST_CASE("what was written is read back, byte for byte little-endian") {
  CHECK(read_example(example()));
  std::vector<std::byte> bytes;
  ByteWriter(bytes).number(std::uint32_t{0x01020304});
  CHECK(bytes == std::vector<std::byte>{std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}});
}

TEST_CASE("bytes that end too early, or too late, are refused by what is missing") {
  const auto bytes = example();
  for (std::size_t length = 0; length < bytes.size(); ++length)
    CHECK_THROWS_AS(read_example(std::span(bytes).first(length)), troop::Error);
  CHECK(error_of([] { ByteReader({}).number<std::uint32_t>(); }) == "ends 4 bytes too early");
  const std::array<std::byte, 3> three{};
  CHECK(error_of([&] { ByteReader(three).finish(); }) == "3 bytes too many");
}

TEST_CASE("a count that the bytes cannot hold is refused before anything is allocated") {
  std::vector<std::byte> bytes;
  ByteWriter(bytes).number(std::uint32_t{0xffffffff});
  ByteWriter(bytes).number(std::uint64_t{0});
  CHECK(error_of([&] { ByteReader(bytes).text(); }) == "4294967295 elements in 8 bytes");
  CHECK(error_of([&] { ByteReader(bytes).count(4); }) == "4294967295 elements in 8 bytes");
}

TEST_CASE("layouts that cannot be are refused") {
  const auto layout_of = [](std::uint64_t size, std::uint32_t fields, std::uint8_t dtype) {
    std::vector<std::byte> bytes;
    ByteWriter writer(bytes);
    writer.number(size);
    writer.number(std::uint64_t{1});
    writer.number(fields);
    for (std::uint32_t i = 0; i < fields; ++i) {
      writer.text(std::string("f").append(std::to_string(i)));
      writer.number(dtype);
      writer.number(std::uint32_t{0});
    }
    return bytes;
  };
  CHECK(error_of([&] { ByteReader(layout_of(4, 1, 99)).layout(); }) ==
        "f0.dtype: 99 is not allowed; expected a dtype");
  CHECK(error_of([&] { ByteReader(layout_of(0, 0, 9)).layout(); }) ==
        "fields: 0 is not allowed; expected at least one field");
  CHECK(error_of([&] { ByteReader(layout_of(4, 1025, 9)).layout(); }) ==
        "number of fields: 1025 is not allowed; expected at most 1024");
  CHECK(error_of([&] { ByteReader(layout_of(8, 1, 9)).layout(); }) ==
        "a record of 8 bytes with fields in other places than f0 f32 would have");
}

TEST_CASE("changed bytes never crash the reader") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  troop::Random random(seed, "bytes");
  const auto bytes = example();
  std::size_t refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto changed = bytes;
    for (std::uint64_t i = 0; i <= random.below(3); ++i)
      changed[random.below(changed.size())] = static_cast<std::byte>(random.below(256));
    try {
      ByteReader reader(changed);
      reader.number<std::uint8_t>();
      reader.number<double>();
      reader.text();
      reader.text();
      reader.number<double>();
      reader.layout();
      reader.finish();
    } catch (const troop::Error&) {
      ++refused;
    }
  }
  CHECK(refused > 1000);
}
