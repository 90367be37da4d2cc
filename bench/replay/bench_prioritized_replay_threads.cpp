// Threads at one replay: adders insert chunks of 50, learners sample 512 and give those 512 new priorities.
//
// - add            k adders
// - learn          k learners
// - add_and_learn  k adders and one learner
//
// k is 1, 2, 4 ... and the number of cores; two adders and one learner are always there. Records and the
// filled replay are those of bench_prioritized_replay. Names: verb/replay/record/entries:N/threads:k, or
// adders:k.
//
// Each iteration is a window of 100 ms in which the threads share one replay, and one in which each of the
// same threads has a PrioritizedReplay of its own, with its part of the entries: what the same cores, caches
// and memory give when nothing is shared. Rates are per wall-clock second:
//
// - inserts_per_s, samples_per_s          of all threads at the shared replay; items, not batches
// - own_inserts_per_s, own_samples_per_s  of all threads at their own replays
// - efficiency      work at the shared replay over work at the own ones; inserts and samples are weighed by
//                   the CPU time that each costs at the own replays
// - cpu_efficiency  the same for each second of CPU time: without the time that threads waited for each other
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sharded_replay.hpp>

#include "../support/replay_workload.hpp"

namespace {

using namespace troop::bench;

constexpr std::chrono::milliseconds kWindow(100);

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::size_t cores() {
  return std::max(1u, std::thread::hardware_concurrency());
}

enum class Role { adder, learner };

/// What threads of one role do in a wall-clock second: items, and seconds of CPU time that they get.
struct Rate {
  double items = 0, cpu = 0;

  void operator+=(const Rate& other) {
    items += other.items;
    cpu += other.cpu;
  }
};

struct Rates {
  Rate inserts, samples;

  double cpu() const { return inserts.cpu + samples.cpu; }
  void operator+=(const Rates& other) {
    inserts += other.inserts;
    samples += other.samples;
  }
};

/// As many shards as a machine of this size would be given.
template <class Record>
class Sharded : public troop::ShardedReplay<troop::PrioritizedReplay<Record>> {
 public:
  explicit Sharded(const troop::ReplayOptions& options)
      : troop::ShardedReplay<troop::PrioritizedReplay<Record>>(options, 4 * cores()) {}
};

/// A replay that all threads share, and for each thread a PrioritizedReplay of its own.
template <class Replay, class R>
class ReplayOfThreads : public Workload {
 public:
  using Record = R;
  using Own = troop::PrioritizedReplay<Record>;

  static std::size_t bytes_for(std::size_t entries) {
    constexpr std::size_t kTreeAndKeys = 16;
    const std::size_t batches = cores() + 1;
    return 2 * entries * (sizeof(Record) + kTreeAndKeys) + Supply<Record>::kBytes +
           batches * kBatch * sizeof(Record);
  }

  explicit ReplayOfThreads(std::size_t entries)
      : supply_(troop::Random(1, "supply")), shared_(full<Replay>(entries)) {}

  std::size_t entries() const noexcept { return shared_->capacity(); }

  /// Prepares for threads of these roles.
  void set_roles(const std::vector<Role>& roles) {
    if (threads_.size() == roles.size() &&
        std::equal(roles.begin(), roles.end(), threads_.begin(),
                   [](Role role, const auto& thread) { return role == thread.role; }))
      return;
    threads_.clear();
    for (const Role role : roles) {
      auto& thread = threads_.emplace_back(role, troop::Random(1, "draws", threads_.size()));
      thread.own = full<Own>(std::max(entries() / roles.size(), kBatch));
      if (role == Role::learner)
        thread.learn(*thread.own, supply_);  // a batch takes its memory the first time
    }
  }

  /// Lets all threads work for a window, at the shared replay or at their own.
  Rates run(bool shared) {
    std::barrier start(static_cast<std::ptrdiff_t>(threads_.size() + 1));
    std::atomic<bool> stop = false;
    std::vector<std::jthread> running;
    for (Thread& thread : threads_) {
      running.emplace_back([&, shared] {
        start.arrive_and_wait();
        const auto began = troop::Clock::now();
        const double cpu = thread_cpu_seconds();
        std::size_t items = 0;
        while (!stop.load(std::memory_order_relaxed)) {
          items += shared ? thread.work(*shared_, supply_) : thread.work(*thread.own, supply_);
        }
        const double seconds = troop::seconds_since(began);
        thread.rate = {static_cast<double>(items) / seconds, (thread_cpu_seconds() - cpu) / seconds};
      });
    }
    start.arrive_and_wait();
    std::this_thread::sleep_for(kWindow);
    stop.store(true, std::memory_order_relaxed);
    running.clear();  // joins
    Rates sum;
    for (const Thread& thread : threads_)
      (thread.role == Role::adder ? sum.inserts : sum.samples) += thread.rate;
    return sum;
  }

 private:
  struct Thread {
    Thread(Role of_role, const troop::Random& own_random) : role(of_role), random(own_random) {}

