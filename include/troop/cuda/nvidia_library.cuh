/// @file
/// What stands behind the seam on a GPU: cuBLASLt with bias and ReLU in its epilogue, and convolutions of
/// cuDNN's graph API. The only file, with backend.cu, that never runs without a GPU.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/cuda/kernel.cuh>
#include <troop/cuda/layers.cuh>
#include <troop/cuda/library.cuh>
#include <troop/cuda/network.hpp>
#include <troop/cuda/runtime.cuh>

namespace troop::cuda {

/// `check` for the two libraries.
inline void check(cublasStatus_t code, const char* call, const std::string& sizes = {}) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  detail::throw_call_error("cuBLASLt: " + std::string(call), static_cast<int>(code),
                           cublasLtGetStatusName(code), cublasLtGetStatusString(code), sizes);
}
inline void check(cudnnStatus_t code, const char* call, const std::string& sizes = {}) {
  if (code == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  detail::throw_call_error("cuDNN: " + std::string(call), static_cast<int>(code), cudnnGetErrorString(code),
                           text.data(), sizes);
}

namespace detail {

/// A descriptor of cuDNN's backend. Shared, because those that refer to others need them until they end.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type) {
    check(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
  }
  CudnnDescriptor(const CudnnDescriptor&) = delete;
  CudnnDescriptor& operator=(const CudnnDescriptor&) = delete;
  ~CudnnDescriptor() { cudnnBackendDestroyDescriptor(descriptor_); }

  cudnnBackendDescriptor_t get() const noexcept { return descriptor_; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const std::vector<T>& values) {
    check(
        cudnnBackendSetAttribute(descriptor_, name, type, static_cast<int64_t>(values.size()), values.data()),
        "cudnnBackendSetAttribute", "attribute " + std::to_string(static_cast<int>(name)));
  }
  void set(cudnnBackendAttributeName_t name, const std::shared_ptr<CudnnDescriptor>& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::vector{other->get()});
    needed_.push_back(other);
  }
  cudnnStatus_t finalize() { return cudnnBackendFinalize(descriptor_); }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  std::vector<std::shared_ptr<CudnnDescriptor>> needed_;
};

using SharedDescriptor = std::shared_ptr<CudnnDescriptor>;

/// Of a pointer, in bytes, up to 256.
inline std::uint32_t alignment_of(const void* pointer) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

/// A tensor of float32 whose dimensions are named in cuDNN's order (N, C, H, W) and lie with C innermost.
inline SharedDescriptor make_tensor(int64_t id, const float* data, std::size_t images, std::size_t channels,
                                    std::size_t height, std::size_t width) {
  const auto n = static_cast<int64_t>(images), c = static_cast<int64_t>(channels),
             h = static_cast<int64_t>(height), w = static_cast<int64_t>(width);
  auto made = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made->set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT});
  made->set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::vector<int64_t>{n, c, h, w});
  made->set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::vector<int64_t>{h * w * c, 1, w * c, c});
  made->set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::vector<int64_t>{id});
  made->set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::vector<int64_t>{alignment_of(data)});
  check(made->finalize(), "cudnnBackendFinalize",
        "tensor of " + std::to_string(n) + " x " + std::to_string(c) + " x " + std::to_string(h) + " x " +
            std::to_string(w));
  return made;
}

inline constexpr int64_t kImageId = 1, kFilterId = 2, kOutputId = 3;

