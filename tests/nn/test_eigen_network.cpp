#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/nn/eigen_network.hpp>

#include "allocation_counter.hpp"

using namespace troop::nn;
using troop::BatchView;
using troop::DType;
using troop::MatrixView;
using troop::Random;

namespace {

struct Transition {  // 44 bytes, as of CartPole
  std::array<float, 4> observation;
  std::int32_t action;
  float reward;
  float discount;
  std::array<float, 4> next_observation;
};

std::vector<Transition> random_transitions(std::size_t size, std::size_t actions, Random& random) {
  std::vector<Transition> transitions(size);
  for (auto& t : transitions) {
    for (float& x : t.observation) x = static_cast<float>(random.normal());
    for (float& x : t.next_observation) x = static_cast<float>(random.normal());
    t.action = static_cast<std::int32_t>(random.below(actions));
    t.reward = static_cast<float>(random.normal());
    t.discount = random.below(5) == 0 ? 0.0f : 0.97f;
  }
  return transitions;
}

std::vector<float> random_weights(std::size_t size, Random& random) {
  std::vector<float> weights(size);
  for (float& weight : weights) weight = static_cast<float>(random.uniform(0.1, 1.0));
  return weights;
}

TransitionBatch batch_of(const std::vector<Transition>& transitions) {
  return TransitionBatch(BatchView(std::span<const Transition>(transitions)));
}

/// The same numbers in separate, contiguous columns.
struct Columns {
  explicit Columns(std::size_t num_inputs) : inputs(num_inputs) {}
  TransitionBatch batch() const {
    const std::size_t n = actions.size();
    return {MatrixView<const float>(observations.data(), n, inputs),
            MatrixView<const std::int32_t>(actions.data(), n, 1),
            MatrixView<const float>(rewards.data(), n, 1), MatrixView<const float>(discounts.data(), n, 1),
            MatrixView<const float>(next_observations.data(), n, inputs)};
  }
  std::size_t inputs;
  std::vector<float> observations, next_observations, rewards, discounts;
  std::vector<std::int32_t> actions;
};

Columns random_columns(const Network& network, std::size_t size, Random& random) {
  Columns columns(network.num_inputs());
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < columns.inputs; ++j) {
      columns.observations.push_back(static_cast<float>(random.normal()));
      columns.next_observations.push_back(static_cast<float>(random.normal()));
    }
    columns.actions.push_back(static_cast<std::int32_t>(random.below(network.num_actions())));
    columns.rewards.push_back(static_cast<float>(random.normal()));
    columns.discounts.push_back(random.below(5) == 0 ? 0.0f : 0.97f);
  }
  return columns;
}

