/// @file
/// Small dense float products on Eigen's vector registers, without heap memory.
///
/// Eigen's own product packs both operands at every call, takes the buffers for it from the heap when they
/// are large, and takes long to compile. At the sizes of Q-networks these loops are a third faster. They want
/// the right operand row by row: a network keeps its weights transposed too, and makes them so once a step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include <Eigen/Core>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"  // vector types as template arguments
#endif

namespace troop::nn::detail {

/// A row-major float matrix in somebody else's memory, `stride` floats from row to row.
template <class T>
struct Matrix {
  T* data = nullptr;
  std::size_t rows = 0, columns = 0, stride = 0;

  T* row(std::size_t i) const noexcept { return data + i * stride; }
  Matrix columns_from(std::size_t first, std::size_t count) const noexcept {
    return {data + first, rows, count, stride};
  }
  Matrix<const T> as_const() const noexcept { return {data, rows, columns, stride}; }
};

using In = Matrix<const float>;
using Out = Matrix<float>;

/// The left operand: a matrix, or its transpose.
struct Left {
  const float* data;
  std::size_t row_stride, depth_stride;
};
inline Left plain(In a) noexcept {
  return {a.data, a.stride, 1};
}
inline Left transposed(In a) noexcept {
  return {a.data, 1, a.stride};
}

/// What is added to the product: 0 where `data` is null, one row for all rows where `stride` is 0, or a
/// matrix.
struct Addend {
  const float* data = nullptr;
  std::size_t stride = 0;
};

namespace simd = Eigen::internal;

using WidestPacket = simd::packet_traits<float>::type;
template <class Packet>
inline constexpr std::size_t kLanes = sizeof(Packet) / sizeof(float);
/// The next narrower vector, at last a plain float.
template <class Packet>
using Narrower =
    std::conditional_t<(kLanes<Packet> > 4), typename simd::unpacket_traits<Packet>::half, float>;

inline constexpr std::size_t kDepth =
    128;  // steps of the depth in one pass: b's strip stays in the first cache

// `Rows` rows of `Packets` vectors, held in registers.
template <class Packet, std::size_t Rows, std::size_t Packets>
struct Tile {
  static constexpr std::size_t kWidth = kLanes<Packet>;
  Packet sums[Rows][Packets];

  // f(vector, row, column of its first lane)
  template <class F>
  void for_each(F f) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < Rows; ++i)
#pragma GCC unroll 8
      for (std::size_t j = 0; j < Packets; ++j) f(sums[i][j], i, j * kWidth);
  }
  // One step of the depth: adds factor(row) * b.
  template <class F>
  void add(F factor, const float* b) {
    Packet columns[Packets];
#pragma GCC unroll 8
    for (std::size_t j = 0; j < Packets; ++j) columns[j] = simd::ploadu<Packet>(b + j * kWidth);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < Rows; ++i) {
      const Packet scale = simd::pset1<Packet>(factor(i));
#pragma GCC unroll 8
      for (std::size_t j = 0; j < Packets; ++j) sums[i][j] = simd::pmadd(scale, columns[j], sums[i][j]);
    }
  }
};

// `Rows` rows of `Packets` vectors of c = addend + left * b.
template <class Packet, std::size_t Rows, std::size_t Packets>
inline void multiply_tile(Left left, const float* b, std::size_t b_stride, std::size_t depth, Addend addend,
                          float* c, std::size_t c_stride) {
  Tile<Packet, Rows, Packets> tile;
  tile.for_each([&](Packet& sum, std::size_t i, std::size_t j) {
    sum = addend.data == nullptr ? simd::pset1<Packet>(0.0f)
                                 : simd::ploadu<Packet>(addend.data + i * addend.stride + j);
  });
  for (std::size_t k = 0; k < depth; ++k)
    tile.add([&](std::size_t i) { return left.data[i * left.row_stride + k * left.depth_stride]; },
             b + k * b_stride);
  tile.for_each([&](Packet& sum, std::size_t i, std::size_t j) { simd::pstoreu(c + i * c_stride + j, sum); });
}

