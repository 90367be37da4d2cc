/// @file
/// What stands behind the seam without a GPU: Eigen's products and plain convolutions, put on the emulated
/// streams.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include <Eigen/Core>

#include <troop/core/error.hpp>
#include <troop/cuda/library.cuh>
#include <troop/cuda/network.hpp>

namespace simt {

class EigenLibrary {
 public:
  EigenLibrary(const troop::cuda::DeviceOptions&, cudaStream_t) {}

  troop::cuda::Work plan(const troop::cuda::MatrixProduct& product, std::size_t) {
    if (product.relu && product.bias == nullptr) throw troop::Error("a product with ReLU needs a bias");
    return [product](cudaStream_t stream) { detail::enqueue(stream, [product] { multiply(product); }); };
  }

  troop::cuda::Work plan(const troop::cuda::Convolution& convolution, std::size_t) {
    return [convolution](cudaStream_t stream) {
      detail::enqueue(stream, [convolution] { convolve(convolution); });
    };
  }

 private:
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  template <class T>
  static auto map(T* data, std::size_t rows, std::size_t columns, std::size_t stride) {
    using Plain = std::conditional_t<std::is_const_v<T>, const Matrix, Matrix>;
    return Eigen::Map<Plain, Eigen::Unaligned, Eigen::OuterStride<>>(
        data, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns),
        Eigen::OuterStride<>(static_cast<Eigen::Index>(stride)));
  }

  static void multiply(const troop::cuda::MatrixProduct& p) {
    const auto a =
        p.transpose_a ? map(p.a, p.depth, p.rows, p.a_stride) : map(p.a, p.rows, p.depth, p.a_stride);
    const auto b =
        p.transpose_b ? map(p.b, p.columns, p.depth, p.b_stride) : map(p.b, p.depth, p.columns, p.b_stride);
    Matrix result;
    if (p.transpose_a) {
      result = p.transpose_b ? Matrix(a.transpose() * b.transpose()) : Matrix(a.transpose() * b);
    } else {
      result = p.transpose_b ? Matrix(a * b.transpose()) : Matrix(a * b);
    }
    auto c = map(p.c, p.rows, p.columns, p.c_stride);
    if (p.accumulate) result += c;
    if (p.bias != nullptr) result.rowwise() += map(p.bias, 1, p.columns, p.columns).row(0);
    if (p.relu) result = result.unaryExpr([](float x) { return x < 0.0f ? 0.0f : x; });  // a NaN stays one
    c = result;
  }

  static void convolve(const troop::cuda::Convolution& convolution) {
    using troop::cuda::ConvolutionKind;
    const auto& s = convolution.shape;
    const std::size_t depth = s.kernel * s.kernel * s.channels, outputs = s.out_height * s.out_width;
    const std::size_t image_size = s.height * s.width * s.channels;
    auto filters = map(convolution.filter, s.filters, depth, depth);
    Matrix gradient = Matrix::Zero(filters.rows(), filters.cols());
    for (std::size_t n = 0; n < s.batch; ++n) {
      float* const image = convolution.image + n * image_size;
      auto output = map(convolution.output + n * outputs * s.filters, outputs, s.filters, s.filters);
      Matrix patches(static_cast<Eigen::Index>(outputs), static_cast<Eigen::Index>(depth));
      const auto for_patches =
          [&](const auto& visit) {  // visit(element of the image, element of the patches)
            for (std::size_t y = 0; y < s.out_height; ++y)
              for (std::size_t x = 0; x < s.out_width; ++x)
                for (std::size_t ky = 0; ky < s.kernel; ++ky)
                  for (std::size_t i = 0; i < s.kernel * s.channels; ++i)
                    visit(image[((y * s.stride + ky) * s.width + x * s.stride) * s.channels + i],
                          patches.data()[(y * s.out_width + x) * depth + ky * s.kernel * s.channels + i]);
          };
      if (convolution.kind == ConvolutionKind::image_gradient) {
        patches = output * filters;
        std::fill(image, image + image_size, 0.0f);
        for_patches([](float& pixel, float& patch) { pixel += patch; });
        continue;
      }
      for_patches([](float& pixel, float& patch) { patch = pixel; });
      if (convolution.kind == ConvolutionKind::forward) {
        output = patches * filters.transpose();
      } else {
        gradient += output.transpose() * patches;
      }
    }
    if (convolution.kind == ConvolutionKind::filter_gradient) filters = gradient;
  }
};

static_assert(troop::cuda::Library<EigenLibrary>);

}  // namespace simt
