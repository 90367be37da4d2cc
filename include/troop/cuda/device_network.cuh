/// @file
/// The learner on the device: where everything lies, which kernels and products make a step, and the graph of
/// them. Host code, written once for CUDA's libraries and for the tests' emulation of them.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/view.hpp>
#include <troop/cuda/batch.cuh>
#include <troop/cuda/device.cuh>
#include <troop/cuda/device_frames.cuh>
#include <troop/cuda/frame_memory.hpp>
#include <troop/cuda/kernel.cuh>
#include <troop/cuda/layers.cuh>
#include <troop/cuda/library.cuh>
#include <troop/cuda/loss.cuh>
#include <troop/cuda/network.hpp>
#include <troop/cuda/optimizer.cuh>
#include <troop/cuda/runtime.cuh>
#include <troop/nn/initialize.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::cuda {

namespace detail {

/// One layer with parameters: a convolution or a linear one.
struct DeviceLayer {
  std::optional<ConvolutionShape> conv;  // of a batch of 0
  std::size_t in = 0, out = 0;           // elements of one observation
  std::size_t weight = 0, bias = 0;      // places in the device's parameters
  std::size_t columns = 0;               // biases
  bool relu = false;

  std::size_t rows(std::size_t batch) const noexcept { return batch * (out / columns); }  // of `columns`
};

/// The layers of a network and where on the device every parameter of the flat span lies: each block begins
/// at 256 bytes, filters have the channels last, and so have the weights of the layer behind a convolution.
struct DevicePlan {
  static constexpr std::size_t kAlignment = 64;  // floats

  explicit DevicePlan(const nn::Network& network) : positions(network.num_parameters()) {
    const auto& layers = network.layers();
    std::vector<std::size_t> shape = network.input_shape();
    num_actions = network.num_actions();
    if (std::holds_alternative<nn::Conv2d>(layers.front())) {
      image = {static_cast<unsigned>(shape[0]), static_cast<unsigned>(shape[1] * shape[2])};
    } else {
      image = {1, static_cast<unsigned>(network.num_inputs())};
    }
    std::size_t width = network.num_inputs(), channels = image.channels;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const bool relu = i + 1 < layers.size() && std::holds_alternative<nn::Relu>(layers[i + 1]);
      if (const auto* conv = std::get_if<nn::Conv2d>(&layers[i])) {
        const auto out = nn::output_shape(*conv, shape);
        DeviceLayer layer = linear(conv->filters, shape[0], conv->kernel * conv->kernel, relu);
        layer.conv = ConvolutionShape{
            0, shape[0], shape[1], shape[2], conv->filters, conv->kernel, conv->stride, out[1], out[2]};
        layer.in = width;
        layer.out = width = out[0] * out[1] * out[2];
        body.push_back(layer);
        shape = out;
        channels = conv->filters;
      } else if (const auto* dense = std::get_if<nn::Dense>(&layers[i])) {
        body.push_back(linear(dense->units, channels, width / channels, relu));
        width = dense->units;
        channels = 1;
      } else if (const auto* dueling = std::get_if<nn::Dueling>(&layers[i])) {
        if (dueling->hidden > 0) {
          body.push_back(linear(2 * dueling->hidden, channels, width / channels, true));
          width = dueling->hidden;
          channels = 1;
          is_split = true;
        }
        value = linear(1, channels, width / channels, false);
        advantage = linear(num_actions, channels, width / channels, false);
        is_dueling = true;
      } else if (std::holds_alternative<nn::Output>(layers[i])) {
        advantage = linear(num_actions, channels, width / channels, false);
      }
    }
  }

  std::vector<DeviceLayer> body;
  DeviceLayer value, advantage;  // `advantage` is the output where there is no dueling head
  bool is_dueling = false, is_split = false;
  Image image;
  std::size_t num_actions = 0;
  std::size_t size = 0;  // of the device's parameters, padding included
  std::vector<std::uint32_t> positions;

 private:
  // A block of weights [out, channels, pixels], which lies on the device as [out, pixels, channels], and its
  // biases.
  DeviceLayer linear(std::size_t out, std::size_t channels, std::size_t pixels, bool relu) {
    DeviceLayer layer;
    layer.in = channels * pixels;
    layer.out = layer.columns = out;
    layer.relu = relu;
    layer.weight = place(out * layer.in);
    for (std::size_t row = 0; row < out; ++row)
      for (std::size_t c = 0; c < channels; ++c)
        for (std::size_t p = 0; p < pixels; ++p)
          positions[flat_++] = static_cast<std::uint32_t>(layer.weight + row * layer.in + p * channels + c);
    layer.bias = place(out);
    for (std::size_t row = 0; row < out; ++row)
      positions[flat_++] = static_cast<std::uint32_t>(layer.bias + row);
    return layer;
  }

