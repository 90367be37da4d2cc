// The learner through its public interface; the same file runs on the emulation and on a GPU.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include <troop/core/float16.hpp>
#include <troop/core/random.hpp>
#include <troop/core/view.hpp>
#include <troop/cuda/network.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/nn/network.hpp>

#include "golden_network.hpp"
#include "testing.hpp"
#include "transition_columns.hpp"

using troop::MatrixView;
using troop::Random;
using troop::cuda::DeviceOptions;
using troop::cuda::Precision;
using troop::testing::error_of;
using troop::testing::Failures;
using troop::testing::TransitionColumns;
using namespace troop::nn;

namespace {

/// With float32 products, so that small tolerances hold.
class Fp32Network : public troop::cuda::Network {
 public:
  explicit Fp32Network(troop::nn::Network network, std::uint64_t seed = 0, const TrainOptions& options = {})
      : Network(std::move(network), seed, options, {.precision = Precision::fp32, .deterministic = true}) {}
};

std::vector<Network> networks() {
  return {parse_network("input(4) dense(8) relu dueling(6,3)"),
          parse_network("input(3) dense(5) relu dueling(0,2)"),
          parse_network("input(5) dense(9) relu dense(7) relu output(4)"),
          parse_network("input(2,3) dense(6) dense(5) relu dueling(4,18)"),
          parse_network("input(3) output(2)"),
          parse_network("input(3) dueling(0,1)"),
          parse_network("input(37) dense(33) relu dueling(35,6)")};
}

std::vector<TrainOptions> train_options() {
  return {{.optimizer = {.learning_rate = 1e-3}},
          {.optimizer = {.kind = OptimizerKind::rmsprop, .learning_rate = 1e-3},
           .loss = Loss::squared,
           .max_gradient_norm = 0.1},
          {.optimizer = {.kind = OptimizerKind::rmsprop, .learning_rate = 1e-3, .centred = false},
           .max_gradient_norm = 0}};
}

std::vector<float> random_parameters(const Network& network, Random& random) {
  std::vector<float> values(network.num_parameters());
  for (float& value : values) value = static_cast<float>(0.3 * random.normal());
  return values;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = difference <= worst ? worst : difference;
  }
  return worst;
}

template <class QNetwork>
std::vector<float> evaluate(QNetwork& network, const ObservationsView& observations) {
  const std::size_t actions = network.network().num_actions();
  std::vector<float> q(observations.rows() * actions);
  network.evaluate(observations, MatrixView<float>(q.data(), observations.rows(), actions));
  return q;
}

/// Q-values of one observation in double, by the plainest loops there are. Convolutions first.
std::vector<double> plain_forward(const Network& network, const std::vector<double>& parameters,
                                  std::vector<double> x) {
  std::size_t offset = 0;
  std::vector<std::size_t> shape = network.input_shape();
  const auto linear = [&](const std::vector<double>& in, std::size_t out) {
    std::vector<double> y(out);
    for (std::size_t i = 0; i < out; ++i) {
      y[i] = parameters[offset + out * in.size() + i];
      for (std::size_t j = 0; j < in.size(); ++j) y[i] += parameters[offset + i * in.size() + j] * in[j];
    }
    offset += out * (in.size() + 1);
    return y;
  };
  const auto relu = [](std::vector<double> values) {
    for (double& value : values) value = std::max(value, 0.0);
    return values;
  };
  for (const Layer& layer : network.layers()) {
    if (const auto* conv = std::get_if<Conv2d>(&layer)) {
      const auto out = output_shape(*conv, shape);
      const std::size_t k = conv->kernel, filter = shape[0] * k * k;
      std::vector<double> y;
      for (std::size_t f = 0; f < out[0]; ++f)
        for (std::size_t row = 0; row < out[1]; ++row)
          for (std::size_t column = 0; column < out[2]; ++column) {
            double sum = parameters[offset + out[0] * filter + f];
            for (std::size_t c = 0; c < shape[0]; ++c)
              for (std::size_t i = 0; i < k; ++i)
                for (std::size_t j = 0; j < k; ++j)
                  sum += parameters[offset + f * filter + (c * k + i) * k + j] *
                         x[(c * shape[1] + row * conv->stride + i) * shape[2] + column * conv->stride + j];
            y.push_back(sum);
          }
      offset += out[0] * (filter + 1);
      shape = out;
      x = y;
    } else if (const auto* dense = std::get_if<Dense>(&layer)) {
      x = linear(x, dense->units);
    } else if (std::holds_alternative<Relu>(layer)) {
      x = relu(x);
    } else if (std::holds_alternative<Output>(layer)) {
      x = linear(x, network.num_actions());
    } else {
      const std::size_t hidden = std::get<Dueling>(layer).hidden;
      std::vector<double> value_in = x, advantage_in = x;
      if (hidden > 0) {
        const auto both = relu(linear(x, 2 * hidden));
        value_in.assign(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(hidden));
        advantage_in.assign(both.begin() + static_cast<std::ptrdiff_t>(hidden), both.end());
      }
      const auto value = linear(value_in, 1);
      x = linear(advantage_in, network.num_actions());
      double mean = 0;
      for (const double a : x) mean += a / static_cast<double>(x.size());
      for (double& a : x) a += value[0] - mean;
    }
  }
  return x;
}

