/// @file
/// A small task of pixels: catch what falls. For tests and first runs of networks that see images.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/env/environment.hpp>

namespace troop::env {

/// The board of a Catch and the size of its picture.
struct CatchOptions {
  std::size_t rows = 10;    ///< cells from top to bottom, 2 to 256; an episode lasts rows - 1 steps
  std::size_t columns = 9;  ///< cells from left to right, 2 to 256
  std::size_t scale = 4;    ///< pixels a cell and direction, 1 to 16

  void validate() const {
    require(rows >= 2 && rows <= 256, "rows", rows, "an integer from 2 to 256");
    require(columns >= 2 && columns <= 256, "columns", columns, "an integer from 2 to 256");
    require(scale >= 1 && scale <= 16, "scale", scale, "an integer from 1 to 16");
  }
};

/// A ball falls by one cell a step, straight down from a random column of the top row, and a paddle in the
/// bottom row moves left (action 0), stays (1) or moves right (2). When the ball reaches the bottom row the
/// episode terminates: reward 1 if the paddle is there, else -1; all rewards before are 0. The paddle begins
/// in the middle and stops at the walls.
///
/// The task is that of "Catch" in bsuite (Osband et al. 2020, "Behaviour suite for reinforcement learning"),
/// there of 10 x 5 cells. Here each cell is a square of `scale` pixels, so that a network for images fits: the
/// observation is u8 [1, rows * scale, columns * scale], by default [1, 40, 36], black, with ball and paddle
/// 255. A column too far from the middle to be reached in rows - 1 steps is never used: a perfect player earns
/// 1 in every episode, and nobody earns more. Returns of 0.9 and above count as solved.
///
/// An Environment; about 150 bytes; a step costs what it takes to clear the picture. Not thread-safe: one
/// thread at a time.
///
///     troop::env::VectorEnvironment<troop::env::Catch> environments({.count = 8, .seed = 1});
///     environments.spec().observation_shape;                               // {1, 40, 36}
///     environments.step(actions);
class Catch {
 public:
  using Scalar = std::uint8_t;

  static constexpr std::int32_t kNumActions = 3;

  explicit Catch(const CatchOptions& options = {})
      : options_((options.validate(), options)),
        spec_{.name = "Catch",
              .observation_dtype = DType::u8,
              .observation_shape = {1, options.rows * options.scale, options.columns * options.scale},
              .num_actions = kNumActions,
              .max_episode_steps = options.rows - 1,
              .return_to_solve = 0.9} {}

  const Spec& spec() const noexcept { return spec_; }

  /// Starts an episode; the seed chooses the ball's column.
  void reset(std::uint64_t seed, std::span<std::uint8_t> observation) noexcept {
    Random random(seed, "catch");
    const std::size_t middle = options_.columns / 2, reach = options_.rows - 1;
    const std::size_t first = middle - std::min(middle, reach);
    const std::size_t last = std::min(options_.columns - 1, middle + reach);
    ball_row_ = 0;
    ball_column_ = first + random.below(last - first + 1);
    paddle_ = middle;
    draw(observation);
  }

  /// Throws InvalidArgument, and changes nothing, for an action other than 0, 1 and 2.
  StepResult step(std::int32_t action, std::span<std::uint8_t> observation) {
    require_action(action, kNumActions);
    if (action == 0 && paddle_ > 0) --paddle_;
    if (action == 2 && paddle_ + 1 < options_.columns) ++paddle_;
    ++ball_row_;
    draw(observation);
    if (ball_row_ + 1 < options_.rows) return {};
    return {.reward = ball_column_ == paddle_ ? 1.0f : -1.0f, .terminated = true};
  }

  const CatchOptions& options() const noexcept { return options_; }
  std::size_t ball_row() const noexcept { return ball_row_; }
  std::size_t ball_column() const noexcept { return ball_column_; }
  std::size_t paddle_column() const noexcept { return paddle_; }

 private:
  void draw(std::span<std::uint8_t> observation) const noexcept {
    assert(observation.size() == spec_.observation_size());
    std::ranges::fill(observation, std::uint8_t{0});
    draw_cell(observation, options_.rows - 1, paddle_);
    draw_cell(observation, ball_row_, ball_column_);
  }

  void draw_cell(std::span<std::uint8_t> observation, std::size_t row, std::size_t column) const noexcept {
    const std::size_t scale = options_.scale, width = options_.columns * scale;
    for (std::size_t y = row * scale; y < (row + 1) * scale; ++y)
      std::ranges::fill(observation.subspan(y * width + column * scale, scale), std::uint8_t{255});
  }

  CatchOptions options_;
  Spec spec_;
  std::size_t ball_row_ = 0, ball_column_ = 0, paddle_ = 0;
};

}  // namespace troop::env
