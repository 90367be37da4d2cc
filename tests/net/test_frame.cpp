#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/detail/frame_buffer.hpp>
#include <troop/net/frame.hpp>

#include "testing.hpp"

using namespace troop::net;
using troop::net::detail::Frame;
using troop::net::detail::FrameBuffer;
using Bytes = std::vector<std::byte>;

namespace {

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes frame_of(MessageType type, const Bytes& payload) {
  Bytes out;
  append_frame(type, payload, out);
  return out;
}

/// Puts bytes into a buffer, `piece` at a time at most, and gives what comes out: payloads, then the fault.
struct Reading {
  std::vector<Bytes> payloads;
  FrameFault fault = FrameFault::none;
};

Reading read_all(std::span<const std::byte> bytes, std::size_t piece, std::uint32_t max_insert = 1 << 20,
                 std::uint32_t max_control = 1 << 10) {
  Reading reading;
  FrameBuffer buffer;
  buffer.reserve(FrameBuffer::kBase);
  for (;;) {
    Frame frame;
    const auto state = buffer.next({.control = max_control, .insert = max_insert}, frame);
    if (state == FrameBuffer::State::fault) {
      reading.fault = buffer.fault();
      return reading;
    }
    if (state == FrameBuffer::State::frame) {
      CHECK(reinterpret_cast<std::uintptr_t>(frame.payload.data()) % FrameHead::kAlignment == 0);
      reading.payloads.emplace_back(frame.payload.begin(), frame.payload.end());
      continue;
    }
    if (bytes.empty()) return reading;
    if (buffer.needed() > buffer.capacity()) buffer.reserve(buffer.needed());
    const auto space = buffer.space();
    if (space.empty()) FAIL("no space");
    const std::size_t count = std::min({space.size(), bytes.size(), piece});
    std::memcpy(space.data(), bytes.data(), count);
    buffer.received(count);
    bytes = bytes.subspan(count);
  }
}

}  // namespace

TEST_CASE("a frame is what docs/protocol.md says, byte by byte") {
  const Bytes frame = frame_of(MessageType::insert, bytes_of("payload"));
  const std::uint8_t expected[] = {'T', 'R', 'P', 1, 6,   0,   0,   0,   7,   0,   0,   0,
                                   0,   0,   0,   0, 'p', 'a', 'y', 'l', 'o', 'a', 'd', 0};
  REQUIRE(frame.size() == sizeof expected);
  Bytes without_checksum = frame;
  std::memset(without_checksum.data() + 12, 0, 4);
  CHECK(std::memcmp(without_checksum.data(), expected, sizeof expected) == 0);
  Bytes covered(frame.begin(), frame.begin() + 12);
  covered.insert(covered.end(), frame.begin() + 16, frame.begin() + 23);
  std::uint32_t checksum;
  std::memcpy(&checksum, frame.data() + 12, 4);
  CHECK(checksum == troop::crc32c(covered));
  CHECK(frame_of(MessageType::heartbeat, {}).size() == FrameHead::kBytes);
}

TEST_CASE("frames come out as they went in, however they are cut into pieces") {
  MESSAGE("seed " << troop::testing::seed());
  troop::Random random(troop::testing::seed(), "frames");
  for (int round = 0; round < 60; ++round) {
    Bytes stream;
    std::vector<Bytes> payloads;
    while (payloads.size() < 30) {
      const bool large = random.below(6) == 0;
      Bytes payload(large ? random.below(200'000) : random.below(100));
      for (auto& byte : payload) byte = static_cast<std::byte>(random());
      append_frame(large ? MessageType::insert : MessageType::hello, payload, stream);
      payloads.push_back(std::move(payload));
    }
    const std::size_t piece = round % 3 == 0 ? 100'000'000 : 1 + random.below(round % 3 == 1 ? 40 : 100'000);
    const Reading reading = read_all(stream, piece);
    CHECK(reading.fault == FrameFault::none);
    CHECK(reading.payloads == payloads);
  }
}

TEST_CASE("every single changed bit of a frame is found") {
  const Bytes good = frame_of(MessageType::hello, bytes_of("some payload!"));
  troop::testing::Failures failures;
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const Reading reading = read_all(bad, bad.size());
    if (!reading.payloads.empty()) failures.add("bit " + std::to_string(bit) + " went through");
    const std::size_t byte = bit / 8;
    const FrameFault expected = byte < 3                               ? FrameFault::magic
                                : byte == 3                            ? FrameFault::version
                                : byte == 5                            ? FrameFault::codec
                                : byte == 6 || byte == 7 || byte >= 29 ? FrameFault::reserved
                                                                       : FrameFault::checksum;
    if (byte == 4 || (byte >= 8 && byte < 12)) continue;  // unknown type, longer, or incomplete
    if (reading.fault != expected)
      failures.add("byte " + std::to_string(byte) + ": " + std::string(to_string(reading.fault)));
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("absurd lengths are refused by the head alone") {
  Bytes head = frame_of(MessageType::hello, {});
  const auto with_length = [&](MessageType type, std::uint32_t length) {
    head[4] = static_cast<std::byte>(type);
    std::memcpy(head.data() + 8, &length, 4);
    return read_all(head, head.size(), 1000, 100).fault;
  };
  CHECK(with_length(MessageType::insert, 0xffffffffu) == FrameFault::length);
  CHECK(with_length(MessageType::insert, 1001) == FrameFault::length);
  CHECK(with_length(MessageType::insert, 1000) == FrameFault::none);  // incomplete
  CHECK(with_length(MessageType::hello, 101) == FrameFault::length);
  CHECK(with_length(MessageType::hello, 100) == FrameFault::none);
}

TEST_CASE("half a frame is no frame, and types and codecs that are not known are none") {
  const Bytes good = frame_of(MessageType::hello, bytes_of("half"));
  for (std::size_t size = 0; size < good.size(); ++size) {
    const Reading reading = read_all(std::span(good).first(size), 3);
    CHECK(reading.payloads.empty());
    CHECK(reading.fault == FrameFault::none);
  }
  Bytes bad = good;
  for (const int type : {0, 17, 255}) {
    bad[4] = static_cast<std::byte>(type);
    CHECK(read_all(bad, bad.size()).fault == FrameFault::type);
  }
  for (const int codec : {1, 2, 3, 255}) {
    bad = good;
    bad[5] = static_cast<std::byte>(codec);
    CHECK(read_all(bad, bad.size()).fault == FrameFault::codec);
  }
}

TEST_CASE("a buffer that grew for one frame can be made small again with what came behind that frame") {
  Bytes stream;
  append_frame(MessageType::insert, Bytes(60'000, std::byte{1}), stream);
  append_frame(MessageType::hello, bytes_of("next"), stream);
  FrameBuffer buffer;
  buffer.reserve(stream.size());
  Frame frame;
  while (buffer.next({.control = 100, .insert = 1 << 20}, frame) != FrameBuffer::State::frame) {
    const auto space = buffer.space();
    const std::size_t count = std::min(space.size(), stream.size());
    std::memcpy(space.data(), stream.data(), count);
    buffer.received(count);
    stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(count));
  }
  CHECK(frame.payload.size() == 60'000);
  buffer.reserve(FrameBuffer::kBase);
  CHECK(buffer.next({.control = 100, .insert = 1 << 20}, frame) == FrameBuffer::State::frame);
  CHECK(Bytes(frame.payload.begin(), frame.payload.end()) == bytes_of("next"));
  CHECK(buffer.empty());
}
