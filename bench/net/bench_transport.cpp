// Batches of 50 transitions over TCP on loopback, between processes: one server, and whoever sends.
//
// - insert  k writers, each a process with a client; one server thread, whose `insert` adds to a full replay
// - stream  the same bytes from k processes over plain sockets: blocking writes of a frame each, or of
//           128 KiB if frames are smaller, as iperf does; one thread that reads them with a coroutine a
//           connection into 1 MiB and does nothing with them
// - actors  n connections of one process, each of which sends a batch every 1.4 s, as an actor of the Ape-X
//           paper does, and speaks the protocol without a client's outbox. p50_ms, p99_ms: from the moment
//           at which a batch is due to its acknowledgement
// - fan_out 13 MB of parameters are published to n connections of one process, which wait for them and throw
//           them away unchecked
//
// Records: cart_pole (44 bytes) and atari (56,460 bytes). Names: verb/record/writers:k, actors/record/actors:n,
// fan_out/subscribers:n. An iteration is a window of 100 ms, of `actors` two times 1.4 s; of `fan_out` it is
// the time from a publication to the last byte at the last subscriber. server_bytes: peak RAM of the server's
// process beyond what it had before it listened, with a full replay or with the values of the parameters.
// Everything shares the processors of one machine.
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/read.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/net/client.hpp>
#include <troop/net/detail/asio.hpp>
#include <troop/net/detail/frame_buffer.hpp>
#include <troop/net/parameter_server.hpp>
#include <troop/net/server.hpp>
#include <troop/replay/prioritized_replay.hpp>

#include "../support/processes.hpp"
#include "../support/replay_workload.hpp"

namespace {

using namespace troop::bench;
using namespace std::chrono_literals;
namespace net = troop::net;
namespace asio = net::detail::asio;
using net::detail::tcp;
using troop::Clock;

constexpr std::size_t kLeastWrite = 128 << 10, kParameters = 3'250'000;
constexpr Clock::duration kWindow = 100ms, kInterval = 1400ms, kPatience = 60s;

template <class Record>
constexpr std::size_t kCapacity = sizeof(Record) > 1000 ? 1 << 11 : 1 << 18;

template <class Record>
constexpr std::size_t kPayload = net::InsertPayload::bytes(kChunk, sizeof(Record));

template <class Record>
constexpr std::size_t kFrame = net::FrameHead{.length = kPayload<Record>}.frame_bytes();

template <class Record>
const Supply<Record>& supply() {
  static const Supply<Record> made(troop::Random(1, "supply"));
  return made;
}

/// What the processes tell each other.
struct Board {
  static constexpr std::size_t kMostDelays = 1 << 18;