/// The operation of a Convolution.
inline SharedDescriptor make_convolution(const Convolution& convolution) {
  const ConvolutionShape& s = convolution.shape;
  const auto stride = static_cast<int64_t>(s.stride);
  auto shape = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  shape->set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT});
  shape->set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
             std::vector{CUDNN_CROSS_CORRELATION});
  shape->set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::vector<int64_t>{2});
  shape->set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, std::vector<int64_t>{1, 1});
  shape->set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, std::vector<int64_t>{stride, stride});
  shape->set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, std::vector<int64_t>{0, 0});
  shape->set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, std::vector<int64_t>{0, 0});
  check(shape->finalize(), "cudnnBackendFinalize", s.sizes());

  struct Names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t conv, image, filter, output, alpha, beta;
  };
  const Names names = convolution.kind == ConvolutionKind::forward
                          ? Names{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA}
                      : convolution.kind == ConvolutionKind::image_gradient
                          ? Names{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA}
                          : Names{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
  auto operation = std::make_shared<CudnnDescriptor>(names.type);
  operation->set(names.conv, shape);
  operation->set(names.image,
                 make_tensor(kImageId, convolution.image, s.batch, s.channels, s.height, s.width));
  operation->set(names.filter,
                 make_tensor(kFilterId, convolution.filter, s.filters, s.channels, s.kernel, s.kernel));
  operation->set(names.output,
                 make_tensor(kOutputId, convolution.output, s.batch, s.filters, s.out_height, s.out_width));
  operation->set(names.alpha, CUDNN_TYPE_FLOAT, std::vector{1.0f});
  operation->set(names.beta, CUDNN_TYPE_FLOAT, std::vector{0.0f});
  check(operation->finalize(), "cudnnBackendFinalize", s.sizes());
  return operation;
}

/// What an engine says of how it computes.
inline std::vector<cudnnBackendNumericalNote_t> numerical_notes(const CudnnDescriptor& configuration) {
  CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.get();
  int64_t count = 0;
  check(cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &handle),
        "cudnnBackendGetAttribute", "engine");
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  check(cudnnBackendGetAttribute(handle, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes.data()),
        "cudnnBackendGetAttribute", "numerical notes");
  notes.resize(static_cast<std::size_t>(count));
  return notes;
}

}  // namespace detail

/// A Library of cuBLASLt and cuDNN 9. Algorithms are chosen when work is planned: the fastest of a few
/// measured ones, or with DeviceOptions::deterministic the first that the library proposes and that adds up
/// in a fixed order.
class NvidiaLibrary {
 public:
  NvidiaLibrary(const DeviceOptions& options, cudaStream_t stream)
      : options_(options), stream_(stream), before_(make_timer()), after_(make_timer()) {
    cublasLtHandle_t products = nullptr;
    check(cublasLtCreate(&products), "cublasLtCreate");
    products_ = decltype(products_)(products);
    for (Branch& branch : branches_) {
      cudnnHandle_t convolutions = nullptr;
      check(cudnnCreate(&convolutions), "cudnnCreate");
      branch.convolutions = decltype(branch.convolutions)(convolutions);
      branch.workspace = DeviceMemory<std::byte>(kWorkspaceBytes, "workspace of cuBLASLt and cuDNN", stream);
    }
  }

  Work plan(const MatrixProduct& product, std::size_t branch) {
    std::vector<Work> candidates = products_of(product, branch, product.bias != nullptr);
    if (!candidates.empty()) return fastest(candidates, product.sizes());
    // No algorithm with this epilogue: the bias takes a launch of its own.
    if (product.bias != nullptr) candidates = products_of(product, branch, false);
    Work plain = fastest(candidates, product.sizes());
    if (product.bias == nullptr) return plain;
    const auto kernel = product.relu ? add_bias<true> : add_bias<false>;
    return [=](cudaStream_t stream) {
      plain(stream);
      const auto blocks = static_cast<unsigned>((product.rows * product.columns + kThreads - 1) / kThreads);
      launch("add_bias", kernel, blocks, kThreads, stream, product.c, product.bias, product.rows,
             static_cast<unsigned>(product.columns));
    };
  }

  Work plan(const Convolution& convolution, std::size_t branch) {
    return fastest(convolutions_of(convolution, branch), convolution.shape.sizes());
  }

 private:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;  // of each branch
  static constexpr int kCandidates = 8;

  struct Branch {
    Owner<cudnnHandle_t, cudnnDestroy> convolutions;
    DeviceMemory<std::byte> workspace;
  };