/// Q-values of one observation in double, by the plainest loops there are.
std::vector<double> plain_forward(const Network& network, const std::vector<double>& parameters,
                                  std::vector<double> x) {
  std::size_t offset = 0;
  std::vector<std::size_t> shape = network.input_shape();
  const auto convolution = [&](const Conv2d& conv) {
    const auto out = output_shape(conv, shape);
    const std::size_t k = conv.kernel, window = shape[0] * k * k;
    std::vector<double> y;
    for (std::size_t f = 0; f < out[0]; ++f)
      for (std::size_t row = 0; row < out[1]; ++row)
        for (std::size_t column = 0; column < out[2]; ++column) {
          const double* w = parameters.data() + offset + f * window;
          double sum = parameters[offset + out[0] * window + f];
          for (std::size_t c = 0; c < shape[0]; ++c)
            for (std::size_t i = 0; i < k; ++i)
              for (std::size_t j = 0; j < k; ++j)
                sum += *w++ * x[(c * shape[1] + row * conv.stride + i) * shape[2] + column * conv.stride + j];
          y.push_back(sum);
        }
    offset += out[0] * (window + 1);
    shape = out;
    return y;
  };
  const auto linear = [&](const std::vector<double>& in, std::size_t out, bool relu) {
    std::vector<double> y(out);
    for (std::size_t i = 0; i < out; ++i) {
      y[i] = parameters[offset + out * in.size() + i];
      for (std::size_t j = 0; j < in.size(); ++j) y[i] += parameters[offset + i * in.size() + j] * in[j];
      if (relu && y[i] < 0) y[i] = 0;
    }
    offset += out * (in.size() + 1);
    return y;
  };
  for (const Layer& layer : network.layers()) {
    if (const auto* conv = std::get_if<Conv2d>(&layer)) {
      x = convolution(*conv);
    } else if (const auto* dense = std::get_if<Dense>(&layer)) {
      x = linear(x, dense->units, false);
    } else if (std::holds_alternative<Relu>(layer)) {
      for (double& value : x) value = std::max(value, 0.0);
    } else if (std::holds_alternative<Output>(layer)) {
      x = linear(x, network.num_actions(), false);
    } else {
      const std::size_t hidden = std::get<Dueling>(layer).hidden;
      std::vector<double> value_in = x, advantage_in = x;
      if (hidden > 0) {
        const auto both = linear(x, 2 * hidden, true);
        const auto middle = both.begin() + static_cast<std::ptrdiff_t>(hidden);
        value_in.assign(both.begin(), middle);
        advantage_in.assign(middle, both.end());
      }
      const auto value = linear(value_in, 1, false);
      x = linear(advantage_in, network.num_actions(), false);
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

std::vector<float> evaluate(EigenNetwork& network, const ObservationsView& observations) {
  std::vector<float> q(observations.rows() * network.network().num_actions());
  network.evaluate(observations,
                   MatrixView<float>(q.data(), observations.rows(), network.network().num_actions()));
  return q;
}

double largest_difference(std::span<const float> a, std::span<const double> b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    worst = difference <= worst ? worst : difference;  // a NaN counts as the worst
  }
  return worst;
}

/// One of every kind of layer and head; widths beyond one vector register and one panel. Convolutions whose
/// stride leaves a rest, or is larger than the kernel; kernels and outputs of one element; without ReLU.
std::vector<Network> networks() {
  return {parse_network("input(4) dense(8) relu dueling(6,3)"),
          parse_network("input(3) dense(5) relu dueling(0,2)"),
          parse_network("input(5) dense(9) relu dense(7) relu output(4)"),
          parse_network("input(2,3) dense(6) dense(5) relu dueling(4,19)"),
          parse_network("input(3) output(2)"),
          parse_network("input(3) dueling(0,1)"),
          parse_network("input(3) dueling(5,2)"),
          parse_network("input(150) dense(37) relu dense(140) relu dueling(33,6)"),
          parse_network("input(2,9,8) conv(5,3,2) relu conv(7,2,1) relu dueling(6,3)"),
          parse_network("input(1,5,6) conv(3,1,1) relu conv(17,2,3) dense(6) relu output(4)"),
          parse_network("input(3,4,4) conv(33,4,1) relu dueling(0,2)"),
          parse_network("input(4,12,12) conv(16,8,4) relu conv(6,2,1) relu conv(9,1,1) relu dueling(5,6)"),
          parse_network("input(2,3,7) conv(4,3,2) output(3)")};
}

}  // namespace

TEST_CASE("evaluate agrees with plain loops in double, for every kind of layer") {
  Random random(1, "test");  // seed 1
  for (const Network& network : networks()) {
    CAPTURE(to_string(network));
    EigenNetwork fast(network, 11);
    std::vector<float> parameters(network.num_parameters());
    for (float& value : parameters) value = static_cast<float>(0.3 * random.normal());  // biases too
    fast.set_parameters(parameters);
    for (const std::size_t rows : {1, 3, 5, 33, 64, 65, 150, 600}) {
      std::vector<float> x(rows * network.num_inputs());
      for (float& value : x) value = static_cast<float>(random.normal());
      const auto q = evaluate(fast, MatrixView<const float>(x.data(), rows, network.num_inputs()));
      std::vector<double> expected;
      for (std::size_t i = 0; i < rows; ++i)
        for (const double value :
             plain_forward(network, widen(parameters),
                           widen(std::span(x).subspan(i * network.num_inputs(), network.num_inputs()))))
          expected.push_back(value);
      CHECK(largest_difference(q, expected) < 1e-4);
    }
  }
}

TEST_CASE("the gradient of every parameter block agrees with central differences in double") {
  Random random(2, "test");  // seed 2
  for (const Network& network : networks())
    for (const Loss loss : {Loss::huber, Loss::squared}) {
      CAPTURE(to_string(network));
      const double delta = 0.7;
      EigenNetwork fast(network, 12, {.loss = loss, .huber_delta = delta});
      std::vector<float> parameters(network.num_parameters()), target(network.num_parameters());
      for (float& value : parameters) value = static_cast<float>(0.3 * random.normal());
      for (float& value : target) value = static_cast<float>(0.3 * random.normal());
      fast.set_parameters(parameters);
      fast.set_target_parameters(target);
      const Columns columns = random_columns(network, 7, random);
      const auto weights = random_weights(7, random);
      fast.train_step(columns.batch(), weights, {});

      const auto observation = [&](const std::vector<float>& x, std::size_t i) {
        return widen(std::span(x).subspan(i * columns.inputs, columns.inputs));
      };
      auto online = widen(parameters);
      std::vector<double> y;
      for (std::size_t i = 0; i < 7; ++i) {
        const auto next = plain_forward(network, online, observation(columns.next_observations, i));
        const auto best = static_cast<std::size_t>(std::max_element(next.begin(), next.end()) - next.begin());
        const auto value =
            plain_forward(network, widen(target), observation(columns.next_observations, i))[best];
        y.push_back(static_cast<double>(columns.rewards[i]) +
                    static_cast<double>(columns.discounts[i]) * value);
      }
      const auto loss_now = [&] {
        double sum = 0;
        for (std::size_t i = 0; i < 7; ++i) {
          const double e =
              std::abs(y[i] - plain_forward(network, online,
                                            observation(columns.observations,
                                                        i))[static_cast<std::size_t>(columns.actions[i])]);
          const double l = loss == Loss::huber && e > delta ? delta * (e - delta / 2) : e * e / 2;
          sum += static_cast<double>(weights[i]) * l / 7;
        }
        return sum;
      };
      const double step = 1e-6;
      for (const ParameterBlock& block : network.parameter_blocks()) {
        const std::size_t checked = std::min<std::size_t>(block.size(), 40);
        std::vector<float> actual;
        std::vector<double> expected;
        for (std::size_t i = 0; i < checked; ++i) {
          const std::size_t place = block.offset + i * block.size() / checked;
          double& parameter = online[place];
          const double middle = parameter;
          parameter = middle + step;
          const double above = loss_now();
          parameter = middle - step;
          const double below = loss_now();
          parameter = middle;
          expected.push_back((above - below) / (2 * step));
          actual.push_back(fast.gradient()[place]);
        }
        CAPTURE(block.name);
        double scale = 1;
        for (const double slope : expected) scale = std::max(scale, std::abs(slope));
        CHECK(largest_difference(actual, expected) < 3e-6 * scale);
      }
    }
}

namespace {

/// A line of the golden file after its keyword.
std::vector<double> numbers_of(std::istream& line) {
  std::vector<double> numbers;
  for (double number; line >> number;) numbers.push_back(number);
  return numbers;
}

std::vector<float> narrow(const std::vector<double>& values) {
  std::vector<float> result;
  for (const double value : values) result.push_back(static_cast<float>(value));
  return result;
}

/// Runs one case of the golden file.
class GoldenCase {
 public:
  void set(const std::string& keyword, std::istringstream& line) {
    if (keyword == "network") {
      network_ = parse_network(line.str().substr(line.str().find(' ') + 1));
    } else if (keyword == "options") {
      std::string kind, loss;
      line >> kind >> loss >> options_.huber_delta >> options_.optimizer.learning_rate >>
          options_.max_gradient_norm;
      REQUIRE((kind == "adam" || kind == "rmsprop"));
      REQUIRE((loss == "huber" || loss == "squared"));
      options_.optimizer.kind = kind == "adam" ? OptimizerKind::adam : OptimizerKind::rmsprop;
      options_.loss = loss == "huber" ? Loss::huber : Loss::squared;
    } else if (keyword == "q") {
      start();
      CHECK(largest_difference(evaluate(*fast_, columns_->batch().observations()), numbers_of(line)) < 2e-6);
    } else if (keyword == "gradient") {
      step();
      CHECK(largest_difference(fast_->gradient(), numbers_of(line)) < 2e-6);
    } else if (keyword == "step") {
      if (steps_ > 0) step();
      const auto expected = numbers_of(line);
      REQUIRE(expected.size() == 3);
      CHECK(result_.applied);
      CHECK(static_cast<double>(result_.loss) == doctest::Approx(expected[0]).epsilon(1e-4));
      CHECK(static_cast<double>(result_.gradient_norm) == doctest::Approx(expected[1]).epsilon(1e-4));
      CHECK(static_cast<double>(result_.mean_q) == doctest::Approx(expected[2]).epsilon(1e-4));
      ++steps_;
    } else if (keyword == "priorities") {
      CHECK(largest_difference(priorities_, numbers_of(line)) < 1e-4);
    } else if (keyword == "parameters" && fast_) {
      CHECK(largest_difference(fast_->parameters(), numbers_of(line)) < 5e-5);
      if (steps_ == 5) fast_->sync_target();
    } else {
      arrays_[keyword] = numbers_of(line);
    }
  }

  int steps() const { return steps_; }

 private:
  void start() {
    REQUIRE(network_.has_value());
    columns_.emplace(network_->num_inputs());
    columns_->observations = narrow(arrays_["observations"]);
    columns_->next_observations = narrow(arrays_["next_observations"]);
    columns_->rewards = narrow(arrays_["rewards"]);
    columns_->discounts = narrow(arrays_["discounts"]);
    for (const double action : arrays_["actions"])
      columns_->actions.push_back(static_cast<std::int32_t>(action));
    weights_ = narrow(arrays_["weights"]);
    priorities_.resize(weights_.size());
    fast_.emplace(*network_, 0, options_);
    fast_->set_parameters(narrow(arrays_["parameters"]));
    fast_->set_target_parameters(narrow(arrays_["target"]));
  }

  void step() { result_ = fast_->train_step(columns_->batch(), weights_, priorities_); }

  std::optional<Network> network_;
  TrainOptions options_;
  std::map<std::string, std::vector<double>> arrays_;
  std::optional<Columns> columns_;
  std::vector<float> weights_, priorities_;
  std::optional<EigenNetwork> fast_;
  TrainResult result_;
  int steps_ = 0;
};

}  // namespace

TEST_CASE("ten training steps agree with PyTorch") {
  // The file holds float64 results; the tolerances are those of float32 sums and, for the parameters, of ten
  // steps of an optimizer that divides by small numbers.
  std::ifstream file(TROOP_GOLDEN_DIR "/network.txt");
  REQUIRE_MESSAGE(file.is_open(), "cannot open " TROOP_GOLDEN_DIR "/network.txt");
  std::optional<GoldenCase> golden;
  int cases = 0;
  std::string name;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string keyword;
    line >> keyword;
    if (keyword == "case") {
      if (golden) CHECK(golden->steps() == 10);
      golden.emplace();
      line >> name;
      ++cases;
      continue;
    }
    REQUIRE(golden.has_value());
    CAPTURE(name);
    CAPTURE(golden->steps());
    golden->set(keyword, line);
  }
  CHECK(cases == 9);
}

