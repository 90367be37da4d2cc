/// @file
/// The Q-network on an NVIDIA GPU, in plain C++: no CUDA header is needed to use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/view.hpp>
#include <troop/cuda/frame_memory.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::cuda {

/// How matrix products and convolutions round their factors. Sums, parameters and optimizer are float32 in
/// every case.
enum class Precision {
  fp32,  ///< not at all: no tensor cores, several times slower
  tf32,  ///< to 10 bits of mantissa (Ampere and later; earlier GPUs compute as with fp32)
  bf16   ///< matrix products to 7 bits of mantissa, convolutions as with tf32
};

/// Which GPU, and how it computes.
struct DeviceOptions {
  std::size_t device = 0;  ///< number of the GPU, as `devices()` lists them
  Precision precision = Precision::tf32;
  /// The same bits from the same inputs on the same GPU, in every run: algorithms are not chosen by measuring
  /// them, and none that adds up in any order.
  bool deterministic = false;
};

/// What `devices()` says of a GPU.
struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  std::size_t memory = 0;    ///< bytes
};

namespace detail {

/// What a Network holds: written in backend.cu with CUDA, and absent without.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual void evaluate(const nn::ObservationsView& observations, MatrixView<float> q) = 0;
  virtual void begin_step(const nn::TransitionBatch& batch, std::span<const float> weights) = 0;
  virtual void begin_step(const FrameBatch& batch, std::span<const float> weights) = 0;
  virtual nn::TrainResult finish_step(std::span<float> priorities) = 0;
  virtual std::size_t pending_steps() const = 0;
  virtual void sync_target() = 0;
  virtual std::span<const float> parameters() = 0;
  virtual std::span<const std::uint16_t> half_parameters() = 0;
  virtual std::span<const float> target_parameters() = 0;
  virtual void set_parameters(std::span<const float> values) = 0;
  virtual void set_target_parameters(std::span<const float> values) = 0;
  virtual std::uint64_t optimizer_steps() const = 0;
  virtual std::uint64_t num_skipped_steps() const = 0;
  virtual std::span<const float> optimizer_state() = 0;
  virtual void set_optimizer_state(std::uint64_t steps, std::span<const float> state) = 0;
  virtual std::span<const float> gradient() = 0;
};

#if defined(TROOP_WITH_CUDA)
std::unique_ptr<Backend> make_backend(const nn::Network& network, std::uint64_t seed,
                                      const nn::TrainOptions& options, const DeviceOptions& device);
std::vector<DeviceInfo> list_devices();
void try_device(std::size_t device);
#else
inline constexpr const char* kWithoutCuda =
    "troop was built without CUDA; configure it with -DTROOP_CUDA=ON where the CUDA toolkit (12.4 or newer) "
    "and cuDNN 9 are installed, and link troop::cuda";
inline std::unique_ptr<Backend> make_backend(const nn::Network&, std::uint64_t, const nn::TrainOptions&,
                                             const DeviceOptions&) {
  throw Error(kWithoutCuda);
}
inline std::vector<DeviceInfo> list_devices() {
  throw Error(kWithoutCuda);
}
inline void try_device(std::size_t) {
  throw Error(kWithoutCuda);
}
#endif

}  // namespace detail

/// Whether this program can use a GPU if there is one.
inline constexpr bool is_built() noexcept {
#if defined(TROOP_WITH_CUDA)
  return true;
#else
  return false;
#endif
}

/// The GPUs of this machine. Throws Error, with the reason, when there is none or it cannot be used: no
/// driver, a driver older than the toolkit, troop built without CUDA.
inline std::vector<DeviceInfo> devices() {
  return detail::list_devices();
}

/// Throws Error, with the reason, unless a Network can compute on this GPU of `devices()`: it may be another
/// process's alone, or too old for the kernels of this program.
inline void require_usable(std::size_t device) {
  detail::try_device(device);
}

