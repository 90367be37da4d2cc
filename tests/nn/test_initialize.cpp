#include <doctest/doctest.h>

#include <cmath>
#include <span>
#include <vector>

#include <troop/nn/initialize.hpp>

using namespace troop::nn;

TEST_CASE("weights have the variance of their layer, biases are zero") {
  for (const Network& network :
       {Network({Dense{200}, Relu{}, Dense{150}, Dueling{100}}).bind({50}, 40),
        Network({Conv2d{32, 8, 4}, Relu{}, Conv2d{64, 4, 2}, Dueling{100}}).bind({4, 84, 84}, 40)}) {
    const std::vector<float> parameters = initial_parameters(network, 3);
    for (const ParameterBlock& block : network.parameter_blocks()) {
      const auto values = std::span(parameters).subspan(block.offset, block.size());
      double sum = 0, squares = 0;
      for (const float value : values) {
        sum += static_cast<double>(value);
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
      CAPTURE(block.name);
      if (block.is_bias()) {
        CHECK(squares == 0);
        continue;
      }
      const auto n = static_cast<double>(values.size());
      const double variance = (block.followed_by_relu ? 2.0 : 1.0) / static_cast<double>(block.fan_in);
      CHECK(std::abs(sum / n) < 5 * std::sqrt(variance / n));
      CHECK(std::abs(squares / n / variance - 1) < 5 * std::sqrt(2 / n));
    }
  }
}

TEST_CASE("parameters depend on the seed and on nothing else") {
  const Network network = dueling_mlp({16, 16}).bind({4}, 2);
  CHECK(initial_parameters(network, 7) == initial_parameters(network, 7));
  CHECK(initial_parameters(network, 7) != initial_parameters(network, 8));
  // The first numbers of the documented stream.
  troop::Random random(7, "parameters");
  const std::vector<float> parameters = initial_parameters(network, 7);
  for (std::size_t i = 0; i < 64; ++i)
    CHECK(parameters[i] == static_cast<float>(std::sqrt(2.0 / 4.0) * random.normal()));
}

TEST_CASE("a span of another size is refused") {
  const Network network = mlp({}).bind({4}, 2);
  std::vector<float> parameters(9);
  CHECK_THROWS_AS(initialize_parameters(network, 1, parameters), troop::InvalidArgument);
  CHECK_THROWS_AS(initial_parameters(mlp({}), 1), troop::Error);
}
