/// @file
/// Takes batches of items from clients on other machines, each exactly once.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/commit_line.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/net/actor_leases.hpp>
#include <troop/net/address.hpp>
#include <troop/net/authentication.hpp>
#include <troop/net/frame.hpp>
#include <troop/net/messages.hpp>
#include <troop/net/parameter_server.hpp>
#include <troop/net/tls.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace troop::net {

struct ServerOptions {
  /// HOST:PORT; port 0 takes any free one. Beyond loopback only with a token, TLS, or `insecure`.
  std::string listen = "127.0.0.1:0";
  Token token = {};  ///< that clients must know; empty: none
  /// None: in the clear. Without a token and without `tls->authority` everybody who can connect may insert.
  std::optional<TlsOptions> tls = {};
  bool insecure = false;  ///< let everybody who can connect insert
  /// Told to clients, who see by it whether the server is another one. Zeros: random bytes.
  Id run = {};
  std::size_t max_connections = 4096;
  std::size_t max_sessions = 65536;                     ///< clients that are remembered
  std::size_t max_frame_bytes = std::size_t{64} << 20;  ///< of one batch
  /// Of all frames beyond 32 KiB that are being received, and of batches that were compressed and wait.
  std::size_t max_receive_bytes = std::size_t{512} << 20;
  std::uint32_t window = 64;  ///< batches of a client that may be unacknowledged
  Clock::duration handshake_deadline = std::chrono::seconds(5);  ///< TLS included
  Clock::duration heartbeat = std::chrono::seconds(5);
  Clock::duration idle_deadline =
      std::chrono::seconds(20);  ///< a client that is silent for so long is dropped
  /// Takes one line for each refusal, without an end of line, at most ten in ten seconds. Called by the
  /// server's thread.
  std::function<void(const std::string&)> log = troop::detail::print_to_stderr;

  /// Throws InvalidArgument naming the field.
  void validate() const;
};

/// What a server remembers of a client.
struct Session {
  Id client{};
  std::uint64_t last = 0;  ///< sequence number of the last batch that was applied

  template <class Archive>
  void serialize(Archive& archive) {
    archive(detail::raw(client), last);
  }
  friend bool operator==(const Session&, const Session&) = default;
};

/// Since construction; connections, sessions and receive_bytes are those of now.
struct ServerStatistics {
  std::uint64_t connections = 0, sessions = 0, receive_bytes = 0;
  std::uint64_t accepted = 0, admitted = 0;               ///< connections; admitted: after the handshake
  std::array<std::uint64_t, kNumRefusalCodes> refused{};  ///< by RefusalCode
  std::uint64_t frames = 0, batches = 0,
                items = 0;       ///< frames of all kinds; batches and items that were applied
  std::uint64_t duplicates = 0;  ///< batches that came again, were acknowledged and not applied
  std::uint64_t lost =
      0;  ///< batches that had been acknowledged and are not in the sessions that were restored
  std::uint64_t packed = 0;        ///< batches that came compressed
  std::uint64_t waits = 0;         ///< batches that had to wait because the replay was full
  std::uint64_t memory_waits = 0;  ///< frames that had to wait for other frames' receive buffers
  std::uint64_t parameters = 0;    ///< that were sent, to all clients together
  std::uint64_t leases = 0;        ///< that were given, or given again
  std::uint64_t calls = 0;         ///< that were answered
  std::uint64_t bytes_received = 0, bytes_sent = 0;
  /// How many versions behind the newest parameters those were that made the items: a moving mean over about
  /// the last 100 batches of which it is known, and the largest.
  double mean_policy_lag = 0.0;
  std::uint64_t max_policy_lag = 0;

  std::uint64_t refused_for(RefusalCode code) const { return refused[static_cast<std::size_t>(code)]; }
};

