/// @file
/// What a fuzz target is: `run`, which may be given any bytes, and `seeds`, valid bytes to begin with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <troop/core/bytes.hpp>

namespace troop::fuzz {

using Bytes = std::vector<std::byte>;

/// Defined by each target. Aborts, or lets a sanitizer abort, when something is wrong.
void run(std::span<const std::byte> input);
std::vector<Bytes> seeds();

/// A property that must hold for every input.
inline void check(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", property);
  std::abort();
}

inline bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

/// The fuzzer's bytes as decisions; zeros when they are used up. A target that would not get beyond a
/// checksum takes a script of what is to be said instead of the bytes themselves.
class Script {
 public:
  explicit Script(std::span<const std::byte> bytes) : left_(bytes) {}

  bool empty() const noexcept { return left_.empty(); }

  template <ByteNumber T>
  T number() {
    T value{};
    const auto from = bytes(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), from.size());
    return value;
  }

  /// So many bytes, or as many as there are.
  std::span<const std::byte> bytes(std::size_t count) {
    const auto taken = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }

  /// As `text` writes them.
  std::span<const std::byte> text() { return bytes(number<std::uint16_t>()); }

  std::span<const std::byte> rest() { return bytes(left_.size()); }

 private:
  std::span<const std::byte> left_;
};

/// Writes what a Script reads.
class ScriptWriter {
 public:
  template <ByteNumber T>
  ScriptWriter& number(T value) {
    ByteWriter(bytes_).number(value);
    return *this;
  }
  ScriptWriter& bytes(std::span<const std::byte> bytes) {
    ByteWriter(bytes_).bytes(bytes);
    return *this;
  }
  ScriptWriter& text(std::span<const std::byte> text) {
    return number(static_cast<std::uint16_t>(text.size())).bytes(text);
  }
  operator Bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

/// Bytes where the smallest step outside is seen by AddressSanitizer, at a multiple of 16.
class Exactly {
 public:
  explicit Exactly(std::span<const std::byte> bytes) : copy_(bytes.begin(), bytes.end()) {
    copy_.shrink_to_fit();
  }
  operator std::span<const std::byte>() const { return copy_; }

 private:
  Bytes copy_;
};

/// A file that is in memory only.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> content);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace troop::fuzz
