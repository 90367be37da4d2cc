/// @file
/// JSON, written as it comes.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace troop::monitor {

/// Writes JSON text (RFC 8259): objects and arrays in any depth, the commas by itself. The text may stand in
/// HTML and JavaScript as well: `<`, `>`, `&`, control characters and everything beyond ASCII are escaped, and
/// bytes that are no UTF-8 become question marks. Numbers that are not finite become null.
///
/// Whether `begin` and `end` belong together is for the caller to see to. Not thread-safe.
///
///     JsonWriter json;
///     json.begin().key("loss").value(0.25).key("hosts").begin_array().value("a").end_array().end();
///     json.text();                                                          // {"loss":0.25,"hosts":["a"]}
class JsonWriter {
 public:
  JsonWriter& begin() { return open('{'); }
  JsonWriter& end() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& key(std::string_view name) {
    comma();
    quote(name);
    text_ += ':';
    needs_comma_ = false;
    return *this;
  }

  JsonWriter& value(std::string_view text) {
    comma();
    quote(text);
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag) { return raw(flag ? "true" : "false"); }
  JsonWriter& value(double number) { return std::isfinite(number) ? write(number) : raw("null"); }
  template <std::integral Number>
  JsonWriter& value(Number number) {
    return write(number);
  }
  /// With at most so many digits that count: what a page shows needs no more.
  JsonWriter& value(double number, int digits) {
    if (!std::isfinite(number)) return raw("null");
    char text[48];
    const auto result = std::to_chars(text, text + sizeof text, number, std::chars_format::general, digits);
    return raw(std::string_view(text, static_cast<std::size_t>(result.ptr - text)));
  }
  /// JSON that is finished already.
  JsonWriter& raw(std::string_view json) {
    comma();
    text_ += json;
    return *this;
  }

  template <class Value>
  JsonWriter& member(std::string_view name, const Value& of) {
    return key(name).value(of);
  }
  JsonWriter& member(std::string_view name, double of, int digits) { return key(name).value(of, digits); }

  const std::string& text() const noexcept { return text_; }

 private:
  JsonWriter& open(char bracket) {
    comma();
    text_ += bracket;
    needs_comma_ = false;
    return *this;
  }
  JsonWriter& close(char bracket) {
    text_ += bracket;
    needs_comma_ = true;
    return *this;
  }

  void comma() {
    if (needs_comma_) text_ += ',';
    needs_comma_ = true;
  }

  template <class Number>
  JsonWriter& write(Number number) {
    char text[48];
    const auto result = std::to_chars(text, text + sizeof text, number);
    return raw(std::string_view(text, static_cast<std::size_t>(result.ptr - text)));
  }

  /// Length of the UTF-8 sequence in front of `text`, and its number in `code`; 0 when it is none.
  static std::size_t decode(std::string_view text, std::uint32_t& code) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned first = byte(0);
    const std::size_t length = first < 0x80       ? 1
                               : first >> 5 == 6  ? 2
                               : first >> 4 == 14 ? 3
                               : first >> 3 == 30 ? 4
                                                  : 0;
    if (length == 0 || length > text.size()) return 0;
    code = length == 1 ? first : first & (0x7fu >> length);
    for (std::size_t i = 1; i < length; ++i) {
      if (byte(i) >> 6 != 2) return 0;
      code = code << 6 | (byte(i) & 0x3fu);
    }
    constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool is_surrogate = code >= 0xd800 && code < 0xe000;
    return code < kLeast[length] || code > 0x10ffff || is_surrogate ? 0 : length;
  }

  void unit(std::uint32_t code) {
    constexpr char kDigits[] = "0123456789abcdef";
    text_ += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) text_ += kDigits[code >> shift & 15];
  }

  void quote(std::string_view text) {
    text_ += '"';
    while (!text.empty()) {
      std::uint32_t code = '?';
      const std::size_t length = decode(text, code);
      text.remove_prefix(length == 0 ? 1 : length);
      if (length == 0) code = '?';
      if (code == '"' || code == '\\') {
        text_ += '\\';
        text_ += static_cast<char>(code);
      } else if (code < ' ' || code > '~' || code == '<' || code == '>' || code == '&') {
        if (code > 0xffff) unit(0xd800 + ((code - 0x10000) >> 10));
        unit(code > 0xffff ? 0xdc00 + ((code - 0x10000) & 0x3ff) : code);
      } else {
        text_ += static_cast<char>(code);
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace troop::monitor
