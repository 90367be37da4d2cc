/// @file
/// Frames: the pieces in which everything goes over a connection, and the checks that each must pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/hash.hpp>

namespace troop::net {

/// Grows when a frame or message changes in a way that older programs cannot read; see docs/protocol.md.
inline constexpr std::uint8_t kProtocolVersion = 1;

/// The largest payload of any frame that carries no records, parameters, call or reply.
inline constexpr std::uint32_t kMaxControlBytes = 64 << 10;

/// What a frame carries. The numbers are part of the protocol: they never change, and none is used again.
enum class MessageType : std::uint8_t {
  hello = 1,        ///< client: who I am, what records I send, a nonce
  challenge = 2,    ///< server: a nonce
  proof = 3,        ///< client: I know the token
  welcome = 4,      ///< server: so do I; what is applied already, and the limits
  refusal = 5,      ///< either: why this ends; the last frame
  insert = 6,       ///< client: a batch of items
  acknowledge = 7,  ///< server: batches that are in the replay
  fetch = 8,        ///< client: parameters newer than mine, now or as soon as there are
  parameters = 9,   ///< server: the newest parameters, or that there are no newer
  lease = 10,       ///< client: places on the ladder of exploration rates for my environments
  leased = 11,      ///< server: these
  heartbeat = 12,   ///< either: I am here
  goodbye = 13,     ///< either: this ends on purpose; the last frame
  call = 14,        ///< client: a question or order, whatever client and server have agreed on
  reply = 15,       ///< server: its result
  report = 16,      ///< client: how it goes, for people to see
};

inline constexpr std::uint8_t kLastMessageType = 16;

/// How the payload of an insert is compressed.
enum class PayloadCodec : std::uint8_t { none = 0, lz4 = 1, zstd = 2 };

/// The bit of the features of hello and welcome that stands for a codec. The bits are part of the protocol.
constexpr std::uint32_t feature_of(PayloadCodec codec) noexcept {
  return codec == PayloadCodec::lz4 ? 1 : codec == PayloadCodec::zstd ? 2 : 0;
}

/// The bit that stands for reports.
inline constexpr std::uint32_t kReports = 4;

/// All features of this version.
inline constexpr std::uint32_t kFeatures =
    feature_of(PayloadCodec::lz4) | feature_of(PayloadCodec::zstd) | kReports;

/// The sixteen bytes in front of every payload:
///
///     offset  bytes  content
///     0       3      "TRP"
///     3       1      protocol version
///     4       1      MessageType
///     5       1      PayloadCodec
///     6       2      0
///     8       4      bytes of the payload that follows
///     12      4      CRC-32C of the twelve bytes before and of the payload
///
/// The payload is followed by zeros up to the next multiple of eight, which nothing counts.
struct FrameHead {
  static constexpr std::size_t kBytes = 16;
  static constexpr std::size_t kAlignment = 8;

  std::uint8_t version = kProtocolVersion;
  MessageType type{};
  PayloadCodec codec = PayloadCodec::none;
  std::uint32_t length = 0;
  std::uint32_t checksum = 0;

