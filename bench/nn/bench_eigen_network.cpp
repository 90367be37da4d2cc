// Evaluation and training of the CPU's Q-network: the dueling MLP of CartPole, 4-64-(2x64)-2, one thread.
//
// The peer is the same step in PyTorch with torch.set_num_threads(1); compare ratios, run back to back.

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

void BM_EigenNetwork_Evaluate(benchmark::State& state) {
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
BENCHMARK(BM_EigenNetwork_Evaluate)->ArgName("rows")->Arg(1)->Arg(16)->Arg(128)->Arg(512);

void BM_EigenNetwork_TrainStep(benchmark::State& state) {
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
BENCHMARK(BM_EigenNetwork_TrainStep)->ArgName("batch")->Arg(32)->Arg(128)->Arg(512);

}  // namespace
