#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <troop/core/random.hpp>

#include "../../examples/atari/gif.hpp"

namespace {

using Pixels = std::vector<std::uint8_t>;

/// Reads what Gif writes, as the specification has it.
class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint8_t byte() {
    REQUIRE(at_ < bytes_.size());
    return bytes_[at_++];
  }
  std::size_t word() {
    const std::size_t low = byte();
    return low | static_cast<std::size_t>(byte()) << 8;
  }
  Pixels bytes(std::size_t count) {
    Pixels result;
    while (result.size() < count) result.push_back(byte());
    return result;
  }
  bool at_end() const { return at_ == bytes_.size(); }

  /// The sub-blocks up to the empty one, together.
  Pixels blocks() {
    Pixels result;
    for (std::size_t size = byte(); size > 0; size = byte()) {
      const Pixels block = bytes(size);
      result.insert(result.end(), block.begin(), block.end());
    }
    return result;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

/// The pixels of codes that begin with 9 bits.
Pixels unpack(const Pixels& packed) {
  Pixels pixels;
  std::vector<Pixels> strings;
  Pixels before;
  std::size_t bits = 9, at = 0;
  for (;;) {
    std::size_t code = 0;
    for (std::size_t k = 0; k < bits; ++k, ++at) {
      REQUIRE(at / 8 < packed.size());
      code |= static_cast<std::size_t>(packed[at / 8] >> at % 8 & 1) << k;
    }
    if (code == 257) break;
    if (code == 256) {
      strings.assign(258, {});
      for (std::size_t i = 0; i < 256; ++i) strings[i] = {static_cast<std::uint8_t>(i)};
      before.clear();
      bits = 9;
      continue;
    }
    REQUIRE(code <= strings.size());
    Pixels string = code < strings.size() ? strings[code] : before;
    if (code == strings.size()) string.push_back(before.front());
    pixels.insert(pixels.end(), string.begin(), string.end());
    if (!before.empty() && strings.size() < 4096) {
      before.push_back(string.front());
      strings.push_back(before);
    }
    if (strings.size() == std::size_t{1} << bits && bits < 12) ++bits;
    before = string;
  }
  CHECK((at + 7) / 8 == packed.size());
  return pixels;
}

}  // namespace

TEST_CASE("pictures of all kinds are read back as they were, with palette, size and delay") {
  constexpr std::size_t kWidth = 150, kHeight = 61;
  std::array<examples::Colour, 256> palette{};
  for (std::size_t i = 0; i < 256; ++i)
    palette[i] = {static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(255 - i), 7};
  troop::Random random(1);
  std::vector<Pixels> pictures(4, Pixels(kWidth * kHeight));
  for (std::size_t k = 0; k < pictures[0].size(); ++k) {
    pictures[1][k] = static_cast<std::uint8_t>(random.below(256));  // more strings than there are codes
    pictures[2][k] = static_cast<std::uint8_t>(k / 40);
    pictures[3][k] = static_cast<std::uint8_t>(random.below(2));
  }
  examples::Gif gif(kWidth, kHeight, 7, palette);
  for (const Pixels& picture : pictures) gif.add(picture);

  Reader reader(gif.finish());
  CHECK(reader.bytes(6) == Pixels{'G', 'I', 'F', '8', '9', 'a'});
  CHECK(reader.word() == kWidth);
  CHECK(reader.word() == kHeight);
  CHECK(reader.bytes(3) == Pixels{0xF7, 0, 0});
  for (const examples::Colour& colour : palette)
    CHECK(reader.bytes(3) == Pixels(colour.begin(), colour.end()));
  CHECK(reader.bytes(2) == Pixels{0x21, 0xFF});
  const Pixels repetition = reader.blocks();
  CHECK(repetition.size() == 11 + 3);
  for (const Pixels& picture : pictures) {
    CHECK(reader.bytes(2) == Pixels{0x21, 0xF9});
    CHECK(reader.blocks() == Pixels{0, 7, 0, 0});
    CHECK(reader.byte() == 0x2C);
    CHECK(reader.word() == 0);
    CHECK(reader.word() == 0);
    CHECK(reader.word() == kWidth);
    CHECK(reader.word() == kHeight);
    CHECK(reader.byte() == 0);
    CHECK(reader.byte() == 8);
    CHECK(unpack(reader.blocks()) == picture);
  }
  CHECK(reader.byte() == 0x3B);
  CHECK(reader.at_end());
}

TEST_CASE("a picture that is all alike takes little") {
  examples::Gif gif(400, 252, 7, {});
  const std::size_t empty = 13 + 768 + 19;
  const Pixels picture(400 * 252, 3);
  for (int k = 0; k < 10; ++k) gif.add(picture);
  CHECK(gif.finish().size() < empty + 10 * 1'000);
}
