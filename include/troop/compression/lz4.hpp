/// @file
/// LZ4: the codec for what is read often.
#pragma once

#include <lz4.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <troop/core/codec.hpp>
#include <troop/core/error.hpp>

namespace troop {

/// LZ4 blocks without a frame around them: the fastest to unpack, at gigabytes a second on one core. Neither
/// function takes memory from the heap.
///
///     std::vector<std::byte> packed(Lz4::bound(frame.size()));
///     packed.resize(Lz4::compress(frame, packed));
///     const bool intact = Lz4::decompress(packed, frame);
class Lz4 {
 public:
  static constexpr std::string_view name = "lz4";

  /// Throws InvalidArgument for more than LZ4 takes at once.
  static std::size_t bound(std::size_t bytes) {
    require(bytes <= LZ4_MAX_INPUT_SIZE, "bytes", bytes, "at most " + std::to_string(LZ4_MAX_INPUT_SIZE));
    return static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(bytes)));
  }

  /// Throws Error when `out` is smaller than `bound(in.size())` and the result does not fit.
  static std::size_t compress(std::span<const std::byte> in, std::span<std::byte> out) {
    const int written = LZ4_compress_default(chars(in.data()), chars(out.data()), size(in), size(out));
    if (written <= 0)
      throw Error("LZ4 cannot pack " + std::to_string(in.size()) + " bytes into " +
                  std::to_string(out.size()));
    return static_cast<std::size_t>(written);
  }

  static bool decompress(std::span<const std::byte> in, std::span<std::byte> out) noexcept {
    if (in.size() > kMost || out.size() > kMost) return false;
    return LZ4_decompress_safe(chars(in.data()), chars(out.data()), size(in), size(out)) == size(out);
  }

 private:
  static constexpr std::size_t kMost = 0x7fffffff;  // LZ4 counts in int

  static const char* chars(const std::byte* bytes) noexcept { return reinterpret_cast<const char*>(bytes); }
  static char* chars(std::byte* bytes) noexcept { return reinterpret_cast<char*>(bytes); }
  static int size(std::span<const std::byte> bytes) noexcept {
    return static_cast<int>(bytes.size() < kMost ? bytes.size() : kMost);
  }
};

static_assert(Codec<Lz4>);

}  // namespace troop