  /// Bytes of the whole frame: head, payload and zeros.
  constexpr std::size_t frame_bytes() const noexcept {
    return (kBytes + length + kAlignment - 1) / kAlignment * kAlignment;
  }
};

/// Why a frame is not taken.
enum class FrameFault : std::uint8_t { none, magic, version, type, codec, reserved, length, checksum };

constexpr std::string_view to_string(FrameFault fault) noexcept {
  switch (fault) {
    case FrameFault::none:
      return "no fault";
    case FrameFault::magic:
      return "not a frame of this protocol";
    case FrameFault::version:
      return "a frame of another protocol version";
    case FrameFault::type:
      return "a frame of an unknown type";
    case FrameFault::codec:
      return "a frame with a compression that was not agreed";
    case FrameFault::reserved:
      return "a frame with reserved bytes in use";
    case FrameFault::length:
      return "a frame longer than allowed";
    case FrameFault::checksum:
      return "a frame whose checksum does not match";
  }
  return "an unknown fault";
}

using FrameHeadBytes = std::array<std::byte, FrameHead::kBytes>;

namespace detail {

inline FrameHeadBytes encode(const FrameHead& head) noexcept {
  FrameHeadBytes bytes{};
  std::memcpy(bytes.data(), "TRP", 3);
  bytes[3] = std::byte{head.version};
  bytes[4] = static_cast<std::byte>(head.type);
  bytes[5] = static_cast<std::byte>(head.codec);
  std::memcpy(bytes.data() + 8, &head.length, 4);
  std::memcpy(bytes.data() + 12, &head.checksum, 4);
  return bytes;
}

inline std::uint32_t checksum(const FrameHead& head, std::span<const std::byte> payload) noexcept {
  const FrameHeadBytes bytes = encode(head);
  return crc32c(payload, crc32c(std::span(bytes).first(12)));
}

}  // namespace detail

/// The head of a frame with this payload, of less than 4 GiB.
inline FrameHeadBytes make_frame_head(MessageType type, std::span<const std::byte> payload,
                                      PayloadCodec codec = PayloadCodec::none) noexcept {
  FrameHead head{.type = type, .codec = codec, .length = static_cast<std::uint32_t>(payload.size())};
  head.checksum = detail::checksum(head, payload);
  return detail::encode(head);
}

/// Makes a frame of a payload that begins FrameHead::kBytes into `frame`, which may be of less than 4 GiB.
inline void finish_frame(MessageType type, std::vector<std::byte>& frame) {
  const FrameHeadBytes head = make_frame_head(type, std::span(frame).subspan(FrameHead::kBytes));
  std::memcpy(frame.data(), head.data(), head.size());
  frame.resize((frame.size() + FrameHead::kAlignment - 1) / FrameHead::kAlignment * FrameHead::kAlignment);
}

/// Appends a whole frame to `out`, which holds whole frames.
inline void append_frame(MessageType type, std::span<const std::byte> payload, std::vector<std::byte>& out) {
  ByteWriter writer(out);
  writer.bytes(make_frame_head(type, payload));
  writer.bytes(payload);
  out.resize((out.size() + FrameHead::kAlignment - 1) / FrameHead::kAlignment * FrameHead::kAlignment);
}

/// Reads a head that may be anything; nothing but its own bytes decides, so the payload need not be there
/// yet. After the fault `version` the head is what the frame says, for a refusal can be read in any version.
/// `features` are those that both ends have agreed on.
inline FrameFault parse_frame_head(std::span<const std::byte, FrameHead::kBytes> bytes, FrameHead& head,
                                   std::uint32_t features = 0) noexcept {
  if (std::memcmp(bytes.data(), "TRP", 3) != 0) return FrameFault::magic;
  head.version = std::to_integer<std::uint8_t>(bytes[3]);
  const auto type = std::to_integer<std::uint8_t>(bytes[4]);
  head.type = static_cast<MessageType>(type);
  head.codec = static_cast<PayloadCodec>(bytes[5]);
  std::memcpy(&head.length, bytes.data() + 8, 4);
  std::memcpy(&head.checksum, bytes.data() + 12, 4);
  if (head.version != kProtocolVersion) return FrameFault::version;
  if (type == 0 || type > kLastMessageType) return FrameFault::type;
  const bool is_agreed = head.type == MessageType::insert && (features & feature_of(head.codec)) != 0;
  if (head.codec != PayloadCodec::none && !is_agreed) return FrameFault::codec;
  if (bytes[6] != std::byte{0} || bytes[7] != std::byte{0}) return FrameFault::reserved;
  return FrameFault::none;
}

/// Whether the payload is the one that the head was made for.
inline bool matches(const FrameHead& head, std::span<const std::byte> payload) noexcept {
  return payload.size() == head.length && detail::checksum(head, payload) == head.checksum;
}

}  // namespace troop::net
