// Samples of 512 items, and the same with an update of their priorities, from a full replay over shards.
//
// - sample  a batch of 512 is drawn; update: and its items get new priorities
// - local   shards of this process; remote: each behind a server of its own on loopback
//
// Records: cart_pole (44 bytes) and atari (56,460 bytes). A name is verb/where/record/shards:k. Everything
// shares the processors of one machine; with two of them, learner and servers take turns.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/remote_shard.hpp>
#include <troop/net/server.hpp>
#include <troop/net/shard_service.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sharded_replay.hpp>

#include "../support/replay_workload.hpp"

namespace {

using namespace troop::bench;
namespace net = troop::net;
using Local = troop::PrioritizedReplay<troop::DynamicRecord>;

template <class Record>
constexpr std::size_t kCapacity = sizeof(Record) > 1000 ? 1 << 12 : 1 << 18;

template <class Record>
troop::ReplayOptions options(std::size_t shards) {
  return {.capacity = kCapacity<Record> / shards, .alpha = 0.6};
}

template <class Record>
std::shared_ptr<Local> make_shard(std::size_t shards) {
  static const Supply<Record> supply(troop::Random(1, "supply"));
  const auto shard = std::make_shared<Local>(options<Record>(shards), troop::RecordLayout::of<Record>());
  for (std::size_t held = 0, chunk = 0; held < shard->capacity(); held += kChunk, ++chunk) {
    const std::span<const Record> records(supply.chunk(chunk));
    shard->add(troop::BatchView(records), supply.chunk_priorities(chunk));
  }
  return shard;
}

template <class Shard>
void measure(benchmark::State& state, troop::ShardedReplay<Shard>& replay, bool updates) {
  troop::Random random(1, "draws");
  troop::Batch<troop::DynamicRecord> batch;
  std::vector<float> priorities(kBatch);
  for (auto _ : state) {
    replay.sample(kBatch, {}, random, batch);
    if (!updates) continue;
    for (float& priority : priorities) priority = static_cast<float>(random.uniform() + 0.1);
    replay.update(batch.keys, priorities);
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(kBatch) * state.iterations());
}

template <class Record, bool updates>
void local(benchmark::State& state) {
  const auto num_shards = static_cast<std::size_t>(state.range(0));
  std::vector<std::shared_ptr<Local>> shards;
  for (std::size_t s = 0; s < num_shards; ++s) shards.push_back(make_shard<Record>(num_shards));
  troop::ShardedReplay<Local> replay(std::move(shards));
  measure(state, replay, updates);
}

template <class Record, bool updates>
void remote(benchmark::State& state) {
  const auto num_shards = static_cast<std::size_t>(state.range(0));
  std::vector<std::shared_ptr<Local>> held;
  std::vector<std::unique_ptr<net::ShardService<Local>>> services;
  std::vector<std::unique_ptr<net::Server>> servers;
  std::vector<std::shared_ptr<net::RemoteShard>> shards;
  for (std::size_t s = 0; s < num_shards; ++s) {
    held.push_back(make_shard<Record>(num_shards));
    services.push_back(std::make_unique<net::ShardService<Local>>(*held[s]));
    servers.push_back(
        std::make_unique<net::Server>(net::ServerOptions{}, held[s]->layout(), services[s]->services()));
    shards.push_back(std::make_shared<net::RemoteShard>(
        net::RemoteShardOptions{.client = {.connect = to_string(servers[s]->address()), .log = nullptr}},
        options<Record>(num_shards), held[s]->layout()));
  }
  for (const auto& shard : shards) {
    while (!shard->is_there()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  troop::ShardedReplay<net::RemoteShard> replay(std::move(shards));
  measure(state, replay, updates);
}

#define TROOP_BENCH_REMOTE(where, record, name) \
  BENCHMARK(where<record, false>)               \
      ->Name("sample/" #where "/" name)         \
      ->ArgName("shards")                       \
      ->Arg(1)                                  \
      ->Arg(2)                                  \
      ->Arg(4)                                  \
      ->UseRealTime();                          \
  BENCHMARK(where<record, true>)                \
      ->Name("update/" #where "/" name)         \
      ->ArgName("shards")                       \
      ->Arg(1)                                  \
      ->Arg(2)                                  \
      ->Arg(4)                                  \
      ->UseRealTime()

TROOP_BENCH_REMOTE(local, CartPoleTransition, "cart_pole");
TROOP_BENCH_REMOTE(remote, CartPoleTransition, "cart_pole");
TROOP_BENCH_REMOTE(local, AtariTransition, "atari");
TROOP_BENCH_REMOTE(remote, AtariTransition, "atari");

}  // namespace