TEST_CASE("losses, priorities and gradients agree with the scalar reference") {
  Random random(3, "test");  // seed 3
  const Network description = dueling_mlp({16, 16}).bind({4}, 3);
  EigenNetwork network(description, 5), target(description, 6);
  network.set_target_parameters(target.parameters());
  const auto transitions = random_transitions(100, 3, random);
  const auto weights = random_weights(100, random);
  const TransitionBatch batch = batch_of(transitions);
  const auto q = evaluate(network, batch.observations());
  const auto next_online = evaluate(network, batch.next_observations());
  const auto next_target = evaluate(target, batch.next_observations());
  std::vector<float> expected(100), priorities(100);
  const auto matrix = [](const std::vector<float>& values) {
    return MatrixView<const float>(values.data(), 100, 3);
  };
  const float loss = td_loss_reference(Loss::huber, 1.0f, batch, matrix(q), matrix(next_online),
                                       matrix(next_target), weights, {}, expected);
  const TrainResult result = network.train_step(batch, weights, priorities);
  CHECK(result.loss == doctest::Approx(loss).epsilon(1e-5));
  CHECK(largest_difference(priorities, widen(expected)) < 1e-5);
}

TEST_CASE("the result is bit for bit the same for any number of threads") {
  Random random(4, "test");  // seed 4
  for (const std::size_t size : {1, 7, 64, 65, 200, 512, 1000}) {
    const auto transitions = random_transitions(size, 3, random);
    const auto weights = random_weights(size, random);
    std::vector<float> expected_parameters, expected_priorities, expected_q;
    TrainResult expected;
    for (const std::size_t threads : {1, 2, 5}) {
      EigenNetwork network(dueling_mlp({130, 128}).bind({4}, 3), 9, {.num_threads = threads});
      std::vector<float> priorities(size);
      TrainResult result;
      for (int step = 0; step < 3; ++step)
        result = network.train_step(batch_of(transitions), weights, priorities);
      const auto q = evaluate(network, batch_of(transitions).observations());
      const std::vector<float> parameters(network.parameters().begin(), network.parameters().end());
      if (threads == 1) {
        expected_parameters = parameters;
        expected_priorities = priorities;
        expected_q = q;
        expected = result;
      }
      CHECK(parameters == expected_parameters);
      CHECK(priorities == expected_priorities);
      CHECK(q == expected_q);
      CHECK(result.loss == expected.loss);
      CHECK(result.gradient_norm == expected.gradient_norm);
      CHECK(result.mean_q == expected.mean_q);
    }
  }
}

