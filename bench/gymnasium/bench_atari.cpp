// Agent steps a second of Pong under random actions: the vector of games alone, and a whole actor of it, whose
// network costs nothing, so that what is seen beside the emulators is troop's own work: n-step items of 56 KB,
// priorities, batches. One step of one game is one item. Threads are the emulators'.
#include <troop/gymnasium/atari.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <troop/agent/actor.hpp>
#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/nn/network.hpp>

namespace {

using troop::env::AtariVector;

/// Values that do not depend on the observation.
class NoNetwork {
 public:
  const troop::nn::Network& network() const { return network_; }
  void evaluate(troop::nn::ObservationsView, troop::MatrixView<float> q_values) {
    for (std::size_t i = 0; i < q_values.rows(); ++i) std::ranges::fill(q_values.row_span(i), 0.0f);
  }
  std::span<const float> parameters() const { return {}; }
  void set_parameters(std::span<const float>) {}

 private:
  troop::nn::Network network_ = troop::nn::mlp({});
};

/// Takes items and forgets them.
struct NoSink {
  troop::Outcome insert(const troop::BatchView&, std::span<const float>, troop::Deadline) {
    return troop::Outcome::ok;
  }
};

/// Never has anything new.
struct NoParameters {
  bool fetch(std::uint64_t&, std::vector<float>&) { return false; }
};

AtariVector pong(const benchmark::State& state) {
  return AtariVector({.count = static_cast<std::size_t>(state.range(0)), .seed = 1},
                     {.game = "pong", .num_threads = static_cast<std::size_t>(state.range(1))});
}

void atari_step(benchmark::State& state) {
  try {
    AtariVector games = pong(state);
    troop::Random random(1, "actions");
    std::array<std::vector<std::int32_t>, 256> actions;
    for (auto& row : actions) {
      for (std::size_t i = 0; i < games.size(); ++i)
        row.push_back(static_cast<std::int32_t>(random.below(6)));
    }
    for (int t = 0; t < 50; ++t) games.step(actions[static_cast<std::size_t>(t)]);
    std::size_t t = 0;
    for (auto _ : state) {
      games.step(actions[t++ % actions.size()]);
      benchmark::DoNotOptimize(games.observations().row(0));
    }
    state.SetItemsProcessed(state.iterations() * state.range(0));
  } catch (const troop::Error& error) {
    state.SkipWithError(error.what());
  }
}

void atari_actor(benchmark::State& state) {
  try {
    NoSink sink;
    NoParameters parameters;
    const auto count = static_cast<std::size_t>(state.range(0));
    troop::agent::Actor actor(pong(state), NoNetwork(), sink, parameters,
                              {.epsilon = {.base = 1.0}, .num_environments = count});
    for (int t = 0; t < 50; ++t) actor.step();
    for (auto _ : state) actor.step();
    state.SetItemsProcessed(state.iterations() * state.range(0));
  } catch (const troop::Error& error) {
    state.SkipWithError(error.what());
  }
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"environments", "threads"})->UseRealTime();
  for (const int threads : {1, 2}) benchmark->Args({8, threads});
  benchmark->Args({16, 2});
}
BENCHMARK(atari_step)->Apply(sizes);
BENCHMARK(atari_actor)->Apply(sizes);

}  // namespace
