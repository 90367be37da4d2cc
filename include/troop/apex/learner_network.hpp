/// @file
/// The Q-network that a run trains: on the CPU or on a GPU, as the options say.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include <troop/core/error.hpp>
#include <troop/core/view.hpp>
#include <troop/cuda/frame_memory.hpp>
#include <troop/cuda/network.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::apex {

/// An nn::QNetwork (see there for the contract) that is an nn::EigenNetwork, or with a `gpu` a cuda::Network:
/// a learner is compiled once for both. A call costs one more indirection.
class LearnerNetwork {
 public:
  LearnerNetwork(const nn::Network& network, std::uint64_t seed, const nn::TrainOptions& options,
                 const std::optional<cuda::DeviceOptions>& gpu)
      : backend_(gpu ? Backend(std::in_place_type<cuda::Network>, network, seed, options, *gpu)
                     : Backend(std::in_place_type<nn::EigenNetwork>, network, seed, options)) {}

  const nn::Network& network() const {
    return std::visit([](const auto& backend) -> const nn::Network& { return backend.network(); }, backend_);
  }
  void evaluate(const nn::ObservationsView& observations, MatrixView<float> q) {
    std::visit([&](auto& backend) { backend.evaluate(observations, q); }, backend_);
  }
  nn::TrainResult train_step(const nn::TransitionBatch& batch, std::span<const float> weights,
                             std::span<float> priorities) {
    return std::visit([&](auto& backend) { return backend.train_step(batch, weights, priorities); },
                      backend_);
  }
  /// Of a replay whose frames lie on the GPU that computes.
  nn::TrainResult train_step(const cuda::FrameBatch& batch, std::span<const float> weights,
                             std::span<float> priorities) {
    cuda::Network* const gpu = std::get_if<cuda::Network>(&backend_);
    if (gpu == nullptr) throw Error("frames that lie on a GPU cannot be learnt from by the CPU");
    return gpu->train_step(batch, weights, priorities);
  }
  void sync_target() {
    std::visit([](auto& backend) { backend.sync_target(); }, backend_);
  }
  std::span<const float> parameters() const {
    return std::visit([](const auto& backend) { return backend.parameters(); }, backend_);
  }
  std::span<const float> target_parameters() const {
    return std::visit([](const auto& backend) { return backend.target_parameters(); }, backend_);
  }
  std::span<const float> optimizer_state() {
    return std::visit([](auto& backend) { return backend.optimizer_state(); }, backend_);
  }
  std::uint64_t optimizer_steps() const {
    return std::visit([](const auto& backend) { return backend.optimizer_steps(); }, backend_);
  }
  void set_parameters(std::span<const float> values) {
    std::visit([&](auto& backend) { backend.set_parameters(values); }, backend_);
  }
  void set_target_parameters(std::span<const float> values) {
    std::visit([&](auto& backend) { backend.set_target_parameters(values); }, backend_);
  }
  void set_optimizer_state(std::uint64_t steps, std::span<const float> state) {
    std::visit([&](auto& backend) { backend.set_optimizer_state(steps, state); }, backend_);
  }
  /// See nn::EigenNetwork; false, and nothing will be called, on a GPU.
  bool before_next_change(std::function<void()> wait) {
    nn::EigenNetwork* const cpu = std::get_if<nn::EigenNetwork>(&backend_);
    return cpu != nullptr && cpu->before_next_change(std::move(wait));
  }

 private:
  using Backend = std::variant<nn::EigenNetwork, cuda::Network>;
  Backend backend_;
};

static_assert(nn::require_q_network<LearnerNetwork>());

}  // namespace troop::apex