/// What a server does for its clients. What is left empty it does not do: who asks for that is refused.
/// Everything here is called by the server's thread and must not block, and must outlive the server.
struct Services {
  /// Takes a batch of items, or returns timeout when there is no room at the moment; then that batch waits, and
  /// nothing more is read from its connection. The records lie in the receive buffer and are gone when it
  /// returns. What it throws closes the connection; InvalidArgument and LayoutMismatch tell the client not to
  /// try again.
  std::function<Outcome(const BatchView& records, std::span<const float> priorities)> insert = {};
  /// The same for a log: takes the place of `insert`, and is told the client and its number of the batch as well.
  std::function<Outcome(const BatchView& records, std::span<const float> priorities, const Session& batch)>
      insert_from = {};
  /// A batch is acknowledged when the newest ticket that there was after its insertion is reached; null: when it was
  /// inserted. A client that was told less than is known of it sends the rest again, as after any lost reply.
  CommitLine* commits = nullptr;
  /// Sends these to clients that ask.
  ParameterServer* parameters = nullptr;
  /// Gives clients places on the ladder of exploration rates.
  ActorLeases* leases = nullptr;
  /// Answers a call: appends to `reply`. What it throws becomes an Error at the client's. The call lies in the
  /// receive buffer, at a multiple of 8 bytes.
  std::function<void(std::span<const std::byte> call, std::vector<std::byte>& reply)> call = {};
  /// Takes what a client says of itself for people to see; clients are told whether anybody listens. An Error
  /// that it throws closes the connection.
  std::function<void(std::span<const std::byte> report)> report = {};
  /// Told, about once a second, the name of each client whose batch waits for room: it is there, though nothing that
  /// it says in the meantime, reports included, is read.
  std::function<void(const std::string& name)> held = {};
};

/// How a server takes its leave: clients of one that is `stopping` try to reconnect, those of one that has
/// `finished` end.
enum class Farewell { stopping, finished };

/// Listens for clients, checks who they are, and gives their batches to `insert`: each batch once, those of
/// one client in the order in which it was given them, whatever happens to connections in between
/// (docs/protocol.md). Also sends parameters, leases places, and answers calls, as `Services` say.
///
/// One thread of its own does everything. Memory: 32 KiB a connection, OpenSSL's buffers with TLS, at most
/// `max_receive_bytes` for large frames, `max_frame_bytes` for the batch that is being unpacked, and of what is
/// to be sent a few control messages, one frame of parameters that all connections share, and one reply a
/// connection.
///
/// Thread-safe. The constructor throws InvalidArgument for bad options, FileError for certificates and keys
/// that cannot be used, Error when it cannot listen there.
///
///     agent::LocalSink sink(replay, limiter);
///     net::Server server({.listen = "0.0.0.0:7777", .token = net::Token::from_file("token")}, replay.layout(),
///                        [&](auto& records, auto priorities) { return sink.insert(records, priorities, Deadline::now()); });
class Server {
 public:
  using Insert = decltype(Services::insert);

  /// `layout`: of the items that `services.insert` takes. `sessions`: of the server whose replay this one
  /// continues with, the oldest first.
  Server(const ServerOptions& options, const RecordLayout& layout, Services services,
         std::span<const Session> sessions = {});

  /// A server that takes items and does nothing else.
  Server(const ServerOptions& options, const RecordLayout& layout, Insert insert,
         std::span<const Session> sessions = {})
      : Server(options, layout, Services{.insert = std::move(insert)}, sessions) {}

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  /// Where it listens, with the port that was taken.
  const Address& address() const noexcept;
  const Id& run() const noexcept;

  /// What is known of each client, the longest away first.
  std::vector<Session> sessions() const;

  /// Calls `f(sessions)` while no batch is being applied, so that a snapshot of the replay and the sessions
  /// go together. Connections stay alive meanwhile; their batches wait.
  template <class F>
  auto hold(F&& f) {
    const Held held = hold_sessions();
    return f(held.sessions);
  }

  ServerStatistics statistics() const;

  /// Takes no more, acknowledges what was applied, says goodbye to all, and joins the thread: by the
  /// deadline, or a second after, whichever is earlier, connections are closed whatever they do. To be called
  /// by one thread; the second call does nothing.
  void stop(Deadline deadline = Deadline::after(std::chrono::seconds(1)),
            Farewell farewell = Farewell::stopping);

 private:
  class Impl;

  struct Held {
    std::unique_lock<std::mutex> lock;
    std::vector<Session> sessions;
  };
  Held hold_sessions();

  std::unique_ptr<Impl> impl_;
};

}  // namespace troop::net
