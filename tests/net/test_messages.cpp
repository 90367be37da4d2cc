#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/messages.hpp>

#include "net_records.hpp"
#include "raw_client.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::net;
using namespace troop::testing;
using troop::testing::error_of;

namespace {

struct Odd {
  std::array<std::uint8_t, 7> bytes;
};

}  // namespace

TEST_CASE("control messages are the members in order, little-endian") {
  const Refusal refusal{RefusalCode::layout, true, "why"};
  const std::uint8_t expected[] = {3, 1, 3, 0, 0, 0, 0, 0, 0, 0, 'w', 'h', 'y'};
  const auto bytes = to_bytes(refusal);
  REQUIRE(bytes.size() == sizeof expected);
  CHECK(std::memcmp(bytes.data(), expected, sizeof expected) == 0);
  CHECK(to_bytes(Challenge{}).size() == 33);
  CHECK(to_bytes(ProofMessage{}).size() == 32);
  CHECK(to_bytes(Welcome{}).size() == 32 + 16 + 8 + 8 + 4 * 4);
  CHECK(to_bytes(Acknowledge{}).size() == 8);
  CHECK(to_bytes(Hello{.name = "n", .layout = std::vector<std::byte>(3)}).size() ==
        1 + 16 + 32 + 4 + 8 + 9 + 11);
}

TEST_CASE("a message comes back as it was, and neither cut short nor lengthened") {
  Hello hello{
      .role = Role::evaluator, .features = 5, .first = 77, .name = "x", .layout = std::vector<std::byte>(20)};
  hello.client.fill(std::byte{1});
  hello.nonce.fill(std::byte{2});
  auto bytes = to_bytes(hello);
  const auto back = read_message<Hello>(bytes);
  CHECK(to_bytes(back) == bytes);
  CHECK(back.first == 77);
  CHECK(back.name == "x");
  CHECK(back.client == hello.client);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_THROWS_AS(read_message<Hello>(std::span(bytes).first(size)), Error);
  bytes.push_back(std::byte{0});
  CHECK_THROWS_AS(read_message<Hello>(bytes), Error);
}

TEST_CASE("bytes at random are read without harm as any message") {
  MESSAGE("seed " << seed());
  Random random(seed(), "messages");
  std::size_t read = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = to_bytes(hello_of(RecordLayout::of<NumberedItem>(), 1));
    for (std::uint64_t changes = 1 + random.below(4); changes > 0; --changes)
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random());
    try {
      layout_difference(read_message<Hello>(bytes).layout, RecordLayout::of<NumberedItem>());
      ++read;
    } catch (const Error&) {
    }
    try {
      read_insert(std::span(bytes).first(bytes.size() / 8 * 8), RecordLayout::of<NumberedItem>());
    } catch (const Error&) {
    }
  }
  CHECK(read > 1000);
}

TEST_CASE("layouts are compared, and the first difference is named") {
  const auto& mine = RecordLayout::of<NumberedItem>();
  CHECK(layout_difference(layout_bytes(mine), mine) == "");
  const RecordLayout same({{"client", DType::u32, {}}, {"number", DType::u32, {}}});
  CHECK(layout_difference(layout_bytes(same), mine) == "");
  const RecordLayout other({{"client", DType::u32, {}}, {"count", DType::u32, {}}});
  CHECK(layout_difference(layout_bytes(other), mine) == "field 1: count u32, expected number u32");
  CHECK(layout_difference({}, mine) == "a record layout that cannot be: ends 8 bytes too early");
  auto long_bytes = layout_bytes(other);
  long_bytes.push_back(std::byte{});
  CHECK(layout_difference(long_bytes, mine) == "a record layout that cannot be: 1 bytes too many");
}

TEST_CASE("a batch is raw: sequence number, count, version, records, zeros, priorities") {
  const std::vector<Odd> records = {{{1, 2, 3, 4, 5, 6, 7}}, {{8, 9, 10, 11, 12, 13, 14}}};
  const std::vector<float> priorities = {1.0f, 2.0f};
  auto bytes = insert_of(5, BatchView(std::span<const Odd>(records)), priorities);
  InsertPayload::set_version(7, bytes);
  std::vector<std::uint8_t> expected = {5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0,
                                        0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0};
  for (std::uint8_t i = 1; i <= 14; ++i) expected.push_back(i);
  expected.insert(expected.end(), {0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40});
  REQUIRE(bytes.size() == expected.size());
  CHECK(std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0);
  const InsertView view = read_insert(bytes, RecordLayout::of<Odd>());
  CHECK(view.sequence == 5);
  CHECK(view.version == 7);
  CHECK(view.records.size() == 2);
  CHECK(view.records.data() == bytes.data() + 24);
  CHECK(view.priorities[1] == 2.0f);
}

