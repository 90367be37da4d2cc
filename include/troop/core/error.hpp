/// @file
/// The exceptions of troop. Thrown at set-up and for misuse; hot loops neither throw nor allocate.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace troop {

/// Base of every exception that troop throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A value that is not allowed. The message names the field, the value and what is allowed: `batch_size: 0 is
/// not allowed; expected an integer from 1 to 65536`.
class InvalidArgument : public Error {
 public:
  InvalidArgument(std::string field, std::string value, std::string expected)
      : Error(field + ": " + value + " is not allowed; expected " + expected),
        field_(std::move(field)),
        value_(std::move(value)),
        expected_(std::move(expected)) {}

  const std::string& field() const noexcept { return field_; }
  const std::string& value() const noexcept { return value_; }
  const std::string& expected() const noexcept { return expected_; }

 private:
  std::string field_, value_, expected_;
};

/// Two record layouts, or two networks, that had to be equal and are not. The message names the difference.
class LayoutMismatch : public Error {
 public:
  using Error::Error;
};

/// A sample was asked of a replay in which no item has a positive priority.
class EmptyReplay : public Error {
 public:
  using Error::Error;
};

/// A file that cannot be read or written, or whose content is damaged or foreign. The message names the file.
class FileError : public Error {
 public:
  FileError(const std::string& path, const std::string& reason) : Error(path + ": " + reason), path_(path) {}

  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

/// The ways in which a waiting call can end. `cancelled`: a stop was requested of the token that it was
/// given.
enum class Outcome { ok, timeout, closed, cancelled };

namespace detail {

template <class Value>
std::string to_text(const Value& value) {
  std::ostringstream text;
  text.precision(9);
  if constexpr (std::is_integral_v<Value> && sizeof(Value) == 1 && !std::is_same_v<Value, bool>) {
    text << static_cast<int>(value);  // a number, not a character
  } else {
    text << std::boolalpha << value;
  }
  return text.str();
}

}  // namespace detail

/// Throws InvalidArgument unless `allowed`. For the validation of options at set-up, not for hot loops.
template <class Value>
void require(bool allowed, std::string_view field, const Value& value, std::string_view expected) {
  if (!allowed) throw InvalidArgument(std::string(field), detail::to_text(value), std::string(expected));
}

/// Throws InvalidArgument unless `value` is a number from `low` to `high`.
inline void require_between(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return;
  throw InvalidArgument(std::string(field), detail::to_text(value),
                        "a number from " + detail::to_text(low) + " to " + detail::to_text(high));
}

}  // namespace troop