TEST_CASE("records of 44 bytes give the same as contiguous columns") {
  Random random(5, "test");  // seed 5
  const auto transitions = random_transitions(90, 2, random);
  Columns columns(4);
  for (const auto& t : transitions) {
    columns.observations.insert(columns.observations.end(), t.observation.begin(), t.observation.end());
    columns.next_observations.insert(columns.next_observations.end(), t.next_observation.begin(),
                                     t.next_observation.end());
    columns.actions.push_back(t.action);
    columns.rewards.push_back(t.reward);
    columns.discounts.push_back(t.discount);
  }
  EigenNetwork a(dueling_mlp({16, 16}).bind({4}, 2), 1), b(dueling_mlp({16, 16}).bind({4}, 2), 1);
  const auto weights = random_weights(90, random);
  a.train_step(batch_of(transitions), weights, {});
  b.train_step(columns.batch(), weights, {});
  CHECK(std::ranges::equal(a.parameters(), b.parameters()));
  CHECK(evaluate(a, batch_of(transitions).observations()) == evaluate(b, columns.batch().observations()));
}

TEST_CASE("q may be strided, and what lies between its rows is left alone") {
  Random random(6, "test");  // seed 6
  const auto transitions = random_transitions(10, 2, random);
  for (const std::string text :
       {"input(4) dense(5) relu dueling(5,3)", "input(4) dense(5) relu output(3)", "input(4) output(17)"}) {
    EigenNetwork network(parse_network(text), 1);
    const std::size_t actions = network.network().num_actions();
    const auto expected = evaluate(network, batch_of(transitions).observations());
    std::vector<float> wide(10 * (actions + 2), 7.0f);
    network.evaluate(batch_of(transitions).observations(),
                     MatrixView<float>(wide.data(), 10, actions, (actions + 2) * sizeof(float)));
    for (std::size_t i = 0; i < 10; ++i) {
      for (std::size_t j = 0; j < actions; ++j)
        CHECK(wide[i * (actions + 2) + j] == expected[i * actions + j]);
      CHECK(wide[i * (actions + 2) + actions] == 7.0f);
      CHECK(wide[i * (actions + 2) + actions + 1] == 7.0f);
    }
  }
}