    template <class AnyReplay>
    std::size_t work(AnyReplay& replay, const Supply<Record>& supply) {
      return role == Role::adder ? add(replay, supply) : learn(replay, supply);
    }

    template <class AnyReplay>
    std::size_t add(AnyReplay& replay, const Supply<Record>& supply) {
      replay.add(supply.chunk(turn), supply.chunk_priorities(turn));
      ++turn;
      return kChunk;
    }

    template <class AnyReplay>
    std::size_t learn(AnyReplay& replay, const Supply<Record>& supply) {
      replay.sample(kBatch, {.beta = 0.4}, random, batch);
      replay.update(batch.keys, supply.batch_priorities(turn++));
      return kBatch;
    }

    Role role;
    troop::Random random;
    std::unique_ptr<Own> own;
    typename Replay::SampledBatch batch;
    std::size_t turn = 0;
    Rate rate;
  };

  template <class AnyReplay>
  std::unique_ptr<AnyReplay> full(std::size_t entries) const {
    auto replay = std::make_unique<AnyReplay>(troop::ReplayOptions{.capacity = entries, .alpha = 0.6});
    for (std::size_t turn = 0; turn * kChunk < entries; ++turn) {
      replay->add(supply_.chunk(turn), supply_.chunk_priorities(turn));
    }
    return replay;
  }

  Supply<Record> supply_;
  std::unique_ptr<Replay> shared_;
  std::vector<Thread> threads_;
};

template <class Made>
void run(benchmark::State& state, std::size_t adders, std::size_t learners) {
  auto* made = workload<Made>(state);
  if (made == nullptr) return;
  std::vector<Role> roles(adders, Role::adder);
  roles.resize(adders + learners, Role::learner);
  made->set_roles(roles);
  Rates shared, own;
  bool shared_first = false;
  for (auto _ : state) {
    shared_first = !shared_first;  // whatever the second window has from the first, each kind has in turn
    for (const bool at_shared : {shared_first, !shared_first}) {
      (at_shared ? shared : own) += made->run(at_shared);
    }
  }
  const auto windows = static_cast<double>(state.iterations());
  double worth = 0;  // CPU time that the work at the shared replay takes at the own ones
  const auto report = [&](const std::string& items, const Rate& at_shared, const Rate& at_own) {
    if (at_own.items == 0) return;
    worth += at_shared.items * at_own.cpu / at_own.items;
    state.counters[items + "_per_s"] = at_shared.items / windows;
    state.counters["own_" + items + "_per_s"] = at_own.items / windows;
  };
  report("inserts", shared.inserts, own.inserts);
  report("samples", shared.samples, own.samples);
  state.counters["efficiency"] = worth / own.cpu();
  state.counters["cpu_efficiency"] = worth / shared.cpu();
  state.counters["record_bytes"] = sizeof(typename Made::Record);
}

template <class Replay, class Record>
void register_threads(const std::string& replay) {
  using Made = ReplayOfThreads<Replay, Record>;
  using OfRecord = Sizes<Record>;
  const auto most = static_cast<std::int64_t>(cores());
  std::vector<std::int64_t> counts;
  for (std::int64_t threads = 1; threads < most; threads *= 2) counts.push_back(threads);
  counts.push_back(most);
  auto adder_counts = counts;
  if (most == 1) adder_counts.push_back(2);
  for (int log2 = OfRecord::kSmallest; log2 <= OfRecord::kLargest; ++log2) {
    const auto add = [&](const char* verb, const char* of_what, const auto& of_counts, auto function) {
      const std::string name = std::string(verb) + "/" + replay + "/" + OfRecord::kName;
      auto* made = benchmark::RegisterBenchmark(name.c_str(), function);
      made->ArgNames({"entries", of_what})->UseRealTime()->Unit(benchmark::kMillisecond);
      for (const std::int64_t threads : of_counts) made->Args({std::int64_t{1} << log2, threads});
    };
    const auto count = [](const benchmark::State& state) { return static_cast<std::size_t>(state.range(1)); };
    add("add", "threads", counts, [=](benchmark::State& state) { run<Made>(state, count(state), 0); });
    add("learn", "threads", counts, [=](benchmark::State& state) { run<Made>(state, 0, count(state)); });
    add("add_and_learn", "adders", adder_counts,
        [=](benchmark::State& state) { run<Made>(state, count(state), 1); });
  }
}

[[maybe_unused]] const bool registered = [] {
  // Any kind of replay that is made from ReplayOptions and has SampledBatch, capacity, add, sample, update.
  register_threads<troop::PrioritizedReplay<CartPoleTransition>, CartPoleTransition>("prioritized_replay");
  register_threads<troop::PrioritizedReplay<AtariTransition>, AtariTransition>("prioritized_replay");
  register_threads<Sharded<CartPoleTransition>, CartPoleTransition>("sharded_replay");
  register_threads<Sharded<AtariTransition>, AtariTransition>("sharded_replay");
  return true;
}();

}  // namespace
