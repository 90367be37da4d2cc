/// @file
/// The seam between the learner and the libraries that multiply: what it asks of them. Behind it stand
/// cuBLASLt and cuDNN (nvidia_library.cuh), or, where the tests run the kernels on the host, Eigen.
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>

namespace troop::cuda {

/// C = op(A) op(B), + C where `accumulate`, + bias to every row, then max(0, .) where `relu`. All row-major
/// float32; op(A) is [rows, depth], op(B) [depth, columns], C [rows, columns]; strides are in elements.
struct MatrixProduct {
  const float* a = nullptr;
  std::size_t a_stride = 0;
  bool transpose_a = false;
  const float* b = nullptr;
  std::size_t b_stride = 0;
  bool transpose_b = false;
  float* c = nullptr;
  std::size_t c_stride = 0;
  std::size_t rows = 0, columns = 0, depth = 0;
  const float* bias = nullptr;
  bool relu = false;  ///< only with a bias
  bool accumulate = false;

  std::string sizes() const {
    return "product of [" + std::to_string(rows) + ", " + std::to_string(depth) + "]" +
           (transpose_a ? "^T" : "") + " and [" + std::to_string(depth) + ", " + std::to_string(columns) +
           "]" + (transpose_b ? "^T" : "") + (bias == nullptr ? "" : (relu ? " + bias, ReLU" : " + bias")) +
           (accumulate ? ", added" : "");
  }
};

/// A batch of square convolutions without padding: images [batch, height, width, channels], filters [filters,
/// kernel, kernel, channels], outputs [batch, out_height, out_width, filters].
struct ConvolutionShape {
  std::size_t batch = 0, channels = 0, height = 0, width = 0;
  std::size_t filters = 0, kernel = 0, stride = 0, out_height = 0, out_width = 0;

  std::string sizes() const {
    return "convolution of [" + std::to_string(batch) + ", " + std::to_string(channels) + ", " +
           std::to_string(height) + ", " + std::to_string(width) + "] by " + std::to_string(filters) +
           " filters of " + std::to_string(kernel) + ", stride " + std::to_string(stride);
  }
};

enum class ConvolutionKind {
  forward,         ///< output = image * filter
  image_gradient,  ///< image = dloss/dimage from filter and output = dloss/doutput
  filter_gradient  ///< filter = dloss/dfilter from image and output = dloss/doutput
};

struct Convolution {
  ConvolutionKind kind = ConvolutionKind::forward;
  ConvolutionShape shape;
  float *image = nullptr, *filter = nullptr, *output = nullptr;
};

/// Something to put on a stream, inside a capture too, again and again: it neither allocates nor waits. Must
/// outlive the graphs that it was captured into.
using Work = std::function<void(cudaStream_t)>;

/// `plan` prepares work of one of two branches, 0 and 1, which may run at the same time. It is called outside
/// a capture, may try things out, and may overwrite what the work writes.
template <class T>
concept Library = requires(T& library, const MatrixProduct& product, const Convolution& convolution,
                           std::size_t branch) {
  { library.plan(product, branch) } -> std::same_as<Work>;
  { library.plan(convolution, branch) } -> std::same_as<Work>;
};

}  // namespace troop::cuda
