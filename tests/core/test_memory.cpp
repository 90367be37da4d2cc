#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include <troop/core/memory.hpp>

#include "temporary_directory.hpp"

using troop::Block;
using troop::RecordArray;

namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

struct Point {
  std::array<float, 3> place;
  std::uint64_t number;
};

bool is_aligned(const void* pointer, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

bool is_zero(const Block& block) {
  const auto bytes = block.as<std::byte>();
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

TEST_CASE("a block is zeroed, aligned, as large as asked for and can be written to its last byte") {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65},
                                  4 * kMegabyte - 1, 4 * kMegabyte, 4 * kMegabyte + 1, 9 * kMegabyte}) {
    CAPTURE(bytes);
    {
      Block dirty(bytes);  // so that the allocator has something dirty to give
      std::memset(dirty.data(), 0xff, bytes);
    }
    const Block block(bytes);
    CHECK(block.bytes() == bytes);
    CHECK(block.as<std::uint32_t>().size() == bytes / 4);
    CHECK(is_aligned(block.data(), Block::kAlignment));
    if (bytes >= 4 * kMegabyte) CHECK(is_aligned(block.data(), Block::kHugePage));
    CHECK(is_zero(block));
    std::memset(block.data(), 1, bytes);
    CHECK(block.data()[bytes - 1] == std::byte{1});
  }
}

TEST_CASE("a block of no bytes, like a default one, has no memory") {
  CHECK(Block(0).data() == nullptr);
  CHECK(Block().bytes() == 0);
  CHECK(Block().as<float>().empty());
}

TEST_CASE("a block can be moved but not copied") {
  static_assert(!std::is_copy_constructible_v<Block> && !std::is_copy_assignable_v<Block>);
  static_assert(std::is_nothrow_move_constructible_v<Block> && std::is_nothrow_move_assignable_v<Block>);
  for (const std::size_t bytes : {std::size_t{100}, 5 * kMegabyte}) {
    CAPTURE(bytes);
    Block first(bytes);
    std::byte* const data = first.data();
    data[99] = std::byte{7};
    Block second(std::move(first));
    CHECK(second.data() == data);
    CHECK(second.bytes() == bytes);
    Block third(64);
    third = std::move(second);
    CHECK(third.data() == data);
    CHECK(third.data()[99] == std::byte{7});
    Block& itself = third;
    third = std::move(itself);
    CHECK(third.data() == data);
    CHECK(third.bytes() == bytes);
  }
}

TEST_CASE("a block larger than any memory is refused with its size, up to the largest number") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes :
       {std::size_t{1} << 55, most / 2, most - Block::kHugePage, most - Block::kHugePage + 1, most}) {
    CAPTURE(bytes);
    CHECK_THROWS_WITH_AS(Block{bytes}, ("cannot allocate " + std::to_string(bytes) + " bytes").c_str(),
                         troop::Error);
  }
}

TEST_CASE("a reserved block may be larger than the machine's memory, and is memory where it is touched") {
  int overcommit = 0;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  if (overcommit == 2) return;  // this system promises all or nothing
  const std::size_t bytes = 4 * troop::physical_memory();
  const Block block = Block::reserve(bytes);
  CHECK(block.bytes() == bytes);
  CHECK(is_aligned(block.data(), Block::kHugePage));
  CHECK(block.data()[bytes - 1] == std::byte{0});
  block.data()[0] = block.data()[bytes - 1] = std::byte{5};
  CHECK(block.data()[0] == block.data()[bytes - 1]);
  CHECK_THROWS_WITH_AS(Block::reserve(std::size_t{1} << 55), "cannot allocate 36028797018963968 bytes",
                       troop::Error);
}

TEST_CASE("sizes that a process cannot address are refused by the name of their field") {
  CHECK(troop::checked_bytes("capacity", 10, 44) == 440);
  CHECK(troop::checked_bytes("capacity", 10, 0) == 0);
  CHECK(troop::checked_bytes("capacity", std::size_t{1} << 40, 64) == std::size_t{1} << 46);
  CHECK_THROWS_WITH_AS(troop::checked_bytes("capacity", (std::size_t{1} << 40) + 1, 64),
                       "capacity: 1099511627777 is not allowed; expected at most 1099511627776",
                       troop::InvalidArgument);
  CHECK_THROWS_AS(troop::checked_bytes("n", std::numeric_limits<std::size_t>::max(), 2),
                  troop::InvalidArgument);
}

TEST_CASE("the machine has physical memory") {
  CHECK(troop::physical_memory() >= 64 * kMegabyte);
}

