/// @file
/// An episode of a saved network as an animated picture: what it sees, and the value of each action.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include <troop/apex.hpp>

#include "gif.hpp"

namespace examples {

/// Draws the newest frame of an observation, three times its size, and beside it a row for each action: its
/// number, its Q-value, and a bar that is orange for the action that was taken.
class EpisodePicture {
 public:
  EpisodePicture(std::size_t frame_height, std::size_t frame_width)
      : frame_height_(frame_height),
        frame_width_(frame_width),
        height_(kScale * frame_height),
        width_(kScale * frame_width + kPanel),
        pixels_(height_ * width_),
        gif_(static_cast<std::uint16_t>(width_), static_cast<std::uint16_t>(height_), kDelay, palette()) {}

  void add(std::span<const std::uint8_t> frame, std::span<const float> q_values, std::size_t action) {
    std::ranges::fill(pixels_, std::uint8_t{0});
    for (std::size_t y = 0; y < height_; ++y) {
      for (std::size_t x = 0; x < kScale * frame_width_; ++x)
        pixels_[y * width_ + x] = std::min(frame[y / kScale * frame_width_ + x / kScale], kWhite);
    }
    for (const float value : q_values) largest_ = std::max(largest_, std::abs(value));
    const std::size_t row_height = std::min<std::size_t>(20, height_ / q_values.size());
    for (std::size_t i = 0; i < q_values.size(); ++i) {
      const std::size_t top = i * row_height + 2, left = kScale * frame_width_ + 6;
      char text[400];  // of any float; what is drawn has room
      std::snprintf(text, sizeof text, "%2zu%7.2f", i,
                    std::clamp(static_cast<double>(q_values[i]), -999.99, 9999.99));
      write(text, top, left);
      const auto length = static_cast<std::size_t>(std::abs(q_values[i]) / largest_ * kBar);
      fill(top, left + 80, length, i == action ? kOrange : q_values[i] < 0 ? kBlue : kGreen);
    }
    gif_.add(pixels_);
  }

  std::span<const std::uint8_t> finish() { return gif_.finish(); }

 private:
  static constexpr std::size_t kScale = 3, kPanel = 150, kBar = 60, kLetter = 2;
  static constexpr std::uint16_t kDelay = 7;  // a step is four frames of 1/60 s
  static constexpr std::uint8_t kWhite = 252, kOrange = 253, kGreen = 254, kBlue = 255;

  static std::array<Colour, 256> palette() {
    std::array<Colour, 256> colours;
    for (std::size_t i = 0; i < colours.size(); ++i) colours[i].fill(static_cast<std::uint8_t>(i));
    colours[kWhite] = {255, 255, 255};
    colours[kOrange] = {255, 150, 0};
    colours[kGreen] = {60, 170, 90};
    colours[kBlue] = {70, 110, 220};
    return colours;
  }

  void fill(std::size_t top, std::size_t left, std::size_t length, std::uint8_t colour) {
    for (std::size_t y = top; y < top + 5 * kLetter; ++y)
      std::fill_n(&pixels_[y * width_ + left], length, colour);
  }

  /// Digits of 3 x 5 dots, a row of dots three bits.
  void write(const char* text, std::size_t top, std::size_t left) {
    static constexpr std::array<std::uint16_t, 12> kDots{
        0b111101101101111, 0b010110010010111, 0b111001111100111, 0b111001111001111,
        0b101101111001001, 0b111100111001111, 0b111100111101111, 0b111001010010010,
        0b111101111101111, 0b111101111001111, 0b000000111000000, 0b000000000000010};
    for (; *text != '\0'; ++text, left += 4 * kLetter) {
      const bool is_digit = *text >= '0' && *text <= '9';
      if (!is_digit && *text != '-' && *text != '.') continue;
      const std::uint16_t dots = kDots[is_digit       ? static_cast<std::size_t>(*text - '0')
                                       : *text == '-' ? 10u
                                                      : 11u];
      for (std::size_t y = 0; y < 5 * kLetter; ++y) {
        for (std::size_t x = 0; x < 3 * kLetter; ++x) {
          if ((dots >> (14 - y / kLetter * 3 - x / kLetter) & 1) != 0)
            pixels_[(top + y) * width_ + left + x] = kWhite;
        }
      }
    }
  }

  std::size_t frame_height_, frame_width_, height_, width_;
  std::vector<std::uint8_t> pixels_;
  Gif gif_;
  float largest_ = 1e-6f;
};

/// Plays one episode of the network in `options.evaluate` and writes it to `file`. Returns an exit code.
template <class Make>
int record(const troop::apex::Options& options, const std::string& file, const Make& make) try {
  using namespace troop;
  require(!options.evaluate.empty(), "--evaluate", "\"\"", "a saved network with --record");
  check_writable(file);
  const nn::LoadedNetwork saved = nn::load_network(options.evaluate);
  auto games = make(env::VectorOptions{.count = 1, .seed = options.seed, .stream = "evaluation"});
  const env::Spec& spec = games.spec();
  const auto num_actions = static_cast<std::size_t>(spec.num_actions);
  if (saved.network != saved.network.bind(spec.observation_shape, num_actions))
    throw FileError(options.evaluate, "network " + to_string(saved.network) + " does not fit " + spec.name);
  nn::EigenNetwork network(saved.network, options.seed);
  network.set_parameters(saved.parameters);

  EpisodePicture picture(spec.observation_shape[1], spec.observation_shape[2]);
  const std::size_t frame_size = spec.observation_shape[1] * spec.observation_shape[2];
  Random random(options.seed, "evaluation exploration");
  std::vector<float> q_values(num_actions);
  while (games.finished_episodes().empty()) {
    network.evaluate(games.observations(), MatrixView<float>(q_values.data(), 1, num_actions));
    const std::size_t action = random.uniform() < options.evaluation_epsilon
                                   ? static_cast<std::size_t>(random.below(num_actions))
                                   : nn::argmax(q_values);
    picture.add(games.observations().row_span(0).last(frame_size), q_values, action);
    games.step(std::vector{static_cast<std::int32_t>(action)});
  }
  write_file_atomically(file, std::as_bytes(picture.finish()));
  const env::Episode& episode = games.finished_episodes()[0];
  std::printf("recorded: return=%g steps=%llu file=%s\n", episode.episode_return,
              static_cast<unsigned long long>(episode.length), file.c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}

}  // namespace examples
