#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <troop/nn/q_network.hpp>

using namespace troop::nn;
using troop::MatrixView;

namespace {

struct ActsByCopy {
  const Network& network() const;
  void evaluate(ObservationsView, MatrixView<float>);
  std::vector<float> parameters();  // a span of it would dangle
  void set_parameters(std::span<const float>);
};

struct Acts {
  const Network& network() const;
  void evaluate(const ObservationsView&, MatrixView<float>);
  std::span<const float> parameters();  // need not be const: a device backend copies
  void set_parameters(std::span<const float>);
};

struct Learns : Acts {
  void sync_target();
  std::span<const float> target_parameters();
  void set_target_parameters(std::span<const float>);
  TrainResult train_step(const TransitionBatch&, std::span<const float>, std::span<float>);
  std::uint64_t optimizer_steps() const;
  std::span<const float> optimizer_state();
  void set_optimizer_state(std::uint64_t, std::span<const float>);
};

struct LearnsByValue : Learns {
  TrainResult train_step(TransitionBatch, std::span<const float>, std::span<float>);
};

struct ReturnsNothing : Learns {
  void train_step(const TransitionBatch&, std::span<const float>, std::span<float>);
};

static_assert(InferenceNetwork<Acts>);
static_assert(!QNetwork<Acts>);
static_assert(!HasTarget<Acts> && !Trains<Acts> && !HasOptimizerState<Acts>);
static_assert(QNetwork<Learns> && require_q_network<Learns>());
static_assert(QNetwork<LearnsByValue>);
static_assert(!Trains<ReturnsNothing>);
static_assert(!InferenceNetwork<ActsByCopy>);
static_assert(!DescribesNetwork<int>);

}  // namespace

TEST_CASE("a training option that is not allowed is named") {
  const auto error = [](const TrainOptions& options) {
    try {
      options.validate();
    } catch (const troop::InvalidArgument& e) {
      return e.field();
    }
    return std::string("no error");
  };
  CHECK(error({}) == "no error");
  CHECK(error({.max_gradient_norm = 0}) == "no error");
  CHECK(error({.optimizer = {.learning_rate = -1}}) == "learning_rate");
  CHECK(error({.huber_delta = 0}) == "huber_delta");
  CHECK(error({.max_gradient_norm = -1}) == "max_gradient_norm");
  CHECK(error({.num_threads = 0}) == "num_threads");
}