  std::size_t place(std::size_t count) {
    const std::size_t at = size;
    size += (count + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }

  std::size_t flat_ = 0;
};

inline void run(const std::vector<Work>& works, cudaStream_t stream) {
  for (const Work& work : works) work(stream);
}

/// Places of columns one after the other in a block of bytes, each at a multiple of 256.
class Carver {
 public:
  template <class T>
  std::size_t take(std::size_t count) {
    const std::size_t at = bytes_;
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
    return at;
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

}  // namespace detail

/// cuda::Network's inside. `Lib` is a Library.
template <class Lib>
class DeviceNetwork final : public detail::Backend {
 public:
  DeviceNetwork(const nn::Network& network, std::uint64_t seed, const nn::TrainOptions& options,
                const DeviceOptions& device)
      : network_(network),
        options_(options),
        device_(device),
        multiprocessors_(static_cast<unsigned>(detail::open_device(device.device).multiProcessorCount)),
        plan_(network),
        main_(make_stream()),
        side_(make_stream()),
        copies_(make_stream()),
        fork_(make_event()),
        library_(device, main_.get()),
        online_(plan_.size, "parameters", main_.get()),
        positions_(plan_.positions.size(), "places of parameters", main_.get()),
        flat_(plan_.positions.size(), "parameters", main_.get()) {
    const PinnedMemory<std::uint32_t> places(positions_.size(), "places of parameters");
    std::copy(plan_.positions.begin(), plan_.positions.end(), places.data());
    copy_to_device(positions_.data(), places.data(), places.bytes(), main_.get());
    upload(nn::initial_parameters(network, seed), online_.data());
  }

  ~DeviceNetwork() override {
    cudaStreamSynchronize(copies_.get());
    cudaStreamSynchronize(side_.get());
    cudaStreamSynchronize(main_.get());
  }

  void evaluate(const nn::ObservationsView& observations, MatrixView<float> q) override {
    expect("observation elements", observations.columns(), network_.num_inputs());
    expect("q rows", q.rows(), observations.rows());
    expect("q columns", q.columns(), network_.num_actions());
    if (observations.rows() == 0) return;
    use_device();
    if (!evaluation_ || evaluation_->rows != observations.rows() ||
        evaluation_->dtype != observations.dtype())
      prepare_evaluation(observations.rows(), observations.dtype());
    Evaluation& e = *evaluation_;
    stage(observations, e.staged.data());
    check(cudaGraphLaunch(e.graph.get(), main_.get()), "cudaGraphLaunch");
    synchronize(main_.get());
    for (std::size_t i = 0; i < q.rows(); ++i)
      std::copy_n(e.result.data() + i * q.columns(), q.columns(), q.row(i));
  }

  void begin_step(const nn::TransitionBatch& batch, std::span<const float> weights) override {
    check_batch(batch, weights);
    expect("observation elements", batch.observations().columns(), network_.num_inputs());
    Slot& slot = next_slot({batch.size(), batch.observations().dtype(), nullptr});
    stage(batch, weights, slot.staged.data());
    launch_step(slot);
  }

  void begin_step(const FrameBatch& batch, std::span<const float> weights) override {
    check_batch(batch, weights);
    expect("frames of an observation", batch.channels(), plan_.image.channels);
    expect("elements of a frame", batch.memory()->frame_bytes(), plan_.image.pixels);
    expect("device of the frames", batch.memory()->device(), device_.device);
    const auto frames = std::static_pointer_cast<DeviceFrames>(batch.memory());
    Slot& slot = next_slot({batch.size(), DType::u8, frames});
    frames->read(
        main_.get(), [&](const auto& is_there) { stage(batch, weights, is_there, slot.staged.data()); },
        [&] { launch_step(slot); });
  }

  nn::TrainResult finish_step(std::span<float> priorities) override {
    if (pending_ == 0) throw Error("finish_step: no step is begun");
    if (!priorities.empty()) expect("priorities", priorities.size(), step_->rows);
    use_device();
    const Slot& slot = step_->slots[first_pending_];
    check(cudaEventSynchronize(slot.finished.get()), "cudaEventSynchronize",
          [&] { return "a training step of " + std::to_string(step_->rows) + " transitions"; });
    first_pending_ = (first_pending_ + 1) % kSlots;
    --pending_;
    StepReport report;
    std::memcpy(&report, slot.result.data(), sizeof report);
    std::copy_n(reinterpret_cast<const float*>(slot.result.data() + kReportBytes), priorities.size(),
                priorities.begin());
    steps_ = report.steps;
    num_skipped_ = report.num_skipped;
    return {report.loss, report.gradient_norm, report.mean_q, report.applied != 0};
  }

  std::size_t pending_steps() const override { return pending_; }

  void sync_target() override {
    use_device();
    copy_on_device(training().target.data(), online_.data(), online_.bytes(), main_.get());
  }

  std::span<const float> parameters() override {
    if (!parameters_are_known_) {
      download(online_.data(), parameters_);
      parameters_are_known_ = true;
    }
    return parameters_;
  }

