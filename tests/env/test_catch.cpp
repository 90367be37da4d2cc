#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/env/catch.hpp>
#include <troop/env/environment.hpp>
#include <troop/env/vector_environment.hpp>

#include "allocation_counter.hpp"
#include "testing.hpp"

using namespace troop;
using env::Catch;
using env::CatchOptions;

namespace {

static_assert(env::check_environment<Catch>());

/// The picture, a character a pixel and a line a row: what a reader would draw.
std::string picture(const Catch& game, const std::vector<std::uint8_t>& pixels) {
  std::string text;
  const std::size_t width = game.spec().observation_shape[2];
  for (std::size_t k = 0; k < pixels.size(); ++k) {
    text += pixels[k] == 255 ? '#' : pixels[k] == 0 ? '.' : '?';
    if (k % width == width - 1) text += '\n';
  }
  return text;
}

/// Plays one episode, always towards the ball; returns its result.
env::StepResult catch_ball(Catch& game, std::uint64_t seed, std::vector<std::uint8_t>& pixels) {
  game.reset(seed, pixels);
  for (;;) {
    const std::int32_t action = game.ball_column() < game.paddle_column()   ? 0
                                : game.ball_column() > game.paddle_column() ? 2
                                                                            : 1;
    const env::StepResult result = game.step(action, pixels);
    if (result.terminated) return result;
  }
}

}  // namespace

TEST_CASE("ball and paddle are squares of pixels, the ball falls and the paddle moves") {
  Catch game({.rows = 3, .columns = 3, .scale = 2});
  std::vector<std::uint8_t> pixels(game.spec().observation_size(), 99);
  std::uint64_t seed = 0;
  do game.reset(++seed, pixels);
  while (game.ball_column() != 0);
  CHECK(picture(game, pixels) == "##....\n##....\n......\n......\n..##..\n..##..\n");
  std::fill(pixels.begin(), pixels.end(), std::uint8_t{99});  // what was there is not read
  CHECK(game.step(2, pixels) == env::StepResult{});
  CHECK(picture(game, pixels) == "......\n......\n##....\n##....\n....##\n....##\n");
  CHECK(game.step(0, pixels) == env::StepResult{.reward = -1, .terminated = true});
  CHECK(picture(game, pixels) == "......\n......\n......\n......\n####..\n####..\n");
}

TEST_CASE("an episode of Catch lasts one step less than there are rows, and its reward comes at the end") {
  for (const std::size_t rows : {2u, 5u, 10u}) {
    Catch game({.rows = rows, .columns = 3});
    std::vector<std::uint8_t> pixels(game.spec().observation_size());
    game.reset(4, pixels);
    for (std::size_t t = 1; t < rows; ++t) {
      const env::StepResult result = game.step(1, pixels);
      CHECK(result.terminated == (t == rows - 1));
      CHECK((result.reward != 0) == (t == rows - 1));
      CHECK(!result.truncated);
    }
  }
}

TEST_CASE("every ball can be caught, on wide boards too, and every column in reach is used") {
  for (const CatchOptions& options : {CatchOptions{}, CatchOptions{.rows = 10, .columns = 5, .scale = 1},
                                      CatchOptions{.rows = 3, .columns = 30, .scale = 1},
                                      CatchOptions{.rows = 2, .columns = 2, .scale = 1}}) {
    Catch game(options);
    std::vector<std::uint8_t> pixels(game.spec().observation_size());
    std::set<std::size_t> columns;
    testing::Failures failures;
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
      if (catch_ball(game, seed, pixels).reward != 1) failures.add("seed " + std::to_string(seed));
      columns.insert(game.ball_column());
    }
    TROOP_CHECK_NONE(failures);
    CHECK(columns.size() == std::min(options.columns, 2 * options.rows - 1));
  }
}

TEST_CASE("the paddle stops at the walls") {
  Catch game({.rows = 20, .columns = 4});
  std::vector<std::uint8_t> pixels(game.spec().observation_size());
  game.reset(1, pixels);
  for (int t = 0; t < 9; ++t) game.step(0, pixels);
  CHECK(game.paddle_column() == 0);
  for (int t = 0; t < 9; ++t) game.step(2, pixels);
  CHECK(game.paddle_column() == 3);
}

TEST_CASE("the seed alone decides an episode of Catch") {
  Catch game, other;
  std::vector<std::uint8_t> pixels(game.spec().observation_size()), others(pixels.size());
  for (int t = 0; t < 3; ++t) other.step(0, others);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    game.reset(seed, pixels);
    other.reset(seed, others);
    CHECK(pixels == others);
  }
}

TEST_CASE("Catch refuses other actions and moves nothing") {
  Catch game;
  std::vector<std::uint8_t> pixels(game.spec().observation_size());
  game.reset(1, pixels);
  for (const std::int32_t action : {-1, 3})
    CHECK(testing::error_of([&] { game.step(action, pixels); }) ==
          "action: " + std::to_string(action) + " is not allowed; expected an integer from 0 to 2");
  CHECK(game.ball_row() == 0);
}

TEST_CASE("a board that is too small or too large is refused by name") {
  const auto error = [](const CatchOptions& options) {
    return testing::error_of([&] { Catch game(options); });
  };
  CHECK(error({.rows = 1}) == "rows: 1 is not allowed; expected an integer from 2 to 256");
  CHECK(error({.columns = 257}) == "columns: 257 is not allowed; expected an integer from 2 to 256");
  CHECK(error({.scale = 0}) == "scale: 0 is not allowed; expected an integer from 1 to 16");
}

TEST_CASE("a vector of Catches plays random actions without allocating, and random play is poor") {
  env::VectorEnvironment<Catch> environments({.count = 16, .seed = testing::seed()});
  CHECK(environments.spec().observation_shape == std::vector<std::size_t>{1, 40, 36});
  Random random(testing::seed());
  CAPTURE(testing::seed());
  std::array<std::int32_t, 16> actions{};
  double sum = 0, episodes = 0;
  const std::size_t allocations = testing::allocations_in([&] {
    for (int t = 0; t < 900; ++t) {
      for (auto& action : actions) action = static_cast<std::int32_t>(random.below(3));
      environments.step(actions);
      for (const env::Episode& episode : environments.finished_episodes()) {
        sum += episode.episode_return;
        ++episodes;
      }
    }
  });
  CHECK(allocations == 0);
  CHECK(episodes == 16 * 100);
  CHECK(sum / episodes > -1);
  CHECK(sum / episodes < -0.5);
}
