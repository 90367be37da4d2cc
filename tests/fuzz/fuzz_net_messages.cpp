// Every control message from any bytes: refused with an Error, or the one object that has these bytes.
//
// Parameters, which are read where they lie, are tried on the same bytes.
//
// Input: which message (a byte), then its payload.
#include <troop/net/messages.hpp>

#include <array>
#include <tuple>
#include <utility>

#include "fuzz.hpp"

namespace troop::fuzz {
namespace {

/// All of them; a new message is one more name, at the end.
using Messages = std::tuple<net::Hello, net::Challenge, net::ProofMessage, net::Welcome, net::Refusal,
                            net::Acknowledge, net::Fetch, net::Lease, net::Leased>;

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

void read_parameters(std::span<const std::byte> payload) {
  try {
    const net::ParametersView view = net::read_parameters(payload);
    check(net::ParametersView::bytes(view.count, view.is_float16) == payload.size(), "all values are there");
    std::vector<float> values(view.count);
    view.copy_to(values);
  } catch (const Error&) {
  }
}

}  // namespace

void run(std::span<const std::byte> input) {
  Script script(input);
  const auto which = script.number<std::uint8_t>();
  const Exactly payload(script.rest());
  decode(which, payload, kAll);
  read_parameters(payload);
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
  const net::Leased leased{.ticket = 3, .first = 8, .planned = 16, .replays = {"one:7777", "two:7777"}};
  seeds.push_back(ScriptWriter().number(std::uint8_t{8}).bytes(to_bytes(leased)));
  for (const bool as_float16 : {false, true}) {
    Bytes parameters(net::ParametersView::bytes(3, as_float16), std::byte{0x11});
    net::ParametersView::write_head(7, 3, as_float16, parameters.data());
    seeds.push_back(ScriptWriter().number(std::uint8_t{0}).bytes(parameters));
  }
  return seeds;
}

}  // namespace troop::fuzz
