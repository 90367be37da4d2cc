#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/nn/transition_batch.hpp>

using namespace troop::nn;
using troop::BatchView;
using troop::DType;
using troop::Field;
using troop::MatrixView;
using troop::RecordLayout;

namespace {

struct Transition {
  std::array<float, 4> observation;
  std::int32_t action;
  float reward;
  float discount;
  std::array<float, 4> next_observation;
};
static_assert(sizeof(Transition) == 44);

const std::vector<Field> kFields{{"observation", DType::u8, {2, 3}, 0},
                                 {"action", DType::i32, {}, 0},
                                 {"reward", DType::f32, {}, 0},
                                 {"discount", DType::f32, {}, 0},
                                 {"next_observation", DType::u8, {2, 3}, 0}};

std::string error_with(std::vector<Field> fields) {
  const RecordLayout layout(std::move(fields));
  try {
    const TransitionBatch batch(BatchView(layout, nullptr, 0));
  } catch (const troop::InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a batch maps records without a copy") {
  std::vector<Transition> records(3);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto x = static_cast<float>(i);
    records[i] = {{x, x + 1, x + 2, x + 3}, static_cast<std::int32_t>(i), 10 * x, 0.5f, {-x, 0, 0, -x - 1}};
  }
  const TransitionBatch batch{BatchView(std::span<const Transition>(records))};
  CHECK(batch.size() == 3);
  CHECK(batch.observations().stride() == 44);
  CHECK(batch.observations().columns() == 4);
  CHECK(batch.observations().dtype() == DType::f32);
  CHECK(batch.observations().data() == reinterpret_cast<const std::byte*>(records.data()));
  CHECK(batch.observations().as<float>()(2, 3) == 5);
  CHECK(batch.next_observations().as<float>()(2, 3) == -3);
  CHECK(batch.observations().rows(1, 2).as<float>()(0, 0) == 1);
  CHECK(batch.action(2) == 2);
  CHECK(batch.reward(2) == 20);
  CHECK(batch.discount(1) == 0.5f);
}

TEST_CASE("image observations of bytes become rows, and other fields are ignored") {
  auto fields = kFields;
  fields.push_back({"extra", DType::f64, {3}, 0});
  const RecordLayout layout(fields);
  std::vector<std::byte> memory(2 * layout.size());
  memory[layout.size() + layout.field("observation").offset + 5] = std::byte{200};
  const TransitionBatch batch(BatchView(layout, memory.data(), 2));
  CHECK(batch.observations().dtype() == DType::u8);
  CHECK(batch.observations().columns() == 6);
  CHECK(batch.observations().as<std::uint8_t>()(1, 5) == 200);
}

TEST_CASE("a missing field is named") {
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    auto fields = kFields;
    const std::string name = fields[i].name;
    fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK(has(error_with(fields), "\"" + name + "\" is not allowed; expected one of: "));
  }
}

TEST_CASE("a field of another dtype or shape is named") {
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    auto fields = kFields;
    fields[i].dtype = DType::i64;
    CHECK(has(error_with(fields), fields[i].name + ".dtype: i64 is not allowed; expected"));
  }
  for (const std::size_t i : {1, 2, 3}) {
    auto fields = kFields;
    fields[i].shape = {2};
    CHECK(has(error_with(fields), fields[i].name + " elements: 2 is not allowed; expected 1"));
  }
  auto fields = kFields;
  fields[4].shape = {7};
  CHECK(has(error_with(fields), "next_observation elements: 7 is not allowed; expected 6 as in observation"));
  fields = kFields;
  fields[4].dtype = DType::f32;
  CHECK(has(error_with(fields), "next_observation.dtype: f32 is not allowed; expected u8 as in observation"));
}

TEST_CASE("columns of different lengths are refused") {
  std::array<float, 8> x{};
  std::array<std::int32_t, 2> a{};
  const MatrixView<const float> observations(x.data(), 2, 4), column(x.data(), 2, 1);
  const MatrixView<const std::int32_t> actions(a.data(), 2, 1);
  CHECK_NOTHROW(TransitionBatch(observations, actions, column, column, observations));
  CHECK_THROWS_AS(TransitionBatch(observations, actions.rows(0, 1), column, column, observations),
                  troop::InvalidArgument);
  CHECK_THROWS_AS(TransitionBatch(observations, actions, column.rows(0, 1), column, observations),
                  troop::InvalidArgument);
  CHECK_THROWS_AS(TransitionBatch(observations, actions, column, column.rows(0, 1), observations),
                  troop::InvalidArgument);
  CHECK_THROWS_AS(TransitionBatch(observations, actions, column, column, observations.rows(0, 1)),
                  troop::InvalidArgument);
}

TEST_CASE("an observations view refuses other dtypes and strides that cannot be") {
  std::array<float, 8> x{};
  CHECK_THROWS_AS(ObservationsView(x.data(), DType::f64, 1, 1, 8), troop::InvalidArgument);
  CHECK_THROWS_AS(ObservationsView(x.data(), static_cast<DType>(99), 1, 1, 8), troop::InvalidArgument);
  CHECK_THROWS_AS(ObservationsView(x.data(), DType::f32, 2, 4, 15), troop::InvalidArgument);
  CHECK_THROWS_AS(ObservationsView(x.data(), DType::f32, 2, 2, 9), troop::InvalidArgument);
  CHECK_NOTHROW(ObservationsView(x.data(), DType::f32, 1, 4, 0));
  CHECK(ObservationsView(MatrixView<float>(x.data(), 2, 4)).rows() == 2);
  CHECK(ObservationsView(MatrixView<float>()).rows() == 0);
}
