/// @file
/// The description of a Q-network: which layers, for which observations and how many actions. No arithmetic
/// and no Eigen, so that every backend, file and message can share it.
#pragma once

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include <troop/core/error.hpp>

namespace troop::nn {

/// 2-D convolution with square kernels, without padding: an input of (channels, height, width) becomes
/// (filters, (height - kernel) / stride + 1, (width - kernel) / stride + 1), rounded down. As in PyTorch, the
/// kernel is not mirrored. Before all other kinds of layers but ReLU; observations are stacks of frames, (4,
/// 84, 84) for Atari.
struct Conv2d {
  std::size_t filters = 0;
  std::size_t kernel = 0;  ///< height and width
  std::size_t stride = 1;  ///< may be larger than the kernel
  friend bool operator==(const Conv2d&, const Conv2d&) = default;
};

/// Fully connected layer, y = W x + b. An input of more dimensions is taken as one row, last index fastest.
struct Dense {
  std::size_t units = 0;
  friend bool operator==(const Dense&, const Dense&) = default;
};

/// max(x, 0). Follows a layer that has parameters.
struct Relu {
  friend bool operator==(const Relu&, const Relu&) = default;
};

/// Dueling head (Wang et al. 2015, 1511.06581, equation 9): a value stream and an advantage stream, each
/// Dense(hidden), ReLU and a linear layer; Q = V + A - mean(A). With `hidden` 0 both are linear straight from
/// the body. The last layer of a network.
struct Dueling {
  std::size_t hidden = 0;
  friend bool operator==(const Dueling&, const Dueling&) = default;
};

/// Plain linear head with one output for each action. The last layer of a network.
struct Output {
  friend bool operator==(const Output&, const Output&) = default;
};

using Layer = std::variant<Dense, Relu, Dueling, Output, Conv2d>;

/// Shape of a convolution's output. `input_shape` has three dimensions, the last two no smaller than the
/// kernel, as those of every bound network have.
inline std::vector<std::size_t> output_shape(const Conv2d& conv,
                                             const std::vector<std::size_t>& input_shape) {
  assert(input_shape.size() == 3 && input_shape[1] >= conv.kernel && input_shape[2] >= conv.kernel);
  return {conv.filters, (input_shape[1] - conv.kernel) / conv.stride + 1,
          (input_shape[2] - conv.kernel) / conv.stride + 1};
}

/// One weight matrix or bias vector inside the flat parameter span.
struct ParameterBlock {
  std::string name;  ///< "0.dense.weight", "2.dueling.advantage.bias", ...
  /// [out, in] of a weight, [filters, channels, kernel, kernel] of a convolution's, [out] of a bias.
  std::vector<std::size_t> shape;
  std::size_t offset = 0;  ///< of its first element in the flat span
  std::size_t fan_in = 0;  ///< inputs of each output
  bool followed_by_relu = false;

