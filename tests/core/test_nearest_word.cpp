#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <troop/core/nearest_word.hpp>

using namespace troop;

TEST_CASE("the distance of two words is the number of letters to add, to take away or to change") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("pong", "pong") == 0);
  CHECK(edit_distance("pong", "png") == 1);
  CHECK(edit_distance("png", "pong") == 1);
  CHECK(edit_distance("pong", "ponk") == 1);
  CHECK(edit_distance("", "pong") == 4);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("the nearest word is named, the first of equals, and none where all are far") {
  const std::vector<std::string> games{"boxing", "bowling", "pong", "berzerk"};
  CHECK(nearest_word("bowing", games) == "boxing");
  CHECK(nearest_word("bowlin", games) == "bowling");
  CHECK(nearest_word("pong", games) == "pong");
  CHECK(nearest_word("breakout", games) == "");
  CHECK(nearest_word("", games) == "");
  CHECK(nearest_word("pong", {}) == "");
}
