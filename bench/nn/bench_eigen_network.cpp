// Evaluation and training of the CPU's Q-networks: the dueling MLP of CartPole, 4-64-(2x64)-2, in one thread,
// and the Nature dueling network of Atari with 18 actions, from bytes, in one thread and in two.
//
// The peer is the same step in PyTorch with torch.set_num_threads(1) or (2); compare ratios, run back to back.

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/core/view.hpp>
#include <troop/nn/eigen_network.hpp>

namespace {

using namespace troop;

struct Transition {
  std::array<float, 4> observation;
  std::int32_t action;
  float reward;
  float discount;
  std::array<float, 4> next_observation;
};

std::vector<Transition> make_transitions(std::size_t size) {
  Random random(1, "bench");
  std::vector<Transition> transitions(size);
  for (auto& t : transitions) {
    for (float& x : t.observation) x = static_cast<float>(random.normal());
    for (float& x : t.next_observation) x = static_cast<float>(random.normal());
    t.action = static_cast<std::int32_t>(random.below(2));
    t.reward = static_cast<float>(random.normal());
    t.discount = 0.97f;
  }
  return transitions;
}

nn::EigenNetwork make_network() {
  return nn::EigenNetwork(nn::dueling_mlp({64, 64}).bind({4}, 2), 1);
}

void evaluate(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const auto transitions = make_transitions(rows);
  const BatchView batch{std::span<const Transition>(transitions)};
  auto network = make_network();
  std::vector<float> q(2 * rows);
  for (auto _ : state) {
    network.evaluate(nn::ObservationsView(batch, "observation"), MatrixView<float>(q.data(), rows, 2));
    benchmark::DoNotOptimize(q.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(evaluate)->Name("evaluate/dueling_mlp")->ArgName("batch")->Arg(1)->Arg(16)->Arg(128)->Arg(512);

void train_step(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const auto transitions = make_transitions(rows);
  const BatchView batch{std::span<const Transition>(transitions)};
  auto network = make_network();
  const std::vector<float> weights(rows, 1.0f);
  std::vector<float> priorities(rows);
  for (auto _ : state) {
    const nn::TrainResult result = network.train_step(nn::TransitionBatch(batch), weights, priorities);
    benchmark::DoNotOptimize(result.loss);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(train_step)->Name("train_step/dueling_mlp")->ArgName("batch")->Arg(32)->Arg(128)->Arg(512);

// Frames in columns of their own; an action's and a reward's value does not change the time.
struct Frames {
  static constexpr std::size_t kPixels = 4 * 84 * 84;

  explicit Frames(std::size_t size) : pixels(2 * size * kPixels), actions(size), scalars(size, 0.9f) {
    Random random(1, "bench");
    for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(random.below(256));
    for (auto& action : actions) action = static_cast<std::int32_t>(random.below(18));
  }
  MatrixView<const std::uint8_t> observations(std::size_t part) const {
    return {pixels.data() + part * actions.size() * kPixels, actions.size(), kPixels};
  }
  nn::TransitionBatch batch() const {
    const MatrixView<const float> column(scalars.data(), scalars.size(), 1);
    return {observations(0), MatrixView<const std::int32_t>(actions.data(), actions.size(), 1), column,
            column, observations(1)};
  }
  std::vector<std::uint8_t> pixels;
  std::vector<std::int32_t> actions;
  std::vector<float> scalars;
};

nn::EigenNetwork make_nature(std::size_t num_threads) {
  return nn::EigenNetwork(nn::nature_dueling().bind({4, 84, 84}, 18), 1,
                          {.optimizer = {.kind = nn::OptimizerKind::rmsprop}, .num_threads = num_threads});
}

void evaluate_nature(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const Frames frames(rows);
  auto network = make_nature(static_cast<std::size_t>(state.range(1)));
  std::vector<float> q(18 * rows);
  for (auto _ : state) {
    network.evaluate(frames.observations(0), MatrixView<float>(q.data(), rows, 18));
    benchmark::DoNotOptimize(q.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(evaluate_nature)
    ->Name("evaluate/nature_dueling")
    ->ArgNames({"batch", "threads"})
    ->ArgsProduct({{1, 16}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void train_step_nature(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const Frames frames(rows);
  auto network = make_nature(static_cast<std::size_t>(state.range(1)));
  const std::vector<float> weights(rows, 1.0f);
  std::vector<float> priorities(rows);
  for (auto _ : state) {
    const nn::TrainResult result = network.train_step(frames.batch(), weights, priorities);
    benchmark::DoNotOptimize(result.loss);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(train_step_nature)
    ->Name("train_step/nature_dueling")
    ->ArgNames({"batch", "threads"})
    ->ArgsProduct({{32, 512}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
