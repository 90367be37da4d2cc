// How long a checkpoint holds the learner up. `take`: everything is copied at once, of the online and the target network
// and the optimizer's state. `step`: the copy is left to the writer's thread, and the next step waits for it where it
// changes the parameters; steps with a checkpoint and without take turns. Writing and checking go on beside it and are
// waited for before the next one.
#include <benchmark/benchmark.h>

#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/random.hpp>
#include <troop/core/view.hpp>
#include <troop/durability/checkpoint.hpp>
#include <troop/durability/run_directory.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/transition_batch.hpp>

namespace {

using namespace troop;
using durability::Checkpoint;

/// A writer of checkpoints in a directory of its own.
class Run {
 public:
  Run() {
    if (mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("cannot make " + folder_);
    directory_.emplace(durability::RunDirectoryOptions{.path = folder_ + "/run"});
    writer_.emplace(*directory_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() {
    writer_.reset();
    directory_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  durability::CheckpointWriter& writer() { return *writer_; }

  void report(benchmark::State& state) const {
    state.counters["write_seconds"] = writer_->statistics().write_seconds;
    state.counters["bytes"] = static_cast<double>(writer_->statistics().bytes);
  }

 private:
  std::string folder_ = (std::filesystem::temp_directory_path() / "troop-bench-XXXXXX").string();
  std::optional<durability::RunDirectory> directory_;
  std::optional<durability::CheckpointWriter> writer_;
};

nn::Network atari() {
  return nn::nature_dueling().bind({4, 84, 84}, 18);
}

void take(benchmark::State& state, const nn::Network& network) {
  nn::EigenNetwork online(network, 1);
  online.sync_target();
  Run run;
  std::uint64_t steps = 0;
  for (auto _ : state) {
    const bool is_taken = run.writer().take([&](Checkpoint& checkpoint) {
      checkpoint.copy_from(online);
      checkpoint.info.learner_steps = ++steps;
    });
    state.PauseTiming();
    if (!is_taken || !run.writer().flush(Deadline::never())) state.SkipWithError("no checkpoint was written");
    state.ResumeTiming();
  }
  run.report(state);
}

void take_cart_pole(benchmark::State& state) {
  take(state, nn::dueling_mlp({64, 64}).bind({4}, 2));
}
BENCHMARK(take_cart_pole)->UseRealTime()->Unit(benchmark::kMillisecond);

void take_atari(benchmark::State& state) {
  take(state, atari());
}
BENCHMARK(take_atari)->UseRealTime()->Unit(benchmark::kMillisecond);

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Learner steps of Atari. The time is what the learner's thread spends on a checkpoint: the call, and the wait before
/// the parameters change. The counters are medians of whole steps in milliseconds.
void step_atari(benchmark::State& state) {
  const auto size = static_cast<std::size_t>(state.range(0));
  constexpr std::size_t kPixels = 4 * 84 * 84;
  Random random(1, "bench");
  std::vector<std::uint8_t> pixels(2 * size * kPixels);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(random.below(256));
  const std::vector<std::int32_t> actions(size, 3);
  const std::vector<float> scalars(size, 0.9f), weights(size, 1.0f);
  std::vector<float> priorities(size);
  const MatrixView<const float> column(scalars.data(), size, 1);
  const nn::TransitionBatch batch(
      MatrixView<const std::uint8_t>(pixels.data(), size, kPixels),
      MatrixView<const std::int32_t>(actions.data(), size, 1), column, column,
      MatrixView<const std::uint8_t>(pixels.data() + size * kPixels, size, kPixels));
  nn::EigenNetwork online(atari(), 1);
  online.sync_target();
  online.train_step(batch, weights, priorities);
  Run run;
  std::vector<double> with, without;
  for (auto _ : state) {
    Clock::time_point start = Clock::now();
    online.train_step(batch, weights, priorities);
    without.push_back(1e3 * seconds_since(start));

    Clock::time_point held_at;
    double held = 0.0;
    start = Clock::now();
    online.before_next_change([&] { held_at = Clock::now(); });
    const bool is_taken = run.writer().take([&](Checkpoint& checkpoint) { checkpoint.copy_later(online); });
    online.before_next_change([&] { held += seconds_since(held_at); });
    held += seconds_since(start);
    online.train_step(batch, weights, priorities);
    with.push_back(1e3 * seconds_since(start));
    state.SetIterationTime(held);
    if (!is_taken || !run.writer().flush(Deadline::never())) state.SkipWithError("no checkpoint was written");
  }
  state.counters["step_with_ms"] = median(with);
  state.counters["step_without_ms"] = median(without);
  run.report(state);
}
BENCHMARK(step_atari)
    ->ArgName("batch")
    ->Arg(32)
    ->Iterations(50)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
