/// @file
/// Zstandard: the codec for what must be small.
#pragma once

#include <zstd.h>

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include <troop/core/codec.hpp>
#include <troop/core/error.hpp>

namespace troop {

/// Zstandard frames of level 1: smaller than LZ4's blocks, and slower to unpack. Each thread keeps a context
/// for either direction, which takes up to a mebibyte when it is first used.
///
///     std::vector<std::byte> packed(Zstd::bound(frame.size()));
///     packed.resize(Zstd::compress(frame, packed));
///     const bool intact = Zstd::decompress(packed, frame);
class Zstd {
 public:
  static constexpr std::string_view name = "zstd";

  /// Throws InvalidArgument for more than 1 TiB.
  static std::size_t bound(std::size_t bytes) {
    require(bytes <= std::size_t{1} << 40, "bytes", bytes, "at most 2^40");
    return ZSTD_compressBound(bytes);
  }

  /// Throws std::bad_alloc without memory for the context, Error when `out` is smaller than
  /// `bound(in.size())` and the result does not fit.
  static std::size_t compress(std::span<const std::byte> in, std::span<std::byte> out) {
    thread_local const std::unique_ptr<ZSTD_CCtx, Free> context(ZSTD_createCCtx());
    if (context == nullptr) throw std::bad_alloc();
    const std::size_t written =
        ZSTD_compressCCtx(context.get(), out.data(), out.size(), in.data(), in.size(), kLevel);
    if (ZSTD_isError(written) != 0)
      throw Error("Zstandard cannot pack " + std::to_string(in.size()) +
                  " bytes: " + ZSTD_getErrorName(written));
    return written;
  }

  /// Also false without memory for the context.
  static bool decompress(std::span<const std::byte> in, std::span<std::byte> out) noexcept {
    thread_local const std::unique_ptr<ZSTD_DCtx, Free> context(ZSTD_createDCtx());
    if (context == nullptr) return false;
    return ZSTD_decompressDCtx(context.get(), out.data(), out.size(), in.data(), in.size()) == out.size();
  }

 private:
  static constexpr int kLevel = 1;

  struct Free {
    void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
    void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
  };
};

static_assert(Codec<Zstd>);

}  // namespace troop
