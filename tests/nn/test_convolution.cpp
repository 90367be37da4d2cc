#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/nn/detail/convolution.hpp>

#include "testing.hpp"

using namespace troop::nn::detail;
using troop::nn::Conv2d;

namespace {

std::vector<float> random_floats(std::size_t count, troop::Random& random) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

double worst_difference(const std::vector<float>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  return worst;
}

/// A convolution by the plainest loops there are. Calls f(input element, weight in PyTorch's order, output
/// element) for all products, with the elements' places in memory.
struct Plain {
  Conv2d conv;
  std::vector<std::size_t> in, out;
  ImageOrder order;

  template <class F>
  void for_each_product(F f) const {
    const std::size_t k = conv.kernel, channels = in[0];
    for (std::size_t filter = 0; filter < out[0]; ++filter)
      for (std::size_t row = 0; row < out[1]; ++row)
        for (std::size_t column = 0; column < out[2]; ++column)
          for (std::size_t channel = 0; channel < channels; ++channel)
            for (std::size_t i = 0; i < k; ++i)
              for (std::size_t j = 0; j < k; ++j) {
                const std::size_t y = row * conv.stride + i, x = column * conv.stride + j;
                f(order == ImageOrder::channels_first ? (channel * in[1] + y) * in[2] + x
                                                      : (y * in[2] + x) * channels + channel,
                  ((filter * channels + channel) * k + i) * k + j, (row * out[2] + column) * out[0] + filter);
              }
  }
};

}  // namespace

TEST_CASE("forward and both gradients agree with plain loops in double, for all shapes") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  troop::Random random(seed, "convolution");
  const std::size_t filters[] = {1, 2, 3, 7, 8, 16, 17, 32, 33, 64};
  for (int repeat = 0; repeat < 300; ++repeat) {
    const Conv2d conv{filters[random.below(std::size(filters))], 1 + random.below(5), 1 + random.below(4)};
    const std::vector<std::size_t> in{1 + random.below(9), conv.kernel + random.below(9),
                                      conv.kernel + random.below(9)};
    const auto order = random.below(2) == 0 ? ImageOrder::channels_first : ImageOrder::channels_last;
    const Plain plain{conv, in, output_shape(conv, in), order};
    CAPTURE(to_string(conv));
    CAPTURE(in[0]);
    CAPTURE(in[1]);
    CAPTURE(in[2]);
    CAPTURE(order == ImageOrder::channels_first);
    const Convolution fast(conv, in, order, false, 3);
    const std::size_t num_weights = in[0] * conv.kernel * conv.kernel * conv.filters;
    REQUIRE(fast.num_inputs() == in[0] * in[1] * in[2]);
    REQUIRE(fast.num_outputs() == plain.out[0] * plain.out[1] * plain.out[2]);
    REQUIRE(fast.weight() == 3);
    REQUIRE(fast.bias() == 3 + num_weights);
    REQUIRE(fast.end() == 3 + num_weights + conv.filters);

    const auto x = random_floats(fast.num_inputs(), random), dy = random_floats(fast.num_outputs(), random),
               weights = random_floats(num_weights, random), biases = random_floats(conv.filters, random);
    auto dx = random_floats(x.size(), random), dw = random_floats(num_weights, random),
         db = random_floats(conv.filters, random);  // what the gradients are added to

    std::vector<double> expected_y(dy.size()), expected_dx(dx.begin(), dx.end()),
        expected_dw(dw.begin(), dw.end()), expected_db(db.begin(), db.end());
    for (std::size_t i = 0; i < dy.size(); ++i) {
      expected_y[i] = static_cast<double>(biases[i % conv.filters]);
      expected_db[i % conv.filters] += static_cast<double>(dy[i]);
    }
    plain.for_each_product([&](std::size_t i, std::size_t w, std::size_t o) {
      expected_y[o] += static_cast<double>(x[i]) * static_cast<double>(weights[w]);
      expected_dx[i] += static_cast<double>(dy[o]) * static_cast<double>(weights[w]);
      expected_dw[w] += static_cast<double>(dy[o]) * static_cast<double>(x[i]);
    });

    std::vector<float> forward(num_weights), backward(num_weights), packed_dw(num_weights), y(dy.size());
    fast.pack_forward(weights.data(), forward.data());
    fast.pack_backward(weights.data(), backward.data());
    fast.forward(x.data(), forward.data(), biases.data(), y.data());
    CHECK(worst_difference(y, expected_y) < 2e-4);

    fast.pack_forward(dw.data(), packed_dw.data());
    fast.add_parameter_gradient(x.data(), dy.data(), packed_dw.data(), db.data());
    fast.unpack_forward(packed_dw.data(), dw.data());
    CHECK(worst_difference(dw, expected_dw) < 2e-4);
    CHECK(worst_difference(db, expected_db) < 2e-4);

    fast.add_input_gradient(dy.data(), backward.data(), dx.data());
    CHECK(worst_difference(dx, expected_dx) < 2e-4);
  }
}

TEST_CASE("ReLU takes what is negative away and leaves a NaN, in every lane") {
  for (const std::size_t filters : {1, 7, 16, 40}) {
    const Convolution conv({filters, 1, 1}, {1, 3, 3}, ImageOrder::channels_first, true, 0);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> x{-2, -1, 0, 1, nan, 2, 3, -3, 4}, weights(filters, 2.0f), biases(filters, 1.0f);
    std::vector<float> y(9 * filters);
    conv.forward(x.data(), weights.data(), biases.data(), y.data());  // one weight a filter: packed or not
    for (std::size_t i = 0; i < y.size(); ++i) {
      const float before = 2.0f * x[i / filters] + 1.0f;
      CHECK((std::isnan(before) ? std::isnan(y[i]) : y[i] == std::max(before, 0.0f)));
    }
  }
}