TEST_CASE("uint8 observations are read as x / 255") {
  Random random(7, "test");  // seed 7
  const troop::RecordLayout layout({{"observation", DType::u8, {3, 3, 5}, 0},
                                    {"action", DType::i32, {}, 0},
                                    {"reward", DType::f32, {}, 0},
                                    {"discount", DType::f32, {}, 0},
                                    {"next_observation", DType::u8, {3, 3, 5}, 0}});
  for (const std::string text :
       {"input(3,3,5) dense(12) relu dueling(12,2)", "input(3,3,5) conv(6,2,1) relu dueling(5,2)"}) {
    const Network description = parse_network(text);
    Columns columns = random_columns(description, 80, random);
    std::vector<std::byte> records(80 * layout.size());
    for (std::size_t i = 0; i < 80; ++i) {
      std::byte* const record = records.data() + i * layout.size();
      for (std::size_t j = 0; j < 45; ++j) {
        const auto now = static_cast<std::uint8_t>(random.below(256)),
                   next = static_cast<std::uint8_t>(random.below(256));
        record[layout.field("observation").offset + j] = std::byte{now};
        record[layout.field("next_observation").offset + j] = std::byte{next};
        columns.observations[i * 45 + j] = static_cast<float>(now) * (1.0f / 255.0f);
        columns.next_observations[i * 45 + j] = static_cast<float>(next) * (1.0f / 255.0f);
      }
      std::memcpy(record + layout.field("action").offset, &columns.actions[i], 4);
      std::memcpy(record + layout.field("reward").offset, &columns.rewards[i], 4);
      std::memcpy(record + layout.field("discount").offset, &columns.discounts[i], 4);
    }
    EigenNetwork bytes(description, 3), floats(description, 3);
    const TransitionBatch batch(BatchView(layout, records.data(), 80));
    std::vector<float> a(80), b(80);
    for (int step = 0; step < 3; ++step) {
      bytes.train_step(batch, {}, a);
      floats.train_step(columns.batch(), {}, b);
    }
    CHECK(a == b);
    CHECK(std::ranges::equal(bytes.parameters(), floats.parameters()));
    CHECK(evaluate(bytes, batch.observations()) == evaluate(floats, columns.batch().observations()));
  }
}

TEST_CASE("the Nature network reads stacks of frames as PyTorch does") {
  Random random(17, "test");  // seed 17
  const Network description = nature_dueling().bind({4, 84, 84}, 6);
  EigenNetwork network(description, 5, {.num_threads = 2});
  const std::size_t inputs = description.num_inputs();
  std::vector<std::uint8_t> frames(5 * inputs);
  for (auto& pixel : frames) pixel = static_cast<std::uint8_t>(random.below(256));
  const auto q = evaluate(network, MatrixView<const std::uint8_t>(frames.data(), 5, inputs));
  for (const std::size_t i : {0, 4}) {
    std::vector<double> x(inputs);
    for (std::size_t j = 0; j < inputs; ++j) x[j] = static_cast<double>(frames[i * inputs + j]) / 255.0;
    const auto expected = plain_forward(description, widen(network.parameters()), x);
    CHECK(largest_difference(std::span(q).subspan(i * 6, 6), expected) < 1e-5);
  }
}