// Calls f(rows, first row) for tiles of 8, 4 or 1 rows, `rows` an integral constant.
template <bool UpToEight = true, class F>
void for_each_tile(std::size_t num_rows, F f) {
  std::size_t i = 0;
  const auto tiles = [&](auto rows) {
    for (; i + rows() <= num_rows; i += rows()) f(rows, i);
  };
  if constexpr (UpToEight) tiles(std::integral_constant<std::size_t, 8>{});
  tiles(std::integral_constant<std::size_t, 4>{});
  tiles(std::integral_constant<std::size_t, 1>{});
}
// Eight rows of two vectors want nineteen registers, which only the widest instruction sets have.
template <class Packet, std::size_t Packets>
inline constexpr bool kEightRows = kLanes<Packet> == 16 || Packets == 1;

// Calls f.template operator()<Packet, Packets>(first column) for strips of two of the widest vectors, then of
// one, then of narrower ones.
template <class Packet = WidestPacket, class F>
void for_each_strip(std::size_t num_columns, F f, std::size_t j = 0) {
  constexpr std::size_t lanes = kLanes<Packet>;
  if constexpr (std::is_same_v<Packet, WidestPacket>)
    for (; j + 2 * lanes <= num_columns; j += 2 * lanes) f.template operator()<Packet, 2>(j);
  for (; j + lanes <= num_columns; j += lanes) f.template operator()<Packet, 1>(j);
  if constexpr (lanes > 1)
    if (j < num_columns) for_each_strip<Narrower<Packet>>(num_columns, f, j);
}

/// c = addend + left * b, with left [c.rows, b.rows] and b [b.rows, c.columns].
inline void multiply(Left left, In b, Addend addend, Out c) {
  for (std::size_t k = 0; k < b.rows; k += kDepth) {
    const std::size_t depth = std::min(kDepth, b.rows - k);
    for_each_strip(c.columns, [&]<class Packet, std::size_t Packets>(std::size_t j) {
      for_each_tile<kEightRows<Packet, Packets>>(c.rows, [&](auto rows, std::size_t i) {
        multiply_tile<Packet, rows(), Packets>(
            {left.data + i * left.row_stride, left.row_stride, left.depth_stride}, b.row(k) + j, b.stride,
            depth, {addend.data == nullptr ? nullptr : addend.data + i * addend.stride + j, addend.stride},
            c.row(i) + j, c.stride);
      });
    });
    left.data += kDepth * left.depth_stride;
    addend = {c.data, c.stride};
  }
}

// `Count` neighbours in a row of c = bias + a b^T.
template <std::size_t Count>
inline void dot_tile(const float* a, const float* b, std::size_t b_stride, std::size_t depth,
                     const float* bias, float* c) {
  constexpr std::size_t lanes = kLanes<WidestPacket>;
  WidestPacket sums[Count];
  float tails[Count] = {};
#pragma GCC unroll 4
  for (std::size_t n = 0; n < Count; ++n) sums[n] = simd::pset1<WidestPacket>(0.0f);
  std::size_t k = 0;
  for (; k + lanes <= depth; k += lanes) {
    const WidestPacket factor = simd::ploadu<WidestPacket>(a + k);
#pragma GCC unroll 4
    for (std::size_t n = 0; n < Count; ++n)
      sums[n] = simd::pmadd(factor, simd::ploadu<WidestPacket>(b + n * b_stride + k), sums[n]);
  }
  if constexpr (lanes > 1)
    for (; k < depth; ++k)
      for (std::size_t n = 0; n < Count; ++n) tails[n] += a[k] * b[n * b_stride + k];
  for (std::size_t n = 0; n < Count; ++n) c[n] = bias[n] + (simd::predux(sums[n]) + tails[n]);
}

/// c = bias + a b^T, with a [c.rows, depth] and b [c.columns, depth], by dot products: for one to three
/// columns.
inline void multiply_by_dots(In a, In b, const float* bias, Out c) {
  for (std::size_t i = 0; i < c.rows; ++i) {
    switch (c.columns) {
      case 1:
        dot_tile<1>(a.row(i), b.data, b.stride, a.columns, bias, c.row(i));
        break;
      case 2:
        dot_tile<2>(a.row(i), b.data, b.stride, a.columns, bias, c.row(i));
        break;
      default:
        dot_tile<3>(a.row(i), b.data, b.stride, a.columns, bias, c.row(i));
        break;
    }
  }
}

}  // namespace troop::nn::detail

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
