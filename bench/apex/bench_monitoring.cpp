// What it costs a run to be watched: the replay's mix of CartPole (512 drawn, 512 new priorities, 50 inserted) at full
// speed in one thread, while another looks at it as a run does, with 300 actors that report once a second, event files,
// and open pages that read the stream of events. `watched:0` is the same without all that. To be measured with
// --benchmark_enable_random_interleaving=true and some repetitions.
#include <benchmark/benchmark.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <troop/apex/monitoring.hpp>
#include <troop/apex/options.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/random.hpp>
#include <troop/monitor/actor_table.hpp>
#include <troop/monitor/run_status.hpp>
#include <troop/net/address.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/serialization/cereal.hpp>

#include "../support/replay_workload.hpp"

namespace {

using troop::bench::CartPoleTransition;
using troop::bench::kBatch;
using troop::bench::Supply;
using Replay = troop::PrioritizedReplay<CartPoleTransition>;

constexpr std::size_t kCapacity = std::size_t{1} << 20;
constexpr std::uint64_t kActors = 300;

/// An open page: reads the stream of events until it is closed.
class Page {
 public:
  explicit Page(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("cannot reach the page");
    constexpr std::string_view request = "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    if (::send(socket_, request.data(), request.size(), 0) != static_cast<ssize_t>(request.size()))
      throw std::runtime_error("cannot ask for the page");
    thread_ = std::thread([this] {
      char buffer[1 << 16];
      while (::recv(socket_, buffer, sizeof buffer, 0) > 0) {
      }
    });
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }

 private:
  int socket_;
  std::thread thread_;
};

struct NoActor {
  std::size_t num_environments() const { return 0; }
  std::vector<double> epsilons() const { return {}; }
  troop::agent::ActorStatistics statistics() const { return {}; }
};

/// Watches `replay` as a run is watched.
class Watched {
 public:
  Watched(const Replay& replay, std::size_t pages) : replay_(replay) {
    std::string folder = (std::filesystem::temp_directory_path() / "troop-bench-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
    folder_ = folder;
    options_.monitor.http = "127.0.0.1:0";
    options_.monitor.tensorboard = folder + "/events";
    monitor_ = std::make_unique<troop::apex::RunMonitor>(options_, troop::net::Token(),
                                                         troop::monitor::RunFacts{}, troop::apex::Console());
    const std::uint16_t port = troop::net::parse_address(monitor_->address()).port;
    for (std::size_t i = 0; i < pages; ++i) pages_.push_back(std::make_unique<Page>(port));
    thread_ = std::thread([this] { watch(); });
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  ~Watched() {
    is_ending_ = true;
    thread_.join();
    pages_.clear();
    monitor_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

 private:
  void watch() {
    const troop::Clock::time_point start = troop::Clock::now();
    double next_report = 0.0;
    while (!is_ending_) {
      const double seconds = troop::seconds_since(start);
      if (seconds >= next_report) {
        next_report = seconds + 1.0;
        for (std::uint64_t i = 0; i < kActors; ++i) report(i, seconds);
      }
      monitor_->observe(
          seconds, std::vector<NoActor*>(),
          [&](troop::monitor::RunSample& sample) {
            sample.replay = replay_.statistics();
            sample.learner_steps = sample.replay.samples / kBatch;
            sample.environment_steps = sample.replay.inserts;
          },
          [&] { return replay_.priority_histogram(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void report(std::uint64_t actor, double seconds) {
    const troop::monitor::ActorReport report{.ticket = actor + 1,
                                             .first = actor,
                                             .count = 1,
                                             .name = "host-" + std::to_string(actor),
                                             .steps = static_cast<std::uint64_t>(100.0 * seconds),
                                             .episodes = 1,
                                             .mean_return = 20.0,
                                             .time = troop::monitor::ActorTable::unix_time()};
    monitor_->take_report(troop::to_bytes(report));
  }

  const Replay& replay_;
  std::filesystem::path folder_;
  troop::apex::Options options_;
  std::unique_ptr<troop::apex::RunMonitor> monitor_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

void mix(benchmark::State& state) {
  static const Supply<CartPoleTransition> supply(troop::Random(1, "records"));
  static Replay replay(troop::ReplayOptions{.capacity = kCapacity});
  while (replay.size() < kCapacity) replay.add(troop::BatchView(supply.chunk(0)), supply.chunk_priorities(0));
  std::unique_ptr<Watched> watched;
  if (state.range(0) != 0)
    watched = std::make_unique<Watched>(replay, static_cast<std::size_t>(state.range(1)));
  troop::Random random(2, "samples");
  Replay::SampledBatch batch;
  std::size_t turn = 0;
  for (auto _ : state) {
    replay.add(troop::BatchView(supply.chunk(turn)), supply.chunk_priorities(turn));
    replay.sample(kBatch, {.beta = 0.4}, random, batch);
    replay.update(batch.keys, supply.batch_priorities(turn));
    ++turn;
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

BENCHMARK(mix)->ArgNames({"watched", "pages"})->Args({0, 0})->Args({1, 5})->UseRealTime();

}  // namespace
