/// @file
/// The Q-network on the CPU: forward, backward and optimizer step with Eigen, in float32.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/thread_pool.hpp>
#include <troop/core/view.hpp>
#include <troop/nn/detail/change_gate.hpp>
#include <troop/nn/detail/convolution.hpp>
#include <troop/nn/detail/matrix_product.hpp>
#include <troop/nn/initialize.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/optimizer.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/nn/td_loss.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::nn {

namespace detail {

/// Turns dloss/dy of y = ReLU(z) into dloss/dz, in place.
inline void relu_backward(const float* y, float* gradient, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) gradient[i] = y[i] > 0.0f ? gradient[i] : 0.0f;
}

/// y = x W^T + b, then ReLU where `relu`; the places of W and b in the flat span.
struct Linear {
  std::size_t in = 0, out = 0, weight = 0, bias = 0;
  bool relu = false;

  In weights(const float* parameters) const noexcept { return {parameters + weight, out, in, in}; }

  // A layer of few outputs takes dot products; the others read W^T in strips, which lies where W does.
  bool is_narrow() const noexcept { return out < 4; }

  void pack(const float* parameters, float* packed) const {
    if (!is_narrow()) pack_strips(weights(parameters), packed + weight);
  }

  void forward(const float* parameters, const float* packed, In x, Out y) const {
    const float* const b = parameters + bias;
    if (is_narrow()) {
      multiply_by_dots(x, weights(parameters), b, y);
    } else {
      multiply(plain(x), {packed + weight, in}, {b, 0}, y);
    }
    if (!relu) return;
    for (std::size_t i = 0; i < y.rows; ++i) {
      float* const row = y.row(i);
      for (std::size_t j = 0; j < out; ++j) row[j] = row[j] < 0.0f ? 0.0f : row[j];  // a NaN stays one
    }
  }

  // Turns dloss/dy into the derivative before the ReLU, in place.
  void relu_backward(In y, Out dy) const {
    if (!relu) return;
    for (std::size_t i = 0; i < y.rows; ++i) detail::relu_backward(y.row(i), dy.row(i), out);
  }

  // Overwrites this layer's part of the flat gradient.
  void parameter_gradient(In x, In dy, float* gradient) const {
    multiply(transposed(dy), x, {}, {gradient + weight, out, in, in});
    float* const db = gradient + bias;
    std::fill(db, db + out, 0.0f);
    for (std::size_t i = 0; i < dy.rows; ++i) {
      const float* const row = dy.row(i);
      for (std::size_t j = 0; j < out; ++j) db[j] += row[j];
    }
  }

  // dx = addend + dloss/dx.
  void input_gradient(const float* parameters, In dy, Addend addend, Out dx) const {
    multiply(plain(dy), weights(parameters), addend, dx);
  }
};

}  // namespace detail

/// A Q-network on the CPU: a QNetwork (see there for the contract) of all kinds of layers.
///
/// An object made for acting holds its parameters twice (as they are, and the weights transposed) and one
/// workspace; target network, optimizer and gradients come into being with the first call that needs them:
/// then parameters times 6, plus one gradient for each slice of a batch. Batch sizes seen before allocate
/// nothing.
///
/// The result is bit for bit the same for any number of threads: a batch is cut into at most 8 slices of at
/// least 64 transitions by its size alone, and their gradients are added in order. So more than 8 threads do
/// not help, nor do two with less than 128 transitions. It differs in the last digits between compilers,
/// instruction sets and Eigen versions. Build with the machine's vector instructions (-O3 -march=native):
/// they make a factor of four.
///
/// Not thread-safe: one object a thread. Movable, not copyable; `set_parameters(other.parameters())` copies.
/// After construction it throws InvalidArgument for sizes that do not fit, and Error when memory runs out.
///
///     EigenNetwork network(dueling_mlp({64, 64}).bind({4}, 2), seed, {.num_threads = 2});
///     network.evaluate(observations, q);                                      // q [rows, 2]
///     TrainResult result = network.train_step(batch, weights, priorities);
class EigenNetwork {
 public:
  /// Starts from `initial_parameters(network, seed)`. Throws Error for a network that is not bound and
  /// InvalidArgument for options that are not allowed.
  explicit EigenNetwork(Network network, std::uint64_t seed = 0, const TrainOptions& options = {})
      : network_((network.require_bound(), std::move(network))),
        options_((options.validate(), options)),
        online_(initial_parameters(network_, seed)),
        pool_(std::make_unique<ThreadPool>(options.num_threads)),
        workspaces_(options.num_threads) {
    plan();
  }

