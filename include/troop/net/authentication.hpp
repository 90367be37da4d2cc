/// @file
/// The shared token of a cluster, and the proof of knowing it.
#pragma once

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/file.hpp>

namespace troop::net {

/// 32 random bytes, used once.
using Nonce = std::array<std::byte, 32>;
/// An HMAC-SHA-256.
using Proof = std::array<std::byte, 32>;

/// Bytes from the operating system's generator. Throws Error when there are none to be had.
template <std::size_t N>
std::array<std::byte, N> random_bytes() {
  std::array<std::byte, N> bytes;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(N)) != 1)
    throw Error("no random numbers from the system");
  return bytes;
}

/// A secret that all processes of one cluster share. It is read from a file or the environment, never given
/// on a command line, where others can see it; it is never sent, printed or logged, and its memory is wiped.
///
///     const Token token = Token::from_file("/etc/troop/token");     // or from_environment("TROOP_TOKEN")
class Token {
 public:
  static constexpr std::size_t kLeast = 16, kMost = 4096;  ///< bytes

  /// No token: nothing is proven.
  Token() = default;

  /// Throws InvalidArgument, without the value, for fewer than 16 or more than 4096 bytes.
  explicit Token(std::string secret) : secret_(std::move(secret)) {
    require(secret_.size() >= kLeast && secret_.size() <= kMost, "token",
            std::to_string(secret_.size()) + " bytes",
            "16 to 4096 bytes, for example of `openssl rand -hex 32`");
  }

  /// The file's content without white space at its end. Throws FileError, naming the file, when it cannot be
  /// read, holds too few or too many bytes, or can be read by everybody.
  static Token from_file(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0)
      throw FileError(path, "can be read by everybody; a token must not (chmod o-r)");
    std::vector<std::byte> bytes = read_file(path, kMost + 2);
    std::string secret(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    OPENSSL_cleanse(bytes.data(), bytes.size());
    while (!secret.empty() && std::string_view(" \t\r\n").find(secret.back()) != std::string_view::npos)
      secret.pop_back();
    try {
      return Token(std::move(secret));
    } catch (const InvalidArgument& error) {
      throw FileError(path, error.what());
    }
  }

  /// Throws InvalidArgument, naming the variable, when it is not set or its value is no token.
  static Token from_environment(const std::string& variable) {
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr) throw InvalidArgument(variable, "not set", "a token of 16 to 4096 bytes");
    try {
      return Token(value);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(variable, error.value(), error.expected());
    }
  }

  Token(Token&&) = default;
  Token(const Token&) = default;
  Token& operator=(Token other) noexcept {
    secret_.swap(other.secret_);
    return *this;
  }
  ~Token() { OPENSSL_cleanse(secret_.data(), secret_.size()); }

  bool is_empty() const noexcept { return secret_.empty(); }

  /// HMAC-SHA-256 (RFC 2104, FIPS 180-4) of the parts, each preceded by its length so that no two lists give
  /// the same bytes. Throws Error when OpenSSL cannot.
  Proof prove(std::initializer_list<std::span<const std::byte>> parts) const {
    std::vector<unsigned char> message;
    for (const auto& part : parts) {
      const auto size = static_cast<std::uint64_t>(part.size());
      const auto* bytes = reinterpret_cast<const unsigned char*>(part.data());
      for (int shift = 0; shift < 64; shift += 8)
        message.push_back(static_cast<unsigned char>(size >> shift));
      message.insert(message.end(), bytes, bytes + part.size());
    }
    Proof proof{};
    unsigned length = 0;
    if (HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()), message.data(), message.size(),
             reinterpret_cast<unsigned char*>(proof.data()), &length) == nullptr ||
        length != proof.size())
      throw Error("HMAC-SHA-256 is not available from OpenSSL");
    return proof;
  }

 private:
  std::string secret_;
};

/// Compares in a time that does not depend on where two proofs differ.
inline bool equal_in_constant_time(const Proof& a, const Proof& b) noexcept {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace troop::net
