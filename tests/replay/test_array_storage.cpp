#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <troop/replay/array_storage.hpp>
#include <troop/replay/storage.hpp>

using troop::ArrayStorage;
using troop::BatchView;
using troop::DType;
using troop::RecordLayout;

namespace {

struct Item {
  std::array<std::uint16_t, 5> values;
};

std::vector<Item> items_from(std::uint16_t first, std::size_t count) {
  std::vector<Item> items(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::uint16_t>(first + i);
    items[i].values = {number, 1, 2, 3, static_cast<std::uint16_t>(~number)};
  }
  return items;
}

Item read(const ArrayStorage& storage, std::size_t slot) {
  Item item;
  storage.gather(std::span(&slot, 1), reinterpret_cast<std::byte*>(&item));
  return item;
}

}  // namespace

TEST_CASE("the array storage is a replay storage") {
  static_assert(troop::ReplayStorage<ArrayStorage>);
  const ArrayStorage storage(9, RecordLayout::of<Item>());
  CHECK(storage.capacity() == 9);
  CHECK(storage.layout() == RecordLayout::of<Item>());
}

TEST_CASE("records are read back from the slots into which they were written, and only these change") {
  ArrayStorage storage(10, RecordLayout::of<Item>());
  const auto all = items_from(100, 10);
  storage.write(0, BatchView(std::span<const Item>(all)));
  const auto some = items_from(500, 3);
  storage.write(7, BatchView(std::span<const Item>(some)));
  storage.write(2, BatchView(std::span<const Item>(some)).records(1, 1));
  storage.write(4, BatchView(std::span<const Item>()));
  for (std::size_t slot = 0; slot < 10; ++slot) {
    CAPTURE(slot);
    const std::size_t expected = slot >= 7 ? 500 + slot - 7 : slot == 2 ? 501 : 100 + slot;
    CHECK(read(storage, slot).values[0] == expected);
    CHECK(read(storage, slot).values[4] == static_cast<std::uint16_t>(~expected));
    storage.prefetch(slot);
  }
}

TEST_CASE("records that lie apart are gathered") {
  struct Wide {
    Item item;
    std::array<std::uint16_t, 3> between;
  };
  std::vector<Wide> wide(4);
  for (std::size_t i = 0; i < 4; ++i) wide[i] = {items_from(7, 4)[i], {0xffff, 0xffff, 0xffff}};
  ArrayStorage storage(5, RecordLayout::of<Item>());
  storage.write(1, BatchView(RecordLayout::of<Item>(), wide.data(), 4, sizeof(Wide)));
  CHECK(read(storage, 0).values[0] == 0);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(std::memcmp(&wide[i].item, std::array{read(storage, 1 + i)}.data(), sizeof(Item)) == 0);
}

TEST_CASE("a capacity of 0 and one that cannot be addressed are refused") {
  CHECK_THROWS_WITH_AS(ArrayStorage(0, RecordLayout::of<Item>()),
                       "capacity: 0 is not allowed; expected a positive integer", troop::InvalidArgument);
  CHECK_THROWS_WITH_AS(ArrayStorage((std::size_t{1} << 40) + 1, RecordLayout({{"frame", DType::u8, {1024}}})),
                       "capacity: 1099511627777 is not allowed; expected at most 68719476736",
                       troop::InvalidArgument);
}
