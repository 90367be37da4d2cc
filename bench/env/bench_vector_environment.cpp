// Steps a second of a vector of CartPoles under random actions, resets and bookkeeping included. One step of
// one environment is one item.
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/env/cart_pole.hpp>
#include <troop/env/vector_environment.hpp>

namespace {

using troop::env::CartPole;
using troop::env::VectorEnvironment;

void cart_pole_step(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  VectorEnvironment<CartPole> environments({.count = count, .seed = 1});
  troop::Random random(1, "actions");
  std::array<std::vector<std::int32_t>, 256> actions;
  for (auto& row : actions) {
    row.resize(count);
    for (auto& action : row) action = static_cast<std::int32_t>(random.below(2));
  }
  std::size_t t = 0, episodes = 0;
  for (auto _ : state) {
    environments.step(actions[t++ % actions.size()]);
    episodes += environments.finished_episodes().size();
    benchmark::DoNotOptimize(environments.observations().row(0));
    benchmark::ClobberMemory();
  }
  const auto steps = static_cast<double>(state.iterations()) * static_cast<double>(count);
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.counters["mean_length"] = episodes > 0 ? steps / static_cast<double>(episodes) : 0;
}
BENCHMARK(cart_pole_step)->ArgName("environments")->Arg(1)->Arg(8)->Arg(256);

}  // namespace