TEST_CASE("convolutions give bit for bit the same for any number of threads") {
  Random random(18, "test");  // seed 18
  const Network description = parse_network("input(2,9,8) conv(17,3,2) relu conv(7,2,1) relu dueling(6,3)");
  for (const std::size_t size : {1, 3, 16, 33, 200}) {
    const Columns columns = random_columns(description, size, random);
    const auto weights = random_weights(size, random);
    std::vector<float> expected_parameters, expected_q;
    for (const std::size_t threads : {1, 2, 5}) {
      EigenNetwork network(description, 9, {.num_threads = threads});
      for (int step = 0; step < 3; ++step) network.train_step(columns.batch(), weights, {});
      const auto q = evaluate(network, columns.batch().observations());
      const std::vector<float> parameters(network.parameters().begin(), network.parameters().end());
      if (threads == 1) {
        expected_parameters = parameters;
        expected_q = q;
      }
      CHECK(parameters == expected_parameters);
      CHECK(q == expected_q);
    }
  }
}

TEST_CASE("without weights every transition counts as one") {
  Random random(8, "test");  // seed 8
  const auto transitions = random_transitions(30, 2, random);
  EigenNetwork a(dueling_mlp({8, 8}).bind({4}, 2), 1), b(dueling_mlp({8, 8}).bind({4}, 2), 1);
  a.train_step(batch_of(transitions), {}, {});
  b.train_step(batch_of(transitions), std::vector<float>(30, 1.0f), {});
  CHECK(std::ranges::equal(a.parameters(), b.parameters()));
}

TEST_CASE("a step whose loss or gradient is not finite is skipped and counted") {
  Random random(9, "test");  // seed 9
  for (const std::string poison :
       {"reward", "infinite reward", "observation", "weight", "huge weight", "discount"}) {
    CAPTURE(poison);
    EigenNetwork network(dueling_mlp({8, 8}).bind({4}, 2), 1, {.loss = Loss::squared});
    auto transitions = random_transitions(70, 2, random);
    auto weights = random_weights(70, random);
    network.train_step(batch_of(transitions), weights, {});
    const std::vector<float> before(network.parameters().begin(), network.parameters().end());
    const std::vector<float> state(network.optimizer_state().begin(), network.optimizer_state().end());
    auto bad = transitions;
    auto bad_weights = weights;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (poison == "reward") bad[66].reward = nan;
    if (poison == "infinite reward") bad[66].reward = std::numeric_limits<float>::infinity();
    if (poison == "observation") bad[66].observation[1] = nan;
    if (poison == "weight") bad_weights[66] = nan;
    if (poison == "huge weight") bad_weights[66] = std::numeric_limits<float>::infinity();
    if (poison == "discount") bad[66].discount = nan;
    const TrainResult result = network.train_step(batch_of(bad), bad_weights, {});
    CHECK_FALSE(result.applied);
    CHECK(network.num_skipped_steps() == 1);
    CHECK(network.optimizer_steps() == 1);
    CHECK(std::ranges::equal(network.parameters(), before));
    CHECK(std::ranges::equal(network.optimizer_state(), state));
    CHECK(network.train_step(batch_of(transitions), weights, {}).applied);
    CHECK(network.optimizer_steps() == 2);
    CHECK(network.num_skipped_steps() == 1);
  }
}

TEST_CASE("a next observation of NaN does no harm where the episode terminated") {
  Random random(10, "test");  // seed 10
  auto transitions = random_transitions(10, 2, random);
  transitions[3].discount = 0.0f;
  transitions[3].next_observation.fill(std::numeric_limits<float>::quiet_NaN());
  EigenNetwork network(dueling_mlp({8, 8}).bind({4}, 2), 1);
  std::vector<float> priorities(10);
  const TrainResult result = network.train_step(batch_of(transitions), {}, priorities);
  CHECK(result.applied);
  CHECK(std::isfinite(priorities[3]));
  transitions[3].discount = 0.97f;
  CHECK_FALSE(network.train_step(batch_of(transitions), {}, priorities).applied);
}

TEST_CASE("ReLU does not hide a NaN") {
  for (const std::string text :
       {"input(4) dense(8) relu output(2)", "input(1,2,2) conv(8,1,1) relu output(2)"}) {
    EigenNetwork network(parse_network(text), 1);
    const std::array<float, 4> x{0, std::numeric_limits<float>::quiet_NaN(), 0, 0};
    for (const float q : evaluate(network, MatrixView<const float>(x.data(), 1, 4))) CHECK(std::isnan(q));
  }
}