  std::atomic<std::uint16_t> port{0};
  std::atomic<std::uint64_t> received{0};  // items; of `stream` bytes, of `fan_out` frames
  std::atomic<std::uint64_t> wanted{0};    // publications
  std::atomic<std::size_t> base{0};        // RAM of the server before it listened
  std::atomic<std::size_t> connected{0}, num_delays{0};
  std::array<std::atomic<float>, kMostDelays> delays{};  // of acknowledgements, in milliseconds
};

template <class Ready>
void wait_until(Process& process, Ready ready) {
  const auto latest = Clock::now() + kPatience;
  while (!ready()) {
    process.check();
    if (Clock::now() > latest) throw troop::Error("nothing happened for a minute");
    std::this_thread::sleep_for(1ms);
  }
}

void stay() {
  for (;;) ::pause();
}

// Servers.

template <class Record>
void serve(Board& board) {
  troop::PrioritizedReplay<Record> replay({.capacity = kCapacity<Record>, .alpha = 0.6});
  for (std::size_t held = 0, turn = 0; held < kCapacity<Record>; held += kChunk, ++turn)
    replay.add(supply<Record>().chunk(turn), supply<Record>().chunk_priorities(turn));
  board.base = Process::resident();
  net::Server server({}, replay.layout(),
                     [&](const troop::BatchView& records, std::span<const float> priorities) {
                       replay.add(records, priorities);
                       board.received.fetch_add(records.size(), std::memory_order_relaxed);
                       return troop::Outcome::ok;
                     });
  board.port = server.address().port;
  stay();
}

asio::awaitable<void> swallow(tcp::socket socket, Board& board) {
  std::vector<std::byte> space(1 << 20);
  for (;;) {
    net::detail::error_code error;
    const auto buffer = asio::buffer(space.data(), space.size());
    const std::size_t count = co_await socket.async_read_some(buffer, net::detail::into(error));
    if (error) co_return;
    board.received.fetch_add(count, std::memory_order_relaxed);
  }
}

asio::awaitable<void> swallow_all(asio::io_context& io, Board& board) {
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  board.port = acceptor.local_endpoint().port();
  for (;;)
    asio::co_spawn(io, swallow(co_await acceptor.async_accept(asio::use_awaitable), board), asio::detached);
}

void serve_stream(Board& board) {
  asio::io_context io{1};
  asio::co_spawn(io, swallow_all(io, board), asio::detached);
  io.run();
}

void serve_parameters(Board& board) {
  net::ParameterServer parameters;
  const std::vector<float> values(kParameters, 0.5f);
  board.base = Process::resident();
  net::Server server({}, troop::RecordLayout::of<CartPoleTransition>(), {.parameters = &parameters});
  board.port = server.address().port;
  for (;;) {
    if (parameters.version() < board.wanted) {
      parameters.publish(values);
    } else {
      std::this_thread::sleep_for(100us);
    }
  }
}

// Writers.

template <class Record>
void write_batches(const Board& board) {
  const std::string address = "127.0.0.1:" + std::to_string(board.port);
  net::Client client({.connect = address}, troop::RecordLayout::of<Record>());
  for (std::size_t turn = 0;; ++turn) {
    const troop::BatchView records{std::span<const Record>(supply<Record>().chunk(turn))};
    client.insert(records, supply<Record>().chunk_priorities(turn));
  }
}

template <class Record>
void write_stream(const Board& board) {
  asio::io_context io;
  tcp::socket socket(io);
  socket.connect({asio::ip::address_v4::loopback(), board.port});
  socket.set_option(tcp::no_delay(true));
  const std::vector<std::byte> frames(std::max(kFrame<Record>, kLeastWrite));
  for (;;) asio::write(socket, asio::buffer(frames.data(), frames.size()));
}

template <class Server, class Writer>
void measure(benchmark::State& state, std::size_t record_bytes, std::size_t received_a_batch, Server serve,
             Writer write) {
  const auto num_writers = static_cast<std::size_t>(state.range(0));
  const Shared<Board> board;
  Process server([&] { serve(*board); });
  wait_until(server, [&] { return board->port != 0; });
  std::vector<std::unique_ptr<Process>> writers;
  for (std::size_t i = 0; i < num_writers; ++i)
    writers.push_back(std::make_unique<Process>([&] { write(*board); }));
  wait_until(server, [&] { return board->received >= 20 * num_writers * received_a_batch; });
  std::this_thread::sleep_for(kWindow);
  const std::uint64_t before = board->received;
  for (auto _ : state) std::this_thread::sleep_for(kWindow);
  const auto batches = (board->received - before) / received_a_batch;
  server.check();
  for (const auto& writer : writers) writer->check();
  state.SetItemsProcessed(static_cast<std::int64_t>(batches * kChunk));
  state.SetBytesProcessed(static_cast<std::int64_t>(batches * kChunk * record_bytes));
  state.counters["record_bytes"] = static_cast<double>(record_bytes);
}

template <class F>
void or_skip(benchmark::State& state, F f) {
  try {
    f();
  } catch (const troop::Error& error) {
    state.SkipWithError(error.what());
  }
}

template <class Record>
void insert(benchmark::State& state) {
  if (!fits_into_memory(state, kCapacity<Record> * sizeof(Record) + Supply<Record>::kBytes)) return;
  supply<Record>();  // before there are processes, which then share it
  or_skip(state, [&] { measure(state, sizeof(Record), kChunk, serve<Record>, write_batches<Record>); });
}

template <class Record>
void stream(benchmark::State& state) {
  or_skip(state, [&] { measure(state, sizeof(Record), kFrame<Record>, serve_stream, write_stream<Record>); });
}

// Connections without a client's outbox, many to a process.

class Connection {
 public:
  Connection(asio::io_context& io, Board& board, std::uint64_t number)
      : board_(board), number_(number), socket_(io) {
    in_.reserve(net::detail::FrameBuffer::kBase);
  }

 protected:
  asio::awaitable<void> connect(const troop::RecordLayout& layout) {
    co_await socket_.async_connect({asio::ip::address_v4::loopback(), board_.port}, asio::use_awaitable);
    socket_.set_option(tcp::no_delay(true));
    net::Hello hello{.name = "connection " + std::to_string(number_), .layout = net::layout_bytes(layout)};
    std::memcpy(hello.client.data(), &number_, sizeof number_);
    co_await send(hello);
    co_await receive<net::Challenge>();
    co_await send(net::ProofMessage{});
    co_await receive<net::Welcome>();
    board_.connected.fetch_add(1);
  }