  bool is_bias() const noexcept { return shape.size() == 1; }
  std::size_t size() const noexcept {
    std::size_t product = 1;
    for (const std::size_t dimension : shape) product *= dimension;
    return product;
  }
  friend bool operator==(const ParameterBlock&, const ParameterBlock&) = default;
};

/// Name of a layer in the text form: "conv(32,8,4)", "dense(64)", "relu", "dueling(64)", "output".
inline std::string to_string(const Layer& layer) {
  struct Visitor {
    std::string operator()(const Dense& dense) const { return "dense(" + std::to_string(dense.units) + ")"; }
    std::string operator()(const Relu&) const { return "relu"; }
    std::string operator()(const Dueling& dueling) const {
      return "dueling(" + std::to_string(dueling.hidden) + ")";
    }
    std::string operator()(const Output&) const { return "output"; }
    std::string operator()(const Conv2d& conv) const {
      return "conv(" + std::to_string(conv.filters) + "," + std::to_string(conv.kernel) + "," +
             std::to_string(conv.stride) + ")";
    }
  };
  return std::visit(Visitor{}, layer);
}

/// A list of layers, and once bound, the shape of the observations and the number of actions.
///
/// A user writes layers only; `bind` adds what the environment knows and gives every parameter its place. An
/// immutable value: copied, compared, sent as text (`to_string`, `parse_network`). Safe to read from many
/// threads.
///
/// The parameters of all backends are one flat span of float32, layer after layer:
/// - Conv2d: W [filters, channels, kernel, kernel] row-major, b [filters];
/// - Dense, Output: W [out, in] row-major, b [out];
/// - Dueling(hidden > 0): W [2 hidden, in] whose first `hidden` rows are the value stream, b [2 hidden],
///   value W [1, hidden], b [1], advantage W [actions, hidden], b [actions];
/// - Dueling(0): value W [1, in], b [1], advantage W [actions, in], b [actions].
///
///     Network network = dueling_mlp({64, 64}).bind({4}, 2);
///     network.num_parameters();        // 8835
///     to_string(network);              // "input(4) dense(64) relu dueling(64,2)"
class Network {
 public:
  static constexpr std::size_t kMaxLayers = 64;
  static constexpr std::size_t kMaxDimensions = 8;
  static constexpr std::size_t kMaxWidth = std::size_t{1} << 20;       ///< units, actions, one dimension
  static constexpr std::size_t kMaxInputs = std::size_t{1} << 24;      ///< elements of a layer's input
  static constexpr std::size_t kMaxParameters = std::size_t{1} << 28;  ///< 1 GiB of float32

  /// Throws InvalidArgument, naming the layer, unless the layers end with their only head (dueling or
  /// output), every ReLU follows a layer with parameters, convolutions come before all dense layers, and all
  /// sizes are within the limits above.
  explicit Network(std::vector<Layer> layers) : layers_(std::move(layers)) {
    require(!layers_.empty() && layers_.size() <= kMaxLayers, "layers", layers_.size(),
            "from 1 to " + std::to_string(kMaxLayers) + " layers");
    for (std::size_t i = 0; i < layers_.size(); ++i) check_layer(i);
  }

  /// The network for observations of `input_shape` and `num_actions` actions. Throws InvalidArgument for an
  /// empty, zero or huge shape, for one that a convolution cannot take, and for more parameters than
  /// kMaxParameters. A bound network can be bound again.
  Network bind(std::vector<std::size_t> input_shape, std::size_t num_actions) const {
    require(!input_shape.empty() && input_shape.size() <= kMaxDimensions, "input_shape", input_shape.size(),
            "from 1 to " + std::to_string(kMaxDimensions) + " dimensions");
    std::size_t inputs = 1;
    for (const std::size_t dimension : input_shape) {
      require(dimension >= 1 && dimension <= kMaxWidth, "input_shape", dimension,
              "dimensions from 1 to " + std::to_string(kMaxWidth));
      require(inputs <= kMaxInputs / dimension, "input_shape", dimension,
              "at most " + std::to_string(kMaxInputs) + " elements in all");
      inputs *= dimension;
    }
    require(num_actions >= 1 && num_actions <= kMaxWidth, "num_actions", num_actions,
            "an integer from 1 to " + std::to_string(kMaxWidth));
    Network bound(*this);
    bound.input_shape_ = std::move(input_shape);
    bound.num_inputs_ = inputs;
    bound.num_actions_ = num_actions;
    bound.place_parameters();
    return bound;
  }

  const std::vector<Layer>& layers() const noexcept { return layers_; }
  bool is_bound() const noexcept { return num_actions_ > 0; }

  /// Throws Error when the network is not bound; so do the functions below.
  void require_bound() const {
    if (!is_bound())
      throw Error("the network \"" + describe() +
                  "\" is not bound to observations and actions; call bind(input_shape, num_actions) first");
  }

