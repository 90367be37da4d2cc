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
#include <cstdint>
#include <vector>

#include <troop/nn/detail/matrix_product.hpp>
#include <troop/nn/network.hpp>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"  // vector types as template arguments
#endif

namespace troop::nn::detail {

/// How an image lies in memory.
enum class ImageOrder { channels_first, channels_last };

/// A convolution of one image, then ReLU where `relu`. The input lies in `order`; the output is [positions,
/// filters], with its channels last.
///
/// A window is `num_runs()` runs of `run()` adjacent floats. Beside PyTorch's order [filters, channels,
/// kernel, kernel] the weights have two packed ones: `pack_forward`, [window, filters], and `pack_backward`,
/// [run, filters, run's floats], both as large.
class Convolution {
 public:
  /// `offset` is that of the weights in the flat span; the biases follow.
  Convolution(const Conv2d& conv, const std::vector<std::size_t>& input_shape, ImageOrder order, bool relu,
              std::size_t offset)
      : channels_(input_shape[0]),
        height_(input_shape[1]),
        width_(input_shape[2]),
        filters_(conv.filters),
        kernel_(conv.kernel),
        stride_(conv.stride),
        out_height_(output_shape(conv, input_shape)[1]),
        out_width_(output_shape(conv, input_shape)[2]),
        weight_(offset),
        order_(order),
        relu_(relu) {
    for (std::size_t r = 0; r < num_runs(); ++r)
      for (std::size_t place = 0; place < run(); ++place)
        window_offsets_.push_back(static_cast<std::uint32_t>(run_offset(r) + place));
    for (std::size_t row = 0; row < out_height_; ++row)
      for (std::size_t column = 0; column < out_width_; ++column)
        position_offsets_.push_back(static_cast<std::uint32_t>(row * row_step() + column * step()));
  }

  std::size_t num_inputs() const noexcept { return channels_ * height_ * width_; }
  std::size_t num_outputs() const noexcept { return positions() * filters_; }
  std::size_t positions() const noexcept { return position_offsets_.size(); }
  std::size_t filters() const noexcept { return filters_; }
  bool has_relu() const noexcept { return relu_; }
  /// Places in the flat span of weights and biases, and the end of the latter.
  std::size_t weight() const noexcept { return weight_; }
  std::size_t bias() const noexcept { return weight_ + window_offsets_.size() * filters_; }
  std::size_t end() const noexcept { return bias() + filters_; }

  /// From PyTorch's order.
  void pack_forward(const float* weights, float* packed) const {
    for_each_weight(
        [&](std::size_t torch, std::size_t forward, std::size_t) { packed[forward] = weights[torch]; });
  }
  void pack_backward(const float* weights, float* packed) const {
    for_each_weight(
        [&](std::size_t torch, std::size_t, std::size_t backward) { packed[backward] = weights[torch]; });
  }
  /// Back to PyTorch's order.
  void unpack_forward(const float* packed, float* weights) const {
    for_each_weight(
        [&](std::size_t torch, std::size_t forward, std::size_t) { weights[torch] = packed[forward]; });
  }

  /// y of the image `x`; `weights` from `pack_forward`.
  void forward(const float* x, const float* weights, const float* biases, float* y) const {
    for_each_strip(filters_, [&]<class Packet, std::size_t Packets>(std::size_t j) {
      for_each_tile<kEightRows<Packet, Packets>>(positions(), [&](auto rows, std::size_t p) {
        forward_tile<Packet, rows(), Packets>(x, p, weights + j, biases + j, y + p * filters_ + j);
      });
    });
  }

  /// Adds dloss/dx of one image to `dx`; `weights` from `pack_backward`. Only for inputs with channels last.
  void add_input_gradient(const float* dy, const float* weights, float* dx) const {
    for (std::size_t r = 0; r < num_runs(); ++r)
      for_each_strip(run(), [&]<class Packet, std::size_t Packets>(std::size_t j) {
        for_each_tile<kEightRows<Packet, Packets>>(positions(), [&](auto rows, std::size_t p) {
          input_tile<Packet, rows(), Packets>(dy + p * filters_, weights + r * filters_ * run() + j, p,
                                              dx + run_offset(r) + j);
        });
      });
  }

  /// Adds dloss/dW of one image to `dw` in the order of `pack_forward`, and dloss/db to `db`.
  void add_parameter_gradient(const float* x, const float* dy, float* dw, float* db) const {
    for_each_strip(filters_, [&]<class Packet, std::size_t Packets>(std::size_t j) {
      for_each_tile<kEightRows<Packet, Packets>>(window_offsets_.size(), [&](auto rows, std::size_t place) {
        weight_tile<Packet, rows(), Packets>(x, place, dy + j, dw + place * filters_ + j);
      });
    });
    for (std::size_t p = 0; p < positions(); ++p)
      for (std::size_t f = 0; f < filters_; ++f) db[f] += dy[p * filters_ + f];
  }

