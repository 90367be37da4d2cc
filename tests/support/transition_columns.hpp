/// @file
/// Batches of random transitions in columns, for tests of Q-networks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/core/view.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::testing {

/// Observations are float32 (Element float) or uint8.
template <class Element = float>
struct TransitionColumns {
  TransitionColumns(const nn::Network& network, std::size_t size, Random& random)
      : inputs(network.num_inputs()) {
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < inputs; ++j) {
        observations.push_back(element(random));
        next_observations.push_back(element(random));
      }
      actions.push_back(static_cast<std::int32_t>(random.below(network.num_actions())));
      rewards.push_back(static_cast<float>(random.normal()));
      discounts.push_back(random.below(5) == 0 ? 0.0f : 0.97f);
      weights.push_back(static_cast<float>(random.uniform(0.1, 1.0)));
    }
  }

  nn::TransitionBatch batch() const {
    const std::size_t n = actions.size();
    return {MatrixView<const Element>(observations.data(), n, inputs),
            MatrixView<const std::int32_t>(actions.data(), n, 1),
            MatrixView<const float>(rewards.data(), n, 1), MatrixView<const float>(discounts.data(), n, 1),
            MatrixView<const Element>(next_observations.data(), n, inputs)};
  }

  std::size_t inputs;
  std::vector<Element> observations, next_observations;
  std::vector<float> rewards, discounts, weights;
  std::vector<std::int32_t> actions;

 private:
  static Element element(Random& random) {
    if constexpr (sizeof(Element) == 1) {
      return static_cast<Element>(random.below(256));
    } else {
      return static_cast<Element>(random.normal());
    }
  }
};

}  // namespace troop::testing