/// A Q-network on a GPU: an nn::QNetwork (see there for the contract) of every kind of layer.
///
/// A training step is one CUDA graph: assembly of the batch, three forward passes, loss, backward pass,
/// clipping, optimizer and priorities, with no allocation, no synchronisation and no word to the host inside.
/// The graph is made by the first step of a batch size, which takes up to seconds when algorithms are
/// measured; so are those of `evaluate`. `train_step` waits for its end; `begin_step` does not:
///
///     network.begin_step(first, first_weights);
///     network.begin_step(second, second_weights);          // copied while the first computes
///     TrainResult result = network.finish_step(priorities);  // of the first
///
/// Results differ from nn::EigenNetwork in the last digits, with Precision::tf32 and bf16 in the third. On
/// one GPU they are the same from run to run with DeviceOptions::deterministic.
///
/// Not thread-safe: one object a thread at a time, any thread. Movable, not copyable. Throws InvalidArgument
/// for sizes that do not fit, before anything changes, and Error with call, code, text and sizes when a call
/// of CUDA, cuBLAS or cuDNN fails; after that only destruction is sure to work.
class Network {
 public:
  /// Starts from `initial_parameters(network, seed)`. Throws as `devices()`, and when the GPU's memory is
  /// short.
  explicit Network(nn::Network network, std::uint64_t seed = 0, const nn::TrainOptions& options = {},
                   const DeviceOptions& device = {})
      : network_((network.require_bound(), std::move(network))),
        options_((options.validate(), options)),
        backend_(detail::make_backend(network_, seed, options, device)) {}

  const nn::Network& network() const noexcept { return network_; }
  const nn::TrainOptions& options() const noexcept { return options_; }

  /// Writes the online network's Q-values of `observations` into `q` [rows, actions]. Waits.
  void evaluate(const nn::ObservationsView& observations, MatrixView<float> q) {
    backend_->evaluate(observations, q);
  }

  /// One step of double Q-learning. Waits for its end.
  nn::TrainResult train_step(const nn::TransitionBatch& batch, std::span<const float> weights,
                             std::span<float> priorities) {
    return train(batch, weights, priorities);
  }

  /// The same for a sample of a DeviceFrameStorage on the same GPU. What a transition's priority is, of one
  /// that was overwritten after it was sampled, means nothing.
  nn::TrainResult train_step(const FrameBatch& batch, std::span<const float> weights,
                             std::span<float> priorities) {
    return train(batch, weights, priorities);
  }

  /// Hands a step to the GPU and returns as soon as the batch is copied. At most two steps may be begun and
  /// not finished, both with the same batch size and dtype.
  void begin_step(const nn::TransitionBatch& batch, std::span<const float> weights) {
    backend_->begin_step(batch, weights);
  }
  void begin_step(const FrameBatch& batch, std::span<const float> weights) {
    backend_->begin_step(batch, weights);
  }

  /// Waits for the oldest step begun and returns what it did. `priorities` is empty or of its batch's size.
  nn::TrainResult finish_step(std::span<float> priorities) { return backend_->finish_step(priorities); }

  /// Steps begun and not finished.
  std::size_t pending_steps() const { return backend_->pending_steps(); }

  /// The target network becomes a copy of the online one after all steps begun. Does not wait.
  void sync_target() { backend_->sync_target(); }

  /// These wait for all steps begun and copy from the GPU, unless nothing has changed. Valid until the next
  /// call.
  std::span<const float> parameters() const { return backend_->parameters(); }
  std::span<const float> target_parameters() const { return backend_->target_parameters(); }
  std::span<const float> optimizer_state() const { return backend_->optimizer_state(); }
  /// The parameters as troop::to_float16 makes them, for half the bytes on the way to actors.
  std::span<const std::uint16_t> half_parameters() const { return backend_->half_parameters(); }
  /// The gradient of the last step before clipping; empty before the first.
  std::span<const float> gradient() const { return backend_->gradient(); }

  void set_parameters(std::span<const float> values) { backend_->set_parameters(values); }
  void set_target_parameters(std::span<const float> values) { backend_->set_target_parameters(values); }
  void set_optimizer_state(std::uint64_t steps, std::span<const float> state) {
    backend_->set_optimizer_state(steps, state);
  }

  /// Steps applied and, not counted among these, steps skipped because loss or gradient was not finite.
  std::uint64_t optimizer_steps() const { return backend_->optimizer_steps(); }
  std::uint64_t num_skipped_steps() const { return backend_->num_skipped_steps(); }

 private:
  template <class Batch>
  nn::TrainResult train(const Batch& batch, std::span<const float> weights, std::span<float> priorities) {
    if (backend_->pending_steps() != 0) throw Error("train_step: finish_step must be called before");
    if (!priorities.empty() && priorities.size() != batch.size())
      throw InvalidArgument("priorities", std::to_string(priorities.size()), std::to_string(batch.size()));
    backend_->begin_step(batch, weights);
    return backend_->finish_step(priorities);
  }

  nn::Network network_;
  nn::TrainOptions options_;
  std::unique_ptr<detail::Backend> backend_;
};

static_assert(nn::require_q_network<Network>());

}  // namespace troop::cuda