  std::span<const std::uint16_t> half_parameters() override {
    use_device();
    if (half_flat_.size() == 0) {
      half_flat_ = DeviceMemory<std::uint16_t>(flat_.size(), "halves of parameters", main_.get());
      halves_ = PinnedMemory<std::uint16_t>(flat_.size(), "halves of parameters");
    }
    launch("gather_parameters", gather_parameters<std::uint16_t>, blocks(flat_.size()), kThreads, main_.get(),
           online_.data(), positions_.data(), flat_.size(), half_flat_.data());
    copy_to_host(halves_.data(), half_flat_.data(), halves_.bytes(), main_.get());
    synchronize(main_.get());
    return {halves_.data(), halves_.size()};
  }

  std::span<const float> target_parameters() override {
    if (!training_) return parameters();
    download(training_->target.data(), target_parameters_);
    return target_parameters_;
  }

  void set_parameters(std::span<const float> values) override {
    expect("parameters", values.size(), flat_.size());
    upload(values, online_.data());
    parameters_are_known_ = false;
  }

  void set_target_parameters(std::span<const float> values) override {
    expect("target parameters", values.size(), flat_.size());
    upload(values, training().target.data());
  }

  std::uint64_t optimizer_steps() const override { return steps_; }
  std::uint64_t num_skipped_steps() const override { return num_skipped_; }

  std::span<const float> optimizer_state() override {
    optimizer_state_.resize(num_means() * flat_.size());
    std::vector<float> part;
    for (std::size_t i = 0; i < num_means(); ++i) {
      download(training().means[i].data(), part);
      std::copy(part.begin(), part.end(),
                optimizer_state_.begin() + static_cast<std::ptrdiff_t>(i * part.size()));
    }
    return optimizer_state_;
  }

  void set_optimizer_state(std::uint64_t steps, std::span<const float> state) override {
    require(state.size() == num_means() * flat_.size(), "optimizer state", state.size(),
            std::to_string(num_means() * flat_.size()) + " floats");
    for (std::size_t i = 0; i < num_means(); ++i)
      upload(state.subspan(i * flat_.size(), flat_.size()), training().means[i].data());
    const PinnedMemory<StepState> pinned(1, "step counter");
    *pinned.data() = {steps, num_skipped_, 0.0f, 0.0f, 0.0f};
    copy_to_device(training().state.data(), pinned.data(), pinned.bytes(), main_.get());
    synchronize(main_.get());
    steps_ = steps;
  }

  std::span<const float> gradient() override {
    if (!step_) return {};
    download(training_->gradient.data(), gradient_);
    return gradient_;
  }

 private:
  static constexpr std::size_t kSlots = 2, kReportBytes = 256;

  // The outputs of all layers for one batch.
  struct Activations {
    std::vector<DeviceMemory<float>> body;
    DeviceMemory<float> value, advantage, q;
  };

  struct Evaluation {
    std::size_t rows = 0;
    DType dtype = DType::f32;
    PinnedMemory<std::byte> staged;
    DeviceMemory<std::byte> input;
    DeviceMemory<float> assembled;
    Activations activations;
    PinnedMemory<float> result;
    std::vector<Work> works;  // own what the graph uses
    ExecutableGraph graph;
  };

  // One of two steps in flight.
  struct Slot {
    PinnedMemory<std::byte> staged;  // Columns
    DeviceMemory<std::byte> input;
    DeviceMemory<std::byte> output;  // report, then priorities
    PinnedMemory<std::byte> result;
    Event copied, finished;
    ExecutableGraph graph;
  };

  // Where the columns of a batch lie in a slot's input.
  struct Columns {
    Columns(std::size_t rows, std::size_t observation_bytes) {
      detail::Carver carver;
      observations = carver.take<std::byte>(2 * rows * observation_bytes);  // s, then s'
      actions = carver.take<std::int32_t>(rows);
      rewards = carver.take<float>(rows);
      discounts = carver.take<float>(rows);
      weights = carver.take<float>(rows);
      bytes = carver.bytes();
    }
    std::size_t observations = 0, actions = 0, rewards = 0, discounts = 0, weights = 0, bytes = 0;
  };

  // What a step is made for.
  struct BatchKind {
    std::size_t rows = 0;
    DType dtype = DType::f32;
    std::shared_ptr<const DeviceFrames> frames;  // where observations are stacks of them

    friend bool operator==(const BatchKind&, const BatchKind&) = default;
  };

  // Everything that a step of one kind of batch works in.
  struct Step : BatchKind {
    DeviceMemory<float> assembled;  // [2 rows, inputs]
    Activations online, target;     // of 2 rows: s, then s'; of s'
    std::vector<DeviceMemory<float>> deltas;
    DeviceMemory<float> dvalue, dadvantage;
    std::array<DeviceMemory<float>, 2> bias_partial;  // of each branch
    std::array<DeviceMemory<unsigned>, 2> bias_counters;
    DeviceMemory<double> loss_sums;
    std::vector<Work> online_works, target_works, backward_works;  // own what the graphs use
    std::array<Slot, kSlots> slots;
  };

