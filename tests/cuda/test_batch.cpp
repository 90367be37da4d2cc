#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <troop/core/random.hpp>
#include <troop/cuda/batch.cuh>
#include <troop/cuda/runtime.cuh>
#include <troop/nn/transition_batch.hpp>

#include "device_array.hpp"
#include "testing.hpp"

namespace {

using namespace troop::cuda;
using troop::testing::DeviceArray;
using troop::testing::stream;

struct Shape {
  std::size_t rows;
  unsigned channels, pixels;
};

const std::vector<Shape> kShapes = {{1, 1, 4},    {31, 1, 37},  {33, 4, 9},
                                    {512, 3, 11}, {1000, 1, 4}, {2, 8, 49}};

std::vector<std::uint8_t> random_bytes(std::size_t size, troop::Random& random) {
  std::vector<std::uint8_t> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.below(256));
  return bytes;
}

template <class Source>
std::vector<float> assembled(const Source& source, const Shape& shape) {
  const std::size_t size = shape.rows * shape.channels * shape.pixels;
  const DeviceArray<float> out(size + 7);  // what lies behind is not touched
  launch("assemble", assemble<Source>, num_blocks(shape.rows * shape.pixels, 2), kThreads, stream(), source,
         shape.rows, out.data());
  auto values = out.get();
  for (std::size_t i = size; i < values.size(); ++i) CHECK(values[i] == 0.0f);
  values.resize(size);
  return values;
}

}  // namespace

TEST_CASE("rows of floats and of bytes become floats with the channels last") {
  troop::Random random(troop::testing::seed());
  CHECK(kByteScale == troop::nn::ObservationsView::kByteScale);
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.rows);
    const std::size_t size = shape.rows * shape.channels * shape.pixels;
    const auto bytes = random_bytes(size, random);
    std::vector<float> floats(bytes.begin(), bytes.end());
    const DeviceArray<std::uint8_t> device_bytes(bytes);
    const DeviceArray<float> device_floats(floats);
    const Image image{shape.channels, shape.pixels};
    const auto of_bytes = assembled(StackedRows<std::uint8_t>{device_bytes.data(), image}, shape);
    const auto of_floats = assembled(StackedRows<float>{device_floats.data(), image}, shape);
    troop::testing::Failures failures;
    for (std::size_t row = 0; row < shape.rows; ++row)
      for (unsigned c = 0; c < shape.channels; ++c)
        for (unsigned p = 0; p < shape.pixels; ++p) {
          const std::size_t from = (row * shape.channels + c) * shape.pixels + p;
          const std::size_t to = (row * shape.pixels + p) * shape.channels + c;
          if (of_floats[to] != floats[from]) failures.add("a float");
          if (of_bytes[to] != floats[from] * kByteScale) failures.add("a byte");
        }
    TROOP_CHECK_NONE(failures);
  }
}

TEST_CASE("stacks of single frames are gathered, and frames before an episode's start are black") {
  troop::Random random(troop::testing::seed());
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.rows);
    const std::size_t num_frames = 19;
    const auto frames = random_bytes(num_frames * shape.pixels, random);
    std::vector<std::int32_t> indices(shape.rows * shape.channels);
    for (auto& index : indices) index = static_cast<std::int32_t>(random.below(num_frames + 1)) - 1;
    const unsigned shift = 2;
    std::vector<DeviceArray<std::uint8_t>> chunks;
    std::vector<const std::uint8_t*> table;
    for (std::size_t first = 0; first < num_frames; first += std::size_t{1} << shift) {
      const auto begin = frames.begin() + static_cast<std::ptrdiff_t>(first * shape.pixels);
      const std::size_t count = std::min(std::size_t{1} << shift, num_frames - first);
      chunks.emplace_back(
          std::vector<std::uint8_t>(begin, begin + static_cast<std::ptrdiff_t>(count * shape.pixels)));
      table.push_back(chunks.back().data());
    }
    const DeviceArray<const std::uint8_t*> device_table(table);
    const DeviceArray<std::int32_t> device_indices(indices);
    const auto values = assembled(
        FrameStacks{device_table.data(), shift, device_indices.data(), {shape.channels, shape.pixels}},
        shape);
    troop::testing::Failures failures;
    for (std::size_t row = 0; row < shape.rows; ++row)
      for (unsigned c = 0; c < shape.channels; ++c)
        for (unsigned p = 0; p < shape.pixels; ++p) {
          const auto frame = indices[row * shape.channels + c];
          const float expected =
              frame < 0 ? 0.0f
                        : static_cast<float>(frames[static_cast<std::size_t>(frame) * shape.pixels + p]) *
                              kByteScale;
          if (values[(row * shape.pixels + p) * shape.channels + c] != expected) failures.add("a pixel");
        }
    TROOP_CHECK_NONE(failures);
  }
}
