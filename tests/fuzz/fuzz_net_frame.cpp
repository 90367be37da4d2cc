// A stream of frames, good and bad, gives the same frames and the same end in whatever pieces it comes.
//
// Script: a seed for the sizes of the pieces; then again and again a type, 0 for bytes as they are, a fault,
// and a text, the payload.
#include <troop/net/detail/frame_buffer.hpp>

#include <troop/core/random.hpp>

#include "fuzz.hpp"

namespace troop::fuzz {
namespace {

using net::FrameFault;
using net::MessageType;
using net::detail::FrameBuffer;

constexpr std::size_t kMaxInsert = 100'000, kMaxControl = 2000;
constexpr net::detail::FrameLimits kLimits{
    .control = kMaxControl, .insert = kMaxInsert, .parameters = 30'000, .call = 40'000, .reply = 50'000};
constexpr std::size_t kMaxStream = 1 << 20;

struct Outcome {
  std::vector<Bytes> frames;  // type and payload
  FrameBuffer::State end = FrameBuffer::State::incomplete;
  FrameFault fault = FrameFault::none;
  Bytes rest;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// What comes of the stream in pieces of `size()` bytes.
template <class Size>
Outcome read(std::span<const std::byte> stream, Size size) {
  Outcome outcome;
  FrameBuffer buffer;
  buffer.reserve(FrameBuffer::kBase);
  buffer.set_features(net::feature_of(net::PayloadCodec::lz4));
  for (;;) {
    net::detail::Frame frame;
    const auto state = buffer.next(kLimits, frame);
    if (state == FrameBuffer::State::frame) {
      const auto at = reinterpret_cast<std::uintptr_t>(frame.payload.data());
      check(at % net::FrameHead::kAlignment == 0, "a payload lies at a multiple of 8");
      check(frame.payload.size() == frame.head.length, "a payload is as long as its head says");
      Bytes& kept = outcome.frames.emplace_back();
      kept.push_back(static_cast<std::byte>(frame.head.type));
      kept.insert(kept.end(), frame.payload.begin(), frame.payload.end());
      continue;
    }
    if (state == FrameBuffer::State::fault) {
      outcome.end = state;
      outcome.fault = buffer.fault();
      return outcome;
    }
    if (stream.empty()) break;
    check(buffer.needed() <= std::max(FrameBuffer::kBase, kMaxInsert + 32), "memory is bounded");
    if (buffer.needed() > buffer.capacity() || buffer.empty()) buffer.reserve(buffer.needed());
    const auto space = buffer.space();
    check(!space.empty(), "there is always space for more");
    const std::size_t count = std::min({static_cast<std::size_t>(size()), space.size(), stream.size()});
    std::memcpy(space.data(), stream.data(), count);
    buffer.received(count);
    stream = stream.subspan(count);
  }
  const auto rest = buffer.rest();
  outcome.rest.assign(rest.begin(), rest.end());
  return outcome;
}

void append_frame(Script& script, Bytes& stream) {
  const auto type = script.number<std::uint8_t>();
  const auto fault = script.number<std::uint8_t>();
  const auto payload = script.text();
  const std::size_t begin = stream.size();
  if (type == 0) {
    stream.insert(stream.end(), payload.begin(), payload.end());
    return;
  }
  Bytes repeated(payload.begin(), payload.end());  // a large payload is a small one many times
  if (fault >= 0x80 && !payload.empty()) {
    for (std::size_t turn = 0; turn < (fault & 0x7f) * 8u && repeated.size() < 2 * kMaxInsert; ++turn)
      repeated.insert(repeated.end(), payload.begin(), payload.end());
  }
  Bytes whole;
  net::append_frame(static_cast<MessageType>(type), repeated, whole);
  stream.insert(stream.end(), whole.begin(), whole.end());
  if (fault > 0 && fault < 0x80) stream[begin + fault % whole.size()] ^= std::byte{fault};
}

}  // namespace

void run(std::span<const std::byte> input) {
  Script script(input);
  const auto seed = script.number<std::uint32_t>();
  Bytes stream;
  while (!script.empty() && stream.size() < kMaxStream) append_frame(script, stream);
  const Outcome whole = read(stream, [&] { return stream.size(); });
  Random random(seed, "pieces");
  const Outcome pieces = read(stream, [&] { return 1 + random.below(random.below(4) == 0 ? 40'000 : 20); });
  check(whole == pieces, "frames do not depend on how the bytes come");
  if (stream.size() < 2000) check(whole == read(stream, [] { return 1; }), "nor when they come one by one");

  // The same bytes without the script's help.
  read(input, [&] { return input.size(); });
}

std::vector<Bytes> seeds() {
  const Bytes payload(37, std::byte{7});
  const auto frame = [&](ScriptWriter& out, int type, int fault, std::span<const std::byte> content) {
    out.number(static_cast<std::uint8_t>(type)).number(static_cast<std::uint8_t>(fault)).text(content);
  };
  ScriptWriter good, faulty, large, raw;
  good.number(std::uint32_t{1});
  for (int type = 1; type <= net::kLastMessageType; ++type) frame(good, type, 0, payload);
  frame(good, 12, 0, {});
  faulty.number(std::uint32_t{2});
  frame(faulty, 6, 0, payload);
  frame(faulty, 7, 20, payload);
  large.number(std::uint32_t{3});
  frame(large, 6, 0xff, payload);
  frame(large, 6, 0xff, payload);
  frame(large, 1, 0x8f, payload);
  raw.number(std::uint32_t{4});
  Bytes bytes;
  net::append_frame(MessageType::hello, payload, bytes);
  frame(raw, 0, 0, bytes);
  frame(raw, 0, 0, std::span(bytes).first(21));
  return {good, faulty, large, raw, bytes};
}

}  // namespace troop::fuzz
