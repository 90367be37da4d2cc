/// @file
/// The bytes that came in over a connection, and the frames in them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include <troop/net/frame.hpp>

namespace troop::net::detail {

/// A whole frame, where it was received.
struct Frame {
  FrameHead head;
  std::span<const std::byte> payload;
};

/// The largest payload of each type of frame that is accepted.
struct FrameLimits {
  std::size_t control = kMaxControlBytes, insert = kMaxControlBytes, parameters = kMaxControlBytes,
              call = kMaxControlBytes, reply = kMaxControlBytes;

  std::size_t of(MessageType type) const noexcept {
    switch (type) {
      case MessageType::insert:
        return insert;
      case MessageType::parameters:
        return parameters;
      case MessageType::call:
        return call;
      case MessageType::reply:
        return reply;
      default:
        return control;
    }
  }
};

/// Takes bytes as they come and gives whole frames without copying them; a frame begins at a multiple of
/// eight bytes in memory. Not thread-safe.
///
/// What comes at once in small frames costs one read, a large frame two; at most kBase bytes of a large frame
/// are moved within the buffer.
class FrameBuffer {
 public:
  static constexpr std::size_t kBase = 32 << 10;

  enum class State { frame, incomplete, fault };

  /// The next frame, its payload being within the limits. It stays valid until `space`. After a fault there is
  /// no next one; `fault` tells which, and `head` of which frame.
  State next(const FrameLimits& limits, Frame& frame) noexcept {
    needed_ = FrameHead::kBytes;
    if (end_ - begin_ < needed_) return State::incomplete;
    const std::byte* start = bytes_.get() + begin_;
    const std::span<const std::byte, FrameHead::kBytes> head(start, FrameHead::kBytes);
    fault_ = parse_frame_head(head, head_, features_);
    if (fault_ != FrameFault::none) return State::fault;
    if (head_.length > limits.of(head_.type)) return fail(FrameFault::length);
    needed_ = head_.frame_bytes();
    if (end_ - begin_ < needed_) return State::incomplete;
    const std::span payload(start + FrameHead::kBytes, head_.length);
    if (!matches(head_, payload)) return fail(FrameFault::checksum);
    const std::span padding(payload.data() + payload.size(), start + needed_);
    if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; }))
      return fail(FrameFault::reserved);
    frame = {head_, payload};
    begin_ += needed_;
    return State::frame;
  }

  /// What both ends have agreed on.
  void set_features(std::uint32_t features) noexcept { features_ = features; }

  FrameFault fault() const noexcept { return fault_; }
  const FrameHead& head() const noexcept { return head_; }

  /// What has come of the frame at the front beyond its head, as far as it has come.
  std::span<const std::byte> rest() const noexcept {
    const std::size_t head = std::min(end_ - begin_, FrameHead::kBytes);
    return {bytes_.get() + begin_ + head, end_ - begin_ - head};
  }

  /// What has come and was not taken.
  std::span<const std::byte> front() const noexcept { return {bytes_.get() + begin_, end_ - begin_}; }

  bool empty() const noexcept { return begin_ == end_; }
  std::size_t capacity() const noexcept { return capacity_; }

  /// The capacity that the frame at the front needs. Call `reserve` with it before `space`.
  std::size_t needed() const noexcept { return std::max(needed_, kBase); }

  /// Makes the buffer so large; what it holds must fit.
  void reserve(std::size_t capacity) {
    if (capacity == capacity_) return;
    auto bytes = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (!empty()) std::memcpy(bytes.get(), bytes_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    bytes_ = std::move(bytes);
    capacity_ = capacity;
  }

  /// Where the next bytes go; never empty.
  std::span<std::byte> space() noexcept {
    const std::size_t held = end_ - begin_;
    if (begin_ > 0 && held > 0) std::memmove(bytes_.get(), bytes_.get() + begin_, held);
    begin_ = 0;
    end_ = held;
    const std::size_t wanted = std::max(kBase, needed_ > held ? needed_ - held : 0);
    return {bytes_.get() + end_, std::min(wanted, capacity_ - end_)};
  }

  /// So many bytes are in the space now.
  void received(std::size_t count) noexcept { end_ += count; }

  /// Forgets what has come.
  void clear() noexcept {
    begin_ = end_ = 0;
    needed_ = FrameHead::kBytes;
  }

 private:
  State fail(FrameFault fault) noexcept {
    fault_ = fault;
    return State::fault;
  }

  std::unique_ptr<std::byte[]> bytes_;
  std::size_t capacity_ = 0, begin_ = 0, end_ = 0, needed_ = FrameHead::kBytes;
  std::uint32_t features_ = 0;
  FrameHead head_;
  FrameFault fault_ = FrameFault::none;
};

}  // namespace troop::net::detail
