// How long a checkpoint holds the learner up: the copy on the boundary of a step, of the online and the target network
// and the optimizer's state. Writing and checking go on beside it and are waited for between two copies.
#include <benchmark/benchmark.h>

#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <troop/core/clock.hpp>
#include <troop/durability/checkpoint.hpp>
#include <troop/durability/run_directory.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/nn/network.hpp>

namespace {

void take(benchmark::State& state, const troop::nn::Network& network) {
  std::string folder = (std::filesystem::temp_directory_path() / "troop-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
  {
    troop::nn::EigenNetwork online(network, 1);
    online.sync_target();
    troop::durability::RunDirectory run({.path = folder + "/run"});
    troop::durability::CheckpointWriter writer(run);
    std::uint64_t steps = 0;
    for (auto _ : state) {
      const bool is_taken = writer.take([&](troop::durability::Checkpoint& checkpoint) {
        checkpoint.copy_from(online);
        checkpoint.info.learner_steps = ++steps;
      });
      state.PauseTiming();
      if (!is_taken || !writer.flush(troop::Deadline::never()))
        state.SkipWithError("no checkpoint was written");
      state.ResumeTiming();
    }
    state.counters["write_seconds"] = writer.statistics().write_seconds;
    state.counters["bytes"] = static_cast<double>(writer.statistics().bytes);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

void take_cart_pole(benchmark::State& state) {
  take(state, troop::nn::dueling_mlp({64, 64}).bind({4}, 2));
}

void take_atari(benchmark::State& state) {
  take(state, troop::nn::nature_dueling().bind({4, 84, 84}, 18));
}

BENCHMARK(take_cart_pole)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(take_atari)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
