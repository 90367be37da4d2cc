/// @file
/// What frames carry: the control messages, and the batch of items.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cereal/types/common.hpp>
#include <troop/core/bytes.hpp>
#include <troop/core/error.hpp>
#include <troop/core/float16.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/net/authentication.hpp>
#include <troop/net/frame.hpp>
#include <troop/serialization/cereal.hpp>

namespace troop::net {

/// Sixteen random bytes.
using Id = std::array<std::byte, 16>;

inline constexpr std::size_t kMaxNameBytes = 128, kMaxSentenceBytes = 1024;

/// What a client is. The numbers are part of the protocol.
enum class Role : std::uint8_t { actor = 1, evaluator = 2, replay = 3, learner = 4 };

/// Why a connection is refused or closed. The numbers are part of the protocol; docs/protocol.md says what
/// each means.
enum class RefusalCode : std::uint8_t {
  version = 1,
  token = 2,
  layout = 3,
  malformed = 4,
  damaged = 5,
  crowded = 6,
  displaced = 7,
  slow = 8,
  stopping = 9,
  rejected = 10,
  failed = 11,
  role = 12,
  finished = 13,
  tls = 14,
};

inline constexpr std::size_t kNumRefusalCodes = 15;  ///< the numbers are below it

/// The server said that there is no sense in trying again. `what` has its sentence.
class RefusedError : public Error {
 public:
  RefusedError(RefusalCode code, const std::string& sentence) : Error(sentence), code_(code) {}
  RefusalCode code() const noexcept { return code_; }

 private:
  RefusalCode code_;
};

namespace detail {

template <std::size_t N>
auto raw(std::array<std::byte, N>& bytes) {
  return cereal::binary_data(bytes.data(), N);
}

}  // namespace detail

struct Hello {
  static constexpr MessageType kType = MessageType::hello;
  Role role = Role::actor;
  Id client{};
  Nonce nonce{};
  std::uint32_t features = 0;  ///< that the client would use
  std::uint64_t first = 1;     ///< the least sequence number that may still be sent
  std::string name;            ///< of the process, for people
  std::vector<std::byte> layout;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(role, detail::raw(client), detail::raw(nonce), features, first, name, layout);
  }
};

struct Challenge {
  static constexpr MessageType kType = MessageType::challenge;
  Nonce nonce{};
  bool needs_token = false;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(detail::raw(nonce), needs_token);
  }
};

struct ProofMessage {
  static constexpr MessageType kType = MessageType::proof;
  Proof proof{};

  template <class Archive>
  void serialize(Archive& archive) {
    archive(detail::raw(proof));
  }
};

struct Welcome {
  static constexpr MessageType kType = MessageType::welcome;
  Proof proof{};
  Id run{};                ///< changes when the server is another one
  std::uint64_t last = 0;  ///< sequence number of the last batch that was applied
  std::uint64_t lost =
      0;  ///< batches before that which had been acknowledged, and then were not in a snapshot
  std::uint32_t window = 1;  ///< batches that may be unacknowledged
  std::uint32_t heartbeat_ms = 5000;
  std::uint32_t max_frame_bytes = 0;
  std::uint32_t features = 0;  ///< of those in the hello, that the server knows

  template <class Archive>
  void serialize(Archive& archive) {
    archive(detail::raw(proof), detail::raw(run), last, lost, window, heartbeat_ms, max_frame_bytes,
            features);
  }
};

struct Refusal {
  static constexpr MessageType kType = MessageType::refusal;
  RefusalCode code = RefusalCode::malformed;
  bool again = false;  ///< whether trying again makes sense
  std::string sentence;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(code, again, sentence);
  }
};

struct Acknowledge {
  static constexpr MessageType kType = MessageType::acknowledge;
  std::uint64_t last = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(last);
  }
};

/// Asks for parameters. The answer is a parameters frame: at once when there are newer ones, or when `wait` is
/// false; else as soon as there are. One is open at a time; a further one takes its place.
struct Fetch {
  static constexpr MessageType kType = MessageType::fetch;
  std::uint64_t version = 0;  ///< that the client has of this run; 0: none
  bool wait = true;
  bool as_float16 = false;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(version, wait, as_float16);
  }
};

/// Asks for places on the ladder, or tells which one has.
struct Lease {
  static constexpr MessageType kType = MessageType::lease;
  std::uint32_t count = 1;   ///< environments
  std::uint64_t ticket = 0;  ///< of the lease that the client holds; 0: none
  std::uint64_t first = 0;   ///< index of its first environment

  template <class Archive>
  void serialize(Archive& archive) {
    archive(count, ticket, first);
  }
};

