// Every control message from any bytes: refused with an Error, or the one object that has these bytes.
//
// Input: which message (a byte), then its payload.
#include <troop/net/messages.hpp>

#include <array>
#include <tuple>
#include <utility>

#include <troop/net/server.hpp>

#include "fuzz.hpp"

namespace troop::fuzz {
namespace {

/// All of them; a new message is one more name, at the end.
using Messages = std::tuple<net::Hello, net::Challenge, net::ProofMessage, net::Welcome, net::Refusal,
                            net::Acknowledge, net::Session>;

template <class Message>
void decode(std::span<const std::byte> payload) {
  try {
    const auto message = net::read_message<Message>(payload);
    check(equal(to_bytes(message), payload), "a message has one encoding");
  } catch (const Error&) {
  }
}

template <std::size_t... I>
void decode(std::size_t which, std::span<const std::byte> payload, std::index_sequence<I...>) {
  static constexpr std::array kDecoders{&decode<std::tuple_element_t<I, Messages>>...};
  kDecoders[which % sizeof...(I)](payload);
}

constexpr auto kAll = std::make_index_sequence<std::tuple_size_v<Messages>>{};

template <std::size_t... I>
std::vector<Bytes> empty_messages(std::index_sequence<I...>) {
  return {ScriptWriter()
              .number(static_cast<std::uint8_t>(I))
              .bytes(to_bytes(std::tuple_element_t<I, Messages>{}))...};
}

}  // namespace

void run(std::span<const std::byte> input) {
  Script script(input);
  const auto which = script.number<std::uint8_t>();
  decode(which, Exactly(script.rest()), kAll);
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> seeds = empty_messages(kAll);
  struct Item {
    float observation[4];
    std::int32_t action;
  };
  const net::Hello hello{.name = "actor 3", .layout = net::layout_bytes(RecordLayout::of<Item>())};
  const net::Refusal refusal{net::RefusalCode::crowded, true, "there are 10 connections already"};
  seeds.push_back(ScriptWriter().number(std::uint8_t{0}).bytes(to_bytes(hello)));
  seeds.push_back(ScriptWriter().number(std::uint8_t{4}).bytes(to_bytes(refusal)));
  return seeds;
}

}  // namespace troop::fuzz
