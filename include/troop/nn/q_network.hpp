/// @file
/// What a backend of Q-networks must offer: the QNetwork concept, and the options and results of training.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <troop/core/error.hpp>
#include <troop/core/view.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/optimizer.hpp>
#include <troop/nn/td_loss.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::nn {

/// Options of training, common to all backends.
struct TrainOptions {
  OptimizerOptions optimizer = {};
  Loss loss = Loss::huber;
  double huber_delta = 1.0;         ///< used by Loss::huber
  double max_gradient_norm = 40.0;  ///< global L2 norm above which the gradient is shortened; 0 for never
  std::size_t num_threads = 1;      ///< of a CPU backend; the results are the same for any number

  /// Throws InvalidArgument naming the first option that is not allowed.
  void validate() const {
    optimizer.validate();
    require(std::isfinite(huber_delta) && huber_delta > 0, "huber_delta", huber_delta, "a positive number");
    require(std::isfinite(max_gradient_norm) && max_gradient_norm >= 0, "max_gradient_norm",
            max_gradient_norm, "a positive number, or 0 for no clipping");
    require(num_threads >= 1 && num_threads <= 1024, "num_threads", num_threads, "an integer from 1 to 1024");
  }
};

/// What one training step did.
struct TrainResult {
  float loss = 0;           ///< mean of weight times loss over the batch
  float gradient_norm = 0;  ///< global L2 norm before clipping
  float mean_q = 0;         ///< mean of Q(s, a) over the batch, before the step
  bool applied = true;      ///< false when loss or norm was not finite: the parameters are as before
};

/// `network()` tells layers, observations and actions.
template <class T>
concept DescribesNetwork = requires(const T& backend) {
  { backend.network() } -> std::convertible_to<const Network&>;
};

/// `evaluate(observations, q)` writes the online network's Q-values, [rows, actions].
template <class T>
concept EvaluatesQ = requires(T& backend, ObservationsView observations, MatrixView<float> q) {
  { backend.evaluate(observations, q) } -> std::same_as<void>;
};

/// `parameters()` and `set_parameters(values)` read and set the online network as one flat span on the host.
template <class T>
concept HasParameters = requires(T& backend, std::span<const float> values) {
  { backend.parameters() } -> std::same_as<std::span<const float>>;
  { backend.set_parameters(values) } -> std::same_as<void>;
};

/// `sync_target()`, `target_parameters()` and `set_target_parameters(values)`.
template <class T>
concept HasTarget = requires(T& backend, std::span<const float> values) {
  { backend.sync_target() } -> std::same_as<void>;
  { backend.target_parameters() } -> std::same_as<std::span<const float>>;
  { backend.set_target_parameters(values) } -> std::same_as<void>;
};

/// `train_step(batch, weights, priorities)` takes one optimizer step.
template <class T>
concept Trains = requires(T& backend, const TransitionBatch& batch, std::span<const float> weights,
                          std::span<float> priorities) {
  { backend.train_step(batch, weights, priorities) } -> std::same_as<TrainResult>;
};

/// `optimizer_steps()`, `optimizer_state()` and `set_optimizer_state(steps, state)`, for checkpoints.
template <class T>
concept HasOptimizerState = requires(T& backend, std::span<const float> state, std::uint64_t steps) {
  { backend.optimizer_steps() } -> std::convertible_to<std::uint64_t>;
  { backend.optimizer_state() } -> std::same_as<std::span<const float>>;
  { backend.set_optimizer_state(steps, state) } -> std::same_as<void>;
};

/// The part that an actor needs.
template <class T>
concept InferenceNetwork = DescribesNetwork<T> && EvaluatesQ<T> && HasParameters<T>;

/// A Q-network that acts and learns: nn::EigenNetwork on the CPU, cuda::Network on a GPU.
///
/// The contract beyond the signatures:
/// - all spans are of host memory. A backend elsewhere copies; what `parameters()` and the like return is
///   valid until the next call of the same object;
/// - the parameters of seed s are `initial_parameters(network, s)`, in the order that Network documents;
/// - the target network comes into being, as a copy of the online one, with the first `train_step`,
///   `sync_target` or `set_target_parameters`; before that it is the online network. `set_parameters` never
///   changes a target that has come into being;
/// - `train_step`: y and the loss are those of `td_loss_reference`; `weights` holds a factor for each
///   transition, or is empty for 1; `priorities`, unless empty, receives |TD error| as computed before the
///   step. The gradient is clipped by its global norm, and Optimizer's formulas follow. When the loss or the
///   norm is not finite, nothing but the count of skipped steps changes, `applied` is false, and the
///   priorities must not be written back;
/// - sizes that do not fit and actions out of range are refused with InvalidArgument before anything changes;
/// - an object is used by one thread at a time.
template <class T>
concept QNetwork = InferenceNetwork<T> && HasTarget<T> && Trains<T> && HasOptimizerState<T>;

/// Says in a sentence which part of QNetwork a type lacks: `static_assert(require_q_network<Backend>());`.
template <class T>
constexpr bool require_q_network() {
  static_assert(DescribesNetwork<T>, "a Q-network needs: const troop::nn::Network& network() const");
  static_assert(EvaluatesQ<T>,
                "a Q-network needs: void evaluate(troop::nn::ObservationsView, troop::MatrixView<float> q)");
  static_assert(HasParameters<T>,
                "a Q-network needs: std::span<const float> parameters(), and void "
                "set_parameters(std::span<const float>)");
  static_assert(HasTarget<T>,
                "a Q-network needs: void sync_target(), std::span<const float> target_parameters(), and void "
                "set_target_parameters(std::span<const float>)");
  static_assert(Trains<T>,
                "a Q-network needs: troop::nn::TrainResult train_step(const troop::nn::TransitionBatch&, "
                "std::span<const float> weights, std::span<float> priorities)");
  static_assert(
      HasOptimizerState<T>,
      "a Q-network needs: std::uint64_t optimizer_steps(), std::span<const float> optimizer_state(), and "
      "void set_optimizer_state(std::uint64_t steps, std::span<const float> state)");
  return QNetwork<T>;
}

}  // namespace troop::nn