  template <class Message>
  asio::awaitable<void> send(Message message) {
    return send(Message::kType, troop::to_bytes(message));
  }
  asio::awaitable<void> send(net::MessageType type, std::vector<std::byte> payload) {
    std::vector<std::byte> frame;
    net::append_frame(type, payload, frame);
    co_await asio::async_write(socket_, asio::buffer(frame.data(), frame.size()), asio::use_awaitable);
  }

  /// The next message of this type; heartbeats are passed over.
  template <class Message>
  asio::awaitable<Message> receive() {
    for (;;) {
      net::detail::Frame frame;
      const auto state = in_.next(net::detail::FrameLimits{}, frame);
      if (state == net::detail::FrameBuffer::State::frame) {
        if (frame.head.type == Message::kType) co_return net::read_message<Message>(frame.payload);
        if (frame.head.type != net::MessageType::heartbeat) throw troop::Error("an unexpected answer");
        continue;
      }
      if (state == net::detail::FrameBuffer::State::fault) throw troop::Error("a bad frame");
      const auto space = in_.space();
      in_.received(
          co_await socket_.async_read_some(asio::buffer(space.data(), space.size()), asio::use_awaitable));
    }
  }

  Board& board_;
  const std::uint64_t number_;
  tcp::socket socket_;
  net::detail::FrameBuffer in_;
};

template <class Record>
class Actor : public Connection {
 public:
  using Connection::Connection;

  asio::awaitable<void> run(Clock::time_point first, Clock::duration interval) {
    co_await connect(troop::RecordLayout::of<Record>());
    std::vector<std::byte> payload(kPayload<Record>);
    net::InsertPayload::write(troop::BatchView{std::span<const Record>(supply<Record>().chunk(number_))},
                              supply<Record>().chunk_priorities(number_), payload);
    asio::steady_timer timer(socket_.get_executor());
    auto due = first;
    for (std::uint64_t sequence = 1;; ++sequence, due += interval) {
      timer.expires_at(due);
      co_await timer.async_wait(asio::use_awaitable);
      net::InsertPayload::set_sequence(sequence, payload);
      co_await send(net::MessageType::insert, payload);
      for (net::Acknowledge known; known.last < sequence;) known = co_await receive<net::Acknowledge>();
      const float delay = std::chrono::duration<float, std::milli>(Clock::now() - due).count();
      const std::size_t place = board_.num_delays;
      board_.delays[place % Board::kMostDelays].store(delay, std::memory_order_relaxed);
      board_.num_delays.store(place + 1, std::memory_order_release);
    }
  }
};

class Subscriber : public Connection {
 public:
  using Connection::Connection;

  /// `scratch` is where all subscribers put what they receive.
  asio::awaitable<void> run(std::span<std::byte> scratch) {
    co_await connect(troop::RecordLayout::of<CartPoleTransition>());
    for (std::uint64_t version = 0;; ++version) {
      co_await send(net::Fetch{.version = version});
      net::FrameHead head;
      do {
        net::FrameHeadBytes bytes;
        co_await asio::async_read(socket_, asio::buffer(bytes), asio::use_awaitable);
        if (net::parse_frame_head(bytes, head) != net::FrameFault::none) throw troop::Error("a bad frame");
        for (std::size_t left = head.frame_bytes() - bytes.size(); left > 0;) {
          const auto buffer = asio::buffer(scratch.data(), std::min(left, scratch.size()));
          left -= co_await socket_.async_read_some(buffer, asio::use_awaitable);
        }
      } while (head.type != net::MessageType::parameters);
      board_.received.fetch_add(1);
    }
  }
};

void rethrow(std::exception_ptr failure) {
  if (failure) std::rethrow_exception(failure);
}

template <class Record>
void act(Board& board, std::size_t num_actors) {
  asio::io_context io{1};
  std::vector<std::unique_ptr<Actor<Record>>> actors;
  const auto start = Clock::now() + kInterval;
  for (std::size_t i = 0; i < num_actors; ++i) {
    actors.push_back(std::make_unique<Actor<Record>>(io, board, i));
    const auto offset = kInterval * static_cast<int>(i) / static_cast<int>(num_actors);
    asio::co_spawn(io, actors.back()->run(start + offset, kInterval), rethrow);
  }
  io.run();
}

void subscribe(Board& board, std::size_t num_subscribers) {
  asio::io_context io{1};
  std::vector<std::byte> scratch(1 << 20);
  std::vector<std::unique_ptr<Subscriber>> subscribers;
  for (std::size_t i = 0; i < num_subscribers; ++i) {
    subscribers.push_back(std::make_unique<Subscriber>(io, board, i));
    asio::co_spawn(io, subscribers.back()->run(scratch), rethrow);
  }
  io.run();
}

void allow_descriptors(std::size_t count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= count) return;
  limit.rlim_cur = std::min<rlim_t>(count, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < count) {
    throw troop::Error("needs " + std::to_string(count) + " open files, " + std::to_string(limit.rlim_cur) +
                       " are allowed (ulimit -n)");
  }
}