  EigenNetwork(EigenNetwork&&) = default;
  EigenNetwork& operator=(EigenNetwork&&) = default;
  ~EigenNetwork() { gate_.pass(); }

  const Network& network() const noexcept { return network_; }
  const TrainOptions& options() const noexcept { return options_; }

  /// Writes the online network's Q-values of `observations` into `q` [rows, actions].
  void evaluate(const ObservationsView& observations, MatrixView<float> q) {
    check("observation elements", observations.columns(), network_.num_inputs());
    check("q rows", q.rows(), observations.rows());
    check("q columns", q.columns(), network_.num_actions());
    const Slices slices(observations.rows(), min_evaluation_rows());
    reserve(slices.rows);
    pack(online_);
    pool_->parallel_for(slices.count, [&](std::size_t slice, std::size_t worker) {
      const std::size_t first = slices.first(slice), count = slices.size(slice);
      forward(online_, observations.rows(first, count), workspaces_[worker],
              {q.row(first), count, q.columns(), q.stride() / sizeof(float)});
    });
  }

  /// One step of double Q-learning. Cost: three forward passes, one backward pass, one pass over the
  /// parameters.
  TrainResult train_step(const TransitionBatch& batch, std::span<const float> weights,
                         std::span<float> priorities) {
    check_batch(batch, weights, priorities);
    Training& training = this->training();
    const Slices slices(batch.size(), min_training_rows());
    reserve(slices.rows);
    training.reserve(slices.count);
    pack(online_);
    pack(training.target);
    pack_backward(training);

    pool_->parallel_for(slices.count, [&](std::size_t slice, std::size_t worker) {
      train_slice(batch, weights, priorities, slices, slice, workspaces_[worker], training);
    });

    TrainResult result;
    double loss = 0.0, sum_q = 0.0;
    for (std::size_t slice = 0; slice < slices.count; ++slice) {
      loss += training.sums[slice].loss;
      sum_q += training.sums[slice].q;
    }
    result.loss = static_cast<float>(loss / static_cast<double>(batch.size()));
    result.mean_q = static_cast<float>(sum_q / static_cast<double>(batch.size()));

    const double norm = reduce_gradients(training, slices.count);
    result.gradient_norm = static_cast<float>(norm);
    result.applied = std::isfinite(result.loss) && std::isfinite(result.gradient_norm);
    if (!result.applied) {
      ++num_skipped_;
      return result;
    }
    const auto factor = static_cast<float>(clip_factor(norm, options_.max_gradient_norm));
    gate_.pass();
    training.optimizer.begin_step();
    for_each_chunk([&](std::size_t, std::size_t first, std::size_t count) {
      training.optimizer.update(online_.values, training.gradient(0), factor, first, count);
    });
    online_.is_packed = false;
    return result;
  }

  /// The target network becomes a copy of the online one.
  void sync_target() { set_target_parameters(online_.values); }

  std::span<const float> parameters() const noexcept { return online_.values; }
  std::span<const float> target_parameters() const noexcept {
    return training_ ? std::span<const float>(training_->target.values) : parameters();
  }
  void set_parameters(std::span<const float> values) {
    check("parameters", values.size(), online_.values.size());
    gate_.pass();
    online_.assign(values);
  }
  void set_target_parameters(std::span<const float> values) {
    check("target parameters", values.size(), online_.values.size());
    gate_.pass();
    training().target.assign(values);
  }

  /// Steps applied and, not counted among these, steps skipped because loss or gradient was not finite.
  std::uint64_t optimizer_steps() const noexcept { return training_ ? training_->optimizer.steps() : 0; }
  std::uint64_t num_skipped_steps() const noexcept { return num_skipped_; }

  /// Optimizer's state (see there), for checkpoints.
  std::span<const float> optimizer_state() { return training().optimizer.state(); }
  void set_optimizer_state(std::uint64_t steps, std::span<const float> state) {
    gate_.pass();
    training().optimizer.set_state(steps, state);
  }