std::vector<double> widen(std::span<const float> values) {
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("the first parameters are those of the seed, and every parameter survives the way there and back") {
  Random random(troop::testing::seed());
  auto descriptions = networks();
  descriptions.push_back(
      parse_network("input(3,9,8) conv(5,3,2) relu conv(4,2,1) dense(7) relu dueling(6,3)"));
  descriptions.push_back(parse_network("input(2,5,6) conv(3,2,1) dueling(0,2)"));
  for (const Network& description : descriptions) {
    CAPTURE(to_string(description));
    Fp32Network network(description, 42);
    CHECK(std::ranges::equal(network.parameters(), initial_parameters(description, 42)));
    CHECK(std::ranges::equal(network.target_parameters(), network.parameters()));
    const auto values = random_parameters(description, random),
               target = random_parameters(description, random);
    network.set_parameters(values);
    CHECK(std::ranges::equal(network.target_parameters(), values));
    network.set_target_parameters(target);
    CHECK(std::ranges::equal(network.parameters(), values));
    CHECK(std::ranges::equal(network.target_parameters(), target));
    std::vector<std::uint16_t> halves(values.size());
    troop::to_float16(values, halves);
    CHECK(std::ranges::equal(network.half_parameters(), halves));
  }
}

TEST_CASE("evaluate agrees with the Eigen network") {
  Random random(troop::testing::seed());
  for (const Network& description : networks()) {
    CAPTURE(to_string(description));
    Fp32Network device(description);
    EigenNetwork host(description);
    const auto parameters = random_parameters(description, random);
    device.set_parameters(parameters);
    host.set_parameters(parameters);
    for (const std::size_t rows : {1, 31, 33, 512, 1000, 0}) {
      const TransitionColumns<float> columns(description, rows, random);
      const MatrixView<const float> x(columns.observations.data(), rows, columns.inputs);
      CHECK(largest_difference(evaluate(device, x), evaluate(host, x)) < 1e-5);
      const TransitionColumns<std::uint8_t> bytes(description, rows, random);
      const MatrixView<const std::uint8_t> y(bytes.observations.data(), rows, bytes.inputs);
      CHECK(largest_difference(evaluate(device, y), evaluate(host, y)) < 1e-5);
    }
  }
}

TEST_CASE("ten training steps agree with the Eigen network: gradients, priorities, parameters, optimizer") {
  Random random(troop::testing::seed());
  for (const Network& description : networks())
    for (const TrainOptions& options : train_options())
      for (const std::size_t size : {1, 31, 33, 300}) {
        CAPTURE(to_string(description));
        CAPTURE(size);
        Fp32Network device(description, 1, options);
        EigenNetwork host(description, 1, options);
        const TransitionColumns<float> columns(description, size, random);
        std::vector<float> device_priorities(size), host_priorities(size);
        Failures failures;
        const auto near = [&](const char* what, double value, double expected) {
          if (!(std::abs(value - expected) <= 2e-4 * (1 + std::abs(expected)))) failures.add(what);
        };
        for (int step = 1; step <= 10; ++step) {
          const std::span<const float> weights =
              step % 2 == 0 ? std::span<const float>(columns.weights) : std::span<const float>();
          const auto a = device.train_step(columns.batch(), weights, device_priorities);
          const auto b = host.train_step(columns.batch(), weights, host_priorities);
          if (!a.applied) failures.add("a step was not applied");
          near("loss", static_cast<double>(a.loss), static_cast<double>(b.loss));
          near("norm", static_cast<double>(a.gradient_norm), static_cast<double>(b.gradient_norm));
          near("mean Q", static_cast<double>(a.mean_q), static_cast<double>(b.mean_q));
          if (step == 1 && largest_difference(device.gradient(), host.gradient()) > 1e-5)
            failures.add("gradient");
          if (largest_difference(device_priorities, host_priorities) > 2e-3) failures.add("priorities");
          if (step == 5) {
            device.sync_target();
            host.sync_target();
          }
        }
        TROOP_CHECK_NONE(failures);
        CHECK(largest_difference(device.parameters(), host.parameters()) < 2e-3);
        CHECK(largest_difference(device.target_parameters(), host.target_parameters()) < 2e-3);
        CHECK(device.optimizer_steps() == 10);
        CHECK(device.optimizer_state().size() == host.optimizer_state().size());
      }
}

TEST_CASE("ten training steps agree with PyTorch") {
  CHECK(troop::testing::GoldenNetwork<Fp32Network>::run(TROOP_GOLDEN_DIR "/network.txt") == 9);
}

TEST_CASE("convolutions agree with plain loops in double, and their gradients with central differences") {
  Random random(troop::testing::seed());
  for (const char* text :
       {"input(3,9,8) conv(5,3,2) relu conv(4,2,1) relu dense(7) relu dueling(6,3)",
        "input(4,8,8) conv(8,4,2) relu dueling(0,2)", "input(1,5,5) conv(2,2,3) output(2)"}) {
    CAPTURE(text);
    const Network description = parse_network(text);
    Fp32Network network(description, 3, {.loss = Loss::squared});
    const auto parameters = random_parameters(description, random);
    network.set_parameters(parameters);
    const std::size_t size = 5;
    const TransitionColumns<std::uint8_t> columns(description, size, random);
    const auto observation = [&](const std::vector<std::uint8_t>& bytes, std::size_t i) {
      std::vector<double> x;
      for (std::size_t j = 0; j < columns.inputs; ++j)
        x.push_back(static_cast<double>(static_cast<float>(bytes[i * columns.inputs + j]) *
                                        ObservationsView::kByteScale));
      return x;
    };
    auto online = widen(parameters);
    const auto q = evaluate(network, columns.batch().observations());
    Failures failures;
    std::vector<double> y;
    for (std::size_t i = 0; i < size; ++i) {
      const auto expected = plain_forward(description, online, observation(columns.observations, i));
      for (std::size_t j = 0; j < expected.size(); ++j)
        if (!(std::abs(static_cast<double>(q[i * expected.size() + j]) - expected[j]) < 1e-5))
          failures.add("q");
      const auto next = plain_forward(description, online, observation(columns.next_observations, i));
      y.push_back(static_cast<double>(columns.rewards[i]) +
                  static_cast<double>(columns.discounts[i]) * *std::max_element(next.begin(), next.end()));
    }
    const auto loss_now = [&] {
      double sum = 0;
      for (std::size_t i = 0; i < size; ++i) {
        const auto values = plain_forward(description, online, observation(columns.observations, i));
        const double e = y[i] - values[static_cast<std::size_t>(columns.actions[i])];
        sum += static_cast<double>(columns.weights[i]) * e * e / 2 / static_cast<double>(size);
      }
      return sum;
    };
    const auto result = network.train_step(columns.batch(), columns.weights, {});
    CHECK(static_cast<double>(result.loss) == doctest::Approx(loss_now()).epsilon(1e-5));
    const auto gradient = network.gradient();
    const double step = 1e-5;
    for (std::size_t i = 0; i < parameters.size(); i += 1 + random.below(7)) {
      const double middle = online[i];
      online[i] = middle + step;
      const double above = loss_now();
      online[i] = middle - step;
      const double below = loss_now();
      online[i] = middle;
      const double slope = (above - below) / (2 * step);
      if (!(std::abs(static_cast<double>(gradient[i]) - slope) < 2e-5 * (1 + std::abs(slope))))
        failures.add("gradient of parameter " + std::to_string(i));
    }
    TROOP_CHECK_NONE(failures);
  }
}

TEST_CASE("two steps in flight give what one after the other gives, bit for bit") {
  Random random(troop::testing::seed());
  const Network description = dueling_mlp({16, 16}).bind({4}, 3);
  Fp32Network overlapped(description, 5), sequential(description, 5);
  std::vector<TransitionColumns<float>> batches;
  for (int i = 0; i < 7; ++i) batches.emplace_back(description, 64, random);
  std::vector<std::vector<float>> expected;
  std::vector<TrainResult> results;
  for (const auto& columns : batches) {
    expected.emplace_back(64);
    results.push_back(sequential.train_step(columns.batch(), columns.weights, expected.back()));
  }
  const auto finish = [&](std::size_t i) {
    std::vector<float> priorities(64);
    const TrainResult result = overlapped.finish_step(priorities);
    CHECK(priorities == expected[i]);
    CHECK(result.loss == results[i].loss);
    CHECK(result.gradient_norm == results[i].gradient_norm);
  };
  overlapped.begin_step(batches[0].batch(), batches[0].weights);
  for (std::size_t i = 1; i < batches.size(); ++i) {
    auto copy = batches[i];
    overlapped.begin_step(copy.batch(), copy.weights);
    copy.observations.assign(copy.observations.size(), 0.0f);  // the caller may do so at once
    CHECK(overlapped.pending_steps() == 2);
    finish(i - 1);
  }
  CHECK(std::ranges::equal(overlapped.parameters(), sequential.parameters()));  // of all steps begun
  finish(batches.size() - 1);
  CHECK(overlapped.optimizer_steps() == 7);
}

TEST_CASE("steps are begun and finished in turns") {
  Random random(troop::testing::seed());
  const Network description = dueling_mlp({8}).bind({4}, 2);
  Fp32Network network(description, 5);
  const TransitionColumns<float> columns(description, 8, random), other(description, 9, random);
  CHECK(error_of([&] { network.finish_step({}); }) == "finish_step: no step is begun");
  network.begin_step(columns.batch(), {});
  CHECK(error_of([&] { network.train_step(columns.batch(), {}, {}); }) ==
        "train_step: finish_step must be called before");
  CHECK(error_of([&] { network.begin_step(other.batch(), {}); }) ==
        "begin_step: a batch of another size or dtype while a step is not finished");
  network.begin_step(columns.batch(), {});
  CHECK(error_of([&] { network.begin_step(columns.batch(), {}); }) ==
        "begin_step: two steps are begun already; call finish_step first");
  network.finish_step({});
  network.finish_step({});
  network.train_step(other.batch(), {}, {});
  CHECK(network.optimizer_steps() == 3);
}

TEST_CASE("a step that is not finite changes nothing but the count, and training goes on after it") {
  Random random(troop::testing::seed());
  const Network description = dueling_mlp({8, 8}).bind({4}, 2);
  Fp32Network network(description, 1);
  TransitionColumns<float> columns(description, 20, random);
  std::vector<float> priorities(20);
  network.train_step(columns.batch(), {}, priorities);
  const std::vector<float> parameters(network.parameters().begin(), network.parameters().end());
  const std::vector<float> state(network.optimizer_state().begin(), network.optimizer_state().end());
  const float reward = std::exchange(columns.rewards[3], std::numeric_limits<float>::infinity());
  CHECK_FALSE(network.train_step(columns.batch(), {}, priorities).applied);
  columns.rewards[3] = reward;
  const float x = std::exchange(columns.observations[2], std::numeric_limits<float>::quiet_NaN());
  CHECK_FALSE(network.train_step(columns.batch(), {}, priorities).applied);
  columns.observations[2] = x;
  CHECK(network.num_skipped_steps() == 2);
  CHECK(network.optimizer_steps() == 1);
  CHECK(std::ranges::equal(network.parameters(), parameters));
  CHECK(std::ranges::equal(network.optimizer_state(), state));
  CHECK(network.train_step(columns.batch(), {}, priorities).applied);
  CHECK(network.optimizer_steps() == 2);
  CHECK_FALSE(std::ranges::equal(network.parameters(), parameters));
}

TEST_CASE("training continues from a checkpoint as if it had not stopped") {
  Random random(troop::testing::seed());
  const Network description = dueling_mlp({8, 8}).bind({4}, 2);
  for (const TrainOptions& options : train_options()) {
    Fp32Network first(description, 1, options), second(description, 2, options);
    const TransitionColumns<float> columns(description, 20, random);
    for (int i = 0; i < 5; ++i) first.train_step(columns.batch(), columns.weights, {});
    second.set_parameters(first.parameters());
    second.set_target_parameters(first.target_parameters());
    second.set_optimizer_state(first.optimizer_steps(), first.optimizer_state());
    for (int i = 0; i < 5; ++i) {
      first.train_step(columns.batch(), columns.weights, {});
      second.train_step(columns.batch(), columns.weights, {});
    }
    CHECK(std::ranges::equal(first.parameters(), second.parameters()));
    CHECK(second.optimizer_steps() == 10);
  }
}

TEST_CASE("what does not fit is refused before anything changes") {
  Random random(troop::testing::seed());
  const Network description = dueling_mlp({8, 8}).bind({4}, 2);
  Fp32Network network(description, 1);
  TransitionColumns<float> columns(description, 5, random);
  std::vector<float> values(100);
  const auto observations = columns.batch().observations();
  const auto q = [&](std::size_t rows, std::size_t actions) {
    return MatrixView<float>(values.data(), rows, actions);
  };
  CHECK(error_of([&] { network.evaluate(observations, q(4, 2)); }) == "q rows: 4 is not allowed; expected 5");
  CHECK(error_of([&] { network.evaluate(observations, q(5, 3)); }) ==
        "q columns: 3 is not allowed; expected 2");
  CHECK(error_of([&] { network.evaluate(MatrixView<float>(values.data(), 5, 3), q(5, 2)); }) ==
        "observation elements: 3 is not allowed; expected 4");
  CHECK(error_of([&] { network.train_step(columns.batch(), std::span(values).first(4), {}); }) ==
        "weights: 4 is not allowed; expected 5");
  CHECK(error_of([&] { network.train_step(columns.batch(), {}, std::span(values).first(6)); }) ==
        "priorities: 6 is not allowed; expected 5");
  CHECK(error_of([&] {
          network.train_step(TransitionColumns<float>(description, 0, random).batch(), {}, {});
        }) == "batch size: 0 is not allowed; expected at least one transition");
  for (const std::int32_t action : {-1, 2}) {
    columns.actions[3] = action;
    CHECK(error_of([&] { network.train_step(columns.batch(), {}, {}); }) ==
          "action of transition 3: " + std::to_string(action) + " is not allowed; expected from 0 to 1");
  }
  CHECK(error_of([&] { network.set_parameters(std::span(values).first(3)); }) ==
        "parameters: 3 is not allowed; expected " + std::to_string(description.num_parameters()));
  CHECK(network.pending_steps() == 0);
  CHECK(network.optimizer_steps() == 0);
  CHECK(network.gradient().empty());
  CHECK_THROWS_AS(troop::cuda::Network(dueling_mlp({8, 8})), troop::Error);
  CHECK(error_of([&] { troop::cuda::Network(description, 0, {}, {.device = 99}); }).substr(0, 38) ==
        "device: 99 is not allowed; expected a ");
}
