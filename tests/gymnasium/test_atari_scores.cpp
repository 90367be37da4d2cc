#include <troop/gymnasium/atari_scores.hpp>

#include <doctest/doctest.h>

#include <algorithm>

using namespace troop::env;

TEST_CASE("each of the 57 games has one row, and a person is better at it than chance") {
  CHECK(std::ranges::is_sorted(kAtariScores, {}, &AtariScore::game));
  CHECK(std::ranges::adjacent_find(kAtariScores, {}, &AtariScore::game) == kAtariScores.end());
  for (const AtariScore& score : kAtariScores) {
    CAPTURE(score.game);
    CHECK(score.human > score.random);
  }
}

TEST_CASE("a game is found by its name") {
  REQUIRE(find_atari_score("pong") != nullptr);
  CHECK(find_atari_score("pong")->random == -20.7);
  CHECK(find_atari_score("pong")->human == 14.6);
  CHECK(find_atari_score("alien")->human == 7127.7);
  CHECK(find_atari_score("zaxxon")->human == 9173.3);
  CHECK(find_atari_score("Pong") == nullptr);
  CHECK(find_atari_score("") == nullptr);
}
