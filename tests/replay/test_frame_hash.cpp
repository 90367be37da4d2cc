#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/detail/frame_hash.hpp>

#include "testing.hpp"

using troop::Random;
using troop::detail::FrameDigest;
using troop::detail::FrameHash;
using troop::testing::Failures;

TEST_CASE("every bit of a frame counts, whatever its size") {
  Failures failures;
  for (const std::size_t bytes : {1, 7, 8, 31, 32, 33, 64, 100}) {
    const FrameHash hash(bytes, 1);
    std::vector<std::byte> frame(bytes, std::byte{0x5a});
    const FrameDigest digest = hash(frame.data());
    for (std::size_t bit = 0; bit < 8 * bytes; ++bit) {
      frame[bit / 8] ^= std::byte{1} << (bit % 8);
      const FrameDigest other = hash(frame.data());
      if (other.low == digest.low || other.high == digest.high)
        failures.add("bit " + std::to_string(bit) + " of " + std::to_string(bytes) + " bytes");
      frame[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    if (!(hash(frame.data()) == digest)) failures.add("the same frame has another digest");
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("the digest does not depend on where the frame lies, but on the seed") {
  constexpr std::size_t kBytes = 75;
  std::vector<std::byte> memory(kBytes + 64);
  std::vector<std::byte> frame(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) frame[i] = static_cast<std::byte>(i * 37);
  const FrameHash hash(kBytes, 3);
  for (std::size_t shift = 0; shift < 64; ++shift) {
    std::memcpy(memory.data() + shift, frame.data(), kBytes);
    CHECK(hash(memory.data() + shift) == hash(frame.data()));
  }
  CHECK_FALSE(FrameHash(kBytes, 4)(frame.data()) == hash(frame.data()));
}

TEST_CASE("with vector instructions and without the digest is the same") {
  std::vector<std::byte> frame(1000);
  for (std::size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<std::byte>(i * i >> 3);
  const FrameDigest digest = FrameHash(frame.size(), 20180303)(frame.data());
  CHECK(digest.low == 10787272517384985656u);
  CHECK(digest.high == 15974135473088117885u);
}

TEST_CASE("pictures that differ in two pixels have different digests, spread evenly") {
  constexpr std::size_t kSide = 12;
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  const FrameHash hash(kSide * kSide, seed);
  std::vector<std::byte> frame(kSide * kSide);
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  std::vector<std::uint32_t> low(64), high(64);
  std::size_t frames = 0;
  for (std::size_t a = 0; a < frame.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      frame[a] = std::byte{200};
      frame[b] = std::byte{200};
      const FrameDigest digest = hash(frame.data());
      seen.emplace(digest.low, digest.high);
      ++low[digest.low % 64];
      ++high[digest.high >> 58];
      ++frames;
      frame[a] = frame[b] = std::byte{0};
    }
  }
  CHECK(seen.size() == frames);
  const std::vector<double> expected(64, static_cast<double>(frames) / 64);
  const double bound = troop::testing::chi_square_bound(63);
  CHECK(troop::testing::chi_square(std::span<const std::uint32_t>(low), std::span<const double>(expected)) <
        bound);
  CHECK(troop::testing::chi_square(std::span<const std::uint32_t>(high), std::span<const double>(expected)) <
        bound);
}
