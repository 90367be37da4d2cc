// Batches of 50 transitions over TCP on loopback into a replay of the same process.
//
// - insert  k clients, each with a thread that inserts; one server thread, whose `insert` adds to a full
//   replay. A call is
//           what each client sends until all of it is acknowledged
// - stream  the same bytes over k plain sockets: blocking writes of a frame each, one thread that reads them
//   with a
//           coroutine a connection into 1 MiB and does nothing with them
//
// Records: cart_pole (44 bytes) and atari (56,460 bytes). A name is verb/record/clients:k. Everything shares
// the processors of one machine; with two of them, clients and server take turns.
#include <benchmark/benchmark.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/client.hpp>
#include <troop/net/server.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "../support/replay_workload.hpp"

namespace {

using namespace troop::bench;
namespace net = troop::net;
namespace asio = net::detail::asio;
using net::detail::tcp;

template <class Record>
constexpr std::size_t kPerCall = sizeof(Record) > 1000 ? 40 : 4000;  // batches of a client

template <class Record>
constexpr std::size_t kCapacity = sizeof(Record) > 1000 ? 1 << 11 : 1 << 18;

template <class Record>
constexpr std::size_t frame_bytes() {
  const auto length = net::InsertPayload::bytes(kChunk, sizeof(Record));
  return net::FrameHead{.length = static_cast<std::uint32_t>(length)}.frame_bytes();
}

template <class F>
void in_threads(std::size_t count, const F& f) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back([&f, i] { f(i); });
  for (auto& thread : threads) thread.join();
}

template <class Record>
void count(benchmark::State& state, std::size_t clients) {
  const auto batches = static_cast<std::int64_t>(clients * kPerCall<Record>) * state.iterations();
  state.SetItemsProcessed(batches * static_cast<std::int64_t>(kChunk));
  state.SetBytesProcessed(batches * static_cast<std::int64_t>(frame_bytes<Record>()));
}

template <class Record>
void insert(benchmark::State& state) {
  const auto num_clients = static_cast<std::size_t>(state.range(0));
  const Supply<Record> supply(troop::Random(1, "supply"));
  troop::PrioritizedReplay<Record> replay({.capacity = kCapacity<Record>, .alpha = 0.6});
  for (std::size_t held = 0, chunk = 0; held < kCapacity<Record>; held += kChunk, ++chunk)
    replay.add(supply.chunk(chunk), supply.chunk_priorities(chunk));
  net::Server server({}, replay.layout(),
                     [&](const troop::BatchView& records, std::span<const float> priorities) {
                       replay.add(records, priorities);
                       return troop::Outcome::ok;
                     });
  std::vector<std::unique_ptr<net::Client>> clients;
  for (std::size_t i = 0; i < num_clients; ++i) {
    clients.push_back(std::make_unique<net::Client>(
        net::ClientOptions{.connect = to_string(server.address())}, replay.layout()));
  }
  for (auto _ : state) {
    in_threads(num_clients, [&](std::size_t i) {
      for (std::size_t batch = 0; batch < kPerCall<Record>; ++batch) {
        const troop::BatchView records{std::span<const Record>(supply.chunk(batch))};
        clients[i]->insert(records, supply.chunk_priorities(batch));
      }
      clients[i]->flush();
    });
  }
  count<Record>(state, num_clients);
}

asio::awaitable<void> swallow(tcp::socket socket, std::atomic<std::size_t>& swallowed) {
  std::vector<std::byte> space(1 << 20);
  for (;;) {
    net::detail::error_code error;
    const auto buffer = asio::buffer(space.data(), space.size());
    const std::size_t count = co_await socket.async_read_some(buffer, net::detail::into(error));
    if (error) co_return;
    swallowed.fetch_add(count, std::memory_order_release);
    swallowed.notify_one();
  }
}

template <class Record>
void stream(benchmark::State& state) {
  const auto num_clients = static_cast<std::size_t>(state.range(0));
  asio::io_context io{1}, client_io;
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  std::atomic<std::size_t> swallowed{0};
  std::vector<tcp::socket> sockets;
  for (std::size_t i = 0; i < num_clients; ++i) {
    sockets.emplace_back(client_io);
    sockets.back().connect(acceptor.local_endpoint());
    sockets.back().set_option(tcp::no_delay(true));
    asio::co_spawn(io, swallow(acceptor.accept(), swallowed), asio::detached);
  }
  std::thread server([&] { io.run(); });
  const std::vector<std::byte> frame(frame_bytes<Record>());
  std::size_t expected = 0;
  for (auto _ : state) {
    in_threads(num_clients, [&](std::size_t i) {
      for (std::size_t batch = 0; batch < kPerCall<Record>; ++batch)
        asio::write(sockets[i], asio::buffer(frame.data(), frame.size()));
    });
    expected += num_clients * kPerCall<Record> * frame.size();
    for (std::size_t now = swallowed; now < expected; now = swallowed) swallowed.wait(now);
  }
  sockets.clear();
  server.join();
  count<Record>(state, num_clients);
}

#define TROOP_BENCH_TRANSPORT(verb, record, name) \
  BENCHMARK(verb<record>)->Name(#verb "/" name)->ArgName("clients")->Arg(1)->Arg(2)->Arg(4)->UseRealTime()

TROOP_BENCH_TRANSPORT(insert, CartPoleTransition, "cart_pole");
TROOP_BENCH_TRANSPORT(stream, CartPoleTransition, "cart_pole");
TROOP_BENCH_TRANSPORT(insert, AtariTransition, "atari");
TROOP_BENCH_TRANSPORT(stream, AtariTransition, "atari");

}  // namespace
