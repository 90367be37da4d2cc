/// @file
/// A Q-network whose values are a formula of the observation, for tests of actors and evaluators.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <troop/core/view.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::testing {

/// Q(s, a) = scale * (10 * s[0] + s[1] + 0.25 * ((s[1] + a) mod 3)), scale being its only parameter.
class TableNetwork {
 public:
  explicit TableNetwork(float scale = 1.0f) : parameters_{scale} {}

  static float value(std::span<const float> s, std::size_t action, float scale = 1.0f) {
    const auto turn = (static_cast<std::size_t>(s[1]) + action) % 3;
    return scale * (10.0f * s[0] + s[1] + 0.25f * static_cast<float>(turn));
  }

  static float largest(std::span<const float> s, float scale = 1.0f) {
    return std::max({value(s, 0, scale), value(s, 1, scale), value(s, 2, scale)});
  }

  const nn::Network& network() const { return network_; }

  void evaluate(nn::ObservationsView observations, MatrixView<float> q) {
    rows_evaluated += observations.rows();
    for (std::size_t i = 0; i < q.rows(); ++i) {
      for (std::size_t a = 0; a < q.columns(); ++a)
        q(i, a) = value(observations.as<float>().row_span(i), a, parameters_[0]);
    }
  }

  std::span<const float> parameters() const { return parameters_; }
  void set_parameters(std::span<const float> values) { parameters_.assign(values.begin(), values.end()); }

  std::size_t rows_evaluated = 0;

 private:
  nn::Network network_ = nn::mlp({});
  std::vector<float> parameters_;
};

}  // namespace troop::testing