  // What only a learner needs.
  struct Training {
    DeviceMemory<float> target, gradient;
    std::array<DeviceMemory<float>, 2> means;
    DeviceMemory<double> norm_partial;
    DeviceMemory<unsigned> norm_counter;
    DeviceMemory<StepState> state;
  };

  static void expect(const char* what, std::size_t value, std::size_t expected) {
    if (value != expected) throw InvalidArgument(what, std::to_string(value), std::to_string(expected));
  }

  template <class Batch>
  void check_batch(const Batch& batch, std::span<const float> weights) const {
    if (batch.size() == 0) throw InvalidArgument("batch size", "0", "at least one transition");
    if (!weights.empty()) expect("weights", weights.size(), batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::int32_t action = batch.action(i);
      if (action < 0 || static_cast<std::size_t>(action) >= network_.num_actions())
        throw InvalidArgument("action of transition " + std::to_string(i), std::to_string(action),
                              "from 0 to " + std::to_string(network_.num_actions() - 1));
    }
  }

  // Of the next step, which is made if there was none of this kind.
  Slot& next_slot(const BatchKind& kind) {
    if (pending_ == kSlots) throw Error("begin_step: two steps are begun already; call finish_step first");
    use_device();
    if (!step_ || *step_ != kind) {
      if (pending_ > 0)
        throw Error("begin_step: a batch of another size or dtype while a step is not finished");
      prepare_step(kind);
    }
    return step_->slots[(first_pending_ + pending_) % kSlots];
  }

  void launch_step(const Slot& slot) {
    copy_to_device(slot.input.data(), slot.staged.data(), slot.staged.bytes(), copies_.get());
    order(slot.copied, copies_.get(), main_.get());
    check(cudaGraphLaunch(slot.graph.get(), main_.get()), "cudaGraphLaunch");
    check(cudaEventRecord(slot.finished.get(), main_.get()), "cudaEventRecord");
    ++pending_;
    parameters_are_known_ = false;
  }

  // Callers may come from any thread.
  void use_device() const { check(cudaSetDevice(static_cast<int>(device_.device)), "cudaSetDevice"); }

  unsigned blocks(std::size_t elements) const { return num_blocks(elements, multiprocessors_); }

  template <class T>
  DeviceMemory<T> device_memory(std::size_t size, const char* what) const {
    return DeviceMemory<T>(size, what, main_.get());
  }

  bool is_adam() const noexcept { return options_.optimizer.kind == nn::OptimizerKind::adam; }
  std::size_t num_means() const noexcept { return is_adam() || options_.optimizer.centred ? 2 : 1; }

  Training& training() {
    if (training_) return *training_;
    use_device();
    Training made;
    made.target = device_memory<float>(plan_.size, "target network");
    made.gradient = device_memory<float>(plan_.size, "gradient");
    for (std::size_t i = 0; i < num_means(); ++i)
      made.means[i] = device_memory<float>(plan_.size, "optimizer state");
    made.norm_partial = device_memory<double>(blocks(plan_.size), "gradient norm");
    made.norm_counter = device_memory<unsigned>(1, "gradient norm");
    made.state = device_memory<StepState>(1, "step counter");
    copy_on_device(made.target.data(), online_.data(), online_.bytes(), main_.get());
    return training_.emplace(std::move(made));
  }

  // Between the host's order of parameters and the device's places.
  void upload(std::span<const float> values, float* parameters) {
    use_device();
    const PinnedMemory<float> pinned(values.size(), "parameters");
    std::copy(values.begin(), values.end(), pinned.data());
    copy_to_device(flat_.data(), pinned.data(), pinned.bytes(), main_.get());
    launch("scatter_parameters", scatter_parameters<float>, blocks(flat_.size()), kThreads, main_.get(),
           flat_.data(), positions_.data(), flat_.size(), parameters);
    synchronize(main_.get());
  }

  void download(const float* parameters, std::vector<float>& values) {
    use_device();
    if (host_flat_.size() == 0) host_flat_ = PinnedMemory<float>(flat_.size(), "parameters");
    launch("gather_parameters", gather_parameters<float>, blocks(flat_.size()), kThreads, main_.get(),
           parameters, positions_.data(), flat_.size(), flat_.data());
    copy_to_host(host_flat_.data(), flat_.data(), flat_.bytes(), main_.get());
    synchronize(main_.get());
    values.assign(host_flat_.data(), host_flat_.data() + host_flat_.size());
  }

  // Adjacent rows in pinned memory.
  static void stage(const nn::ObservationsView& observations, std::byte* to) {
    const std::size_t bytes = observations.columns() * size_of(observations.dtype());
    if (observations.rows() <= 1 || observations.stride() == bytes) {
      std::memcpy(to, observations.data(), observations.rows() * bytes);
      return;
    }
    for (std::size_t i = 0; i < observations.rows(); ++i)
      std::memcpy(to + i * bytes, observations.data() + i * observations.stride(), bytes);
  }