  /// Calls `wait` once, before `parameters()`, `target_parameters()` or `optimizer_state()` change for the next time, or
  /// the network ends: until it returns another thread may read what these gave. True: it will be called.
  bool before_next_change(std::function<void()> wait) {
    gate_.close(std::move(wait));
    return true;
  }

  /// The gradient of the last `train_step` before clipping, in the order of the parameters; empty before the
  /// first.
  std::span<const float> gradient() const noexcept {
    return training_ && training_->num_slices > 0 ? training_->gradient(0) : std::span<float>();
  }

 private:
  using In = detail::In;
  using Out = detail::Out;

  static constexpr std::size_t kMaxSlices = 8;
  static constexpr std::size_t kChunk = 16384;  // parameters that one task reduces or updates

  // A batch cut into parts, by its size alone.
  struct Slices {
    Slices(std::size_t batch, std::size_t min_rows)
        : total(batch),
          rows(std::min(batch, std::max(min_rows, (batch + kMaxSlices - 1) / kMaxSlices))),
          count(batch == 0 ? 0 : (batch + rows - 1) / rows) {}
    std::size_t first(std::size_t slice) const noexcept { return slice * rows; }
    std::size_t size(std::size_t slice) const noexcept { return std::min(rows, total - first(slice)); }
    std::size_t total, rows, count;
  };

  // Buffers of one worker for one slice: the activations of every layer, and two gradients of activations. Of
  // what only convolutions need, the last line is for one image at a time, but `kernels`: the gradient of
  // their parameters, packed.
  struct Workspace {
    Block block;
    std::size_t rows = 0;
    float* input = nullptr;
    std::array<float*, Network::kMaxLayers> activations{};
    float *value = nullptr, *advantage = nullptr;
    float *q = nullptr, *next_online = nullptr, *next_target = nullptr;
    std::array<float*, 2> deltas{};
    std::array<float*, Network::kMaxLayers> maps{};
    float *image = nullptr, *kernels = nullptr;
    std::array<float*, 2> map_deltas{};
  };

  struct Sums {
    double loss = 0.0, q = 0.0;
  };

  // The parameters of one network, and once it is used, its weights as `forward` reads them.
  struct Weights {
    explicit Weights(std::vector<float> parameters) : values(std::move(parameters)) {}
    void assign(std::span<const float> parameters) {
      std::copy(parameters.begin(), parameters.end(), values.begin());
      is_packed = false;
    }
    std::vector<float> values, packed;
    bool is_packed = false;
  };

  // What only a learner needs.
  struct Training {
    Training(const OptimizerOptions& options, const std::vector<float>& parameters)
        : target(parameters),
          optimizer(options, parameters.size()),
          squares((parameters.size() + kChunk - 1) / kChunk) {}

    void reserve(std::size_t slices) {
      if (slices <= num_slices) return;
      num_slices = 0;
      gradients = Block(checked_bytes("num_parameters", slices * optimizer.size(), sizeof(float)));
      num_slices = slices;
    }
    std::span<float> gradient(std::size_t slice) const noexcept {
      return gradients.as<float>().subspan(slice * optimizer.size(), optimizer.size());
    }

    Weights target;
    std::vector<float> backward;  // the online network's convolutions as their input gradients read them
    Optimizer optimizer;
    std::vector<double> squares;  // of the gradient, for each chunk
    Block gradients;              // one for each slice
    std::size_t num_slices = 0;
    std::array<Sums, kMaxSlices> sums{};
  };

  static void check(const char* what, std::size_t value, std::size_t expected) {
    if (value != expected) throw InvalidArgument(what, std::to_string(value), std::to_string(expected));
  }

  void check_batch(const TransitionBatch& batch, std::span<const float> weights,
                   std::span<float> priorities) const {
    if (batch.size() == 0) throw InvalidArgument("batch size", "0", "at least one transition");
    check("observation elements", batch.observations().columns(), network_.num_inputs());
    if (!weights.empty()) check("weights", weights.size(), batch.size());
    if (!priorities.empty()) check("priorities", priorities.size(), batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::int32_t action = batch.action(i);
      if (action < 0 || static_cast<std::size_t>(action) >= network_.num_actions())
        throw InvalidArgument("action of transition " + std::to_string(i), std::to_string(action),
                              "from 0 to " + std::to_string(network_.num_actions() - 1));
    }
  }

