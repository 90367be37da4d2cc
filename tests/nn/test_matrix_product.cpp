#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/nn/detail/matrix_product.hpp>

using namespace troop::nn::detail;

namespace {

struct Owned {
  Owned(std::size_t rows, std::size_t columns, std::size_t stride, troop::Random& random)
      : values(rows * stride), view{values.data(), rows, columns, stride} {
    for (float& value : values) value = static_cast<float>(random.normal());
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  double at(std::size_t i, std::size_t j) const { return static_cast<double>(view.row(i)[j]); }
  std::vector<float> values;
  Out view;
};

}  // namespace

TEST_CASE("products agree with three loops in double, for all sizes, strides and addends") {
  troop::Random random(9, "products");  // seed 9
  const std::size_t sizes[] = {1, 2, 3, 4, 5, 8, 9, 15, 16, 18, 31, 33, 40, 64, 67, 129, 260};
  const auto pick = [&] { return sizes[random.below(std::size(sizes))]; };
  for (int i = 0; i < 400; ++i) {
    const std::size_t rows = pick(), columns = pick(), depth = pick(), gap = random.below(3);
    CAPTURE(rows);
    CAPTURE(columns);
    CAPTURE(depth);
    const bool flipped = random.below(2) == 0;
    const Owned a(flipped ? depth : rows, flipped ? rows : depth, (flipped ? rows : depth) + gap, random);
    const Owned b(depth, columns, columns + gap, random);
    Owned c(rows, columns, columns + gap, random);
    const Owned before(1, columns, columns, random);
    const std::vector<float> old = c.values;
    const auto kind = random.below(3);
    const Addend addend = kind == 0   ? Addend{}
                          : kind == 1 ? Addend{before.values.data(), 0}
                                      : Addend{c.values.data(), c.view.stride};
    multiply(flipped ? transposed(a.view.as_const()) : plain(a.view.as_const()), b.view.as_const(), addend,
             c.view);
    double worst = 0;
    bool gaps_intact = true;
    for (std::size_t m = 0; m < rows; ++m) {
      for (std::size_t n = 0; n < columns; ++n) {
        double sum = kind == 0   ? 0.0
                     : kind == 1 ? before.at(0, n)
                                 : static_cast<double>(old[m * c.view.stride + n]);
        for (std::size_t k = 0; k < depth; ++k) sum += (flipped ? a.at(k, m) : a.at(m, k)) * b.at(k, n);
        worst = std::max(worst, std::abs(sum - c.at(m, n)));
      }
      for (std::size_t n = columns; n < c.view.stride; ++n)
        gaps_intact = gaps_intact && c.view.row(m)[n] == old[m * c.view.stride + n];
    }
    CHECK(worst < 1e-5 * std::sqrt(static_cast<double>(depth)) * 4);
    CHECK(gaps_intact);
  }
}

TEST_CASE("a product with packed strips is the product with the transpose, bit for bit") {
  troop::Random random(11, "products");  // seed 11
  for (const std::size_t columns : {1, 3, 4, 16, 18, 32, 50, 64, 103, 600})
    for (const std::size_t depth : {1, 16, 17, 64, 65, 128, 300}) {
      CAPTURE(columns);
      CAPTURE(depth);
      const Owned a(13, depth, depth, random), b(columns, depth, depth + 3, random),
          bias(1, columns, columns, random);
      Owned flipped(depth, columns, columns, random);
      for (std::size_t k = 0; k < depth; ++k)
        for (std::size_t j = 0; j < columns; ++j) flipped.view.row(k)[j] = b.view.row(j)[k];
      Owned expected(13, columns, columns, random), c(13, columns, columns, random);
      multiply(plain(a.view.as_const()), flipped.view.as_const(), {bias.values.data(), 0}, expected.view);
      std::vector<float> strips(columns * depth);
      pack_strips(b.view.as_const(), strips.data());
      multiply(plain(a.view.as_const()), {strips.data(), depth}, {bias.values.data(), 0}, c.view);
      CHECK(c.values == expected.values);
    }
}

TEST_CASE("dot products agree with three loops in double") {
  troop::Random random(10, "products");  // seed 10
  for (const std::size_t columns : {1, 2, 3})
    for (const std::size_t depth : {1, 3, 16, 17, 64, 100}) {
      const Owned a(7, depth, depth + 2, random), b(columns, depth, depth, random),
          bias(1, columns, columns, random);
      Owned c(7, columns, columns + 1, random);
      multiply_by_dots(a.view.as_const(), b.view.as_const(), bias.values.data(), c.view);
      for (std::size_t m = 0; m < 7; ++m)
        for (std::size_t n = 0; n < columns; ++n) {
          double sum = bias.at(0, n);
          for (std::size_t k = 0; k < depth; ++k) sum += a.at(m, k) * b.at(n, k);
          CHECK(std::abs(c.at(m, n) - sum) < 1e-5 * std::sqrt(static_cast<double>(depth)) * 4);
        }
    }
}