TEST_CASE("the least memory that a control group above the process is allowed bounds it") {
  const troop::testing::TemporaryDirectory root;
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  const auto write = [&](const std::string& name, const std::string& text) {
    const std::filesystem::path file = root.path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  };
  const auto memory = [&] { return troop::detail::cgroup_memory(root.path()); };
  CHECK(memory() == none);

  write("proc/self/cgroup", "0::/batch/job 7/step");
  CHECK(memory() == none);
  write("sys/fs/cgroup/batch/memory.max", "3000");
  write("sys/fs/cgroup/batch/job 7/memory.max", "max");
  write("sys/fs/cgroup/batch/job 7/step/memory.max", "4000");
  write("sys/fs/cgroup/other/memory.max", "5");
  CHECK(memory() == 3000);
  write("sys/fs/cgroup/batch/job 7/memory.max", "2000");
  CHECK(memory() == 2000);

  // A container sees its own group as the root, whatever the path says.
  write("proc/self/cgroup", "0::/../elsewhere");
  write("sys/fs/cgroup/memory.max", "1000");
  CHECK(memory() == 1000);

  // Version 1, beside an empty hierarchy of version 2.
  std::filesystem::remove_all(root.path() / "sys");
  write("proc/self/cgroup", "not a group\n5:cpu,memory:/docker/a:b\n4:memory_bandwidth:/x\n0::/");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  CHECK(memory() == 9223372036854771712u);
  write("sys/fs/cgroup/memory/docker/a:b/memory.limit_in_bytes", "1234567");
  write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "5");
  CHECK(memory() == 1234567);
}

TEST_CASE("a record array keeps its records when it grows, and new ones are zero") {
  RecordArray array(troop::RecordLayout::of<Point>(), 2);
  CHECK(array.size() == 2);
  for (std::size_t size = 2; size < 300; size = size * 3 / 2) {
    const std::size_t before = array.size();
    array.resize(size);
    for (std::size_t i = before; i < size; ++i) {
      Point point;
      std::memcpy(&point, array.record(i), sizeof(Point));
      CHECK(point.number == 0);
      CHECK(point.place[2] == 0.0f);
      point.number = i + 1;
      std::memcpy(array.record(i), &point, sizeof(Point));
    }
  }
  const auto points = array.as<Point>();
  REQUIRE(points.size() == array.size());
  for (std::size_t i = 2; i < points.size(); ++i) CHECK(points[i].number == i + 1);
}

TEST_CASE("records that come back after shrinking are zero again, in the same memory") {
  RecordArray array(troop::RecordLayout::of<Point>(), 10);
  const std::byte* const memory = array.data();
  std::memset(array.data(), 0xee, 10 * sizeof(Point));
  array.resize(4);
  CHECK(array.size() == 4);
  CHECK(array.capacity() >= 10);
  array.resize(10);
  CHECK(array.data() == memory);
  CHECK(array.as<Point>()[3].number == 0xeeeeeeeeeeeeeeeeu);
  for (std::size_t i = 4; i < 10; ++i) CHECK(array.as<Point>()[i].number == 0);
}

TEST_CASE("reserving adds no records, an empty array has none") {
  RecordArray array(troop::RecordLayout::of<Point>());
  CHECK(array.empty());
  CHECK(array.capacity() == 0);
  array.reserve(100);
  CHECK(array.empty());
  CHECK(array.capacity() >= 100);
  const std::byte* const memory = array.data();
  array.resize(100);
  CHECK(array.data() == memory);
  CHECK(array.view().size() == 100);
  CHECK(&array.view().layout() == &array.layout());
}

TEST_CASE("a record array of one type is not handed out as another") {
  struct Other {
    std::array<float, 3> place;
    std::int64_t number;
  };
  const RecordArray array(troop::RecordLayout::of<Point>(), 1);
  CHECK_THROWS_WITH_AS(array.as<Other>(), "record layouts differ: field 1: number u64, expected number i64",
                       troop::LayoutMismatch);
}

TEST_CASE("a record array that cannot grow keeps what it has") {
  RecordArray array(troop::RecordLayout::of<Point>(), 3);
  array.record(2)[0] = std::byte{5};
  CHECK_THROWS_AS(array.resize(std::size_t{1} << 60), troop::InvalidArgument);
  CHECK(array.size() == 3);
  CHECK(array.record(2)[0] == std::byte{5});
}

TEST_CASE("a moved record array takes its records along") {
  RecordArray array(troop::RecordLayout::of<Point>(), 3);
  array.record(1)[0] = std::byte{9};
  const RecordArray moved(std::move(array));
  CHECK(moved.size() == 3);
  CHECK(moved.record(1)[0] == std::byte{9});
  CHECK(moved.layout() == troop::RecordLayout::of<Point>());
}
