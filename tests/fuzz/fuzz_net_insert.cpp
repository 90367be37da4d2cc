// A batch of items, also compressed, and the layout of a sender's records, from any bytes.
//
// Input: which of some layouts the server has (a byte), then the payload of an insert, or a layout.
#include <troop/net/messages.hpp>

#include <array>

#include <troop/net/detail/packed_insert.hpp>

#include "fuzz.hpp"

namespace troop::fuzz {
namespace {

struct CartPole {
  std::array<float, 4> observation, next_observation;
  std::int32_t action;
  float reward, discount;
};
struct Odd {
  std::array<std::uint8_t, 3> bytes;
};
struct Aligned {
  double value;
  std::uint8_t flag;
};

constexpr std::size_t kMostUnpacked = 1 << 16;

const std::array<RecordLayout, 4>& layouts() {
  static const std::array<RecordLayout, 4> all{
      RecordLayout::of<CartPole>(), RecordLayout::of<Odd>(), RecordLayout::of<Aligned>(),
      RecordLayout(
          {{.name = "image", .dtype = DType::u8, .shape = {3, 5}}, {.name = "x", .dtype = DType::u8}})};
  return all;
}

void read_batch(std::span<const std::byte> payload, const RecordLayout& layout) {
  try {
    const net::InsertView batch = net::read_insert(payload, layout);
    check(batch.records.size() == batch.priorities.size(), "every item has a priority");
    Bytes again(net::InsertPayload::bytes(batch.records.size(), layout.size()));
    net::InsertPayload::write(batch.records, batch.priorities, again);
    net::InsertPayload::set_sequence(batch.sequence, again);
    net::InsertPayload::set_version(batch.version, again);
    check(equal(again, payload), "a batch has one encoding");
  } catch (const Error&) {
  }
}

void read_packed(net::PayloadCodec codec, std::span<const std::byte> payload, const RecordLayout& layout) {
  std::size_t size = 0;
  try {
    size = net::detail::PackedInsert::unpacked_bytes(payload, kMostUnpacked);
  } catch (const Error&) {
    return;
  }
  check(size <= kMostUnpacked, "a batch is not unpacked beyond the limit");
  Bytes unpacked(size);
  if (net::detail::PackedInsert::unpack(codec, payload, unpacked)) read_batch(unpacked, layout);
}

void read_layout(std::span<const std::byte> bytes, const RecordLayout& mine) {
  const bool is_mine = net::layout_difference(bytes, mine).empty();
  check(is_mine == equal(bytes, net::layout_bytes(mine)), "no difference means the same bytes");
  try {
    ByteReader reader(bytes);
    const RecordLayout layout = reader.layout();
    const auto used = bytes.first(bytes.size() - reader.left());
    check(equal(net::layout_bytes(layout), used), "a layout has one encoding");
  } catch (const Error&) {
  }
}

}  // namespace

void run(std::span<const std::byte> input) {
  Script script(input);
  const RecordLayout& layout = layouts()[script.number<std::uint8_t>() % layouts().size()];
  const Exactly rest(script.rest());
  read_batch(rest, layout);
  read_packed(net::PayloadCodec::lz4, rest, layout);
  read_packed(net::PayloadCodec::zstd, rest, layout);
  read_layout(rest, layout);
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> seeds;
  for (std::size_t i = 0; i < layouts().size(); ++i) {
    const RecordLayout& layout = layouts()[i];
    const auto which = static_cast<std::uint8_t>(i);
    seeds.push_back(ScriptWriter().number(which).bytes(net::layout_bytes(layout)));
    for (const std::size_t count : {std::size_t{1}, std::size_t{3}, std::size_t{40}}) {
      const Bytes records(count * layout.size(), std::byte{1});
      const std::vector<float> priorities(count, 0.5f);
      Bytes payload(net::InsertPayload::bytes(count, layout.size()));
      net::InsertPayload::write(BatchView(layout, records.data(), count), priorities, payload);
      net::InsertPayload::set_sequence(count, payload);
      seeds.push_back(ScriptWriter().number(which).bytes(payload));
      for (const auto codec : {net::PayloadCodec::lz4, net::PayloadCodec::zstd}) {
        Bytes packed;
        if (net::detail::PackedInsert::pack(codec, payload, packed))
          seeds.push_back(ScriptWriter().number(which).bytes(packed));
      }
    }
  }
  return seeds;
}

}  // namespace troop::fuzz