TEST_CASE("online and target parameters are set apart from each other") {
  const Network description = dueling_mlp({8, 8}).bind({4}, 2);
  EigenNetwork network(description, 1);
  const auto first = initial_parameters(description, 1), second = initial_parameters(description, 2);
  CHECK(std::ranges::equal(network.parameters(), first));
  CHECK(std::ranges::equal(network.target_parameters(), first));
  network.set_parameters(second);
  CHECK(std::ranges::equal(network.target_parameters(), second));  // the target has not come into being
  network.set_target_parameters(first);
  CHECK(std::ranges::equal(network.parameters(), second));
  CHECK(std::ranges::equal(network.target_parameters(), first));
  network.sync_target();
  CHECK(std::ranges::equal(network.target_parameters(), second));
  network.set_parameters(first);
  CHECK(std::ranges::equal(network.parameters(), first));
  CHECK(std::ranges::equal(network.target_parameters(), second));
  CHECK_THROWS_AS(network.set_parameters(std::span(first).first(3)), troop::InvalidArgument);
  CHECK_THROWS_AS(network.set_target_parameters(std::span(first).first(3)), troop::InvalidArgument);
}

TEST_CASE("set_parameters changes what evaluate and train_step compute at once") {
  Random random(11, "test");  // seed 11
  const Network description = dueling_mlp({8, 8}).bind({4}, 3);
  const auto transitions = random_transitions(20, 3, random);
  EigenNetwork used(description, 1);
  used.train_step(batch_of(transitions), {}, {});
  evaluate(used, batch_of(transitions).observations());
  const auto other = initial_parameters(description, 2);
  used.set_parameters(other);
  used.set_target_parameters(other);
  EigenNetwork fresh(description, 2);
  CHECK(evaluate(used, batch_of(transitions).observations()) ==
        evaluate(fresh, batch_of(transitions).observations()));
  CHECK(used.train_step(batch_of(transitions), {}, {}).loss ==
        fresh.train_step(batch_of(transitions), {}, {}).loss);
}

TEST_CASE("training continues from saved parameters, target and optimizer state") {
  Random random(12, "test");  // seed 12
  const Network description = dueling_mlp({8, 8}).bind({4}, 2);
  const auto transitions = random_transitions(20, 2, random);
  EigenNetwork a(description, 1), b(description, 99);
  for (int step = 0; step < 3; ++step) a.train_step(batch_of(transitions), {}, {});
  b.set_parameters(a.parameters());
  b.set_target_parameters(a.target_parameters());
  b.set_optimizer_state(a.optimizer_steps(), a.optimizer_state());
  for (int step = 0; step < 3; ++step) {
    a.train_step(batch_of(transitions), {}, {});
    b.train_step(batch_of(transitions), {}, {});
  }
  CHECK(std::ranges::equal(a.parameters(), b.parameters()));
  CHECK_THROWS_AS(b.set_optimizer_state(1, std::vector<float>(3)), troop::InvalidArgument);
}

TEST_CASE("training on one batch brings its loss down") {
  Random random(13, "test");  // seed 13
  const auto transitions = random_transitions(64, 2, random);
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::rmsprop}) {
    EigenNetwork network(
        dueling_mlp({32, 32}).bind({4}, 2), 1,
        {.optimizer = {.kind = kind, .learning_rate = kind == OptimizerKind::adam ? 3e-3 : 3e-4}});
    const float first = network.train_step(batch_of(transitions), {}, {}).loss;
    float last = first;
    for (int step = 0; step < 400; ++step) last = network.train_step(batch_of(transitions), {}, {}).loss;
    CHECK(last < 0.2f * first);
  }
}

TEST_CASE("steps over batches of sizes seen before allocate nothing") {
  Random random(14, "test");  // seed 14
  const auto transitions = random_transitions(512, 2, random);
  const auto weights = random_weights(512, random);
  for (const std::size_t threads : {1, 2}) {
    EigenNetwork network(Network({Dense{300}, Relu{}, Dense{200}, Relu{}, Dueling{150}}).bind({4}, 2), 1,
                         {.num_threads = threads});
    std::vector<float> priorities(512), q(1024);
    const auto steps = [&] {
      for (const std::size_t size : {1, 16, 100, 512}) {
        const BatchView records(std::span<const Transition>(transitions).first(size));
        network.evaluate(ObservationsView(records, "observation"), MatrixView<float>(q.data(), size, 2));
        network.train_step(TransitionBatch(records), std::span(weights).first(size),
                           std::span(priorities).first(size));
        network.sync_target();
        network.set_parameters(network.target_parameters());
      }
    };
    CHECK(troop::testing::allocations_in(steps) > 0);
    CHECK(troop::testing::allocations_in(steps) == 0);
  }
}

TEST_CASE("convolutions allocate nothing for batches of sizes seen before") {
  Random random(19, "test");  // seed 19
  const Network description = parse_network("input(2,9,8) conv(5,3,2) relu conv(7,2,1) relu dueling(6,3)");
  const Columns columns = random_columns(description, 40, random);
  std::vector<float> q(120);
  for (const std::size_t threads : {1, 2}) {
    EigenNetwork network(description, 1, {.num_threads = threads});
    const auto step = [&] {
      const TransitionBatch batch = columns.batch();
      network.evaluate(batch.observations(), MatrixView<float>(q.data(), 40, 3));
      network.train_step(batch, {}, {});
      network.sync_target();
    };
    CHECK(troop::testing::allocations_in(step) > 0);
    CHECK(troop::testing::allocations_in(step) == 0);
  }
}

