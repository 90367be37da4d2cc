/// @file
/// Batches of items whose records and priorities are compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <troop/compression/lz4.hpp>
#include <troop/compression/zstd.hpp>
#include <troop/core/bytes.hpp>
#include <troop/core/error.hpp>
#include <troop/net/frame.hpp>
#include <troop/net/messages.hpp>

namespace troop::net::detail {

/// The payload of an insert frame with a codec: the head of InsertPayload as it is, so that numbers can be
/// put in later; bytes of the rest before it was compressed (4), 0 (4); the rest, compressed.
struct PackedInsert {
  static constexpr std::size_t kHeadBytes = InsertPayload::kHeadBytes + 8;

  /// Puts the packed form of an insert's payload into `out`. False, with `out` as it may be, when it would
  /// not be smaller.
  static bool pack(PayloadCodec codec, std::span<const std::byte> payload, std::vector<std::byte>& out) {
    const auto rest = payload.subspan(InsertPayload::kHeadBytes);
    const auto size = static_cast<std::uint32_t>(rest.size());
    out.resize(kHeadBytes + (codec == PayloadCodec::lz4 ? Lz4::bound(size) : Zstd::bound(size)));
    std::memcpy(out.data(), payload.data(), InsertPayload::kHeadBytes);
    std::memset(out.data() + InsertPayload::kHeadBytes, 0, 8);
    std::memcpy(out.data() + InsertPayload::kHeadBytes, &size, sizeof size);
    const auto space = std::span(out).subspan(kHeadBytes);
    out.resize(kHeadBytes +
               (codec == PayloadCodec::lz4 ? Lz4::compress(rest, space) : Zstd::compress(rest, space)));
    return out.size() < payload.size();
  }

  /// Bytes of the payload that was packed. Throws Error with the reason for what may not be, so that no
  /// memory need be taken for it; `packed` may be anything.
  static std::size_t unpacked_bytes(std::span<const std::byte> packed, std::size_t most) {
    ByteReader reader(packed);
    reader.bytes(InsertPayload::kHeadBytes);
    const std::size_t bytes = InsertPayload::kHeadBytes + reader.number<std::uint32_t>();
    if (reader.number<std::uint32_t>() != 0) throw Error("a batch with reserved bytes in use");
    if (bytes > most)
      throw Error("a batch of " + std::to_string(bytes) + " bytes when unpacked, more than allowed");
    return bytes;
  }

  /// Whether `packed`, for which `unpacked_bytes` has not thrown, is what was made of a payload, which is
  /// then in `out`, of so many bytes.
  static bool unpack(PayloadCodec codec, std::span<const std::byte> packed,
                     std::span<std::byte> out) noexcept {
    std::memcpy(out.data(), packed.data(), InsertPayload::kHeadBytes);
    const std::span<const std::byte> from = packed.subspan(kHeadBytes);
    const std::span<std::byte> to = out.subspan(InsertPayload::kHeadBytes);
    return codec == PayloadCodec::lz4 ? Lz4::decompress(from, to) : Zstd::decompress(from, to);
  }
};

}  // namespace troop::net::detail