double bytes_beyond_base(const Process& server, const Board& board) {
  const std::size_t peak = server.peak(), base = board.base;
  return static_cast<double>(peak - std::min(peak, base));
}

template <class Record>
void measure_actors(benchmark::State& state) {
  const auto num_actors = static_cast<std::size_t>(state.range(0));
  allow_descriptors(num_actors + 64);
  supply<Record>();
  const Shared<Board> board;
  Process server([&] { serve<Record>(*board); });
  wait_until(server, [&] { return board->port != 0; });
  Process load([&] { act<Record>(*board, num_actors); });
  wait_until(load, [&] { return board->connected == num_actors; });
  std::this_thread::sleep_for(kInterval);  // all have sent something
  const std::size_t first = board->num_delays;
  for (auto _ : state) std::this_thread::sleep_for(2 * kInterval);
  const std::size_t count = board->num_delays - first;
  server.check();
  load.check();
  if (count == 0) throw troop::Error("no batch was acknowledged");
  if (count > Board::kMostDelays)
    throw troop::Error("more batches than there is room for: measure for a shorter time");
  std::vector<float> delays(count);
  for (std::size_t i = 0; i < count; ++i) delays[i] = board->delays[(first + i) % Board::kMostDelays];
  std::sort(delays.begin(), delays.end());
  state.counters["p50_ms"] = delays[count / 2];
  state.counters["p99_ms"] = delays[count * 99 / 100];
  state.counters["max_ms"] = delays.back();
  state.counters["server_bytes"] = bytes_beyond_base(server, *board);
  state.counters["record_bytes"] = sizeof(Record);
  state.SetItemsProcessed(static_cast<std::int64_t>(count * kChunk));
}

template <class Record>
void actors(benchmark::State& state) {
  or_skip(state, [&] { measure_actors<Record>(state); });
}

void measure_fan_out(benchmark::State& state) {
  const auto num_subscribers = static_cast<std::size_t>(state.range(0));
  allow_descriptors(num_subscribers + 64);
  const Shared<Board> board;
  Process server([&] { serve_parameters(*board); });
  wait_until(server, [&] { return board->port != 0; });
  Process load([&] { subscribe(*board, num_subscribers); });
  wait_until(load, [&] { return board->connected == num_subscribers; });
  for (auto _ : state) {
    const std::uint64_t expected = ++board->wanted * num_subscribers;
    wait_until(load, [&] { return board->received == expected; });
  }
  server.check();
  state.counters["server_bytes"] = bytes_beyond_base(server, *board);
  state.SetBytesProcessed(static_cast<std::int64_t>(board->received * kParameters * sizeof(float)));
}

void fan_out(benchmark::State& state) {
  or_skip(state, [&] { measure_fan_out(state); });
}

#define TROOP_BENCH_TRANSPORT(verb, record, name) \
  BENCHMARK(verb<record>)                         \
      ->Name(#verb "/" name)                      \
      ->ArgName("writers")                        \
      ->Arg(1)                                    \
      ->Arg(2)                                    \
      ->Arg(4)                                    \
      ->Arg(8)                                    \
      ->UseRealTime()

TROOP_BENCH_TRANSPORT(insert, CartPoleTransition, "cart_pole");
TROOP_BENCH_TRANSPORT(stream, CartPoleTransition, "cart_pole");
TROOP_BENCH_TRANSPORT(insert, AtariTransition, "atari");
TROOP_BENCH_TRANSPORT(stream, AtariTransition, "atari");
BENCHMARK(actors<CartPoleTransition>)
    ->Name("actors/cart_pole")
    ->ArgName("actors")
    ->Arg(10)
    ->Arg(1000)
    ->UseRealTime();
BENCHMARK(fan_out)->ArgName("subscribers")->Arg(10)->Arg(300)->UseRealTime();

}  // namespace