  void stage(const nn::TransitionBatch& batch, std::span<const float> weights, std::byte* to) const {
    const std::size_t bytes = network_.num_inputs() * size_of(batch.observations().dtype());
    const Columns columns(batch.size(), bytes);
    stage(batch.observations(), to + columns.observations);
    stage(batch.next_observations(), to + columns.observations + batch.size() * bytes);
    for (std::size_t i = 0; i < batch.size(); ++i) stage_rest(batch, weights, i, columns, to);
  }

  // The numbers of frames. A transition that is not there any more becomes one of no weight.
  template <class IsThere>
  void stage(const FrameBatch& batch, std::span<const float> weights, const IsThere& is_there,
             std::byte* to) const {
    const std::size_t channels = batch.channels();
    const Columns columns(batch.size(), channels * sizeof(std::int32_t));
    auto* const now = reinterpret_cast<std::int32_t*>(to + columns.observations);
    auto* const next = now + batch.size() * channels;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      stage_rest(batch, weights, i, columns, to);
      const bool there = is_there(batch.slot(i), batch.version(i));
      if (!there) reinterpret_cast<float*>(to + columns.weights)[i] = 0.0f;
      for (std::size_t c = 0; c < channels; ++c) {
        now[i * channels + c] = there ? static_cast<std::int32_t>(batch.frames(i)[c]) - 1 : -1;
        next[i * channels + c] = there ? static_cast<std::int32_t>(batch.frames(i)[channels + c]) - 1 : -1;
      }
    }
  }

  template <class Batch>
  static void stage_rest(const Batch& batch, std::span<const float> weights, std::size_t i,
                         const Columns& columns, std::byte* to) {
    reinterpret_cast<std::int32_t*>(to + columns.actions)[i] = batch.action(i);
    reinterpret_cast<float*>(to + columns.rewards)[i] = batch.reward(i);
    reinterpret_cast<float*>(to + columns.discounts)[i] = batch.discount(i);
    reinterpret_cast<float*>(to + columns.weights)[i] = weights.empty() ? 1.0f : weights[i];
  }

  Activations make_activations(std::size_t rows) const {
    Activations made;
    for (const auto& layer : plan_.body)
      made.body.push_back(device_memory<float>(rows * layer.out, "activations"));
    if (plan_.is_dueling) {
      made.value = device_memory<float>(rows, "activations");
      made.advantage = device_memory<float>(rows * plan_.num_actions, "activations");
    }
    made.q = device_memory<float>(rows * plan_.num_actions, "Q-values");
    return made;
  }

  // Of `rows` observations, whatever the kind says.
  Work assembly(const std::byte* input, const BatchKind& kind, std::size_t rows, float* out) const {
    const Image image = plan_.image;
    const auto from = [&](auto source) -> Work {
      return [=, grid = blocks(rows * image.pixels)](cudaStream_t stream) {
        launch("assemble", assemble<decltype(source)>, grid, kThreads, stream, source, rows, out);
      };
    };
    if (kind.frames) return from(kind.frames->stacks(reinterpret_cast<const std::int32_t*>(input), image));
    if (kind.dtype == DType::f32)
      return from(StackedRows<float>{reinterpret_cast<const float*>(input), image});
    return from(StackedRows<std::uint8_t>{reinterpret_cast<const std::uint8_t*>(input), image});
  }

  // y = x W^T + b, in rows of `x_stride`.
  Work linear(const float* parameters, const detail::DeviceLayer& layer, const float* x, std::size_t x_stride,
              float* y, std::size_t rows, std::size_t branch) {
    return library_.plan(MatrixProduct{.a = x,
                                       .a_stride = x_stride,
                                       .b = parameters + layer.weight,
                                       .b_stride = layer.in,
                                       .transpose_b = true,
                                       .c = y,
                                       .c_stride = layer.out,
                                       .rows = rows,
                                       .columns = layer.out,
                                       .depth = layer.in,
                                       .bias = parameters + layer.bias,
                                       .relu = layer.relu},
                         branch);
  }

  // What value and advantage read: the last activation or the two halves of it.
  struct Features {
    const float *value, *advantage;
    std::size_t stride;
  };
  Features features(const float* x, std::size_t width) const noexcept {
    return {x, plan_.is_split ? x + width / 2 : x, width};
  }

  std::size_t features_width() const noexcept {
    return plan_.body.empty() ? network_.num_inputs() : plan_.body.back().out;
  }

