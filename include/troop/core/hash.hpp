/// @file
/// Small hash functions: for seeds and fingerprints, and the checksum of files and frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace troop {

/// One step of SplitMix64 (Steele, Lea, Flood 2014): advances `state` and returns 64 well-mixed bits.
constexpr std::uint64_t split_mix(std::uint64_t& state) noexcept {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// 64-bit FNV-1a over `bytes`, continued from `hash`. Not for hostile input.
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = 0xcbf29ce484222325u) noexcept {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

namespace detail {

/// Four tables for CRC-32C, reflected polynomial 0x82f63b78: entry [k][b] is the checksum of byte b followed
/// by k zero bytes.
inline constexpr auto kCrc32cTables = [] {
  std::array<std::array<std::uint32_t, 256>, 4> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 4; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}();

/// Bytes of each of the three parts that are worked through side by side.
inline constexpr std::size_t kCrc32cPart = 256;

/// What a CRC-32C register becomes by kCrc32cPart zero bytes, as the exclusive or of one entry for each of
/// its bytes: the step is linear over GF(2), so eight squarings of the matrix of one zero byte give that of
/// 256.
inline constexpr auto kCrc32cShift = [] {
  std::array<std::uint32_t, 32> matrix{};  // column k is what becomes of bit k
  const auto apply = [&](std::uint32_t crc) {
    std::uint32_t result = 0;
    for (int bit = 0; bit < 32; ++bit)
      result ^= (crc >> bit & 1) != 0 ? matrix[static_cast<std::size_t>(bit)] : 0u;
    return result;
  };
  for (int bit = 0; bit < 32; ++bit) {
    const std::uint32_t crc = std::uint32_t{1} << bit;
    matrix[static_cast<std::size_t>(bit)] = (crc >> 8) ^ kCrc32cTables[0][crc & 0xff];
  }
  for (std::size_t bytes = 1; bytes < kCrc32cPart; bytes *= 2) {
    std::array<std::uint32_t, 32> square{};
    for (std::size_t bit = 0; bit < 32; ++bit) square[bit] = apply(matrix[bit]);
    matrix = square;
  }
  std::array<std::array<std::uint32_t, 256>, 4> tables{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) tables[k][byte] = apply(byte << 8 * k);
  }
  return tables;
}();

constexpr std::uint32_t crc32c_shift(std::uint32_t crc) noexcept {
  const auto& t = kCrc32cShift;
  return t[0][crc & 0xff] ^ t[1][crc >> 8 & 0xff] ^ t[2][crc >> 16 & 0xff] ^ t[3][crc >> 24];
}

}  // namespace detail

namespace detail {

/// The register after as many bytes as `p` passes, by the tables.
inline std::uint32_t crc32c_by_tables(std::uint32_t crc, const unsigned char* p, std::size_t left) noexcept {
  const auto& t = kCrc32cTables;
  for (; left >= 4; left -= 4, p += 4) {
    crc ^= static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8 |
           static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24;
    crc = t[3][crc & 0xff] ^ t[2][(crc >> 8) & 0xff] ^ t[1][(crc >> 16) & 0xff] ^ t[0][crc >> 24];
  }
  for (; left > 0; --left, ++p) crc = (crc >> 8) ^ t[0][(crc ^ *p) & 0xff];
  return crc;
}

#if defined(__x86_64__) && !defined(__CUDACC__)
/// The same by the processor's instruction, of SSE 4.2.
[[gnu::target("sse4.2")]] inline std::uint32_t crc32c_by_instruction(std::uint32_t crc,
                                                                     const unsigned char* p,
                                                                     std::size_t left) noexcept {
  // It takes three cycles, and a new one can begin in each: three parts at a time.
  constexpr std::size_t kPart = kCrc32cPart;
  std::uint64_t word = 0;
  for (; left >= 3 * kPart; left -= 3 * kPart, p += 3 * kPart) {
    std::uint64_t first = crc, second = 0, third = 0;
    for (std::size_t i = 0; i < kPart; i += 8) {
      std::memcpy(&word, p + i, sizeof word);
      first = __builtin_ia32_crc32di(first, word);
      std::memcpy(&word, p + kPart + i, sizeof word);
      second = __builtin_ia32_crc32di(second, word);
      std::memcpy(&word, p + 2 * kPart + i, sizeof word);
      third = __builtin_ia32_crc32di(third, word);
    }
    crc = crc32c_shift(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    crc = crc32c_shift(crc) ^ static_cast<std::uint32_t>(third);
  }
  std::uint64_t wide = crc;
  for (; left >= 8; left -= 8, p += 8) {
    std::memcpy(&word, p, sizeof word);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  return crc32c_by_tables(static_cast<std::uint32_t>(wide), p, left);
}
#endif

}  // namespace detail

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of `bytes`, by the processor where it can, continued from
/// `crc`: `crc32c(b, crc32c(a))` is that of a followed by b.
inline std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept {
  const auto* const p = reinterpret_cast<const unsigned char*>(bytes.data());
#if defined(__x86_64__) && !defined(__CUDACC__)
  if (__builtin_cpu_supports("sse4.2")) return ~detail::crc32c_by_instruction(~crc, p, bytes.size());
#endif
  return ~detail::crc32c_by_tables(~crc, p, bytes.size());
}

}  // namespace troop