/// Environments first to first + count - 1 of the fleet are the client's.
struct Leased {
  static constexpr MessageType kType = MessageType::leased;
  std::uint64_t ticket = 0;  ///< never 0, never the same again: for the streams of random numbers
  std::uint64_t first = 0;
  std::uint64_t planned = 1;         ///< environments that the ladder is made for
  std::vector<std::string> replays;  ///< HOST:PORT of the shards that take items; empty: this server does

  template <class Archive>
  void serialize(Archive& archive) {
    archive(ticket, first, planned, replays);
  }
};

/// Appends a frame with this message to `out`.
template <class Message>
void append_message(const Message& message, std::vector<std::byte>& out) {
  append_frame(Message::kType, to_bytes(message), out);
}

/// The message in a payload that may be anything. Throws Error with the reason for what is none.
template <class Message>
Message read_message(std::span<const std::byte> payload) {
  return from_bytes<Message>(payload, {.max_bytes = kMaxControlBytes});
}

/// The bytes of a layout as a hello carries them.
inline std::vector<std::byte> layout_bytes(const RecordLayout& layout) {
  std::vector<std::byte> bytes;
  ByteWriter(bytes).layout(layout);
  return bytes;
}

/// What keeps records of the sender's layout (as `layout_bytes` wrote it; it may be anything) from being
/// inserted into a replay of layout `mine`, in a sentence; empty when nothing does.
inline std::string layout_difference(std::span<const std::byte> theirs, const RecordLayout& mine) {
  const std::vector<std::byte> expected = layout_bytes(mine);
  if (theirs.size() == expected.size() && std::memcmp(theirs.data(), expected.data(), expected.size()) == 0)
    return {};
  try {
    ByteReader reader(theirs);
    const RecordLayout layout = reader.layout();
    reader.finish();
    const std::string difference = layout.difference(mine);
    return difference.empty() ? "the record layouts differ" : difference;
  } catch (const Error& error) {
    return std::string("a record layout that cannot be: ") + error.what();
  }
}

/// The proof that a client gives: `hello` and `challenge` are the payloads as they went over the wire.
inline Proof client_proof(const Token& token, std::span<const std::byte> hello,
                          std::span<const std::byte> challenge) {
  if (token.is_empty()) return {};
  static constexpr std::string_view kLabel = "troop 1 client";
  static_assert(kProtocolVersion == 1, "the label names the version");
  return token.prove({std::as_bytes(std::span(kLabel)), hello, challenge});
}

/// The proof that a server gives in this welcome.
inline Proof server_proof(const Token& token, std::span<const std::byte> hello,
                          std::span<const std::byte> challenge, Welcome welcome) {
  if (token.is_empty()) return {};
  static constexpr std::string_view kLabel = "troop 1 server";
  welcome.proof = {};
  return token.prove({std::as_bytes(std::span(kLabel)), hello, challenge, to_bytes(welcome)});
}

