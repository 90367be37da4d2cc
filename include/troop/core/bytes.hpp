/// @file
/// Numbers, strings and layouts as little-endian bytes, and back from bytes that nobody has checked.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>

namespace troop {

static_assert(
    std::endian::native == std::endian::little,
    "bytes in files and on the wire are little-endian, and so is every machine that troop has been built "
    "for; swap bytes here");

/// A number that is written as its own bytes.
template <class T>
concept ByteNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8;

/// Appends to a vector of bytes, which it does not own.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  template <ByteNumber T>
  void number(T value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  /// As many adjacent numbers as the span has; their count is not written.
  template <class T, std::size_t N>
  requires ByteNumber<std::remove_const_t<T>>
  void numbers(std::span<T, N> values) { bytes(std::as_bytes(values)); }

  /// Length (32 bits) and characters.
  void text(std::string_view text) {
    require(text.size() <= UINT32_MAX, "length of a text", text.size(), "at most 2^32 - 1");
    number(static_cast<std::uint32_t>(text.size()));
    bytes(std::as_bytes(std::span(text)));
  }

  /// Size, alignment and fields of a layout.
  void layout(const RecordLayout& layout) {
    number(static_cast<std::uint64_t>(layout.size()));
    number(static_cast<std::uint64_t>(layout.fingerprint()));
    number(static_cast<std::uint32_t>(layout.fields().size()));
    for (const Field& field : layout.fields()) {
      text(field.name);
      number(static_cast<std::uint8_t>(field.dtype));
      number(static_cast<std::uint32_t>(field.shape.size()));
      for (const std::size_t dimension : field.shape) number(static_cast<std::uint64_t>(dimension));
    }
  }

  void bytes(std::span<const std::byte> bytes) {
    const std::size_t at = out_.size();
    out_.resize(at + bytes.size());
    if (!bytes.empty()) std::memcpy(out_.data() + at, bytes.data(), bytes.size());
  }

 private:
  std::vector<std::byte>& out_;
};

/// Reads what a ByteWriter wrote from bytes that may be anything: every call throws Error, with what was
/// wanted, rather than read beyond the end, and allocates no more than the bytes that are there justify.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  std::size_t left() const noexcept { return rest_.size(); }

  template <ByteNumber T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }

  template <class T, std::size_t N>
  requires ByteNumber<T>
  void numbers(std::span<T, N> values) {
    const auto from = bytes(values.size_bytes());
    if (!values.empty()) std::memcpy(values.data(), from.data(), from.size());
  }

  /// A count of things of at least `bytes_each` bytes that are still to be read.
  template <ByteNumber T = std::uint32_t>
  std::size_t count(std::size_t bytes_each) {
    const auto count = static_cast<std::uint64_t>(number<T>());
    if (count > rest_.size() / bytes_each)
      throw Error(std::to_string(count) + " elements in " + std::to_string(rest_.size()) + " bytes");
    return static_cast<std::size_t>(count);
  }

  std::string text() {
    const auto from = bytes(count(1));
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }

  /// A layout as `RecordLayout` lays fields out. Throws InvalidArgument for one that cannot be.
  RecordLayout layout() {
    const auto size = number<std::uint64_t>();
    const auto fingerprint = number<std::uint64_t>();
    std::vector<Field> fields(count(kLeastField));
    require(fields.size() <= kMostFields, "number of fields", fields.size(), "at most 1024");
    for (Field& field : fields) {
      field.name = text();
      field.dtype = static_cast<DType>(number<std::uint8_t>());
      field.shape.resize(count(sizeof(std::uint64_t)));
      for (std::size_t& dimension : field.shape)
        dimension = static_cast<std::size_t>(number<std::uint64_t>());
    }
    RecordLayout layout(std::move(fields));
    if (layout.size() == size && layout.fingerprint() == fingerprint) return layout;
    throw LayoutMismatch("a record of " + std::to_string(size) + " bytes with fields in other places than " +
                         layout.describe() + " would have");
  }

  std::span<const std::byte> bytes(std::size_t count) {
    if (count > rest_.size())
      throw Error("ends " + std::to_string(count - rest_.size()) + " bytes too early");
    const auto first = rest_.first(count);
    rest_ = rest_.subspan(count);
    return first;
  }

  /// Throws Error when something is left.
  void finish() const {
    if (!rest_.empty()) throw Error(std::to_string(rest_.size()) + " bytes too many");
  }

 private:
  static constexpr std::size_t kLeastField = 9;
  static constexpr std::size_t kMostFields = 1024;

  std::span<const std::byte> rest_;
};

}  // namespace troop