  const std::vector<std::size_t>& input_shape() const {
    require_bound();
    return input_shape_;
  }
  /// Elements of an observation: the product of `input_shape()`.
  std::size_t num_inputs() const {
    require_bound();
    return num_inputs_;
  }
  std::size_t num_actions() const {
    require_bound();
    return num_actions_;
  }
  std::size_t num_parameters() const {
    require_bound();
    return num_parameters_;
  }
  /// All weights and biases in the order of the flat span.
  const std::vector<ParameterBlock>& parameter_blocks() const {
    require_bound();
    return blocks_;
  }

  /// Canonical text, bound or not; see `parse_network`.
  std::string describe() const {
    std::string text;
    for (std::size_t i = 0; i < input_shape_.size(); ++i) {
      text += i == 0 ? "input(" : ",";
      text += std::to_string(input_shape_[i]);
    }
    if (!text.empty()) text += ")";
    for (const Layer& layer : layers_) {
      if (!text.empty()) text += ' ';
      text += to_string(layer);
    }
    if (is_bound()) {  // the head is last
      if (text.back() == ')') {
        text.back() = ',';
      } else {
        text += "(";
      }
      text += std::to_string(num_actions_) + ")";
    }
    return text;
  }

  friend bool operator==(const Network&, const Network&) = default;

 private:
  static bool is_head(const Layer& layer) noexcept {
    return std::holds_alternative<Dueling>(layer) || std::holds_alternative<Output>(layer);
  }

  std::string layer_name(std::size_t i) const {
    return "layer " + std::to_string(i) + " (" + to_string(layers_[i]) + ")";
  }

  void check_layer(std::size_t i) const {
    const Layer& layer = layers_[i];
    const std::string name = layer_name(i);
    const bool last = i + 1 == layers_.size();
    if (last) require(is_head(layer), name, "the end of the network", "dueling or output as the last layer");
    if (!last)
      require(!is_head(layer), name, "a head before the end", "dueling or output only as the last layer");
    if (const auto* conv = std::get_if<Conv2d>(&layer)) {
      const auto check = [&](const char* field, std::size_t value) {
        require(value >= 1 && value <= kMaxWidth, name + field, value,
                "an integer from 1 to " + std::to_string(kMaxWidth));
      };
      check(".filters", conv->filters);
      check(".kernel", conv->kernel);
      check(".stride", conv->stride);
      const auto dense = std::find_if(layers_.begin(), layers_.begin() + static_cast<std::ptrdiff_t>(i),
                                      [](const Layer& l) { return std::holds_alternative<Dense>(l); });
      require(dense == layers_.begin() + static_cast<std::ptrdiff_t>(i), name, "after " + to_string(*dense),
              "convolutions before all dense layers");
    }
    if (const auto* dense = std::get_if<Dense>(&layer))
      require(dense->units >= 1 && dense->units <= kMaxWidth, name + ".units", dense->units,
              "an integer from 1 to " + std::to_string(kMaxWidth));
    if (const auto* dueling = std::get_if<Dueling>(&layer))
      require(dueling->hidden <= kMaxWidth, name + ".hidden", dueling->hidden,
              "an integer from 0 to " + std::to_string(kMaxWidth));
    if (std::holds_alternative<Relu>(layer))
      require(i > 0 && !std::holds_alternative<Relu>(layers_[i - 1]), name,
              i == 0 ? std::string("the first layer") : "after " + to_string(layers_[i - 1]),
              "a relu after a layer with parameters");
  }

