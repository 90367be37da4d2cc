#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/nn/network.hpp>

#include "testing.hpp"

using namespace troop::nn;
using troop::testing::error_of;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Network random_network(troop::Random& random) {
  std::vector<Layer> layers;
  for (std::size_t i = random.below(5); i > 0; --i) {
    layers.push_back(Dense{1 + random.below(300)});
    if (random.below(3) > 0) layers.push_back(Relu{});
  }
  if (random.below(2) == 0) {
    layers.push_back(Output{});
  } else {
    layers.push_back(Dueling{random.below(3) == 0 ? 0 : random.below(200)});
  }
  Network network(layers);
  if (random.below(3) == 0) return network;
  std::vector<std::size_t> shape(1 + random.below(3));
  for (auto& dimension : shape) dimension = 1 + random.below(20);
  return network.bind(shape, 1 + random.below(20));
}

}  // namespace

TEST_CASE("the text form is canonical, bound and unbound") {
  CHECK(to_string(dueling_mlp({64, 64})) == "dense(64) relu dueling(64)");
  CHECK(to_string(dueling_mlp({64, 64}).bind({4}, 2)) == "input(4) dense(64) relu dueling(64,2)");
  CHECK(to_string(dueling_mlp({32}).bind({4}, 2)) == "input(4) dueling(32,2)");
  CHECK(to_string(mlp({64, 32})) == "dense(64) relu dense(32) relu output");
  CHECK(to_string(mlp({}).bind({84, 84, 4}, 18)) == "input(84,84,4) output(18)");
  CHECK(to_string(Network({Dense{8}, Dense{9}, Relu{}, Dueling{0}}).bind({3}, 5)) ==
        "input(3) dense(8) dense(9) relu dueling(0,5)");
}

TEST_CASE("parse_network is the inverse of to_string") {
  troop::Random random(17, "networks");  // seed 17
  for (int i = 0; i < 500; ++i) {
    const Network network = random_network(random);
    const std::string text = to_string(network);
    CAPTURE(text);
    const Network parsed = parse_network(text);
    CHECK(parsed == network);
    CHECK(to_string(parsed) == text);
  }
}

TEST_CASE("a text that is malformed, absurd or not canonical is refused") {
  for (const std::string text : {"",
                                 " ",
                                 "dense(64)",
                                 "relu output",
                                 "output dense(4)",
                                 "dense(64) relu relu output",
                                 "dense(64)  output",
                                 " output",
                                 "output ",
                                 "dense(0) output",
                                 "dense(064) output",
                                 "dense(-1) output",
                                 "dense(+1) output",
                                 "dense(1.5) output",
                                 "dense() output",
                                 "dense output",
                                 "dense(4 output",
                                 "dense(4)) output",
                                 "dense4) output",
                                 "dense(4,4) output",
                                 "relu(1)",
                                 "conv(1) output",
                                 "output()",
                                 "output(2,2)",
                                 "output(2)",
                                 "dueling",
                                 "dueling(4,2)",
                                 "input(4)",
                                 "input() output(2)",
                                 "input(4) output",
                                 "input(4) dueling(3)",
                                 "output(2) input(4)",
                                 "input(4) input(4) output(2)",
                                 "input(0) output(2)",
                                 "input(4) output(0)",
                                 "input(4) dueling(4,0)",
                                 "Dense(64) output",
                                 "dense(64)\toutput",
                                 "dense(64) output\n",
                                 "dense(99999999999999999999999) output",
                                 "dense(18446744073709551615) output",
                                 "dense(1048577) output",
                                 "input(1,1,1,1,1,1,1,1,1) output(2)",
                                 "input(65536,65536) output(2)",
                                 "input(1048577) output(2)",
                                 "input(4) output(1048577)",
                                 "dueling(1048577)",
                                 "input(4,) output(2)",
                                 "input(,4) output(2)",
                                 "dense(64) relu dueling(64,)",
                                 "input(1048576) dense(1048576) output(2)"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_network(text), troop::InvalidArgument);
  }
  CHECK_THROWS_AS(parse_network(std::string("output\0", 7)), troop::InvalidArgument);
  CHECK_THROWS_AS(parse_network(std::string(5000, 'a')), troop::InvalidArgument);
  std::string long_text;
  for (int i = 0; i < 64; ++i) long_text += "dense(1) ";
  CHECK_THROWS_AS(parse_network(long_text + "output"), troop::InvalidArgument);
}

TEST_CASE("text with random changes is refused or parsed to what it says") {
  troop::Random random(18, "changes");  // seed 18
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = "input(4,3) dense(64) relu dueling(64,2)";
    for (std::size_t changes = 1 + random.below(3); changes > 0; --changes) {
      const std::size_t place = random.below(text.size());
      if (random.below(2) == 0) text.erase(place, 1);
      text.insert(text.begin() + static_cast<std::ptrdiff_t>(place),
                  "0123456789(), relu\xff"[random.below(19)]);
    }
    std::string parsed = text;
    try {
      parsed = to_string(parse_network(text));
      ++accepted;
    } catch (const troop::InvalidArgument&) {
    }
    CHECK(parsed == text);
  }
  CHECK(accepted > 0);
}