/// A text from the other side as it may be logged: of printable ASCII characters, and not too long.
inline std::string printable(std::string_view text, std::size_t most = kMaxSentenceBytes) {
  std::string out(text.substr(0, most));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

/// A batch of items as the payload of an insert frame: sequence number (8 bytes), number of items (4), 0 (4),
/// version of the parameters that acted (8; 0: not known), records, zeros up to a multiple of 4, priorities.
struct InsertPayload {
  static constexpr std::size_t kHeadBytes = 24;

  /// Bytes of the payload; 0 when they would be 2^32 or more.
  static constexpr std::size_t bytes(std::size_t count, std::size_t record_bytes) noexcept {
    if (count > UINT32_MAX / (record_bytes + sizeof(float))) return 0;
    const std::size_t size = priorities_at(count, record_bytes) + count * sizeof(float);
    return size <= UINT32_MAX ? size : 0;
  }

  static constexpr std::size_t priorities_at(std::size_t count, std::size_t record_bytes) noexcept {
    return (kHeadBytes + count * record_bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float);
  }

  /// Writes all but the sequence number to `out`, of `bytes(...)` bytes.
  static void write(const BatchView& records, std::span<const float> priorities, std::span<std::byte> out) {
    const auto count = static_cast<std::uint32_t>(records.size());
    const std::size_t record_bytes = records.layout().size();
    std::memset(out.data(), 0, kHeadBytes);
    std::memcpy(out.data() + 8, &count, sizeof count);
    std::byte* to = out.data() + kHeadBytes;
    if (records.stride() == record_bytes) {
      std::memcpy(to, records.data(), count * record_bytes);
    } else {
      for (std::size_t i = 0; i < count; ++i)
        std::memcpy(to + i * record_bytes, records.record(i), record_bytes);
    }
    to += count * record_bytes;
    std::byte* end = out.data() + priorities_at(count, record_bytes);
    std::memset(to, 0, static_cast<std::size_t>(end - to));
    std::memcpy(end, priorities.data(), priorities.size_bytes());
  }

  static void set_sequence(std::uint64_t sequence, std::span<std::byte> out) noexcept {
    std::memcpy(out.data(), &sequence, sizeof sequence);
  }
  static void set_version(std::uint64_t version, std::span<std::byte> out) noexcept {
    std::memcpy(out.data() + 16, &version, sizeof version);
  }
};

/// An insert's payload where it was received.
struct InsertView {
  std::uint64_t sequence;
  std::uint64_t version;  ///< of the parameters that acted; 0: not known
  BatchView records;
  std::span<const float> priorities;
};

/// Reads an insert's payload that may be anything, without a copy. `payload` must lie at a multiple of 4.
/// Throws Error with the reason for what is no batch of such records.
inline InsertView read_insert(std::span<const std::byte> payload, const RecordLayout& layout) {
  ByteReader reader(payload);
  const auto sequence = reader.number<std::uint64_t>();
  const auto count = reader.number<std::uint32_t>();
  if (reader.number<std::uint32_t>() != 0) throw Error("a batch with reserved bytes in use");
  const auto version = reader.number<std::uint64_t>();
  if (sequence == 0) throw Error("a batch with the sequence number 0");
  if (count == 0) throw Error("a batch without items");
  if (payload.size() != InsertPayload::bytes(count, layout.size())) {
    throw Error("a batch of " + std::to_string(count) + " items of " + std::to_string(layout.size()) +
                " bytes in " + std::to_string(payload.size()) + " bytes");
  }
  const std::size_t end = InsertPayload::kHeadBytes + count * layout.size();
  const std::size_t priorities_at = InsertPayload::priorities_at(count, layout.size());
  const auto padding = payload.subspan(end, priorities_at - end);
  if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; }))
    throw Error("a batch with reserved bytes in use");
  const std::byte* priorities = payload.data() + priorities_at;
  return {sequence, version, BatchView(layout, payload.data() + InsertPayload::kHeadBytes, count),
          std::span(reinterpret_cast<const float*>(priorities), count)};
}

/// Parameters where they were received: the payload is version (8 bytes), count (4), 0 for float32 and 1 for
/// float16 (4), values. A count of 0 says that there are no newer ones than `version`.
struct ParametersView {
  static constexpr std::size_t kHeadBytes = 16;

  std::uint64_t version;
  std::size_t count;
  bool is_float16;
  const std::byte* values;

  static constexpr std::size_t bytes(std::size_t count, bool as_float16) noexcept {
    return kHeadBytes + count * (as_float16 ? sizeof(std::uint16_t) : sizeof(float));
  }

  static void write_head(std::uint64_t version, std::size_t count, bool as_float16, std::byte* out) noexcept {
    const auto short_count = static_cast<std::uint32_t>(count);
    const std::uint32_t format = as_float16 ? 1 : 0;
    std::memcpy(out, &version, 8);
    std::memcpy(out + 8, &short_count, 4);
    std::memcpy(out + 12, &format, 4);
  }

  /// `out` is `count` long.
  void copy_to(std::span<float> out) const noexcept {
    if (is_float16) {
      from_float16(std::span(reinterpret_cast<const std::uint16_t*>(values), count), out);
    } else if (count > 0) {
      std::memcpy(out.data(), values, count * sizeof(float));
    }
  }
};

/// Reads a parameters payload that may be anything, without a copy. `payload` must lie at a multiple of 4.
/// Throws Error with the reason for what is none.
inline ParametersView read_parameters(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  const auto version = reader.number<std::uint64_t>();
  const auto count = reader.number<std::uint32_t>();
  const auto format = reader.number<std::uint32_t>();
  if (format > 1) throw Error("parameters in format " + std::to_string(format));
  if (payload.size() != ParametersView::bytes(count, format == 1))
    throw Error(std::to_string(count) + " parameters in " + std::to_string(payload.size()) + " bytes");
  return {version, count, format == 1, payload.data() + ParametersView::kHeadBytes};
}

/// The heads of calls and replies: the number by which a client tells its calls apart (8 bytes), and of a
/// reply whether the server did it (4 bytes, 0), or a sentence follows that says why not (1), and 0 (4).
struct CallPayload {
  static constexpr std::size_t kHeadBytes = 8, kReplyHeadBytes = 16;
};

}  // namespace troop::net
