/// @file
/// The newest parameters of the learner's network, for the actors and evaluators of the same process.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include <troop/core/error.hpp>

namespace troop::agent {

/// Holds one version of a network's parameters. `publish` gives the next version, 1 being the first; `fetch`
/// copies the newest one out when it is newer than what the caller has.
///
/// Thread-safe. A fetch with nothing new costs one atomic load, else one copy under a lock. Memory: one copy
/// of the parameters.
///
///     store.publish(network.parameters());                                   // learner
///     if (store.fetch(version, parameters)) network.set_parameters(parameters);  // actor
class ParameterStore {
 public:
  /// Makes `parameters` the newest version and returns its number. The size must never change.
  std::uint64_t publish(std::span<const float> parameters) {
    const std::lock_guard lock(mutex_);
    require(parameters_.empty() || parameters.size() == parameters_.size(), "parameters", parameters.size(),
            "as many as in the first version");
    parameters_.assign(parameters.begin(), parameters.end());
    return version_.fetch_add(1, std::memory_order_release) + 1;
  }

  /// The number of the newest version; 0 before the first.
  std::uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }

  /// Copies the newest parameters and their version out when that is newer than `version`; false when it is
  /// not.
  bool fetch(std::uint64_t& version, std::vector<float>& parameters) const {
    if (this->version() <= version) return false;
    const std::lock_guard lock(mutex_);
    parameters = parameters_;
    version = this->version();
    return true;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<float> parameters_;
  std::atomic<std::uint64_t> version_{0};
};

/// Where an actor gets parameters from: the store of its process, or a client of one elsewhere.
template <class S>
concept ParameterSource = requires(S& source, std::uint64_t& version, std::vector<float>& parameters) {
  { source.fetch(version, parameters) } -> std::same_as<bool>;
};

/// Where a learner's parameters go: the store of its process, or a server for others.
template <class S>
concept ParameterSink = requires(S& sink, std::span<const float> parameters) {
  { sink.publish(parameters) } -> std::convertible_to<std::uint64_t>;
};

}  // namespace troop::agent
