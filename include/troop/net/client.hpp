/// @file
/// Sends batches of items to a server on another machine, each exactly once, whatever happens to the
/// connection; fetches parameters from it, leases places on the ladder, and calls it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/net/authentication.hpp>
#include <troop/net/frame.hpp>
#include <troop/net/messages.hpp>
#include <troop/net/tls.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace troop::net {

/// What `insert` does when the outbox is full: wait, or drop the oldest batches that were never sent.
enum class FullPolicy { block, drop_oldest };

/// When a client asks for new parameters: after an actor has looked for some, or all the time.
enum class FetchPolicy { on_demand, always };

struct ClientOptions {
  std::string connect;  ///< HOST:PORT; the name is looked up anew at every attempt
  Token token = {};     ///< that the server must know as well; empty: none
  /// None: in the clear.
  std::optional<TlsOptions> tls = {};
  Role role = Role::actor;
  std::string name = {};  ///< of this process, for the server's log
  FetchPolicy fetch = FetchPolicy::on_demand;
  /// Parameters come in half the bytes, each to within 2^-11 of its value (see to_float16 for tiny and huge
  /// ones).
  bool float16_parameters = false;
  /// Of batches, by the thread that inserts them, where it makes them smaller.
  PayloadCodec compression = PayloadCodec::none;
  /// Of batches that are not acknowledged; buffers of eight batches that were are kept besides.
  std::size_t max_outbox_bytes = std::size_t{64} << 20;
  FullPolicy when_full = FullPolicy::block;
  std::size_t max_frame_bytes = std::size_t{64} << 20;     ///< of one batch; at most what the server takes
  std::size_t max_receive_bytes = std::size_t{256} << 20;  ///< of parameters, or of a reply
  /// For an attempt to connect, and again for the handshakes.
  Clock::duration connect_deadline = std::chrono::seconds(5);
  /// The k-th attempt in a row comes after a random time from 0 to min(max_backoff, min_backoff * 2^k).
  Clock::duration min_backoff = std::chrono::milliseconds(100), max_backoff = std::chrono::milliseconds(1500);
  std::uint64_t seed = 0;  ///< of those random times; 0: from the system
  /// Takes one line when the connection is lost, or could not be made, and one when it is there again;
  /// without an end of line. Called by the client's thread.
  std::function<void(const std::string&)> log = troop::detail::print_to_stderr;

  /// Throws InvalidArgument naming the field.
  void validate() const;
};

/// Since construction; is_connected, waiting and outbox_bytes are those of now.
struct ClientStatistics {
  bool is_connected = false;
  std::uint64_t waiting = 0, outbox_bytes = 0;   ///< batches that are not acknowledged, and their bytes
  std::uint64_t sent = 0, acknowledged = 0;      ///< batches; sent: for the first time
  std::uint64_t re_sent = 0;                     ///< batches that were sent again on a new connection
  std::uint64_t dropped = 0, dropped_items = 0;  ///< by drop_oldest
  std::uint64_t lost = 0;  ///< batches that the server had acknowledged and then forgot in a restart
  std::uint64_t connections = 0, attempts = 0;  ///< handshakes that succeeded; attempts to connect
  std::uint64_t servers = 0;                    ///< different ones that were met
  std::uint64_t fetched = 0;                    ///< parameters that came
  std::uint64_t parameter_version = 0;          ///< of the newest of them
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  std::uint64_t bytes_saved = 0;     ///< by compression, of the batches that were inserted
  double acknowledge_seconds = 0.0;  ///< from sending to acknowledgement, smoothed as in RFC 6298
  double max_acknowledge_seconds = 0.0;
  std::string last_error;  ///< why the last connection ended, or could not be made
};

/// A call that may be under way, on the caller's stack: see Client::begin.
class PendingCall {
 public:
  /// `take(reply)` is called by the client's thread, while somebody waits in `Client::finish`, with the reply
  /// where it was received, at a multiple of 8 bytes; what it throws is thrown by `finish`.
  explicit PendingCall(std::function<void(std::span<const std::byte>)> take) : take_(std::move(take)) {}
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

 private:
  friend class Client;
  enum class State { waiting, taking, done, lost };

  std::function<void(std::span<const std::byte>)> take_;
  State state_ = State::lost;
  std::uint64_t number_ = 0;
  std::exception_ptr error_;
};

