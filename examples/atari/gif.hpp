/// @file
/// Animated pictures in GIF (CompuServe 1990, version 89a), each picture whole.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace examples {

using Colour = std::array<std::uint8_t, 3>;

/// Collects pictures of 256 colours; `bytes()` is the file. Pictures are rows of indices into the palette, from
/// top to bottom.
class Gif {
 public:
  /// `delay`: time a picture, in hundredths of a second.
  Gif(std::uint16_t width, std::uint16_t height, std::uint16_t delay, const std::array<Colour, 256>& palette)
      : width_(width), height_(height), delay_(delay), next_(kMostCodes) {
    text("GIF89a");
    words({width, height});
    put({0xF7, 0, 0});  // 256 colours of 8 bits
    for (const Colour& colour : palette) bytes_.insert(bytes_.end(), colour.begin(), colour.end());
    put({0x21, 0xFF, 11});
    text("NETSCAPE2.0");
    put({3, 1, 0, 0, 0});  // again and again
  }

  void add(std::span<const std::uint8_t> picture) {
    put({0x21, 0xF9, 4, 0});
    words({delay_});
    put({0, 0, 0x2C});
    words({0, 0, width_, height_});
    put({0, 8});
    compress(picture);
  }

  /// The whole file. Nothing can be added after it.
  std::span<const std::uint8_t> finish() {
    put({0x3B});
    return bytes_;
  }

 private:
  static constexpr std::uint32_t kClear = 256, kEnd = 257, kMostCodes = 4096;

  void put(std::initializer_list<std::uint8_t> bytes) { bytes_.insert(bytes_.end(), bytes); }
  void text(const char* letters) {
    for (; *letters != '\0'; ++letters) bytes_.push_back(static_cast<std::uint8_t>(*letters));
  }
  void words(std::initializer_list<std::uint16_t> values) {
    for (const std::uint16_t value : values) {
      bytes_.push_back(static_cast<std::uint8_t>(value & 0xFF));
      bytes_.push_back(static_cast<std::uint8_t>(value >> 8));
    }
  }

  /// Codes of growing length for the strings that were seen (Welch 1984), in blocks of at most 255 bytes.
  void compress(std::span<const std::uint8_t> picture) {
    std::vector<std::uint8_t> packed;
    std::uint32_t waiting = 0, waiting_bits = 0, bits = 9, codes = kEnd + 1;
    const auto emit = [&](std::uint32_t code) {
      waiting |= code << waiting_bits;
      for (waiting_bits += bits; waiting_bits >= 8; waiting_bits -= 8, waiting >>= 8)
        packed.push_back(static_cast<std::uint8_t>(waiting & 0xFF));
    };
    const auto clear = [&] {
      emit(kClear);
      for (auto& row : next_) row.fill(0);
      bits = 9;
      codes = kEnd + 1;
    };
    clear();
    std::uint32_t string = picture[0];
    for (const std::uint8_t pixel : picture.subspan(1)) {
      if (const std::uint16_t longer = next_[string][pixel]; longer != 0) {
        string = longer;
        continue;
      }
      emit(string);
      if (codes == kMostCodes) {
        clear();
      } else {
        next_[string][pixel] = static_cast<std::uint16_t>(codes);
        if (codes++ == 1u << bits) ++bits;
      }
      string = pixel;
    }
    emit(string);
    emit(kEnd);
    if (waiting_bits > 0) packed.push_back(static_cast<std::uint8_t>(waiting & 0xFF));
    for (std::size_t begin = 0; begin < packed.size(); begin += 255) {
      const auto block = std::span(packed).subspan(begin, std::min<std::size_t>(255, packed.size() - begin));
      bytes_.push_back(static_cast<std::uint8_t>(block.size()));
      bytes_.insert(bytes_.end(), block.begin(), block.end());
    }
    bytes_.push_back(0);
  }

  std::uint16_t width_, height_, delay_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::array<std::uint16_t, 256>> next_;  // the code of a string with one more pixel; 0: none yet
};

}  // namespace examples
