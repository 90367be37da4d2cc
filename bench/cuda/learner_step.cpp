// Times a learner's step, with everything that it needs: `learner_step [--batches 512,32] [--seconds 0.5] [--items
// 20000] [--small]`. Runs on the GPU, or on the emulated device of the tests (bench/gpu_check --dry-run).
//
// A line of JSON for each network, batch size, precision and place of the frames. Microseconds, of a step:
//   pipelined  begin_step and finish_step with two in flight, batches sampled before
//   waited     train_step, batches sampled before
//   learner    agent::Learner::run: sampling, step, priorities written back, trims, target network
// Each is the median of several windows. The learner publishes its parameters every 100 steps, and beta is 0.4.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <sstream>
#include <stop_token>
#include <string>
#include <vector>

#include <troop/agent/learner.hpp>
#include <troop/agent/parameter_store.hpp>
#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/cuda/device_frame_storage.hpp>
#include <troop/cuda/network.hpp>
#include <troop/env/environment.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/transition_batch.hpp>
#include <troop/replay/array_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace {

using namespace troop;

struct Settings {
  std::vector<std::size_t> batches = {512, 32, 2048};
  double seconds = 0.5;       // of all windows of a figure
  std::size_t items = 20000;  // in the replay
  bool small = false;         // an image of 36 x 36 instead of 84 x 84
};

constexpr std::size_t kWindows = 5, kSampled = 4;

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--small") {
      settings.small = true;
      continue;
    }
    if (++i == argc) throw Error(word + " needs a value");
    std::istringstream value(argv[i]);
    if (word == "--batches") {
      settings.batches.clear();
      for (std::string batch; std::getline(value, batch, ',');) settings.batches.push_back(std::stoul(batch));
    } else if (word == "--seconds") {
      value >> settings.seconds;
    } else if (word == "--items") {
      value >> settings.items;
    } else {
      throw Error("unknown option " + word);
    }
  }
  return settings;
}

struct Workload {
  std::string name;
  RecordLayout layout;
  nn::Network network;
};

Workload cart_pole() {
  return {"cart_pole",
          env::transition_layout({.name = "CartPole", .observation_shape = {4}, .num_actions = 2}),
          nn::dueling_mlp({64, 64}).bind({4}, 2)};
}

Workload atari(bool small) {
  const std::size_t side = small ? 36 : 84;
  return {"atari",
          env::transition_layout({.name = "Atari",
                                  .observation_dtype = DType::u8,
                                  .observation_shape = {4, side, side},
                                  .num_actions = 6}),
          nn::nature_dueling().bind({4, side, side}, 6)};
}

/// Item i has the frames i to i + 3 and i + 3 to i + 6 of one long episode of random pictures.
template <class Replay>
void fill(Replay& replay, const Workload& workload, std::size_t items) {
  Random random(1, "bench");
  const RecordLayout& layout = workload.layout;
  const Field& observation = layout.field("observation");
  const bool stacked = observation.dtype == DType::u8;
  const std::size_t frame = stacked ? observation.bytes() / observation.shape.front() : 0;
  std::vector<std::uint64_t> frames((items + 7) * frame / 8 + 1);
  for (auto& word : frames) word = random();
  const auto* const pixels = reinterpret_cast<const std::byte*>(frames.data());
  constexpr std::size_t kChunk = 50;
  RecordArray records(layout, kChunk);
  std::vector<float> priorities(kChunk);
  for (std::size_t first = 0; first < items; first += kChunk) {
    for (std::size_t i = 0; i < kChunk; ++i) {
      std::byte* const record = records.record(i);
      const auto put = [&](const char* field, auto value) {
        std::memcpy(record + layout.field(field).offset, &value, sizeof value);
      };
      if (stacked) {
        const std::size_t at = std::min(first + i, items - 1);
        std::memcpy(record + observation.offset, pixels + at * frame, observation.bytes());
        std::memcpy(record + layout.field("next_observation").offset, pixels + (at + 3) * frame,
                    observation.bytes());
      } else {
        for (const char* field : {"observation", "next_observation"})
          for (std::size_t j = 0; j < observation.count(); ++j) {
            const auto value = static_cast<float>(random.normal());
            std::memcpy(record + layout.field(field).offset + j * sizeof value, &value, sizeof value);
          }
      }
      put("action", static_cast<std::int32_t>(random.below(workload.network.num_actions())));
      put("reward", static_cast<float>(random.normal()));
      put("discount", 0.97f);
      priorities[i] = static_cast<float>(0.1 + random.uniform());
    }
    replay.add(records.view(), priorities);
  }
}

double microseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

/// The median of windows of `run(steps)`, by step, each of its part of `seconds` and at least two steps.
double per_step(double seconds, const std::function<void(std::size_t)>& run) {
  run(2);
  const double once = microseconds([&] { run(2); }) / 2;
  const auto steps = std::max<std::size_t>(2, static_cast<std::size_t>(seconds * 1e6 / kWindows / once));
  std::vector<double> windows;
  for (std::size_t i = 0; i < kWindows; ++i)
    windows.push_back(microseconds([&] { run(steps); }) / static_cast<double>(steps));
  std::nth_element(windows.begin(), windows.begin() + kWindows / 2, windows.end());
  return windows[kWindows / 2];
}

template <class Storage>
auto transitions(const Storage& storage, const BatchView& view) {
  if constexpr (requires { storage.transitions(view); }) {
    return storage.transitions(view);
  } else {
    return nn::TransitionBatch(view);
  }
}

template <class Replay>
void measure(const Workload& workload, const char* place, Replay& replay, const Settings& settings) {
  for (const std::size_t batch : settings.batches)
    for (const auto& [precision, name] : {std::pair{cuda::Precision::tf32, "tf32"},
                                          {cuda::Precision::bf16, "bf16"},
                                          {cuda::Precision::fp32, "fp32"}}) {
      cuda::Network network(workload.network, 1, {}, {.precision = precision});
      Random random(2, "bench");
      std::vector<typename Replay::SampledBatch> sampled(kSampled);
      for (auto& one : sampled) replay.sample(batch, {.beta = 0.4}, random, one);
      std::vector<float> priorities(batch);
      const auto begin = [&](std::size_t i) {
        const auto& one = sampled[i % kSampled];
        network.begin_step(transitions(replay.storage(), one.view()), one.weights);
      };
      const double pipelined = per_step(settings.seconds, [&](std::size_t steps) {
        begin(0);
        for (std::size_t i = 1; i < steps; ++i) {
          begin(i);
          network.finish_step(priorities);
        }
        network.finish_step(priorities);
      });
      const double waited = per_step(settings.seconds, [&](std::size_t steps) {
        for (std::size_t i = 0; i < steps; ++i) {
          begin(i);
          network.finish_step(priorities);
        }
      });
      RateLimiter limiter({.min_inserts = 1, .samples_per_insert = 0.0});
      limiter.count_inserts(settings.items);
      agent::ParameterStore parameters;
      agent::Learner learner(network, replay, limiter, parameters,
                             {.batch_size = batch, .publish_interval = 100});
      const double whole = per_step(settings.seconds, [&](std::size_t steps) {
        learner.run(std::stop_token(), learner.steps() + steps);
      });
      std::printf(
          "{\"network\": \"%s\", \"frames\": \"%s\", \"batch\": %zu, \"precision\": \"%s\", \"pipelined\": "
          "%.2f, "
          "\"waited\": %.2f, \"learner\": %.2f, \"skipped\": %llu}\n",
          workload.name.c_str(), place, batch, name, pipelined, waited, whole,
          static_cast<unsigned long long>(network.num_skipped_steps()));
      std::fflush(stdout);
    }
}

void run(const Settings& settings) {
  {
    const Workload workload = cart_pole();
    PrioritizedReplay<DynamicRecord> replay({.capacity = settings.items, .alpha = 0.6}, workload.layout);
    fill(replay, workload, settings.items);
    measure(workload, "host", replay, settings);
  }
  const Workload workload = atari(settings.small);
  {
    PrioritizedReplay<DynamicRecord, cuda::DeviceFrameStorage> replay(
        {.capacity = settings.items, .alpha = 0.6}, workload.layout,
        {.storage = {.spare_bytes = settings.small ? 0 : std::size_t{1} << 30}});
    fill(replay, workload, settings.items);
    measure(workload, "device", replay, settings);
  }
  PrioritizedReplay<DynamicRecord> replay({.capacity = settings.items, .alpha = 0.6}, workload.layout);
  fill(replay, workload, settings.items);
  measure(workload, "host", replay, settings);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
