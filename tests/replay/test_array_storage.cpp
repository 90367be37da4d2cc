#include <doctest/doctest.h>

#include <sys/resource.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <troop/replay/array_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include <troop/replay/storage.hpp>
#include "temporary_directory.hpp"

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

TEST_CASE("records may be kept in a scratch file, which has no name and takes its space at once") {
  const troop::testing::TemporaryDirectory directory;
  const std::string path = directory.file("scratch");
  {
    ArrayStorage storage(100'000, RecordLayout::of<Item>(), {.file = path});
    CHECK(std::filesystem::is_empty(directory.path()));
    const auto some = items_from(500, 3);
    storage.write(99'997, BatchView(std::span<const Item>(some)));
    CHECK(read(storage, 99'999).values[0] == 502);
    CHECK(read(storage, 0).values[0] == 0);
    // The name is free at once, for another one too.
    const ArrayStorage other(10, RecordLayout::of<Item>(), {.file = path});
    CHECK(read(other, 9).values[0] == 0);
  }
  CHECK(std::filesystem::is_empty(directory.path()));

  troop::PrioritizedReplay<Item> replay({.capacity = 50}, {.storage = {.file = path}});
  replay.add(items_from(0, 70), std::vector<float>(70, 1.0f));
  troop::Random random(1);
  const auto batch = replay.sample(200, {}, random);
  for (std::size_t i = 0; i < batch.size(); ++i) CHECK(batch.records()[i].values[0] == batch.keys[i]);
}

TEST_CASE("a scratch file that is there already, or cannot be made, is refused with the reason") {
  const troop::testing::TemporaryDirectory directory;
  const std::string path = directory.file("mine");
  std::ofstream(path) << "precious";
  const auto layout = RecordLayout::of<Item>();
  CHECK_THROWS_WITH_AS(ArrayStorage(10, layout, {.file = path}),
                       (path + ": cannot create: File exists").c_str(), troop::FileError);
  CHECK(std::filesystem::file_size(path) == 8);
  const std::string nowhere = directory.file("nowhere/scratch");
  CHECK_THROWS_WITH_AS(ArrayStorage(10, layout, {.file = nowhere}),
                       (nowhere + ": cannot create: No such file or directory").c_str(), troop::FileError);
  CHECK_THROWS_WITH_AS(ArrayStorage(10, layout, {.file = directory.file("x"), .prefault = true}),
                       "prefault: true is not allowed; expected false when a file is given",
                       troop::InvalidArgument);
}

TEST_CASE("a scratch file for which there is no room is refused at once, and nothing is left of it") {
  const troop::testing::TemporaryDirectory directory;
  const std::string path = directory.file("scratch");
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string reason = "nothing was thrown";
  try {
    ArrayStorage(1'000'000, RecordLayout::of<Item>(), {.file = path});
  } catch (const troop::FileError& error) {
    reason = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(reason == path + ": cannot give it 10000000 bytes: File too large");
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("memory that is taken at once is zero and works as other memory does") {
  ArrayStorage storage(1'000'000, RecordLayout::of<Item>(), {.prefault = true});
  CHECK(read(storage, 999'999).values[0] == 0);
  const auto some = items_from(7, 1);
  storage.write(999'999, BatchView(std::span<const Item>(some)));
  CHECK(read(storage, 999'999).values[0] == 7);
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  CHECK(resident * 4096 >= 10'000'000);
}

TEST_CASE("records are saved and loaded as they lie in memory, and other bytes are refused") {
  ArrayStorage storage(10, RecordLayout::of<Item>());
  storage.write(0, BatchView(std::span<const Item>(items_from(100, 10))));
  std::vector<std::byte> bytes{std::byte{1}};
  storage.save(std::array<std::size_t, 2>{7, 3}, bytes);
  REQUIRE(bytes.size() == 1 + 2 * sizeof(Item));
  const std::span<const std::byte> records = std::span(bytes).subspan(1);
  storage.load(std::array<std::size_t, 2>{0, 9}, records);
  CHECK(read(storage, 0).values[0] == 107);
  CHECK(read(storage, 9).values[0] == 103);
  CHECK_THROWS_WITH_AS(storage.validate(3, records), "20 bytes for 3 records of 10", troop::Error);
  CHECK_THROWS_WITH_AS(storage.load(std::array<std::size_t, 2>{0, 9}, records.first(19)),
                       "19 bytes for 2 records of 10", troop::Error);
  storage.validate(0, {});
  CHECK(ArrayStorage::format() == "records");
}
