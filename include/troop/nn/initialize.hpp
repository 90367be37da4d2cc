/// @file
/// The first parameters of a network, the same for every backend given the same seed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/nn/network.hpp>

namespace troop::nn {

/// Writes the parameters of `seed` into `parameters`, `network.num_parameters()` floats in the order that
/// Network documents.
///
/// Weights are normal with mean 0: variance 2 / fan_in in layers followed by ReLU (He et al. 2015,
/// 1502.01852, equation 10), 1 / fan_in in linear ones. Biases are 0. The numbers come from Random(seed,
/// "parameters"), block after block, and depend on nothing else but the last digit of the C library's `log1p`
/// and `cos`.
inline void initialize_parameters(const Network& network, std::uint64_t seed, std::span<float> parameters) {
  require(parameters.size() == network.num_parameters(), "parameters", parameters.size(),
          std::to_string(network.num_parameters()) + " floats");
  Random random(seed, "parameters");
  for (const ParameterBlock& block : network.parameter_blocks()) {
    const std::span<float> values = parameters.subspan(block.offset, block.size());
    const double deviation =
        block.is_bias() ? 0.0
                        : std::sqrt((block.followed_by_relu ? 2.0 : 1.0) / static_cast<double>(block.fan_in));
    for (float& value : values)
      value = block.is_bias() ? 0.0f : static_cast<float>(deviation * random.normal());
  }
}

/// `initialize_parameters` into a new vector.
inline std::vector<float> initial_parameters(const Network& network, std::uint64_t seed) {
  std::vector<float> parameters(network.num_parameters());
  initialize_parameters(network, seed, parameters);
  return parameters;
}

}  // namespace troop::nn