/// Keeps batches of items in an outbox of bounded size and brings them to a net::Server: each once, in the
/// order of the calls of `insert`, over as many connections as it takes (docs/protocol.md). Models
/// agent::ItemSink.
///
/// A thread of its own connects, sends, and reconnects. `insert` copies the batch into the outbox; it waits
/// while that is full (`block`), or drops batches (`drop_oldest`). Half of the outbox at most is on the wire
/// unacknowledged, so a batch must not be larger than half of it.
///
/// A server that says that there is no sense in trying again (wrong token, layout, version, or data) ends the
/// client: what is in the outbox is lost, and every later call throws RefusedError with the server's
/// sentence.
///
/// A server whose certificate is not accepted is tried again like one that cannot be reached, for
/// certificates get mended; it is told nothing.
///
/// With compression each inserting thread keeps memory for the largest batch it has packed, twice. Batches
/// lie packed in the outbox; for a server that does not know the codec they are unpacked again as they are
/// sent.
///
/// The same connection brings parameters (models agent::ParameterSource: one fetch serves all actors of the
/// process), a lease of places on the ladder of exploration rates, and the answers to calls.
///
/// Thread-safe, but `stop` and the destructor belong to one thread. Cost of an insert: one lock and one copy;
/// of a fetch with nothing new: one lock.
///
///     net::Client client({.connect = "head:7777", .token = net::Token::from_file("token")}, replay_layout);
///     const auto places = client.lease(16);
///     client.insert(batch, priorities, Deadline::after(10s));
///     if (client.fetch(version, parameters)) network.set_parameters(parameters);
///     client.stop(Deadline::after(5s));                         // ok: everything is in the replay
class Client {
 public:
  /// Takes the place of the system's name resolution: the host's IP addresses as text; none, or an exception, when
  /// it has none. Called by threads of the client, of which one may be left over when the client ends.
  using LookUp = std::function<std::vector<std::string>(const std::string& host)>;

  /// Returns at once; connecting goes on by itself. Throws InvalidArgument for bad options, FileError for
  /// certificates and keys that cannot be used. Without a layout the client sends no items. Without `look_up`
  /// the system finds the host.
  explicit Client(const ClientOptions& options, std::optional<RecordLayout> layout = {}, LookUp look_up = {});

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client();

  const std::optional<RecordLayout>& layout() const noexcept;
  const Id& id() const noexcept;

  /// Puts a batch into the outbox. ok: it will be sent, or dropped and counted by `drop_oldest`; timeout,
  /// cancelled, closed (after `stop`): it was not taken. Batches of one calling thread keep their order.
  ///
  /// Throws InvalidArgument for numbers that differ, a priority that is NaN, infinite or negative, and a
  /// batch larger than max_frame_bytes or half the outbox; LayoutMismatch for other records; RefusedError
  /// when the server has refused for good.
  Outcome insert(const BatchView& records, std::span<const float> priorities,
                 Deadline deadline = Deadline::never(), const std::stop_token& stop = {});

  /// Waits until everything that was inserted before is acknowledged, or dropped. Throws RefusedError when
  /// the server has refused for good.
  Outcome flush(Deadline deadline = Deadline::never(), const std::stop_token& stop = {});

  /// The newest parameters that have come, and their version, if that is greater than `version`; false if it
  /// is not. Newer ones are asked for meanwhile, and come to a later call; batches that are inserted from now on
  /// are taken for the work of these. Versions grow even when the server is replaced by one that counts from 1
  /// again. Never waits. Throws RefusedError when the server has refused for good.
  bool fetch(std::uint64_t& version, std::vector<float>& parameters);

  /// Waits until `fetch` would give parameters newer than `version`. Throws RefusedError.
  Outcome await_parameters(std::uint64_t version, Deadline deadline = Deadline::never(),
                           const std::stop_token& stop = {});

  /// Waits until the server has given `count` environments of this process their places; none when the
  /// deadline, a stop or `stop()` came before. They stay this client's over all connections. One lease a client:
  /// another `count` later is refused with InvalidArgument. Throws RefusedError.
  std::optional<Leased> lease(std::uint32_t count, Deadline deadline = Deadline::never(),
                              const std::stop_token& stop = {});

  /// Tells the server how it goes, for people to see, in bytes that client and server have agreed on. Never
  /// waits: the newest report goes out when the connection allows it, and to a server that listens. Throws
  /// InvalidArgument for more than 64 KiB, RefusedError.
  void report(std::span<const std::byte> body);

  /// Sends a call; `finish` waits for the reply. Several may be under way at once. False when there is no
  /// connection: then nothing was sent and `finish` says closed. Throws InvalidArgument for a call larger than
  /// max_frame_bytes, RefusedError.
  bool begin(PendingCall& call, std::span<const std::byte> body);

  /// Waits until `take` has had the reply. closed: the connection is gone, or there was none; the server may
  /// have done it or not. After anything but ok, `take` is not called any more. Throws Error with the server's
  /// sentence when it could not do it, RefusedError, and what `take` throws.
  Outcome finish(PendingCall& call, Deadline deadline = Deadline::never(), const std::stop_token& stop = {});

  /// `begin` and `finish`.
  Outcome call(std::span<const std::byte> body, std::function<void(std::span<const std::byte>)> take,
               Deadline deadline = Deadline::never(), const std::stop_token& stop = {});

  /// Takes no more, sends what is there until the deadline, says goodbye and ends the thread, a second after
  /// the deadline at the latest. ok: everything was acknowledged; timeout: some was not, and is lost. Other
  /// threads' waiting calls return closed.
  Outcome stop(Deadline deadline = Deadline::after(std::chrono::seconds(5)));

  ClientStatistics statistics() const;

 private:
  class Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace troop::net
