// What a log costs those who insert, and how soon a replay is there again.
//
//   insert/RECORD/rate:R/log:L   one thread offers R records a second in batches of 50 (0: as many as go in), with a log
//                                or without; `items_per_second` went in, the CPU time is that of all threads
//   restore/RECORD/items:N       a program that goes on: the directory is opened, the replay filled, a batch drawn
//   read/RECORD/items:N          the same files are only read, as `cat` does
#include <benchmark/benchmark.h>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/file.hpp>
#include <troop/core/random.hpp>
#include <troop/durability/replay_log.hpp>
#include <troop/durability/run_directory.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "../support/replay_workload.hpp"

namespace {

using troop::Clock;
using troop::bench::AtariTransition;
using troop::bench::CartPoleTransition;
using troop::bench::kBatch;
using troop::bench::kChunk;
using troop::bench::Supply;

/// A run directory below TMPDIR, gone at the end.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "troop-bench-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
    path_ = pattern;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string run() const { return path_ + "/run"; }

 private:
  std::string path_;
};

/// A replay and its log, as a program has them.
template <class Record>
struct Life {
  using Replay = troop::PrioritizedReplay<Record>;

  Life(const std::string& path, std::size_t capacity)
      : run({.path = path}), replay({.capacity = capacity}), log(run, replay) {
    run.write_manifest({});
  }

  troop::durability::RunDirectory run;
  Replay replay;
  troop::durability::ReplayLog<Replay> log;
};

template <class Record>
void insert(benchmark::State& state) {
  const auto rate = static_cast<double>(state.range(0));
  const bool has_log = state.range(1) != 0;
  const std::size_t capacity = sizeof(Record) < 1000 ? std::size_t{1} << 20 : std::size_t{1} << 14;
  const Supply<Record> supply(troop::Random(1, "records"));
  const Folder folder;
  std::optional<Life<Record>> life;
  std::optional<troop::PrioritizedReplay<Record>> alone;
  if (has_log) {
    life.emplace(folder.run(), capacity);
  } else {
    alone.emplace(troop::ReplayOptions{.capacity = capacity});
  }
  const auto interval = std::chrono::duration<double>(rate == 0.0 ? 0.0 : static_cast<double>(kChunk) / rate);
  const Clock::time_point start = Clock::now();
  std::size_t turn = 0;
  for (auto _ : state) {
    if (rate != 0.0) {
      const auto due =
          start + std::chrono::duration_cast<Clock::duration>(interval * static_cast<double>(turn));
      if (due > Clock::now()) std::this_thread::sleep_until(due);
    }
    const troop::BatchView records(supply.chunk(turn));
    const auto priorities = supply.chunk_priorities(turn);
    ++turn;
    if (has_log) {
      if (life->log.await_room(troop::Deadline::never()) != troop::Outcome::ok) break;
      life->log.add({}, records, priorities);
    } else {
      alone->add(records, priorities);
    }
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(turn * kChunk));
}

/// A run directory with so many records; the benchmarks of one size share it.
template <class Record>
const Folder& filled_folder(std::size_t items) {
  static std::unique_ptr<Folder> folder;
  static std::size_t held = 0;
  if (held == items) return *folder;
  folder = std::make_unique<Folder>();
  held = items;
  const Supply<Record> supply(troop::Random(2, "records"));
  Life<Record> life(folder->run(), items);
  for (std::size_t i = 0; i * kChunk < items; ++i) {
    life.log.await_room(troop::Deadline::never());
    life.log.add({}, troop::BatchView(supply.chunk(i)), supply.chunk_priorities(i));
  }
  if (!life.log.flush(troop::Deadline::never())) throw std::runtime_error("the log was not written");
  life.log.write_priorities();
  return *folder;
}

template <class Record>
void restore(benchmark::State& state) {
  const auto items = static_cast<std::size_t>(state.range(0));
  const Folder& folder = filled_folder<Record>(items);
  troop::Random random(3, "samples");
  for (auto _ : state) {
    auto life = std::make_unique<Life<Record>>(folder.run(), items);
    const auto batch = life->replay.sample(kBatch, {.beta = 0.4}, random);
    benchmark::DoNotOptimize(batch.keys.data());
    state.PauseTiming();
    if (life->replay.size() != items) state.SkipWithError("the replay is not whole");
    life.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

template <class Record>
void read(benchmark::State& state) {
  const Folder& folder = filled_folder<Record>(static_cast<std::size_t>(state.range(0)));
  std::vector<char> buffer(std::size_t{128} << 10);
  std::int64_t bytes = 0;
  for (auto _ : state) {
    for (const auto& entry : std::filesystem::directory_iterator(folder.run() + "/replay")) {
      const troop::detail::FileHandle file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
      for (ssize_t n = 1; n > 0; bytes += n) n = ::read(file.get(), buffer.data(), buffer.size());
    }
  }
  state.SetBytesProcessed(bytes);
}

template <class Record>
void register_record(const std::string& name, std::vector<std::int64_t> rates,
                     std::vector<std::int64_t> sizes) {
  for (const std::int64_t rate : rates) {
    for (const std::int64_t log : {0, 1}) {
      benchmark::RegisterBenchmark(("insert/" + name).c_str(), insert<Record>)
          ->ArgNames({"rate", "log"})
          ->Args({rate, log})
          ->UseRealTime()
          ->MeasureProcessCPUTime();
    }
  }
  for (const std::int64_t items : sizes) {
    benchmark::RegisterBenchmark(("restore/" + name).c_str(), restore<Record>)
        ->ArgName("items")
        ->Arg(items)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("read/" + name).c_str(), read<Record>)
        ->ArgName("items")
        ->Arg(items)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
}

[[maybe_unused]] const bool registered = [] {
  register_record<CartPoleTransition>("cart_pole", {1'000'000, 0}, {10'000, 1'000'000});
  register_record<AtariTransition>("atari", {12'500, 0}, {100, 20'000});
  return true;
}();

}  // namespace
