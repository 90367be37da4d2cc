#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>

#include <troop/compression/lz4.hpp>

#include "codec_checks.hpp"

using troop::Lz4;

TEST_CASE("what was packed is unpacked to the same bytes") {
  troop::testing::check_round_trips<Lz4>();
}

TEST_CASE("only the size that was packed is accepted, and only whole input") {
  troop::testing::check_sizes<Lz4>();
}

TEST_CASE("hostile input is refused or unpacked within bounds") {
  troop::testing::check_hostile_input<Lz4>();
}

TEST_CASE("threads do not disturb each other") {
  troop::testing::check_threads<Lz4>();
}

TEST_CASE("what LZ4 cannot pack is refused") {
  CHECK_THROWS_WITH_AS(Lz4::bound(std::size_t{1} << 31),
                       "bytes: 2147483648 is not allowed; expected at most 2113929216",
                       troop::InvalidArgument);
  const troop::testing::Bytes in(1000);
  troop::testing::Bytes out(3);
  CHECK_THROWS_WITH_AS(Lz4::compress(in, out), "LZ4 cannot pack 1000 bytes into 3", troop::Error);
}

TEST_CASE("the codec is called lz4") {
  CHECK(std::string(Lz4::name) == "lz4");
}
