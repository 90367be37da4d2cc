/// @file
/// Where to listen and where to connect: HOST:PORT.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include <troop/core/error.hpp>

namespace troop::net {

/// A host's name or number, and a port.
struct Address {
  std::string host;
  std::uint16_t port = 0;

  friend bool operator==(const Address&, const Address&) = default;
};

/// "head:7777", "[::1]:7777"
inline std::string to_string(const Address& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

/// Reads HOST:PORT or [IPV6]:PORT. Throws InvalidArgument, naming `field`, for anything else.
inline Address parse_address(std::string_view text, std::string_view field = "address") {
  const std::size_t colon = text.rfind(':');
  const std::string_view digits = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  Address address{std::string(host), 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  const bool number = error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
  const bool name = !host.empty() && host.find_first_of("[] \t\n") == std::string_view::npos &&
                    bracketed == (host.find(':') != std::string_view::npos);
  require(number && name, field, "\"" + std::string(text) + "\"", "HOST:PORT or [IPV6]:PORT");
  return address;
}

}  // namespace troop::net