  static Event make_timer() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    return Event(event);
  }

  /// All ways that cuBLASLt proposes, the best guess first. cuBLASLt counts columns first: what is a
  /// row-major C = A B here is C^T = B^T A^T there.
  std::vector<Work> products_of(const MatrixProduct& p, std::size_t branch, bool with_bias) {
    struct Plan {
      cublasLtMatmulDescOpaque_t product;
      cublasLtMatrixLayoutOpaque_t a, b, c;
      cublasLtMatmulAlgo_t algorithm;
    };
    Plan plan{};
    const auto set = [&](cublasLtMatmulDescAttributes_t name, const auto& value) {
      check(cublasLtMatmulDescSetAttribute(&plan.product, name, &value, sizeof value),
            "cublasLtMatmulDescSetAttribute", p.sizes());
    };
    check(cublasLtMatmulDescInit(&plan.product, compute_type(), CUDA_R_32F), "cublasLtMatmulDescInit",
          p.sizes());
    const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(p.transpose_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(p.transpose_a));
    if (with_bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    const auto layout = [&](cublasLtMatrixLayoutOpaque_t& made, std::size_t rows, std::size_t columns,
                            std::size_t stride) {
      check(cublasLtMatrixLayoutInit(&made, CUDA_R_32F, columns, rows, static_cast<int64_t>(stride)),
            "cublasLtMatrixLayoutInit", p.sizes());
    };
    layout(plan.a, p.transpose_b ? p.columns : p.depth, p.transpose_b ? p.depth : p.columns, p.b_stride);
    layout(plan.b, p.transpose_a ? p.depth : p.rows, p.transpose_a ? p.rows : p.depth, p.a_stride);
    layout(plan.c, p.rows, p.columns, p.c_stride);

    cublasLtMatmulPreferenceOpaque_t preference{};
    check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute", p.sizes());
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    if (options_.deterministic)
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
             std::uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK & ~CUBLASLT_REDUCTION_SCHEME_INPLACE});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, detail::alignment_of(p.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, detail::alignment_of(p.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, detail::alignment_of(p.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, detail::alignment_of(p.c));
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        products_.get(), &plan.product, &plan.a, &plan.b, &plan.c, &plan.c, &preference,
        options_.deterministic ? 1 : kCandidates, results.data(), &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic", p.sizes());

    std::vector<Work> works;
    for (int i = 0; i < count; ++i) {
      if (results[static_cast<std::size_t>(i)].state != CUBLAS_STATUS_SUCCESS) continue;
      plan.algorithm = results[static_cast<std::size_t>(i)].algo;
      works.push_back([plan = std::make_shared<Plan>(plan), p, handle = products_.get(),
                       workspace = branches_.at(branch).workspace.data()](cudaStream_t stream) {
        const float one = 1.0f, added = p.accumulate ? 1.0f : 0.0f;
        const cublasStatus_t code =
            cublasLtMatmul(handle, &plan->product, &one, p.b, &plan->a, p.a, &plan->b, &added, p.c, &plan->c,
                           p.c, &plan->c, &plan->algorithm, workspace, kWorkspaceBytes, stream);
        if (code != CUBLAS_STATUS_SUCCESS) check(code, "cublasLtMatmul", p.sizes());
      });
    }
    return works;
  }

  cublasComputeType_t compute_type() const noexcept {
    return options_.precision == Precision::fp32   ? CUBLAS_COMPUTE_32F
           : options_.precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                   : CUBLAS_COMPUTE_32F_FAST_16BF;
  }

  /// The ways that cuDNN proposes and that are allowed, the best guess first.
  std::vector<Work> convolutions_of(const Convolution& convolution, std::size_t branch) {
    cudnnHandle_t const handle = branches_.at(branch).convolutions.get();
    std::byte* const workspace = branches_.at(branch).workspace.data();
    const std::string sizes = convolution.shape.sizes();
    auto graph = std::make_shared<detail::CudnnDescriptor>(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph->set(CUDNN_ATTR_OPERATIONGRAPH_OPS, detail::make_convolution(convolution));
    graph->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, std::vector{handle});
    check(graph->finalize(), "cudnnBackendFinalize", sizes);

    auto pack = std::make_shared<detail::CudnnDescriptor>(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack->set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
              std::vector{detail::kImageId, detail::kFilterId, detail::kOutputId});
    pack->set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
              std::vector<void*>{convolution.image, convolution.filter, convolution.output});
    pack->set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, std::vector<void*>{workspace});
    check(pack->finalize(), "cudnnBackendFinalize", sizes);

    std::vector<Work> works;
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      for (const auto& configuration : configurations(graph, mode, sizes)) {
        if (works.size() >= static_cast<std::size_t>(options_.deterministic ? 1 : kCandidates)) return works;
        if (!is_allowed(*configuration)) continue;
        auto plan = std::make_shared<detail::CudnnDescriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, std::vector{handle});
        plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
        if (plan->finalize() != CUDNN_STATUS_SUCCESS) continue;  // proposed, but not for these sizes
        int64_t bytes = 0, one = 0;
        check(cudnnBackendGetAttribute(plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                       CUDNN_TYPE_INT64, 1, &one, &bytes),
              "cudnnBackendGetAttribute", sizes);
        if (static_cast<std::size_t>(bytes) > kWorkspaceBytes) continue;
        works.push_back([plan, pack, graph, handle, shape = convolution.shape](cudaStream_t stream) {
          check(cudnnSetStream(handle, stream), "cudnnSetStream");
          const cudnnStatus_t code = cudnnBackendExecute(handle, plan->get(), pack->get());
          if (code != CUDNN_STATUS_SUCCESS) check(code, "cudnnBackendExecute", shape.sizes());
        });
      }
    }
    return works;
  }

  static std::vector<detail::SharedDescriptor> configurations(const detail::SharedDescriptor& graph,
                                                              cudnnBackendHeurMode_t mode,
                                                              const std::string& sizes) {
    detail::CudnnDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, std::vector{mode});
    if (heuristic.finalize() != CUDNN_STATUS_SUCCESS) return {};
    std::vector<detail::SharedDescriptor> made;
    std::vector<cudnnBackendDescriptor_t> handles;
    for (int i = 0; i < 4 * kCandidates; ++i) {
      made.push_back(std::make_shared<detail::CudnnDescriptor>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
      handles.push_back(made.back()->get());
    }
    int64_t count = 0;
    check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(handles.size()),
                                   &count, handles.data()),
          "cudnnBackendGetAttribute", sizes);
    made.resize(static_cast<std::size_t>(std::min<int64_t>(count, 4 * kCandidates)));
    return made;
  }

  bool is_allowed(const detail::CudnnDescriptor& configuration) const {
    return std::ranges::none_of(detail::numerical_notes(configuration), [&](auto note) {
      if (note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return options_.deterministic;
      if (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE) return options_.precision == Precision::fp32;
      return note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    });
  }

  /// Measures the candidates where there are several. Each runs once before: that loads its code, which a
  /// capture could not wait for, and shows those that do not work after all.
  Work fastest(const std::vector<Work>& candidates, const std::string& sizes) {
    constexpr int kRuns = 5;
    const Work* best = nullptr;
    float least = std::numeric_limits<float>::infinity();
    std::string reason = "none is proposed";
    for (const Work& candidate : candidates) {
      try {
        candidate(stream_);
      } catch (const Error& error) {
        reason = error.what();
        continue;
      }
      check(cudaEventRecord(before_.get(), stream_), "cudaEventRecord");
      for (int run = 0; run < kRuns; ++run) candidate(stream_);
      check(cudaEventRecord(after_.get(), stream_), "cudaEventRecord");
      check(cudaEventSynchronize(after_.get()), "cudaEventSynchronize", sizes);
      float milliseconds = 0.0f;
      check(cudaEventElapsedTime(&milliseconds, before_.get(), after_.get()), "cudaEventElapsedTime");
      if (milliseconds < least) {
        least = milliseconds;
        best = &candidate;
      }
    }
    if (best == nullptr) throw Error("CUDA: no algorithm for the " + sizes + ": " + reason);
    return *best;
  }

  DeviceOptions options_;
  cudaStream_t stream_;
  Event before_, after_;
  Owner<cublasLtHandle_t, cublasLtDestroy> products_;
  std::array<Branch, 2> branches_;
};

static_assert(Library<NvidiaLibrary>);

}  // namespace troop::cuda