  void place_parameters() {
    blocks_.clear();
    num_parameters_ = 0;
    std::size_t width = num_inputs_;
    std::vector<std::size_t> shape = input_shape_;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::string prefix = std::to_string(i) + ".";
      const bool relu = i + 1 < layers_.size() && std::holds_alternative<Relu>(layers_[i + 1]);
      if (const auto* conv = std::get_if<Conv2d>(&layers_[i])) {
        check_input(i, *conv, shape);
        const std::size_t channels = shape[0];
        place_linear(i, prefix + "conv", conv->filters, channels * conv->kernel * conv->kernel, relu);
        blocks_[blocks_.size() - 2].shape = {conv->filters, channels, conv->kernel, conv->kernel};
        shape = output_shape(*conv, shape);
        width = shape[0] * shape[1] * shape[2];
      } else if (const auto* dense = std::get_if<Dense>(&layers_[i])) {
        place_linear(i, prefix + "dense", dense->units, width, relu);
        width = dense->units;
      } else if (const auto* dueling = std::get_if<Dueling>(&layers_[i])) {
        if (dueling->hidden > 0) {
          place_linear(i, prefix + "dueling.hidden", 2 * dueling->hidden, width, true);
          width = dueling->hidden;
        }
        place_linear(i, prefix + "dueling.value", 1, width, false);
        place_linear(i, prefix + "dueling.advantage", num_actions_, width, false);
      } else if (std::holds_alternative<Output>(layers_[i])) {
        place_linear(i, prefix + "output", num_actions_, width, false);
      }
    }
  }

  // Throws unless `conv` can take an input of `shape` and its output is within the limits.
  void check_input(std::size_t layer, const Conv2d& conv, const std::vector<std::size_t>& shape) const {
    std::string given;
    for (const std::size_t dimension : shape) {
      given += given.empty() ? '(' : ',';
      given += std::to_string(dimension);
    }
    given += ')';
    require(shape.size() == 3, layer_name(layer) + ".input", given,
            "three dimensions, (channels, height, width)");
    require(shape[1] >= conv.kernel && shape[2] >= conv.kernel, layer_name(layer) + ".kernel", conv.kernel,
            "at most the height and width of its input, " + given);
    const std::vector<std::size_t> out = output_shape(conv, shape);
    require(out[0] <= kMaxInputs / (out[1] * out[2]), layer_name(layer) + ".filters", conv.filters,
            "at most " + std::to_string(kMaxInputs) + " elements in its output");
  }

  void place_linear(std::size_t layer, const std::string& name, std::size_t out, std::size_t in, bool relu) {
    const std::size_t left = kMaxParameters - num_parameters_;
    require(in < left && out <= left / (in + 1), layer_name(layer),
            std::to_string(out) + " x " + std::to_string(in) + " weights",
            "at most " + std::to_string(kMaxParameters) + " parameters in the network");
    blocks_.push_back({name + ".weight", {out, in}, num_parameters_, in, relu});
    num_parameters_ += out * in;
    blocks_.push_back({name + ".bias", {out}, num_parameters_, in, relu});
    num_parameters_ += out;
  }

  std::vector<Layer> layers_;
  std::vector<std::size_t> input_shape_;
  std::size_t num_inputs_ = 0, num_actions_ = 0, num_parameters_ = 0;
  std::vector<ParameterBlock> blocks_;
};

/// Canonical text of a network: "input(4) dense(64) relu dueling(64,2)", or when it is not bound, "dense(64)
/// relu dueling(64)". An observation of more dimensions is "input(4,84,84)", a plain head "output(2)".
inline std::string to_string(const Network& network) {
  return network.describe();
}

namespace detail {

/// Takes "name" or "name(1,2,3)" apart. Throws InvalidArgument for anything else.
class NetworkWord {
 public:
  explicit NetworkWord(std::string_view word) : word_(word) {
    const std::size_t open = word.find('(');
    name_ = word.substr(0, open);
    if (open == std::string_view::npos) return;
    if (word.back() != ')') fail();
    const char* at = word.data() + open + 1;
    const char* const end = word.data() + word.size() - 1;
    while (true) {
      std::size_t number = 0;
      const auto [next, error] = std::from_chars(at, end, number);
      if (error != std::errc{} || numbers_.size() == Network::kMaxDimensions) fail();
      numbers_.push_back(number);
      if (next == end) return;
      if (*next != ',') fail();
      at = next + 1;
    }
  }

  bool is(std::string_view name, std::size_t num_numbers) const noexcept {
    return name_ == name && numbers_.size() == num_numbers;
  }
  std::string_view name() const noexcept { return name_; }
  const std::vector<std::size_t>& numbers() const noexcept { return numbers_; }

