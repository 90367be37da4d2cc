// The real library, with a GPU and without one.
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <troop/core/error.hpp>
#include <troop/core/view.hpp>
#include <troop/cuda/network.hpp>
#include <troop/nn/network.hpp>

#include "testing.hpp"

TEST_CASE(
    "a network is made and evaluated where there is a GPU; elsewhere every way in gives the same reason") {
  REQUIRE(troop::cuda::is_built());
  const auto description = troop::nn::nature_dueling().bind({4, 84, 84}, 6);
  const std::string reason = troop::testing::error_of([] { troop::cuda::devices(); });
  std::vector<float> observations(description.num_inputs(), 0.5f), q(6);
  const std::string error = troop::testing::error_of([&] {
    troop::cuda::Network network(description, 1);
    network.evaluate(troop::MatrixView<const float>(observations.data(), 1, observations.size()),
                     troop::MatrixView<float>(q.data(), 1, q.size()));
  });
  CHECK(error == reason);
  if (reason != "no error") {
    MESSAGE(reason);
    CHECK(reason.starts_with("no GPU can be used: cudaError"));
    return;
  }
  CHECK(q != std::vector<float>(6));
  for (const float value : q) CHECK(std::isfinite(value));
}
