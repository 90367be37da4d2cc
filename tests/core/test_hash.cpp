#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <troop/core/hash.hpp>

using troop::crc32c;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// Bit by bit, from the definition.
std::uint32_t slow_crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) {
  std::uint32_t crc = ~before;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1u) != 0 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

}  // namespace

TEST_CASE("CRC-32C gives the values of RFC 3720, appendix B.4") {
  std::array<std::byte, 32> block{};
  CHECK(crc32c(block) == 0x8a9136aau);
  block.fill(std::byte{0xff});
  CHECK(crc32c(block) == 0x62a8ab43u);
  for (std::size_t i = 0; i < 32; ++i) block[i] = static_cast<std::byte>(i);
  CHECK(crc32c(block) == 0x46dd794eu);
  for (std::size_t i = 0; i < 32; ++i) block[i] = static_cast<std::byte>(31 - i);
  CHECK(crc32c(block) == 0x113fdb5cu);

  std::array<unsigned char, 48> command{0x01, 0xc0};  // an iSCSI read command
  command[16] = 0x14;
  command[22] = 0x04;
  command[27] = 0x14;
  command[31] = 0x18;
  command[32] = 0x28;
  command[40] = 0x02;
  CHECK(crc32c(std::as_bytes(std::span(command))) == 0xd9963a56u);

  CHECK(crc32c(bytes_of("123456789")) == 0xe3069283u);
  CHECK(crc32c({}) == 0u);
}

TEST_CASE("CRC-32C of any length from any address is that of its definition") {
  std::vector<std::byte> bytes(70);
  std::uint64_t state = 1;
  for (auto& byte : bytes) byte = static_cast<std::byte>(troop::split_mix(state));
  for (std::size_t first = 0; first < 8; ++first) {
    for (std::size_t size = 0; first + size <= bytes.size(); ++size) {
      const auto part = std::span<const std::byte>(bytes).subspan(first, size);
      if (crc32c(part) != slow_crc32c(part)) FAIL("from " << first << ", " << size << " bytes");
      const auto* const p = reinterpret_cast<const unsigned char*>(part.data());
      if (~troop::detail::crc32c_by_tables(~0u, p, size) != slow_crc32c(part))
        FAIL("by tables, from " << first << ", " << size << " bytes");
    }
  }
}

TEST_CASE(
    "CRC-32C of long blocks, which are worked through in three parts at a time, is that of its definition") {
  std::vector<std::byte> bytes(4000);
  std::uint64_t state = 2;
  for (auto& byte : bytes) byte = static_cast<std::byte>(troop::split_mix(state));
  for (const std::size_t middle : {768u, 1536u, 2304u, 3990u}) {
    for (std::size_t size = middle - 9; size < middle + 10; ++size) {
      const auto part = std::span<const std::byte>(bytes).subspan(size % 8, std::min(size, bytes.size() - 8));
      const std::uint32_t before = size % 2 == 0 ? 0u : 0x12345678u;
      if (crc32c(part, before) != slow_crc32c(part, before)) FAIL(size << " bytes");
    }
  }
}

TEST_CASE("CRC-32C continued over two parts is that of the whole, wherever it is cut") {
  const auto whole = bytes_of("the whole is the sum of its parts, said the tree");
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    CAPTURE(cut);
    CHECK(crc32c(whole.subspan(cut), crc32c(whole.first(cut))) == crc32c(whole));
  }
}

TEST_CASE("FNV-1a gives its published values and can be continued") {
  CHECK(troop::fnv1a("") == 0xcbf29ce484222325u);
  CHECK(troop::fnv1a("a") == 0xaf63dc4c8601ec8cu);
  CHECK(troop::fnv1a("foobar") == 0x85944171f73967e8u);
  CHECK(troop::fnv1a("bar", troop::fnv1a("foo")) == troop::fnv1a("foobar"));
  CHECK(troop::fnv1a("\xff") != troop::fnv1a("\x7f"));
}

TEST_CASE("SplitMix64 gives the outputs of the reference implementation") {
  std::uint64_t state = 1234567;
  CHECK(troop::split_mix(state) == 6457827717110365317u);
  CHECK(troop::split_mix(state) == 3203168211198807973u);
  CHECK(troop::split_mix(state) == 9817491932198370423u);
  CHECK(troop::split_mix(state) == 4593380528125082431u);
  CHECK(troop::split_mix(state) == 16408922859458223821u);
}
