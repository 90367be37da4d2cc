#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include <troop/core/error.hpp>

#include "testing.hpp"

using troop::InvalidArgument;
using troop::testing::error_of;

TEST_CASE("an invalid argument says field, value and what is allowed, and keeps them apart") {
  const InvalidArgument error("batch_size", "0", "an integer from 1 to 65536");
  CHECK(std::string(error.what()) == "batch_size: 0 is not allowed; expected an integer from 1 to 65536");
  CHECK(error.field() == "batch_size");
  CHECK(error.value() == "0");
  CHECK(error.expected() == "an integer from 1 to 65536");
}

TEST_CASE("a file error begins with the file's name and keeps it") {
  const troop::FileError error("run/checkpoint", "is truncated");
  CHECK(std::string(error.what()) == "run/checkpoint: is truncated");
  CHECK(error.path() == "run/checkpoint");
}

TEST_CASE("every exception can be caught as troop::Error and as std::runtime_error") {
  static_assert(std::is_base_of_v<std::runtime_error, troop::Error>);
  CHECK_THROWS_AS(throw InvalidArgument("a", "b", "c"), troop::Error);
  CHECK_THROWS_AS(throw troop::LayoutMismatch("a"), troop::Error);
  CHECK_THROWS_AS(throw troop::EmptyReplay("a"), troop::Error);
  CHECK_THROWS_AS(throw troop::FileError("a", "b"), std::runtime_error);
}

TEST_CASE("require passes what is allowed and writes values as a reader would") {
  CHECK_NOTHROW(troop::require(true, "field", 1, "anything"));
  CHECK(error_of([] { troop::require(false, "n", 17, "less"); }) == "n: 17 is not allowed; expected less");
  CHECK(error_of([] { troop::require(false, "on", true, "no"); }) == "on: true is not allowed; expected no");
  CHECK(error_of([] { troop::require(false, "x", 0.25, "1"); }) == "x: 0.25 is not allowed; expected 1");
  CHECK(error_of([] { troop::require(false, "name", "?", "a name"); }) ==
        "name: ? is not allowed; expected a name");
  CHECK(error_of([] { troop::require(false, "key", std::numeric_limits<std::uint64_t>::max(), "a key"); }) ==
        "key: 18446744073709551615 is not allowed; expected a key");
}

TEST_CASE("require writes one-byte integers as numbers, not as characters") {
  CHECK(error_of([] { troop::require(false, "depth", std::uint8_t{65}, "less"); }) ==
        "depth: 65 is not allowed; expected less");
  CHECK(error_of([] { troop::require(false, "depth", std::int8_t{-1}, "more"); }) ==
        "depth: -1 is not allowed; expected more");
}

TEST_CASE("require_between includes both ends and refuses what is not a number") {
  CHECK_NOTHROW(troop::require_between("x", 0.0, 0.0, 1.0));
  CHECK_NOTHROW(troop::require_between("x", 1.0, 0.0, 1.0));
  CHECK(error_of([] { troop::require_between("x", 1.5, 0.0, 1.0); }) ==
        "x: 1.5 is not allowed; expected a number from 0 to 1");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(error_of([&] { troop::require_between("x", nan, 0.0, 1.0); }) ==
        "x: nan is not allowed; expected a number from 0 to 1");
  CHECK_THROWS_AS(troop::require_between("x", -1e-300, 0.0, 1.0), InvalidArgument);
  CHECK_THROWS_AS(troop::require_between("x", std::numeric_limits<double>::infinity(), 0.0, 1e300),
                  InvalidArgument);
}