  std::vector<Work> forward(const float* parameters, float* x, std::size_t rows, const Activations& a,
                            std::size_t branch) {
    std::vector<Work> works;
    for (std::size_t i = 0; i < plan_.body.size(); ++i) {
      const detail::DeviceLayer& layer = plan_.body[i];
      float* const y = a.body[i].data();
      if (!layer.conv) {
        works.push_back(linear(parameters, layer, x, layer.in, y, rows, branch));
      } else {
        works.push_back(library_.plan(convolution(ConvolutionKind::forward, layer, rows, x,
                                                  const_cast<float*>(parameters) + layer.weight, y),
                                      branch));
        const auto kernel = layer.relu ? add_bias<true> : add_bias<false>;
        const float* const bias = parameters + layer.bias;
        works.push_back([=, grid = blocks(rows * layer.out), all = layer.rows(rows),
                         columns = static_cast<unsigned>(layer.columns)](cudaStream_t stream) {
          launch("add_bias", kernel, grid, kThreads, stream, y, bias, all, columns);
        });
      }
      x = y;
    }
    const Features f = features(x, features_width());
    if (!plan_.is_dueling) {
      works.push_back(linear(parameters, plan_.advantage, f.advantage, f.stride, a.q.data(), rows, branch));
      return works;
    }
    works.push_back(linear(parameters, plan_.value, f.value, f.stride, a.value.data(), rows, branch));
    works.push_back(
        linear(parameters, plan_.advantage, f.advantage, f.stride, a.advantage.data(), rows, branch));
    works.push_back([value = a.value.data(), advantage = a.advantage.data(), q = a.q.data(), rows,
                     grid = blocks(rows),
                     actions = static_cast<unsigned>(plan_.num_actions)](cudaStream_t stream) {
      launch("combine_dueling", combine_dueling<float>, grid, kThreads, stream, value, advantage, q, rows,
             actions);
    });
    return works;
  }

  static Convolution convolution(ConvolutionKind kind, const detail::DeviceLayer& layer, std::size_t rows,
                                 float* image, float* filter, float* output) {
    Convolution made{kind, *layer.conv, image, filter, output};
    made.shape.batch = rows;
    return made;
  }

  // dW = dy^T x, on the side branch.
  Work weight_gradient(const detail::DeviceLayer& layer, const float* x, std::size_t x_stride,
                       const float* dy, std::size_t rows) {
    return library_.plan(MatrixProduct{.a = dy,
                                       .a_stride = layer.out,
                                       .transpose_a = true,
                                       .b = x,
                                       .b_stride = x_stride,
                                       .c = training().gradient.data() + layer.weight,
                                       .c_stride = layer.in,
                                       .rows = layer.out,
                                       .columns = layer.in,
                                       .depth = rows},
                         1);
  }

  // dx = dy W, or dx += dy W, on the main branch.
  Work input_gradient(const detail::DeviceLayer& layer, const float* dy, float* dx, std::size_t dx_stride,
                      std::size_t rows, bool accumulate) {
    return library_.plan(MatrixProduct{.a = dy,
                                       .a_stride = layer.out,
                                       .b = online_.data() + layer.weight,
                                       .b_stride = layer.in,
                                       .c = dx,
                                       .c_stride = dx_stride,
                                       .rows = rows,
                                       .columns = layer.in,
                                       .depth = layer.out,
                                       .accumulate = accumulate},
                         0);
  }

  // The ReLU's mask on dy, in place, and the bias's gradient.
  Work bias_gradient_work(const detail::DeviceLayer& layer, const float* y, float* dy, const Step& step,
                          std::size_t branch) {
    const auto kernel = layer.relu ? bias_gradient<true> : bias_gradient<false>;
    const std::size_t rows = layer.rows(step.rows);
    return [=, columns = static_cast<unsigned>(layer.columns), db = training().gradient.data() + layer.bias,
            partial = step.bias_partial[branch].data(),
            counters = step.bias_counters[branch].data()](cudaStream_t stream) {
      launch("bias_gradient", kernel, bias_gradient_grid(rows, columns), bias_gradient_block(), stream, y, dy,
             db, partial, counters, rows, columns);
    };
  }

  // What waits for all that came before on the main branch, and then goes its own way.
  Work aside(Work work) {
    return [this, work = std::move(work)](cudaStream_t stream) {
      order(fork_, stream, side_.get());
      work(side_.get());
    };
  }

