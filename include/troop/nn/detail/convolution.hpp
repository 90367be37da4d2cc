/// @file
/// 2-D convolution of float images: forward, and the gradients of input and parameters, without heap memory.
///
/// Each of the three is a matrix product whose left rows lie where the image's windows do, so nothing is
/// unfolded into a second matrix. Activations are kept as (height, width, channels): a row of a window is one
/// run of adjacent numbers, and the filters of one position fill vector registers for any batch size. The
/// observation stays (channels, height, width) as it comes; its runs are as long as the kernel is wide.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include <troop/nn/detail/matrix_product.hpp>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"  // vector types as template arguments
#endif

namespace troop::nn::detail {

/// A convolution of one image after the other, then ReLU where `relu`.
///
/// A window is `num_runs()` runs of `run()` adjacent floats. Beside PyTorch's order [filters, channels,
/// kernel, kernel] the weights have two packed ones: `pack_forward`, [window, filters], and `pack_backward`,
/// [run, filters, run's floats], both as large.
struct Convolution {
  std::size_t channels = 0, height = 0, width = 0;  // of the input
  std::size_t filters = 0, kernel = 0, stride = 0;
  std::size_t out_height = 0, out_width = 0;
  std::size_t weight = 0, bias = 0;  // places in the flat span
  bool relu = false;
  bool planar = false;  // the input is (channels, height, width), otherwise (height, width, channels)

  std::size_t num_inputs() const noexcept { return channels * height * width; }
  std::size_t positions() const noexcept { return out_height * out_width; }
  std::size_t num_outputs() const noexcept { return positions() * filters; }
  std::size_t window() const noexcept { return channels * kernel * kernel; }
  std::size_t num_weights() const noexcept { return window() * filters; }
  std::size_t run() const noexcept { return planar ? kernel : kernel * channels; }
  std::size_t num_runs() const noexcept { return planar ? channels * kernel : kernel; }
  /// Where run `r` begins in a window, and the window of position `p` in the image.
  std::size_t run_offset(std::size_t r) const noexcept {
    return planar ? (r / kernel * height + r % kernel) * width : r * width * channels;
  }
  std::size_t position_offset(std::size_t p) const noexcept {
    const std::size_t pixel = (p / out_width * width + p % out_width) * stride;
    return planar ? pixel : pixel * channels;
  }

  /// From PyTorch's order.
  void pack_forward(const float* weights, float* packed) const {
    for_each_weight([&](std::size_t filter, std::size_t inner, std::size_t, std::size_t, std::size_t torch) {
      packed[inner * filters + filter] = weights[torch];
    });
  }
  void pack_backward(const float* weights, float* packed) const {
    for_each_weight(
        [&](std::size_t filter, std::size_t, std::size_t r, std::size_t place, std::size_t torch) {
          packed[(r * filters + filter) * run() + place] = weights[torch];
        });
  }
  /// Back to PyTorch's order.
  void unpack_forward(const float* packed, float* weights) const {
    for_each_weight([&](std::size_t filter, std::size_t inner, std::size_t, std::size_t, std::size_t torch) {
      weights[torch] = packed[inner * filters + filter];
    });
  }

  /// y [positions, filters] of the image `x`; `weights` from `pack_forward`.
  void forward(const float* x, const float* weights, const float* biases, float* y) const {
    for_each_strip(filters, [&]<class Packet, std::size_t Packets>(std::size_t j) {
      for_each_tile<kEightRows<Packet, Packets>>(positions(), [&](auto rows, std::size_t p) {
        forward_tile<Packet, rows(), Packets>(x, p, weights + j, biases + j, y + p * filters + j);
      });
    });
  }

  /// Adds dloss/dx of one image to `dx`; `weights` from `pack_backward`. Not for planar input.
  void add_input_gradient(const float* dy, const float* weights, float* dx) const {
    for (std::size_t r = 0; r < num_runs(); ++r)
      for_each_strip(run(), [&]<class Packet, std::size_t Packets>(std::size_t j) {
        for_each_tile<kEightRows<Packet, Packets>>(positions(), [&](auto rows, std::size_t p) {
          input_tile<Packet, rows(), Packets>(dy + p * filters, weights + r * filters * run() + j, p,
                                              dx + run_offset(r) + j);
        });
      });
  }

