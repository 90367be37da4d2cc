#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>

#include <troop/compression/zstd.hpp>

#include "codec_checks.hpp"

using troop::Zstd;

TEST_CASE("what was packed is unpacked to the same bytes") {
  troop::testing::check_round_trips<Zstd>();
}

TEST_CASE("only the size that was packed is accepted, and only whole input") {
  troop::testing::check_sizes<Zstd>();
}

TEST_CASE("hostile input is refused or unpacked within bounds") {
  troop::testing::check_hostile_input<Zstd>();
}

TEST_CASE("threads do not disturb each other") {
  troop::testing::check_threads<Zstd>();
}

TEST_CASE("what Zstandard cannot pack is refused") {
  CHECK_THROWS_WITH_AS(Zstd::bound((std::size_t{1} << 40) + 1),
                       "bytes: 1099511627777 is not allowed; expected at most 2^40", troop::InvalidArgument);
  const troop::testing::Bytes in(1000);
  troop::testing::Bytes out(3);
  CHECK_THROWS_WITH_AS(Zstd::compress(in, out),
                       "Zstandard cannot pack 1000 bytes: Destination buffer is too small", troop::Error);
}

TEST_CASE("the codec is called zstd") {
  CHECK(std::string(Zstd::name) == "zstd");
}
