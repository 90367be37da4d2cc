#include <doctest/doctest.h>

#include <sys/stat.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include <troop/net/authentication.hpp>

#include "temporary_directory.hpp"
#include "testing.hpp"

using namespace troop::net;
using troop::testing::error_of;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hex(const Proof& proof) {
  std::string text;
  for (const std::byte byte : proof) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::string file_with(const troop::testing::TemporaryDirectory& directory, std::string_view content,
                      mode_t mode = 0600) {
  const std::string path = directory.file("token");
  std::ofstream(path) << content;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
  return path;
}

}  // namespace

TEST_CASE("a proof is HMAC-SHA-256 over the parts, each behind its length") {
  // python3 -c "import hmac; print(hmac.new(b'0123456789abcdef', b'\x03'+b'\0'*7+b'abc'+b'\0'*8,
  // 'sha256').hexdigest())"
  CHECK(hex(Token("0123456789abcdef").prove({bytes_of("abc"), bytes_of("")})) ==
        "4fafd30c93230d130144776886cbadc90be307b1307d3cff3d40d8d230ad314e");
}

TEST_CASE("proofs differ with the token, the parts, and where parts are divided") {
  const Token token("0123456789abcdef"), other("0123456789abcdeF");
  std::set<Proof> proofs;
  proofs.insert(token.prove({bytes_of("ab"), bytes_of("c")}));
  proofs.insert(token.prove({bytes_of("a"), bytes_of("bc")}));
  proofs.insert(token.prove({bytes_of("abc")}));
  proofs.insert(token.prove({bytes_of("abc"), bytes_of("")}));
  proofs.insert(other.prove({bytes_of("abc")}));
  CHECK(proofs.size() == 5);
  CHECK(equal_in_constant_time(token.prove({bytes_of("x")}), token.prove({bytes_of("x")})));
  Proof last = token.prove({bytes_of("x")});
  last.back() ^= std::byte{1};
  CHECK_FALSE(equal_in_constant_time(token.prove({bytes_of("x")}), last));
}

TEST_CASE("a token has 16 to 4096 bytes, and no error shows it") {
  CHECK(Token().is_empty());
  CHECK_FALSE(Token(std::string(16, 'x')).is_empty());
  CHECK_FALSE(Token(std::string(4096, 'x')).is_empty());
  const std::string expected =
      " bytes is not allowed; expected 16 to 4096 bytes, for example of `openssl rand -hex 32`";
  CHECK(error_of([] { Token("fifteen bytes!!"); }) == "token: 15" + expected);
  CHECK(error_of([] { Token(std::string(4097, 'x')); }) == "token: 4097" + expected);
}

TEST_CASE("a token is read from a file without the white space at its end") {
  const troop::testing::TemporaryDirectory directory;
  const Token token = Token::from_file(file_with(directory, "0123456789abcdef \r\n"));
  CHECK(token.prove({}) == Token("0123456789abcdef").prove({}));
  CHECK(error_of([&] { Token::from_file(file_with(directory, "short\n")); }) ==
        directory.file("token") +
            ": token: 5 bytes is not allowed; expected 16 to 4096 bytes, for example of `openssl rand -hex "
            "32`");
  CHECK(error_of([&] { Token::from_file(file_with(directory, "0123456789abcdef", 0604)); }) ==
        directory.file("token") + ": can be read by everybody; a token must not (chmod o-r)");
  CHECK(error_of([&] { Token::from_file(file_with(directory, std::string(5000, 'x'))); }) ==
        directory.file("token") + ": 5000 bytes, more than the 4098 allowed");
  CHECK(error_of([&] { Token::from_file(directory.file("none")); }).find(directory.file("none") + ": ") == 0);
}

TEST_CASE("a token is read from the environment") {
  ::setenv("TROOP_TEST_TOKEN", "0123456789abcdef", 1);
  CHECK(Token::from_environment("TROOP_TEST_TOKEN").prove({}) == Token("0123456789abcdef").prove({}));
  ::setenv("TROOP_TEST_TOKEN", "short", 1);
  CHECK(error_of([] { Token::from_environment("TROOP_TEST_TOKEN"); }) ==
        "TROOP_TEST_TOKEN: 5 bytes is not allowed; expected 16 to 4096 bytes, for example of `openssl rand "
        "-hex 32`");
  ::unsetenv("TROOP_TEST_TOKEN");
  CHECK(error_of([] { Token::from_environment("TROOP_TEST_TOKEN"); }) ==
        "TROOP_TEST_TOKEN: not set is not allowed; expected a token of 16 to 4096 bytes");
}

TEST_CASE("random bytes are not the same twice") {
  CHECK(random_bytes<32>() != random_bytes<32>());
}