TEST_CASE("acting takes no memory for training") {
  EigenNetwork network(dueling_mlp({64, 64}).bind({4}, 2), 1);
  std::array<float, 4> x{};
  std::array<float, 2> q{};
  const auto act = [&] {
    network.evaluate(MatrixView<float>(x.data(), 1, 4), MatrixView<float>(q.data(), 1, 2));
  };
  CHECK(troop::testing::allocations_in(act) <=
        3);  // the workspace, the transposed weights, a message not used
  CHECK(troop::testing::allocations_in(act) == 0);
  CHECK(network.optimizer_steps() == 0);
  CHECK(network.gradient().empty());
}

TEST_CASE("sizes that do not fit are refused before anything changes") {
  Random random(15, "test");  // seed 15
  auto transitions = random_transitions(5, 2, random);
  EigenNetwork network(dueling_mlp({8, 8}).bind({4}, 2), 1);
  const std::vector<float> before(network.parameters().begin(), network.parameters().end());
  std::vector<float> values(100);
  const auto observations = batch_of(transitions).observations();
  CHECK_THROWS_AS(network.evaluate(observations, MatrixView<float>(values.data(), 4, 2)),
                  troop::InvalidArgument);
  CHECK_THROWS_AS(network.evaluate(observations, MatrixView<float>(values.data(), 5, 3)),
                  troop::InvalidArgument);
  CHECK_THROWS_AS(
      network.evaluate(MatrixView<float>(values.data(), 5, 3), MatrixView<float>(values.data(), 5, 2)),
      troop::InvalidArgument);
  CHECK_THROWS_AS(network.train_step(batch_of(transitions), std::span(values).first(4), {}),
                  troop::InvalidArgument);
  CHECK_THROWS_AS(network.train_step(batch_of(transitions), {}, std::span(values).first(6)),
                  troop::InvalidArgument);
  CHECK_THROWS_AS(network.train_step(batch_of({}), {}, {}), troop::InvalidArgument);
  for (const std::int32_t action : {-1, 2, std::numeric_limits<std::int32_t>::min()}) {
    transitions[3].action = action;
    CHECK_THROWS_WITH_AS(
        network.train_step(batch_of(transitions), {}, {}),
        ("action of transition 3: " + std::to_string(action) + " is not allowed; expected from 0 to 1")
            .c_str(),
        troop::InvalidArgument);
  }
  CHECK(std::ranges::equal(network.parameters(), before));
  CHECK_THROWS_AS(EigenNetwork(dueling_mlp({8, 8}), 1), troop::Error);
  CHECK_THROWS_AS(EigenNetwork(dueling_mlp({8, 8}).bind({4}, 2), 1, {.huber_delta = -1}),
                  troop::InvalidArgument);
  network.evaluate(MatrixView<float>(values.data(), 0, 4), MatrixView<float>(values.data(), 0, 2));
}

TEST_CASE("observations that a convolution cannot take are refused") {
  const std::vector<std::uint8_t> frames(4 * 84 * 84 + 1);
  std::vector<float> q(6);
  EigenNetwork network(nature_dueling().bind({4, 84, 84}, 6), 1);
  CHECK_THROWS_WITH_AS(network.evaluate(MatrixView<const std::uint8_t>(frames.data(), 1, 28225),
                                        MatrixView<float>(q.data(), 1, 6)),
                       "observation elements: 28225 is not allowed; expected 28224", troop::InvalidArgument);
  CHECK_THROWS_WITH_AS(EigenNetwork(nature_dueling().bind({4, 84}, 6)),
                       "layer 0 (conv(32,8,4)).input: (4,84) is not allowed; expected three dimensions, "
                       "(channels, height, width)",
                       troop::InvalidArgument);
  CHECK_THROWS_AS(EigenNetwork(nature_dueling(), 1), troop::Error);
}

TEST_CASE("a network can be moved") {
  Random random(16, "test");  // seed 16
  const auto transitions = random_transitions(20, 2, random);
  EigenNetwork a(dueling_mlp({8, 8}).bind({4}, 2), 1, {.num_threads = 2}),
      b(dueling_mlp({8, 8}).bind({4}, 2), 1);
  a.train_step(batch_of(transitions), {}, {});
  b.train_step(batch_of(transitions), {}, {});
  EigenNetwork moved(std::move(a));
  moved.train_step(batch_of(transitions), {}, {});
  b.train_step(batch_of(transitions), {}, {});
  CHECK(std::ranges::equal(moved.parameters(), b.parameters()));
}