TEST_CASE("the constructor names the layer that is not allowed") {
  CHECK(has(error_of([] { Network({}); }), "layers: 0 is not allowed"));
  CHECK(has(error_of([] { Network({Dense{64}}); }), "layer 0 (dense(64))"));
  CHECK(has(error_of([] { Network({Output{}, Dense{3}, Output{}}); }), "layer 0 (output)"));
  CHECK(has(error_of([] { Network({Dense{3}, Relu{}, Relu{}, Output{}}); }), "layer 2 (relu)"));
  CHECK(has(error_of([] { Network({Relu{}, Output{}}); }), "layer 0 (relu)"));
  CHECK(has(error_of([] { Network({Dense{3}, Dense{0}, Output{}}); }), "layer 1 (dense(0)).units: 0"));
  CHECK(has(error_of([] { Network({Dueling{std::size_t{1} << 21}}); }), "layer 0 (dueling(2097152)).hidden"));
  CHECK(has(error_of([] { Network(std::vector<Layer>(65, Dense{1})); }), "from 1 to 64 layers"));
  CHECK(has(error_of([] { dueling_mlp({}); }), "widths"));
}

TEST_CASE("bind refuses shapes and actions that are empty or huge") {
  const Network network = mlp({64});
  CHECK_THROWS_AS(network.bind({}, 2), troop::InvalidArgument);
  CHECK_THROWS_AS(network.bind({4, 0}, 2), troop::InvalidArgument);
  CHECK_THROWS_AS(network.bind({4}, 0), troop::InvalidArgument);
  CHECK_THROWS_AS(network.bind({std::size_t(-1), std::size_t(-1)}, 2), troop::InvalidArgument);
  CHECK_THROWS_AS(network.bind({1 << 13, 1 << 13}, 2), troop::InvalidArgument);
  CHECK_THROWS_AS(network.bind({4}, std::size_t(-1)), troop::InvalidArgument);
  CHECK(has(error_of([] { mlp({1 << 20, 1 << 20}).bind({4}, 2); }), "layer 2 (dense(1048576))"));
}

TEST_CASE("an unbound network has no parameters to ask for") {
  const Network network = dueling_mlp({64, 64});
  CHECK_FALSE(network.is_bound());
  const std::string expected =
      "the network \"dense(64) relu dueling(64)\" is not bound to observations and actions; "
      "call bind(input_shape, num_actions) first";
  CHECK(error_of([&] { network.num_parameters(); }) == expected);
  CHECK(error_of([&] { network.parameter_blocks(); }) == expected);
  CHECK(error_of([&] { network.num_actions(); }) == expected);
  CHECK(error_of([&] { network.num_inputs(); }) == expected);
  CHECK(error_of([&] { network.input_shape(); }) == expected);
}

TEST_CASE("parameters lie in the documented order") {
  const Network network = Network({Dense{8}, Relu{}, Dense{5}, Dueling{6}}).bind({2, 2}, 3);
  CHECK(network.num_inputs() == 4);
  using Block = ParameterBlock;
  const std::vector<Block> expected{{"0.dense.weight", {8, 4}, 0, 4, true},
                                    {"0.dense.bias", {8}, 32, 4, true},
                                    {"2.dense.weight", {5, 8}, 40, 8, false},
                                    {"2.dense.bias", {5}, 80, 8, false},
                                    {"3.dueling.hidden.weight", {12, 5}, 85, 5, true},
                                    {"3.dueling.hidden.bias", {12}, 145, 5, true},
                                    {"3.dueling.value.weight", {1, 6}, 157, 6, false},
                                    {"3.dueling.value.bias", {1}, 163, 6, false},
                                    {"3.dueling.advantage.weight", {3, 6}, 164, 6, false},
                                    {"3.dueling.advantage.bias", {3}, 182, 6, false}};
  CHECK(network.parameter_blocks() == expected);
  CHECK(network.num_parameters() == 185);
  CHECK(dueling_mlp({64, 64}).bind({4}, 2).num_parameters() == 8835);
  CHECK(dueling_mlp({0}).bind({4}, 3).num_parameters() == 5 + 15);
}

TEST_CASE("parameter blocks follow each other without gaps") {
  troop::Random random(19, "networks");  // seed 19
  for (int i = 0; i < 200; ++i) {
    const Network network = random_network(random);
    if (!network.is_bound()) continue;
    std::size_t offset = 0;
    for (const ParameterBlock& block : network.parameter_blocks()) {
      CHECK(block.offset == offset);
      CHECK(block.is_bias() == (block.shape.size() == 1));
      if (!block.is_bias()) CHECK(block.shape[1] == block.fan_in);
      offset += block.size();
    }
    CHECK(offset == network.num_parameters());
  }
}

TEST_CASE("networks are equal when layers, observations and actions are") {
  const Network network = dueling_mlp({64, 64});
  CHECK(network == dueling_mlp({64, 64}));
  CHECK(network != dueling_mlp({64, 65}));
  CHECK(network != mlp({64, 64}));
  CHECK(network != network.bind({4}, 2));
  CHECK(network.bind({4}, 2) == network.bind({4}, 2));
  CHECK(network.bind({4}, 2) != network.bind({2, 2}, 2));
  CHECK(network.bind({4}, 2) != network.bind({4}, 3));
  CHECK(network.bind({4}, 3).bind({4}, 2) == network.bind({4}, 2));
}