  [[noreturn]] void fail() const {
    throw InvalidArgument(
        "network text", "\"" + std::string(word_.substr(0, 40)) + "\"",
        "input(N,...), conv(FILTERS,KERNEL,STRIDE), dense(N), relu, dueling(N[,ACTIONS]) or "
        "output[(ACTIONS)], each in its place");
  }

 private:
  std::string_view word_, name_;
  std::vector<std::size_t> numbers_;
};

}  // namespace detail

/// The network of a canonical text; the exact inverse of `to_string`: `to_string(parse_network(t)) == t` for
/// every accepted t. Throws InvalidArgument for everything else, for a text longer than 4096 characters, and
/// for sizes beyond the limits of Network. Allocates no more than a small multiple of the text, so it can be
/// given text from a file or from the wire.
inline Network parse_network(std::string_view text) {
  constexpr std::size_t kMaxText = 4096;
  require(!text.empty() && text.size() <= kMaxText, "network text",
          std::to_string(text.size()) + " characters",
          "from 1 to " + std::to_string(kMaxText) + " characters");
  std::vector<Layer> layers;
  std::vector<std::size_t> input_shape;
  std::size_t num_actions = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const detail::NetworkWord word(text.substr(begin, end - begin));
    const auto& numbers = word.numbers();
    if (begin == 0 && word.name() == "input" && !numbers.empty()) {
      input_shape = numbers;
    } else if (word.is("conv", 3)) {
      layers.push_back(Conv2d{numbers[0], numbers[1], numbers[2]});
    } else if (word.is("dense", 1)) {
      layers.push_back(Dense{numbers[0]});
    } else if (word.is("relu", 0)) {
      layers.push_back(Relu{});
    } else if (word.is("dueling", 1) || word.is("dueling", 2)) {
      layers.push_back(Dueling{numbers[0]});
      if (numbers.size() == 2) num_actions = numbers[1];
    } else if (word.is("output", 0) || word.is("output", 1)) {
      layers.push_back(Output{});
      if (numbers.size() == 1) num_actions = numbers[0];
    } else {
      word.fail();
    }
    begin = end + 1;
  }
  Network network(std::move(layers));
  if (!input_shape.empty()) network = network.bind(std::move(input_shape), num_actions);
  require(to_string(network) == text, "network text", "\"" + std::string(text.substr(0, 80)) + "\"",
          "the canonical form, \"" + to_string(network).substr(0, 80) + "\"");
  return network;
}

/// Body of Dense + ReLU for all but the last width; the last is the hidden width of the dueling heads:
/// `dueling_mlp({64, 64})` is "dense(64) relu dueling(64)". Throws InvalidArgument for no width.
inline Network dueling_mlp(const std::vector<std::size_t>& widths) {
  require(!widths.empty(), "widths", 0, "at least one width");
  std::vector<Layer> layers;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    layers.push_back(Dense{widths[i]});
    layers.push_back(Relu{});
  }
  layers.push_back(Dueling{widths.back()});
  return Network(std::move(layers));
}

/// The network of Wang et al. 2015 (1511.06581) for stacks of four 84 x 84 frames, whose body is that of Mnih
/// et al. 2015: "conv(32,8,4) relu conv(64,4,2) relu conv(64,3,1) relu dueling(512)".
inline Network nature_dueling() {
  return Network(
      {Conv2d{32, 8, 4}, Relu{}, Conv2d{64, 4, 2}, Relu{}, Conv2d{64, 3, 1}, Relu{}, Dueling{512}});
}

/// Dense + ReLU for every width, then a plain linear head: `mlp({64, 64})` is "dense(64) relu dense(64) relu
/// output".
inline Network mlp(const std::vector<std::size_t>& widths) {
  std::vector<Layer> layers;
  for (const std::size_t width : widths) {
    layers.push_back(Dense{width});
    layers.push_back(Relu{});
  }
  layers.push_back(Output{});
  return Network(std::move(layers));
}

}  // namespace troop::nn