  // From dloss/dV and dloss/dA (or dloss/dQ) to the gradient of every parameter.
  std::vector<Work> backward(Step& step) {
    std::vector<Work> works;
    const std::size_t rows = step.rows, last = plan_.body.size(), width = features_width();
    float* const x = last == 0 ? step.assembled.data() : step.online.body[last - 1].data();
    const Features f = features(x, width);
    float* const delta = last == 0 ? nullptr : step.deltas[last - 1].data();
    if (plan_.is_dueling) {
      works.push_back(aside(bias_gradient_work(plan_.value, nullptr, step.dvalue.data(), step, 1)));
      works.push_back(aside(weight_gradient(plan_.value, f.value, f.stride, step.dvalue.data(), rows)));
      if (delta != nullptr)
        works.push_back(input_gradient(plan_.value, step.dvalue.data(), delta, width, rows, false));
    }
    works.push_back(aside(bias_gradient_work(plan_.advantage, nullptr, step.dadvantage.data(), step, 1)));
    works.push_back(
        aside(weight_gradient(plan_.advantage, f.advantage, f.stride, step.dadvantage.data(), rows)));
    if (delta != nullptr)
      works.push_back(input_gradient(plan_.advantage, step.dadvantage.data(),
                                     plan_.is_split ? delta + width / 2 : delta, width, rows,
                                     plan_.is_dueling && !plan_.is_split));
    for (std::size_t i = last; i-- > 0;) {
      const detail::DeviceLayer& layer = plan_.body[i];
      float* const dy = step.deltas[i].data();
      float* const in = i == 0 ? step.assembled.data() : step.online.body[i - 1].data();
      float* const dx = i == 0 ? nullptr : step.deltas[i - 1].data();
      works.push_back(bias_gradient_work(layer, step.online.body[i].data(), dy, step, 0));
      if (layer.conv) {
        float* const filter = training().gradient.data() + layer.weight;
        works.push_back(aside(
            library_.plan(convolution(ConvolutionKind::filter_gradient, layer, rows, in, filter, dy), 1)));
        if (dx != nullptr)
          works.push_back(library_.plan(convolution(ConvolutionKind::image_gradient, layer, rows, dx,
                                                    online_.data() + layer.weight, dy),
                                        0));
      } else {
        works.push_back(aside(weight_gradient(layer, in, layer.in, dy, rows)));
        if (dx != nullptr) works.push_back(input_gradient(layer, dy, dx, layer.in, rows, false));
      }
    }
    works.push_back([this](cudaStream_t stream) { order(fork_, side_.get(), stream); });
    return works;
  }

  Work loss(const Step& step, const Slot& slot, const Columns& columns) {
    const std::byte* const in = slot.input.data();
    const std::size_t half = step.rows * plan_.num_actions;
    const LossBatch batch{step.online.q.data(),
                          step.online.q.data() + half,
                          step.target.q.data(),
                          reinterpret_cast<const std::int32_t*>(in + columns.actions),
                          reinterpret_cast<const float*>(in + columns.rewards),
                          reinterpret_cast<const float*>(in + columns.discounts),
                          reinterpret_cast<const float*>(in + columns.weights),
                          static_cast<unsigned>(step.rows),
                          static_cast<unsigned>(plan_.num_actions)};
    const LossOutput out{step.dadvantage.data(), plan_.is_dueling ? step.dvalue.data() : nullptr,
                         reinterpret_cast<float*>(slot.output.data() + kReportBytes), step.loss_sums.data()};
    const auto kernel = options_.loss == nn::Loss::huber ? double_q_loss<true> : double_q_loss<false>;
    return [=, delta = static_cast<float>(options_.huber_delta)](cudaStream_t stream) {
      launch("double_q_loss", kernel, loss_blocks(batch.rows), kThreads, stream, batch, delta, out);
    };
  }

  static unsigned loss_blocks(std::size_t rows) {
    return static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  }

  Work update(const Step& step, const Slot& slot) {
    Training& t = training();
    const nn::OptimizerOptions& o = options_.optimizer;
    const StepOptions constants{is_adam() ? o.beta1 : o.decay, is_adam() ? o.beta2 : o.decay, o.learning_rate,
                                options_.max_gradient_norm,    static_cast<float>(o.epsilon), is_adam()};
    const auto kernel = is_adam()   ? update_parameters<UpdateRule::adam>
                        : o.centred ? update_parameters<UpdateRule::centred_rmsprop>
                                    : update_parameters<UpdateRule::rmsprop>;
    auto* const report = reinterpret_cast<StepReport*>(slot.output.data());
    return [=, &t, this, sums = step.loss_sums.data(),
            rows = static_cast<unsigned>(step.rows)](cudaStream_t stream) {
      const unsigned grid = blocks(plan_.size);
      launch("prepare_update", prepare_update<float>, grid, kThreads, stream, t.gradient.data(), plan_.size,
             t.norm_partial.data(), t.norm_counter.data(), sums, loss_blocks(rows), rows, constants,
             t.state.data(), report);
      launch("update_parameters", kernel, grid, kThreads, stream, online_.data(), t.gradient.data(),
             t.means[0].data(), t.means[1].data(), plan_.size, constants, t.state.data(), report);
    };
  }

