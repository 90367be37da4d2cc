/// @file
/// What a compression codec looks like to those who use one.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>

namespace troop {

/// A small class without state that packs bytes and unpacks them again. Its functions may be called by any
/// number of threads.
///
/// - `name` tells encodings apart, in files for instance: "lz4".
/// - `bound(bytes)` is the most that `compress` makes of so many bytes.
/// - `compress(in, out)` returns how many bytes of `out` it wrote; `out` has at least `bound(in.size())`. It
///   may throw.
/// - `decompress(in, out)` returns whether `in` is well formed and unpacks to exactly `out.size()` bytes. It
///   never reads or writes outside of the two, whatever `in` holds; when it returns false, what `out` holds
///   is unspecified.
template <class C>
concept Codec = requires(std::size_t bytes, std::span<const std::byte> in, std::span<std::byte> out) {
  { C::name } -> std::convertible_to<std::string_view>;
  { C::bound(bytes) } -> std::same_as<std::size_t>;
  { C::compress(in, out) } -> std::same_as<std::size_t>;
  { C::decompress(in, out) }
  noexcept->std::same_as<bool>;
};

}  // namespace troop
