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
  const std::size_t convolutions = random.below(3);
  for (std::size_t i = 0; i < convolutions; ++i) {
    layers.push_back(Conv2d{1 + random.below(40), 1 + random.below(4), 1 + random.below(3)});
    if (random.below(3) > 0) layers.push_back(Relu{});
  }
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
  if (convolutions > 0) shape = {1 + random.below(5), 13 + random.below(20), 13 + random.below(20)};
  return network.bind(shape, 1 + random.below(20));
}

}  // namespace

TEST_CASE("the text form is canonical, bound and unbound") {
  CHECK(to_string(dueling_mlp({64, 64})) == "dense(64) relu dueling(64)");
  CHECK(to_string(dueling_mlp({64, 64}).bind({4}, 2)) == "input(4) dense(64) relu dueling(64,2)");
  CHECK(to_string(dueling_mlp({32}).bind({4}, 2)) == "input(4) dueling(32,2)");
  CHECK(to_string(mlp({64, 32})) == "dense(64) relu dense(32) relu output");
  CHECK(to_string(mlp({}).bind({4, 84, 84}, 18)) == "input(4,84,84) output(18)");
  CHECK(to_string(Network({Dense{8}, Dense{9}, Relu{}, Dueling{0}}).bind({3}, 5)) ==
        "input(3) dense(8) dense(9) relu dueling(0,5)");
  CHECK(to_string(nature_dueling()) == "conv(32,8,4) relu conv(64,4,2) relu conv(64,3,1) relu dueling(512)");
  CHECK(to_string(nature_dueling().bind({4, 84, 84}, 6)) ==
        "input(4,84,84) conv(32,8,4) relu conv(64,4,2) relu conv(64,3,1) relu dueling(512,6)");
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
                                 "conv(1,1) output",
                                 "conv(1,1,1,1) output",
                                 "conv(0,1,1) output",
                                 "conv(1,0,1) output",
                                 "conv(1,1,0) output",
                                 "conv(1048577,1,1) output",
                                 "conv(1,1048577,1) output",
                                 "conv(1,1,1048577) output",
                                 "conv(1,1,1)",
                                 "dense(4) conv(1,1,1) output",
                                 "input(9,9) conv(1,1,1) output(2)",
                                 "input(1,4,9) conv(1,5,1) output(2)",
                                 "input(1,9,4) conv(1,5,1) output(2)",
                                 "input(16,1024,1024) conv(17,1,1) output(2)",
                                 "input(1048576,4,4) conv(65,2,2) output(2)",
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
  CHECK(error_of([] {
          Network({Conv2d{32, 8, 0}, Output{}});
        }) == "layer 0 (conv(32,8,0)).stride: 0 is not allowed; expected an integer from 1 to 1048576");
  CHECK(has(error_of([] { Network({Conv2d{.kernel = 3}, Output{}}); }), "layer 0 (conv(0,3,1)).filters: 0"));
  CHECK(has(error_of([] { Network({Conv2d{.filters = 3}, Output{}}); }), "layer 0 (conv(3,0,1)).kernel: 0"));
  CHECK(
      error_of([] {
        Network({Dense{3}, Relu{}, Conv2d{4, 1}, Output{}});
      }) ==
      "layer 2 (conv(4,1,1)): after dense(3) is not allowed; expected convolutions before all dense layers");
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

TEST_CASE("bind refuses observations that a convolution cannot take") {
  CHECK(error_of([] {
          nature_dueling().bind({84, 84}, 2);
        }) ==
        "layer 0 (conv(32,8,4)).input: (84,84) is not allowed; expected three dimensions, (channels, height, "
        "width)");
  CHECK(has(error_of([] { nature_dueling().bind({1, 4, 84, 84}, 2); }), "input: (1,4,84,84)"));
  CHECK(
      error_of([] {
        nature_dueling().bind({84, 84, 4}, 2);
      }) ==
      "layer 0 (conv(32,8,4)).kernel: 8 is not allowed; expected at most the height and width of its input, "
      "(84,84,4)");
  CHECK(has(error_of([] { nature_dueling().bind({4, 20, 84}, 2); }), "layer 4 (conv(64,3,1)).kernel: 3"));
  CHECK(has(error_of([] {
              Network({Conv2d{17, 1}, Output{}}).bind({1, 1024, 1024}, 2);
            }),
            "layer 0 (conv(17,1,1)).filters: 17 is not allowed; expected at most 16777216 elements"));
  CHECK(has(error_of([] {
              Network({Conv2d{1 << 20, 4}, Output{}}).bind({64, 4, 4}, 2);
            }),
            "layer 0 (conv(1048576,4,1)): 1048576 x 1024 weights"));
  CHECK_NOTHROW(Network({Conv2d{16, 1}, Output{}}).bind({1, 1024, 1024}, 2));
  CHECK_NOTHROW(nature_dueling().bind({1, 36, 36}, 2));
}

TEST_CASE("a convolution's output has the size of valid positions only") {
  using Shape = std::vector<std::size_t>;
  CHECK(output_shape({32, 8, 4}, {4, 84, 84}) == Shape{32, 20, 20});
  CHECK(output_shape({64, 4, 2}, {32, 20, 20}) == Shape{64, 9, 9});
  CHECK(output_shape({64, 3, 1}, {64, 9, 9}) == Shape{64, 7, 7});
  CHECK(output_shape({5, 3, 7}, {1, 10, 9}) == Shape{5, 2, 1});  // stride larger than the kernel
  CHECK(output_shape({1, 6, 1}, {2, 6, 6}) == Shape{1, 1, 1});   // kernel as large as the input
  CHECK(output_shape({7, 1, 1}, {2, 3, 4}) == Shape{7, 3, 4});
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

TEST_CASE("parameters of convolutions lie as in PyTorch, the layer after takes their output as one row") {
  const Network network =
      Network({Conv2d{5, 3, 2}, Relu{}, Conv2d{.filters = 2, .kernel = 2}, Dense{4}, Output{}})
          .bind({3, 8, 9}, 2);
  using Block = ParameterBlock;
  const std::vector<Block> expected{
      {"0.conv.weight", {5, 3, 3, 3}, 0, 27, true},    {"0.conv.bias", {5}, 135, 27, true},
      {"2.conv.weight", {2, 5, 2, 2}, 140, 20, false}, {"2.conv.bias", {2}, 180, 20, false},
      {"3.dense.weight", {4, 12}, 182, 12, false},     {"3.dense.bias", {4}, 230, 12, false},
      {"4.output.weight", {2, 4}, 234, 4, false},      {"4.output.bias", {2}, 242, 4, false}};
  CHECK(network.parameter_blocks() == expected);
  CHECK(network.num_parameters() == 244);
  CHECK(nature_dueling().bind({4, 84, 84}, 18).num_parameters() ==
        32 * 257 + 64 * 513 + 64 * 577 + 1024 * 3137 + 513 + 18 * 513);
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
      if (!block.is_bias()) CHECK(block.size() == block.shape[0] * block.fan_in);
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