  // Lists the convolutions, then the linear layers in order: body, hidden layer of the head, value and
  // advantage (or output).
  void plan() {
    std::size_t width = network_.num_inputs(), offset = 0;
    std::vector<std::size_t> shape = network_.input_shape();
    const auto linear = [&](std::size_t out, bool relu) {
      const detail::Linear layer{width, out, offset, offset + out * width, relu};
      offset += out * (width + 1);
      return layer;
    };
    const auto& layers = network_.layers();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (const auto* dense = std::get_if<Dense>(&layers[i])) {
        body_.push_back(linear(dense->units, std::holds_alternative<Relu>(layers[i + 1])));
        width = dense->units;
      } else if (const auto* conv = std::get_if<Conv2d>(&layers[i])) {
        const auto order =
            convolutions_.empty() ? detail::ImageOrder::channels_first : detail::ImageOrder::channels_last;
        convolutions_.emplace_back(*conv, shape, order, std::holds_alternative<Relu>(layers[i + 1]), offset);
        shape = output_shape(*conv, shape);
        width = convolutions_.back().num_outputs();
        offset = convolutions_.back().end();
      } else if (const auto* dueling = std::get_if<Dueling>(&layers[i])) {
        if (dueling->hidden > 0) {
          body_.push_back(linear(2 * dueling->hidden, true));
          width = dueling->hidden;
          is_split_ = true;
        }
        value_ = linear(1, false);
        advantage_ = linear(network_.num_actions(), false);
        is_dueling_ = true;
      } else if (std::holds_alternative<Output>(layers[i])) {
        advantage_ = linear(network_.num_actions(), false);
      }
    }
    assert(offset == network_.num_parameters());
    widest_ = convolutions_.empty() ? network_.num_inputs() : convolutions_.back().num_outputs();
    for (const auto& layer : body_) widest_ = std::max(widest_, layer.out);
    for (const auto& conv : convolutions_) widest_map_ = std::max(widest_map_, conv.num_outputs());
  }

  // Rows that are worth a task of their own.
  std::size_t min_training_rows() const noexcept { return convolutions_.empty() ? 64 : 16; }
  std::size_t min_evaluation_rows() const noexcept { return convolutions_.empty() ? 64 : 4; }
  // Parameters of all convolutions, which come first.
  std::size_t num_kernel_parameters() const noexcept {
    return convolutions_.empty() ? 0 : convolutions_.back().end();
  }

  void reserve(std::size_t rows) {
    for (Workspace& workspace : workspaces_)
      if (workspace.rows < rows) reserve(workspace, rows);
  }

  void reserve(Workspace& w, std::size_t rows) {
    std::size_t floats = 0;
    for (int pass = 0; pass < 2; ++pass) {  // first measures, then places
      float* const base = pass == 0 ? nullptr : w.block.as<float>().data();
      const auto place_once = [&](std::size_t count) {
        const std::size_t offset = floats;
        floats += (count + 15) / 16 * 16;
        return base == nullptr ? nullptr : base + offset;
      };
      const auto place = [&](std::size_t columns) { return place_once(rows * columns); };
      floats = 0;
      w.input = place(convolutions_.empty() ? network_.num_inputs() : convolutions_.back().num_outputs());
      for (std::size_t i = 0; i < body_.size(); ++i) w.activations[i] = place(body_[i].out);
      w.value = place(1);
      w.advantage = place(network_.num_actions());
      w.q = place(network_.num_actions());
      w.next_online = place(network_.num_actions());
      w.next_target = place(network_.num_actions());
      for (float*& delta : w.deltas) delta = place(widest_);
      if (!convolutions_.empty()) {
        for (std::size_t i = 0; i < convolutions_.size(); ++i)
          w.maps[i] = place(convolutions_[i].num_outputs());
        w.image = place_once(network_.num_inputs());
        w.kernels = place_once(num_kernel_parameters());
        for (float*& delta : w.map_deltas) delta = place_once(widest_map_);
      }
      if (pass == 0) w.block = Block(checked_bytes("batch size", floats, sizeof(float)));
    }
    w.rows = rows;
  }

  void pack(Weights& weights) const {
    if (weights.is_packed) return;
    weights.packed.resize(weights.values.size());
    const float* const values = weights.values.data();
    float* const packed = weights.packed.data();
    for (const detail::Convolution& conv : convolutions_)
      conv.pack_forward(values + conv.weight(), packed + conv.weight());
    for (const detail::Linear& layer : body_) layer.pack(values, packed);
    advantage_.pack(values, packed);
    weights.is_packed = true;
  }

  void pack_backward(Training& training) const {
    training.backward.resize(num_kernel_parameters());
    for (std::size_t i = 1; i < convolutions_.size(); ++i)
      convolutions_[i].pack_backward(online_.values.data() + convolutions_[i].weight(),
                                     training.backward.data() + convolutions_[i].weight());
  }

  static void scale(const std::uint8_t* from, float* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      to[i] = static_cast<float>(from[i]) * ObservationsView::kByteScale;
  }

  // The observations as floats: themselves, or scaled bytes in the workspace.
  static In input(const ObservationsView& observations, Workspace& w) {
    if (observations.dtype() == DType::f32)
      return {observations.as<float>().row(0), observations.rows(), observations.columns(),
              observations.rows() > 1 ? observations.stride() / sizeof(float) : observations.columns()};
    const auto bytes = observations.as<std::uint8_t>();
    const Out floats{w.input, observations.rows(), observations.columns(), observations.columns()};
    for (std::size_t i = 0; i < floats.rows; ++i) scale(bytes.row(i), floats.row(i), floats.columns);
    return floats.as_const();
  }

  // One of them. Bytes are scaled whenever an image is needed, which takes a hundredth of its convolution: so
  // the floats of a batch never lie in memory.
  static const float* image(const ObservationsView& observations, std::size_t row, Workspace& w) {
    if (observations.dtype() == DType::f32) return observations.as<float>().row(row);
    scale(observations.as<std::uint8_t>().row(row), w.image, observations.columns());
    return w.image;
  }

  float* map(const Workspace& w, std::size_t layer, std::size_t row) const noexcept {
    return w.maps[layer] + row * convolutions_[layer].num_outputs();
  }

  // [rows, columns] to [columns, rows]
  static void flip(const float* from, std::size_t rows, std::size_t columns, float* to) {
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t i = 0; i < rows; ++i) to[j * rows + i] = from[i * columns + j];
  }

  // The output of the convolutions, in the order of the weights that read it: channels first.
  In convolve(const Weights& weights, const ObservationsView& observations, Workspace& w) const {
    const detail::Convolution& last = convolutions_.back();
    const Out features{w.input, observations.rows(), last.num_outputs(), last.num_outputs()};
    for (std::size_t row = 0; row < features.rows; ++row) {
      const float* x = image(observations, row, w);
      for (std::size_t i = 0; i < convolutions_.size(); ++i) {
        const detail::Convolution& conv = convolutions_[i];
        conv.forward(x, weights.packed.data() + conv.weight(), weights.values.data() + conv.bias(),
                     map(w, i, row));
        x = map(w, i, row);
      }
      flip(x, last.positions(), last.filters(), features.row(row));
    }
    return features.as_const();
  }

  // From the gradient of `convolve`'s result to that of the convolutions' parameters, which is overwritten.
  void convolve_backward(const ObservationsView& observations, In dfeatures, Workspace& w,
                         const Training& training, float* gradient) const {
    std::fill(w.kernels, w.kernels + num_kernel_parameters(), 0.0f);
    for (std::size_t row = 0; row < dfeatures.rows; ++row) {
      float *delta = w.map_deltas[0], *next = w.map_deltas[1];
      flip(dfeatures.row(row), convolutions_.back().filters(), convolutions_.back().positions(), delta);
      for (std::size_t i = convolutions_.size(); i-- > 0;) {
        const detail::Convolution& conv = convolutions_[i];
        if (conv.has_relu()) detail::relu_backward(map(w, i, row), delta, conv.num_outputs());
        const float* const x = i == 0 ? image(observations, row, w) : map(w, i - 1, row);
        conv.add_parameter_gradient(x, delta, w.kernels + conv.weight(), w.kernels + conv.bias());
        if (i == 0) break;
        std::fill(next, next + conv.num_inputs(), 0.0f);
        conv.add_input_gradient(delta, training.backward.data() + conv.weight(), next);
        std::swap(delta, next);
      }
    }
    for (const detail::Convolution& conv : convolutions_) {
      conv.unpack_forward(w.kernels + conv.weight(), gradient + conv.weight());
      std::copy(w.kernels + conv.bias(), w.kernels + conv.end(), gradient + conv.bias());
    }
  }

  Out activation(const Workspace& w, std::size_t layer, std::size_t rows) const noexcept {
    return {w.activations[layer], rows, body_[layer].out, body_[layer].out};
  }

  // What value and advantage read: the last activation or the two halves of it.
  In head_input(In features, bool advantage) const noexcept {
    if (!is_split_) return features;
    const std::size_t half = features.columns / 2;
    return features.columns_from(advantage ? half : 0, half);
  }

  // Leaves all activations in the workspace for `backward`. Returns the first linear layer's input.
  In forward(const Weights& weights, const ObservationsView& observations, Workspace& w, Out q) const {
    const std::size_t rows = observations.rows();
    const float* const values = weights.values.data();
    const float* const packed = weights.packed.data();
    const In first = convolutions_.empty() ? input(observations, w) : convolve(weights, observations, w);
    In x = first;
    for (std::size_t i = 0; i < body_.size(); ++i) {
      const Out y = activation(w, i, rows);
      body_[i].forward(values, packed, x, y);
      x = y.as_const();
    }
    if (!is_dueling_) {
      advantage_.forward(values, packed, x, q);
      return first;
    }
    const std::size_t actions = network_.num_actions();
    const Out value{w.value, rows, 1, 1}, advantage{w.advantage, rows, actions, actions};
    value_.forward(values, packed, head_input(x, false), value);
    advantage_.forward(values, packed, head_input(x, true), advantage);
    for (std::size_t i = 0; i < rows; ++i) {
      const float* const a = advantage.row(i);
      float mean = 0.0f;
      for (std::size_t j = 0; j < actions; ++j) mean += a[j];
      const float base = value.data[i] - mean / static_cast<float>(actions);
      for (std::size_t j = 0; j < actions; ++j) q.row(i)[j] = base + a[j];
    }
    return first;
  }

  // From dloss/dq, which lies in w.q, to the flat gradient, which is overwritten. Needs the activations of
  // `forward`.
  void backward(const ObservationsView& observations, In first, Workspace& w, const Training& training,
                float* gradient) const {
    const bool stops_at_first = convolutions_.empty();
    const std::size_t rows = first.rows, actions = network_.num_actions();
    const float* const parameters = online_.values.data();
    const In features = body_.empty() ? first : activation(w, body_.size() - 1, rows).as_const();
    const std::size_t width = features.columns;
    Out delta{w.deltas[0], rows, width, width};

    const Out dq{w.q, rows, actions, actions};
    if (is_dueling_) {
      const Out dvalue{w.value, rows, 1, 1};
      for (std::size_t i = 0; i < rows; ++i) {  // dV = sum dQ, dA = dQ - mean(dQ)
        float sum = 0.0f;
        for (std::size_t j = 0; j < actions; ++j) sum += dq.row(i)[j];
        dvalue.data[i] = sum;
        for (std::size_t j = 0; j < actions; ++j) dq.row(i)[j] -= sum / static_cast<float>(actions);
      }
      value_.parameter_gradient(head_input(features, false), dvalue.as_const(), gradient);
      advantage_.parameter_gradient(head_input(features, true), dq.as_const(), gradient);
      if (body_.empty() && stops_at_first) return;
      if (is_split_) {
        value_.input_gradient(parameters, dvalue.as_const(), {}, delta.columns_from(0, width / 2));
        advantage_.input_gradient(parameters, dq.as_const(), {}, delta.columns_from(width / 2, width / 2));
      } else {
        value_.input_gradient(parameters, dvalue.as_const(), {}, delta);
        advantage_.input_gradient(parameters, dq.as_const(), {delta.data, delta.stride}, delta);
      }
    } else {
      advantage_.parameter_gradient(features, dq.as_const(), gradient);
      if (body_.empty() && stops_at_first) return;
      advantage_.input_gradient(parameters, dq.as_const(), {}, delta);
    }

    for (std::size_t i = body_.size(); i-- > 0;) {
      const In y = activation(w, i, rows).as_const();
      const In x = i == 0 ? first : activation(w, i - 1, rows).as_const();
      body_[i].relu_backward(y, delta);
      body_[i].parameter_gradient(x, delta.as_const(), gradient);
      if (i == 0 && stops_at_first) return;
      const Out next{delta.data == w.deltas[0] ? w.deltas[1] : w.deltas[0], rows, body_[i].in, body_[i].in};
      body_[i].input_gradient(parameters, delta.as_const(), {}, next);
      delta = next;
    }
    convolve_backward(observations, delta.as_const(), w, training, gradient);
  }

  void train_slice(const TransitionBatch& batch, std::span<const float> weights, std::span<float> priorities,
                   const Slices& slices, std::size_t slice, Workspace& w, Training& training) const {
    const std::size_t first = slices.first(slice), rows = slices.size(slice),
                      actions = network_.num_actions();
    const ObservationsView next = batch.next_observations().rows(first, rows);
    forward(online_, next, w, {w.next_online, rows, actions, actions});
    forward(training.target, next, w, {w.next_target, rows, actions, actions});
    const ObservationsView observations = batch.observations().rows(first, rows);
    const In x = forward(online_, observations, w, {w.q, rows, actions, actions});

    Sums sums;
    const auto delta = static_cast<float>(options_.huber_delta), size = static_cast<float>(batch.size());
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t item = first + i;
      const auto action = static_cast<std::size_t>(batch.action(item));
      const float weight = weights.empty() ? 1.0f : weights[item];
      const float target =
          double_q_target(batch.reward(item), batch.discount(item), {w.next_online + i * actions, actions},
                          {w.next_target + i * actions, actions});
      float* const q = w.q + i * actions;
      const float td_error = target - q[action];
      sums.loss += static_cast<double>(weight) * static_cast<double>(td_loss(options_.loss, delta, td_error));
      sums.q += static_cast<double>(q[action]);
      if (!priorities.empty()) priorities[item] = std::abs(td_error);
      std::fill(q, q + actions, 0.0f);  // from here on dloss/dq
      q[action] = -weight * td_loss_gradient(options_.loss, delta, td_error) / size;
    }
    training.sums[slice] = sums;
    backward(observations, x, w, training, training.gradient(slice).data());
  }

  template <class F>
  void for_each_chunk(F f) {
    const std::size_t total = online_.values.size();
    pool_->parallel_for((total + kChunk - 1) / kChunk, [&](std::size_t chunk) {
      f(chunk, chunk * kChunk, std::min(kChunk, total - chunk * kChunk));
    });
  }

  // Adds the gradients of the slices up in the first one, in order. Returns the norm.
  double reduce_gradients(Training& training, std::size_t num_slices) {
    for_each_chunk([&](std::size_t chunk, std::size_t first, std::size_t count) {
      float* const sum = training.gradient(0).data() + first;
      for (std::size_t slice = 1; slice < num_slices; ++slice) {
        const float* const part = training.gradient(slice).data() + first;
        for (std::size_t i = 0; i < count; ++i) sum[i] += part[i];
      }
      training.squares[chunk] = sum_of_squares({sum, count});
    });
    double squares = 0.0;
    for (const double part : training.squares) squares += part;
    return std::sqrt(squares);
  }

  Training& training() {
    if (!training_) training_ = std::make_unique<Training>(options_.optimizer, online_.values);
    return *training_;
  }

  detail::ChangeGate gate_;  // first, for it is the first that an assignment changes
  Network network_;
  TrainOptions options_;
  Weights online_;
  std::vector<detail::Convolution> convolutions_;
  std::vector<detail::Linear> body_;
  detail::Linear value_, advantage_;
  bool is_dueling_ = false, is_split_ = false;
  std::size_t widest_ = 0, widest_map_ = 0;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<Workspace> workspaces_;
  std::unique_ptr<Training> training_;
  std::uint64_t num_skipped_ = 0;
};

static_assert(require_q_network<EigenNetwork>());

}  // namespace troop::nn