  /// Adds dloss/dW of one image to `dw` in the order of `pack_forward`, and dloss/db to `db`.
  void add_parameter_gradient(const float* x, const float* dy, float* dw, float* db) const {
    for_each_strip(filters, [&]<class Packet, std::size_t Packets>(std::size_t j) {
      for (std::size_t r = 0; r < num_runs(); ++r)
        for_each_tile<kEightRows<Packet, Packets>>(run(), [&](auto rows, std::size_t place) {
          weight_tile<Packet, rows(), Packets>(x + run_offset(r) + place, dy + j,
                                               dw + (r * run() + place) * filters + j);
        });
    });
    for (std::size_t p = 0; p < positions(); ++p)
      for (std::size_t f = 0; f < filters; ++f) db[f] += dy[p * filters + f];
  }

 private:
  template <class F>
  void for_each_weight(F f) const {
    for (std::size_t filter = 0; filter < filters; ++filter)
      for (std::size_t channel = 0; channel < channels; ++channel)
        for (std::size_t i = 0; i < kernel; ++i)
          for (std::size_t j = 0; j < kernel; ++j) {
            const std::size_t r = planar ? channel * kernel + i : i;
            const std::size_t place = planar ? j : j * channels + channel;
            f(filter, r * run() + place, r, place, ((filter * channels + channel) * kernel + i) * kernel + j);
          }
  }

  template <class Packet, std::size_t Rows, std::size_t Packets>
  void forward_tile(const float* x, std::size_t position, const float* w, const float* b, float* y) const {
    const float* windows[Rows];
    for (std::size_t i = 0; i < Rows; ++i) windows[i] = x + position_offset(position + i);
    Tile<Packet, Rows, Packets> tile;
    tile.for_each([&](Packet& sum, std::size_t, std::size_t j) { sum = simd::ploadu<Packet>(b + j); });
    const std::size_t runs = num_runs(), length = run(), w_stride = filters;
    for (std::size_t r = 0; r < runs; ++r) {
      const std::size_t begin = run_offset(r), end = begin + length;
      for (std::size_t k = begin; k < end; ++k, w += w_stride)
        tile.add([&](std::size_t i) { return windows[i][k]; }, w);
    }
    const Packet zero = simd::pset1<Packet>(0.0f);
    tile.for_each([&](Packet& sum, std::size_t i, std::size_t j) {
      simd::pstoreu(y + i * filters + j, relu ? simd::pmax(sum, zero) : sum);  // a NaN stays one
    });
  }

  template <class Packet, std::size_t Rows, std::size_t Packets>
  void input_tile(const float* dy, const float* w, std::size_t position, float* dx) const {
    Tile<Packet, Rows, Packets> tile;
    tile.for_each([&](Packet& sum, std::size_t, std::size_t) { sum = simd::pset1<Packet>(0.0f); });
    const std::size_t depth = filters, w_stride = run();
    for (std::size_t k = 0; k < depth; ++k, w += w_stride)
      tile.add([&](std::size_t i) { return dy[i * depth + k]; }, w);
    // The windows of neighbours overlap: one after the other.
    std::size_t offsets[Rows];
    for (std::size_t i = 0; i < Rows; ++i) offsets[i] = position_offset(position + i);
    tile.for_each([&](Packet& sum, std::size_t i, std::size_t j) {
      float* const to = dx + offsets[i] + j;
      simd::pstoreu(to, simd::padd(simd::ploadu<Packet>(to), sum));
    });
  }

  template <class Packet, std::size_t Rows, std::size_t Packets>
  void weight_tile(const float* x, const float* dy, float* dw) const {
    Tile<Packet, Rows, Packets> tile;
    tile.for_each(
        [&](Packet& sum, std::size_t i, std::size_t j) { sum = simd::ploadu<Packet>(dw + i * filters + j); });
    const std::size_t step = planar ? stride : stride * channels, row = step * width, dy_stride = filters;
    for (std::size_t p = 0; p < out_height; ++p, x += row) {
      const float* at = x;
      for (std::size_t q = 0; q < out_width; ++q, at += step, dy += dy_stride)
        tile.add([&](std::size_t i) { return at[i]; }, dy);
    }
    tile.for_each(
        [&](Packet& sum, std::size_t i, std::size_t j) { simd::pstoreu(dw + i * filters + j, sum); });
  }
};

}  // namespace troop::nn::detail

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
