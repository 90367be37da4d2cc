#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <troop/core/random.hpp>
#include <troop/cuda/layers.cuh>
#include <troop/cuda/runtime.cuh>

#include "device_array.hpp"
#include "testing.hpp"

namespace {

using namespace troop::cuda;
using troop::testing::DeviceArray;
using troop::testing::Failures;
using troop::testing::stream;

std::vector<float> normals(std::size_t size, troop::Random& random) {
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

const std::vector<std::size_t> kRows = {1, 31, 33, 512, 1000, 20000};

}  // namespace

TEST_CASE("bias and ReLU") {
  troop::Random random(troop::testing::seed());
  for (const std::size_t rows : kRows)
    for (const unsigned columns : {1u, 4u, 18u, 32u, 37u}) {
      auto y = normals(rows * columns, random);
      const auto bias = normals(columns, random);
      y.front() = std::numeric_limits<float>::quiet_NaN();
      const DeviceArray<float> with(y), without(y), device_bias(bias);
      launch("add_bias", add_bias<true>, num_blocks(y.size(), 2), kThreads, stream(), with.data(),
             device_bias.data(), rows, columns);
      launch("add_bias", add_bias<false>, num_blocks(y.size(), 2), kThreads, stream(), without.data(),
             device_bias.data(), rows, columns);
      const auto a = with.get(), b = without.get();
      Failures failures;
      if (!std::isnan(a[0]) || !std::isnan(b[0])) failures.add("a NaN became a number");
      for (std::size_t i = 1; i < y.size(); ++i) {
        const float sum = y[i] + bias[i % columns];
        if (b[i] != sum || a[i] != std::max(sum, 0.0f)) failures.add("element " + std::to_string(i));
      }
      TROOP_CHECK_NONE(failures);
    }
}

TEST_CASE("the gradient of bias and ReLU: masked in place, and added up over the rows") {
  troop::Random random(troop::testing::seed());
  for (const std::size_t rows : kRows)
    for (const unsigned columns : {1u, 2u, 18u, 32u, 37u, 65u}) {
      CAPTURE(rows);
      CAPTURE(columns);
      const auto y = normals(rows * columns, random), dy = normals(rows * columns, random);
      const DeviceArray<float> device_y(y), masked(dy), unmasked(dy), sums(columns), plain_sums(columns),
          partial(num_bias_parts(rows) * columns);
      const DeviceArray<unsigned> counters(bias_gradient_grid(rows, columns).x);
      for (int repeat = 0; repeat < 2; ++repeat) {  // the counters are ready for the next launch
        launch("bias_gradient", bias_gradient<true>, bias_gradient_grid(rows, columns), bias_gradient_block(),
               stream(), device_y.data(), masked.data(), sums.data(), partial.data(), counters.data(), rows,
               columns);
        launch("bias_gradient", bias_gradient<false>, bias_gradient_grid(rows, columns),
               bias_gradient_block(), stream(), static_cast<const float*>(nullptr), unmasked.data(),
               plain_sums.data(), partial.data(), counters.data(), rows, columns);
      }
      Failures failures;
      const auto result = masked.get();
      std::vector<double> expected(columns), plain(columns), size(columns);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const float value = y[i] > 0.0f ? dy[i] : 0.0f;
        if (result[i] != value) failures.add("element " + std::to_string(i));
        expected[i % columns] += static_cast<double>(value);
        plain[i % columns] += static_cast<double>(dy[i]);
        size[i % columns] += static_cast<double>(std::abs(dy[i]));
      }
      const auto a = sums.get(), b = plain_sums.get();
      for (unsigned j = 0; j < columns; ++j) {
        if (!(std::abs(static_cast<double>(a[j]) - expected[j]) <= 1e-6 * size[j])) failures.add("a sum");
        if (!(std::abs(static_cast<double>(b[j]) - plain[j]) <= 1e-6 * size[j])) failures.add("a plain sum");
      }
      if (unmasked.get() != dy) failures.add("a layer without ReLU changed its gradient");
      TROOP_CHECK_NONE(failures);
    }
}

TEST_CASE("the dueling head: value plus advantage less its mean") {
  troop::Random random(troop::testing::seed());
  for (const std::size_t rows : kRows)
    for (const unsigned actions : {1u, 2u, 18u}) {
      const auto value = normals(rows, random), advantage = normals(rows * actions, random);
      const DeviceArray<float> v(value), a(advantage), q(rows * actions);
      launch("combine_dueling", combine_dueling<float>, num_blocks(rows, 2), kThreads, stream(), v.data(),
             a.data(), q.data(), rows, actions);
      const auto result = q.get();
      Failures failures;
      for (std::size_t i = 0; i < rows; ++i) {
        double mean = 0;
        for (unsigned j = 0; j < actions; ++j)
          mean += static_cast<double>(advantage[i * actions + j]) / actions;
        for (unsigned j = 0; j < actions; ++j) {
          const double expected =
              static_cast<double>(value[i]) + static_cast<double>(advantage[i * actions + j]) - mean;
          if (!(std::abs(static_cast<double>(result[i * actions + j]) - expected) < 3e-6))
            failures.add("row " + std::to_string(i));
        }
      }
      TROOP_CHECK_NONE(failures);
    }
}