TEST_CASE("records are packed from any stride") {
  struct Wide {
    NumberedItem item;
    std::uint32_t other;
  };
  const std::vector<Wide> wide = {{{1, 2}, 9}, {{3, 4}, 9}};
  const std::vector<float> priorities = {2.0f, 4.0f};
  const auto& layout = RecordLayout::of<NumberedItem>();
  const std::vector<NumberedItem> items = {{1, 2}, {3, 4}};
  CHECK(insert_of(1, BatchView(layout, wide.data(), 2, sizeof(Wide)), priorities) ==
        insert_of(1, view(items), priorities));
}

TEST_CASE("what is no batch of such records is refused with the reason") {
  const auto& layout = RecordLayout::of<NumberedItem>();
  const auto items = numbered(0, 0, 3);
  const auto good = insert_of(1, view(items), priorities_of(items));
  const auto changed = [&](std::size_t at, std::uint32_t value) {
    auto bad = good;
    std::memcpy(bad.data() + at, &value, 4);
    return error_of([&] { read_insert(bad, layout); });
  };
  CHECK(changed(0, 1) == "no error");
  CHECK(changed(0, 0) == "a batch with the sequence number 0");
  CHECK(changed(8, 0) == "a batch without items");
  CHECK(changed(8, 4) == "a batch of 4 items of 8 bytes in 60 bytes");
  CHECK(changed(8, 0xffffffffu) == "a batch of 4294967295 items of 8 bytes in 60 bytes");
  CHECK(changed(12, 1) == "a batch with reserved bytes in use");
  struct Odd {
    std::array<std::uint8_t, 7> bytes;
  };
  auto padded = insert_of(1, BatchView(std::span<const Odd>(std::array<Odd, 1>())), std::array{1.0f});
  CHECK(error_of([&] { read_insert(padded, RecordLayout::of<Odd>()); }) == "no error");
  padded[InsertPayload::kHeadBytes + 7] = std::byte{1};  // found by fuzzing
  CHECK(error_of([&] { read_insert(padded, RecordLayout::of<Odd>()); }) ==
        "a batch with reserved bytes in use");
  CHECK(error_of([&] { read_insert(std::span(good).first(56), layout); }) ==
        "a batch of 3 items of 8 bytes in 56 bytes");
  CHECK(error_of([&] { read_insert(std::span(good).first(4), layout); }) == "ends 4 bytes too early");
  CHECK(InsertPayload::bytes(std::size_t{1} << 40, 8) == 0);
  CHECK(InsertPayload::bytes(3, std::size_t{1} << 30) == 3 * ((std::size_t{1} << 30) + 4) + 24);
  CHECK(InsertPayload::bytes(4, std::size_t{1} << 30) == 0);
}

TEST_CASE("proofs of client and server cannot stand for each other, and without a token are zeros") {
  const Token token("0123456789abcdef");
  const auto hello = to_bytes(hello_of(RecordLayout::of<NumberedItem>(), 1));
  const auto challenge = to_bytes(Challenge{});
  Welcome welcome{.last = 5};
  const Proof server = server_proof(token, hello, challenge, welcome);
  CHECK(client_proof(token, hello, challenge) != server);
  welcome.proof = server;
  CHECK(server_proof(token, hello, challenge, welcome) == server);
  welcome.last = 6;
  CHECK(server_proof(token, hello, challenge, welcome) != server);
  CHECK(client_proof(Token(), hello, challenge) == Proof{});
  CHECK(server_proof(Token(), hello, challenge, welcome) == Proof{});
}

TEST_CASE("what others say is made printable before it is logged") {
  CHECK(printable("plain") == "plain");
  CHECK(printable("a\nb\x1b[31m\xff") == "a?b?[31m?");
  CHECK(printable(std::string(2000, 'x')).size() == kMaxSentenceBytes);
}