  void prepare_evaluation(std::size_t rows, DType dtype) {
    evaluation_.reset();
    const std::size_t bytes = checked_bytes("observations", rows, network_.num_inputs() * size_of(dtype));
    auto made = std::make_unique<Evaluation>();
    made->rows = rows;
    made->dtype = dtype;
    made->staged = PinnedMemory<std::byte>(bytes, "observations");
    made->input = device_memory<std::byte>(bytes, "observations");
    made->assembled = device_memory<float>(rows * network_.num_inputs(), "observations");
    made->activations = make_activations(rows);
    made->result = PinnedMemory<float>(rows * plan_.num_actions, "Q-values");
    const Work assemble_all =
        assembly(made->input.data(), {rows, dtype, nullptr}, rows, made->assembled.data());
    made->works = forward(online_.data(), made->assembled.data(), rows, made->activations, 0);
    synchronize(main_.get());
    made->graph = capture(main_.get(), [&] {
      copy_to_device(made->input.data(), made->staged.data(), bytes, main_.get());
      assemble_all(main_.get());
      detail::run(made->works, main_.get());
      copy_to_host(made->result.data(), made->activations.q.data(), made->result.bytes(), main_.get());
    });
    evaluation_ = std::move(made);
  }

  void prepare_step(const BatchKind& kind) {
    Training& t = training();
    step_.reset();
    const std::size_t rows = kind.rows, inputs = network_.num_inputs(), actions = plan_.num_actions;
    checked_bytes("observations", 2 * rows, inputs * sizeof(float));  // the largest of them all
    const Columns columns(
        rows, kind.frames ? plan_.image.channels * sizeof(std::int32_t) : inputs * size_of(kind.dtype));
    auto made = std::make_unique<Step>();
    static_cast<BatchKind&>(*made) = kind;
    made->assembled = device_memory<float>(2 * rows * inputs, "observations");
    made->online = make_activations(2 * rows);
    made->target = make_activations(rows);
    std::size_t partial = num_bias_parts(rows) * std::max<std::size_t>(actions, 1), counters = actions;
    for (const auto& layer : plan_.body) {
      made->deltas.push_back(device_memory<float>(rows * layer.out, "gradients of activations"));
      partial = std::max(partial, num_bias_parts(layer.rows(rows)) * layer.columns);
      counters = std::max(counters, layer.columns);
    }
    made->dvalue = device_memory<float>(rows, "gradient of values");
    made->dadvantage = device_memory<float>(rows * actions, "gradient of advantages");
    for (std::size_t branch = 0; branch < 2; ++branch) {
      made->bias_partial[branch] = device_memory<float>(partial, "gradients of biases");
      made->bias_counters[branch] =
          device_memory<unsigned>((counters + kWarpSize - 1) / kWarpSize, "gradients of biases");
    }
    made->loss_sums = device_memory<double>(2 * loss_blocks(rows), "loss");
    made->online_works = forward(online_.data(), made->assembled.data(), 2 * rows, made->online, 0);
    made->target_works =
        forward(t.target.data(), made->assembled.data() + rows * inputs, rows, made->target, 1);
    made->backward_works = backward(*made);
    for (Slot& slot : made->slots) {
      slot.staged = PinnedMemory<std::byte>(columns.bytes, "batch");
      slot.input = device_memory<std::byte>(columns.bytes, "batch");
      slot.output = device_memory<std::byte>(kReportBytes + rows * sizeof(float), "priorities");
      slot.result = PinnedMemory<std::byte>(slot.output.size(), "priorities");
      slot.copied = make_event();
      slot.finished = make_event();
      const Work assemble_all = assembly(slot.input.data(), kind, 2 * rows, made->assembled.data());
      const Work loss_work = loss(*made, slot, columns), update_work = update(*made, slot);
      synchronize(main_.get());
      slot.graph = capture(main_.get(), [&] {
        assemble_all(main_.get());
        order(fork_, main_.get(), side_.get());
        detail::run(made->target_works, side_.get());
        detail::run(made->online_works, main_.get());
        order(fork_, side_.get(), main_.get());
        loss_work(main_.get());
        detail::run(made->backward_works, main_.get());
        update_work(main_.get());
        copy_to_host(slot.result.data(), slot.output.data(), slot.output.size(), main_.get());
      });
    }
    first_pending_ = 0;
    step_ = std::move(made);
  }

  nn::Network network_;
  nn::TrainOptions options_;
  DeviceOptions device_;
  unsigned multiprocessors_;
  detail::DevicePlan plan_;
  Stream main_, side_, copies_;
  Event fork_;
  Lib library_;
  DeviceMemory<float> online_;
  DeviceMemory<std::uint32_t> positions_;
  DeviceMemory<float> flat_;  // on the way between host and device
  PinnedMemory<float> host_flat_;
  DeviceMemory<std::uint16_t> half_flat_;
  PinnedMemory<std::uint16_t> halves_;
  std::optional<Training> training_;
  std::unique_ptr<Evaluation> evaluation_;
  std::unique_ptr<Step> step_;
  std::size_t first_pending_ = 0, pending_ = 0;
  std::uint64_t steps_ = 0, num_skipped_ = 0;
  std::vector<float> parameters_, target_parameters_, optimizer_state_, gradient_;
  bool parameters_are_known_ = false;
};

}  // namespace troop::cuda