 private:
  bool is_channels_first() const noexcept { return order_ == ImageOrder::channels_first; }
  std::size_t run() const noexcept { return is_channels_first() ? kernel_ : kernel_ * channels_; }
  std::size_t num_runs() const noexcept { return is_channels_first() ? channels_ * kernel_ : kernel_; }
  // Where run `r` begins in a window.
  std::size_t run_offset(std::size_t r) const noexcept {
    return is_channels_first() ? (r / kernel_ * height_ + r % kernel_) * width_ : r * width_ * channels_;
  }
  // From a window to the next one in its row, and to the one below.
  std::size_t step() const noexcept { return is_channels_first() ? stride_ : stride_ * channels_; }
  std::size_t row_step() const noexcept { return step() * width_; }

  // f(place in PyTorch's order, in that of pack_forward, in that of pack_backward)
  template <class F>
  void for_each_weight(F f) const {
    for (std::size_t filter = 0; filter < filters_; ++filter)
      for (std::size_t channel = 0; channel < channels_; ++channel)
        for (std::size_t i = 0; i < kernel_; ++i)
          for (std::size_t j = 0; j < kernel_; ++j) {
            const std::size_t r = is_channels_first() ? channel * kernel_ + i : i;
            const std::size_t place = is_channels_first() ? j : j * channels_ + channel;
            f(((filter * channels_ + channel) * kernel_ + i) * kernel_ + j,
              (r * run() + place) * filters_ + filter, (r * filters_ + filter) * run() + place);
          }
  }

  template <class Packet, std::size_t Rows, std::size_t Packets>
  void forward_tile(const float* x, std::size_t position, const float* w, const float* b, float* y) const {
    const float* windows[Rows];
    for (std::size_t i = 0; i < Rows; ++i) windows[i] = x + position_offsets_[position + i];
    Tile<Packet, Rows, Packets> tile;
    tile.for_each([&](Packet& sum, std::size_t, std::size_t j) { sum = simd::ploadu<Packet>(b + j); });
    const std::size_t runs = num_runs(), length = run(), w_stride = filters_;
    for (std::size_t r = 0; r < runs; ++r) {
      const std::size_t begin = run_offset(r), end = begin + length;
      for (std::size_t k = begin; k < end; ++k, w += w_stride)
        tile.add([&](std::size_t i) { return windows[i][k]; }, w);
    }
    const Packet zero = simd::pset1<Packet>(0.0f);
    tile.for_each([&](Packet& sum, std::size_t i, std::size_t j) {
      simd::pstoreu(y + i * w_stride + j, relu_ ? simd::pmax(sum, zero) : sum);  // a NaN stays one
    });
  }

  template <class Packet, std::size_t Rows, std::size_t Packets>
  void input_tile(const float* dy, const float* w, std::size_t position, float* dx) const {
    Tile<Packet, Rows, Packets> tile;
    tile.for_each([&](Packet& sum, std::size_t, std::size_t) { sum = simd::pset1<Packet>(0.0f); });
    const std::size_t depth = filters_, w_stride = run();
    for (std::size_t k = 0; k < depth; ++k, w += w_stride)
      tile.add([&](std::size_t i) { return dy[i * depth + k]; }, w);
    // The windows of neighbours overlap: one after the other.
    std::size_t offsets[Rows];
    for (std::size_t i = 0; i < Rows; ++i) offsets[i] = position_offsets_[position + i];
    tile.for_each([&](Packet& sum, std::size_t i, std::size_t j) {
      float* const to = dx + offsets[i] + j;
      simd::pstoreu(to, simd::padd(simd::ploadu<Packet>(to), sum));
    });
  }

  template <class Packet, std::size_t Rows, std::size_t Packets>
  void weight_tile(const float* x, std::size_t place, const float* dy, float* dw) const {
    const float* places[Rows];
    for (std::size_t i = 0; i < Rows; ++i) places[i] = x + window_offsets_[place + i];
    const std::size_t dy_stride = filters_, across = step(), down = row_step();
    Tile<Packet, Rows, Packets> tile;
    tile.for_each([&](Packet& sum, std::size_t i, std::size_t j) {
      sum = simd::ploadu<Packet>(dw + i * dy_stride + j);
    });
    for (std::size_t row = 0; row < out_height_; ++row) {
      const std::size_t begin = row * down, end = begin + out_width_ * across;
      for (std::size_t k = begin; k < end; k += across, dy += dy_stride)
        tile.add([&](std::size_t i) { return places[i][k]; }, dy);
    }
    tile.for_each(
        [&](Packet& sum, std::size_t i, std::size_t j) { simd::pstoreu(dw + i * dy_stride + j, sum); });
  }

  std::size_t channels_, height_, width_;  // of the input
  std::size_t filters_, kernel_, stride_, out_height_, out_width_;
  std::size_t weight_;
  ImageOrder order_;
  bool relu_;
  std::vector<std::uint32_t> window_offsets_;    // of a window's floats, from its first
  std::vector<std::uint32_t> position_offsets_;  // of the windows in the image
};

}  // namespace troop::nn::detail

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
