#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <troop/core/view.hpp>

using troop::BatchView;
using troop::DType;
using troop::InvalidArgument;
using troop::MatrixView;
using troop::RecordLayout;

namespace {

struct Item {
  std::array<float, 3> observation;
  std::int32_t action;
  std::array<std::array<std::uint8_t, 2>, 2> pixels;
};

std::vector<Item> make_items(std::size_t count) {
  std::vector<Item> items(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto number = static_cast<float>(i);
    const auto byte = static_cast<std::uint8_t>(i);
    items[i] = {{number, number + 0.25f, number + 0.5f}, static_cast<std::int32_t>(i) - 2, {}};
    items[i].pixels[1][0] = byte;
  }
  return items;
}

}  // namespace

TEST_CASE("a matrix view walks rows by its stride") {
  std::vector<int> numbers(20);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(i);
  const MatrixView<int> matrix(numbers.data() + 1, 4, 3, 5 * sizeof(int));
  CHECK(matrix.rows() == 4);
  CHECK(matrix.columns() == 3);
  CHECK(matrix.stride() == 20);
  CHECK_FALSE(matrix.is_contiguous());
  CHECK(matrix(0) == 1);
  CHECK(matrix(2, 1) == 12);
  CHECK(matrix.row(3)[2] == 18);
  CHECK(matrix.row_span(1).size() == 3);
  CHECK(matrix.row_span(1)[0] == 6);
  matrix(2, 1) = -1;
  CHECK(numbers[12] == -1);

  const auto part = matrix.rows(1, 2);
  CHECK(part.rows() == 2);
  CHECK(part(1, 0) == 11);
  CHECK(part.rows(2, 0).rows() == 0);
}

TEST_CASE("a matrix view without a stride is contiguous, a default one is empty") {
  const std::array<double, 6> numbers{0, 1, 2, 3, 4, 5};
  const MatrixView<const double> matrix(numbers.data(), 2, 3);
  CHECK(matrix.is_contiguous());
  CHECK(matrix(1, 2) == 5.0);
  static_assert(std::is_same_v<decltype(matrix.row(0)), const double*>);
  CHECK(MatrixView<float>().rows() == 0);
}

TEST_CASE("a batch of records shows each field as a matrix without a copy") {
  const auto items = make_items(5);
  const BatchView batch{std::span<const Item>(items)};
  CHECK(batch.size() == 5);
  CHECK_FALSE(batch.empty());
  CHECK(batch.stride() == sizeof(Item));
  CHECK(batch.layout() == RecordLayout::of<Item>());

  const auto observations = batch.field<float>("observation");
  CHECK(observations.rows() == 5);
  CHECK(observations.columns() == 3);
  CHECK(observations.stride() == sizeof(Item));
  CHECK(&observations(4, 1) == &items[4].observation[1]);
  const auto actions = batch.field<std::int32_t>("action");
  CHECK(actions.columns() == 1);
  CHECK(actions(3) == 1);
  const auto pixels = batch.field<std::uint8_t>("pixels");
  CHECK(pixels.columns() == 4);
  CHECK(pixels(4, 2) == 4);
}

TEST_CASE("records may lie further apart than their size") {
  struct Wide {
    Item item;
    std::array<double, 2> more;
  };
  std::vector<Wide> wide(3);
  for (std::size_t i = 0; i < 3; ++i) wide[i].item = make_items(3)[i];
  const BatchView batch(RecordLayout::of<Item>(), wide.data(), 3, sizeof(Wide));
  CHECK(batch.field<float>("observation")(2, 1) == 2.25f);
  CHECK(batch.record(2) == reinterpret_cast<const std::byte*>(&wide[2]));
  const BatchView last = batch.records(2, 1);
  CHECK(last.size() == 1);
  CHECK(last.stride() == sizeof(Wide));
  CHECK(last.field<std::int32_t>("action")(0) == 0);
}

TEST_CASE("parts of a batch begin and end where they were told to") {
  const auto items = make_items(6);
  const BatchView batch{std::span<const Item>(items)};
  const BatchView part = batch.records(2, 3);
  CHECK(part.size() == 3);
  CHECK(part.field<float>("observation")(0, 0) == 2.0f);
  CHECK(part.records(1, 2).field<float>("observation")(1, 0) == 4.0f);
  CHECK(batch.records(6, 0).empty());
  CHECK(batch.records(0, 6).record(5) == batch.record(5));
}

TEST_CASE("a field is refused under a wrong name or as a wrong type, with what there is") {
  const auto items = make_items(1);
  const BatchView batch{std::span<const Item>(items)};
  CHECK_THROWS_WITH_AS(batch.field<float>("observations"),
                       "field: \"observations\" is not allowed; expected one of: observation f32[3], action "
                       "i32, pixels u8[2,2]",
                       InvalidArgument);
  CHECK_THROWS_AS(batch.field<double>("observation"), InvalidArgument);
  CHECK_THROWS_AS(batch.field<std::uint32_t>("action"), InvalidArgument);
  CHECK_THROWS_AS(batch.field<bool>("pixels"), InvalidArgument);
}

TEST_CASE("a stride that is too small or breaks the alignment is refused") {
  const auto items = make_items(2);
  const auto& layout = RecordLayout::of<Item>();
  CHECK_THROWS_WITH_AS(
      BatchView(layout, items.data(), 2, 16),
      "stride: 16 is not allowed; expected at least the record's size, 20, and a multiple of "
      "its alignment, 4",
      InvalidArgument);
  CHECK_THROWS_AS(BatchView(layout, items.data(), 2, 22), InvalidArgument);
  CHECK_THROWS_AS(BatchView(layout, items.data(), 2, 0), InvalidArgument);
  CHECK_NOTHROW(BatchView(layout, items.data(), 1, 24));
}

TEST_CASE("elements at an address that their type does not allow are not handed out") {
  alignas(8) std::array<std::byte, 64> bytes{};
  const auto& layout = RecordLayout::of<Item>();
  const BatchView shifted(layout, bytes.data() + 2, 2);
  CHECK_THROWS_AS(shifted.field<float>("observation"), InvalidArgument);
  CHECK_NOTHROW(shifted.field<std::uint8_t>("pixels"));
  CHECK_NOTHROW(BatchView(layout, bytes.data() + 4, 2).field<float>("observation"));
  CHECK(BatchView(layout, nullptr, 0).field<float>("observation").rows() == 0);
}

TEST_CASE("a view cannot be made of a layout that ends before it") {
  static_assert(!std::is_constructible_v<BatchView, RecordLayout, const void*, std::size_t>);
  static_assert(!std::is_constructible_v<BatchView, RecordLayout, const void*, std::size_t, std::size_t>);
  CHECK(std::is_constructible_v<BatchView, const RecordLayout&, const void*, std::size_t>);
}

TEST_CASE("an empty batch has fields without rows") {
  const BatchView batch{std::span<const Item>()};
  CHECK(batch.empty());
  CHECK(batch.field<float>("observation").rows() == 0);
  CHECK(batch.records(0, 0).empty());
}
