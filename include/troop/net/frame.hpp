/// @file
/// Frames: the pieces in which everything goes over a connection, and the checks that each must pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include <troop/core/bytes.hpp>
#include <troop/core/hash.hpp>

namespace troop::net {

/// Grows when a frame or message changes in a way that older programs cannot read.
inline constexpr std::uint8_t kProtocolVersion = 1;

/// What a frame carries. The numbers are part of the protocol: they never change, and none is used again.
enum class MessageType : std::uint8_t {
  hello = 1,         ///< client: who I am, what records I send, a nonce
  challenge = 2,     ///< server: a nonce
  proof = 3,         ///< client: I know the token
  welcome = 4,       ///< server: so do I; what is acknowledged already, and the limits
  refusal = 5,       ///< either: why this ends; the last frame
  insert = 6,        ///< client: a batch of items
  acknowledge = 7,   ///< server: batches that are in the replay
  fetch = 8,         ///< client: parameters newer than mine, now or as soon as there are
  parameters = 9,    ///< server: the newest parameters, or that there are no newer
  lease = 10,        ///< client: indices of the ladder for my environments
  leased = 11,       ///< server: these
  heartbeat = 12,    ///< either: I am here
  goodbye = 13,      ///< either: this ends on purpose; the last frame
  shard_call = 14,   ///< client: an operation on the replay
  shard_reply = 15,  ///< server: its result
};

inline constexpr std::uint8_t kLastMessageType = 15;

/// How a payload is packed.
enum class PayloadCodec : std::uint8_t { none = 0, lz4 = 1, zstd = 2 };

/// Sixteen bytes in front of every payload:
///
///     offset  bytes  content
///     0       3      "TRP"
///     3       1      protocol version
///     4       1      MessageType
///     5       1      PayloadCodec
///     6       2      0
///     8       4      bytes of the payload that follows
///     12      4      CRC-32C of the twelve bytes before and of the payload
struct FrameHead {
  static constexpr std::size_t kBytes = 16;

  MessageType type{};
  PayloadCodec codec = PayloadCodec::none;
  std::uint32_t length = 0;
  std::uint32_t checksum = 0;
};

/// Why a frame is not taken.
enum class FrameFault : std::uint8_t { none, magic, version, type, codec, reserved, length, checksum };

constexpr std::string_view to_string(FrameFault fault) noexcept {
  switch (fault) {
    case FrameFault::none: return "no fault";
    case FrameFault::magic: return "not a frame of this protocol";
    case FrameFault::version: return "a frame of another protocol version";
    case FrameFault::type: return "a frame of an unknown type";
    case FrameFault::codec: return "a frame with an unknown compression";
    case FrameFault::reserved: return "a frame with reserved bytes in use";
    case FrameFault::length: return "a frame longer than allowed";
    case FrameFault::checksum: return "a frame whose checksum does not match";
  }
  return "an unknown fault";
}

namespace detail {

inline std::array<std::byte, FrameHead::kBytes> encode(const FrameHead& head) noexcept {
  std::array<std::byte, FrameHead::kBytes> bytes{};
  std::memcpy(bytes.data(), "TRP", 3);
  bytes[3] = std::byte{kProtocolVersion};
  bytes[4] = static_cast<std::byte>(head.type);
  bytes[5] = static_cast<std::byte>(head.codec);
  std::memcpy(bytes.data() + 8, &head.length, 4);
  std::memcpy(bytes.data() + 12, &head.checksum, 4);
  return bytes;
}

}  // namespace detail

/// The head of a frame with this payload, given in parts that follow each other.
inline std::array<std::byte, FrameHead::kBytes> make_frame_head(MessageType type, PayloadCodec codec,
                                                                std::span<const std::span<const std::byte>> parts) {
  FrameHead head{.type = type, .codec = codec};
  for (const auto& part : parts) head.length += static_cast<std::uint32_t>(part.size());
  auto bytes = detail::encode(head);
  head.checksum = crc32c(std::span(bytes).first(12));
  for (const auto& part : parts) head.checksum = crc32c(part, head.checksum);
  std::memcpy(bytes.data() + 12, &head.checksum, 4);
  return bytes;
}

/// Reads a head that may be anything; nothing but its own bytes decides, so the payload need not be there yet.
inline FrameFault parse_frame_head(std::span<const std::byte, FrameHead::kBytes> bytes, std::uint32_t max_length,
                                   FrameHead& head) noexcept {
  if (std::memcmp(bytes.data(), "TRP", 3) != 0) return FrameFault::magic;
  if (bytes[3] != std::byte{kProtocolVersion}) return FrameFault::version;
  const auto type = static_cast<std::uint8_t>(bytes[4]), codec = static_cast<std::uint8_t>(bytes[5]);
  if (type == 0 || type > kLastMessageType) return FrameFault::type;
  if (codec > static_cast<std::uint8_t>(PayloadCodec::zstd)) return FrameFault::codec;
  if (bytes[6] != std::byte{0} || bytes[7] != std::byte{0}) return FrameFault::reserved;
  head.type = static_cast<MessageType>(type);
  head.codec = static_cast<PayloadCodec>(codec);
  std::memcpy(&head.length, bytes.data() + 8, 4);
  std::memcpy(&head.checksum, bytes.data() + 12, 4);
  return head.length <= max_length ? FrameFault::none : FrameFault::length;
}

/// Whether the payload is the one that the head was made for.
inline bool matches(const FrameHead& head, std::span<const std::byte> payload) noexcept {
  const auto bytes = detail::encode(head);
  return payload.size() == head.length && crc32c(payload, crc32c(std::span(bytes).first(12))) == head.checksum;
}

}  // namespace troop::net
