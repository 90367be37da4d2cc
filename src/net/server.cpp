#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <troop/net/detail/asio.hpp>
#include <troop/net/detail/buffer.hpp>
#include <troop/net/detail/frame_buffer.hpp>
#include <troop/net/detail/limited_log.hpp>
#include <troop/net/detail/packed_insert.hpp>
#include <troop/net/detail/stream.hpp>
#include <troop/net/server.hpp>

namespace troop::net {

namespace {

void require_duration(std::string_view field, Clock::duration duration) {
  require(duration >= std::chrono::milliseconds(1) && duration <= std::chrono::hours(1), field,
          std::chrono::duration<double>(duration).count(), "from 0.001 to 3600 seconds");
}

}  // namespace

void ServerOptions::validate() const {
  using std::chrono::milliseconds;
  parse_address(listen, "listen");
  if (tls) {
    tls->validate();
    require(!tls->certificate.empty(), "tls", "no certificate", "a certificate and its key");
    require(tls->server_name.empty(), "tls.server_name", "\"" + tls->server_name + "\"",
            "nothing: it is for clients");
  }
  require(max_connections >= 1 && max_connections <= 1'000'000, "max_connections", max_connections,
          "an integer from 1 to 1000000");
  require(max_sessions >= max_connections, "max_sessions", max_sessions, "at least max_connections");
  require(max_frame_bytes >= 1024 && max_frame_bytes <= (std::size_t{1} << 30), "max_frame_bytes",
          max_frame_bytes, "an integer from 1024 to 2^30");
  require(max_receive_bytes >= max_frame_bytes, "max_receive_bytes", max_receive_bytes,
          "at least max_frame_bytes");
  require(window >= 1 && window <= 65536, "window", window, "an integer from 1 to 65536");
  require_duration("handshake_deadline", handshake_deadline);
  require_duration("heartbeat", heartbeat);
  require_duration("idle_deadline", idle_deadline);
  require(idle_deadline >= 2 * heartbeat, "idle_deadline",
          std::chrono::duration<double>(idle_deadline).count(), "at least two heartbeats");
}

/// All of it; the header says what its functions promise.
class Server::Impl {
 public:
  Impl(const ServerOptions& options, const RecordLayout& layout, Services services,
       std::span<const Session> sessions)
      : options_((options.validate(), options)),
        layout_(layout),
        services_(std::move(services)),
        acceptor_(io_),
        ticker_(io_),
        log_(options.log) {
    if (options_.tls) tls_.emplace(*options_.tls);
    if (options_.run == Id{}) options_.run = random_bytes<16>();
    restore(sessions);
    listen();
    tick_ = std::clamp<Clock::duration>(
        std::min({options_.handshake_deadline, options_.heartbeat, options_.idle_deadline}) / 8,
        std::chrono::milliseconds(1), std::chrono::milliseconds(250));
    detail::asio::co_spawn(io_, accept(), detail::asio::detached);
    detail::asio::co_spawn(io_, tick(), detail::asio::detached);
    if (services_.parameters != nullptr) {
      listener_ = services_.parameters->listen([this] {
        if (!is_told_.exchange(true)) detail::asio::post(io_, [this] { send_new_parameters(); });
      });
    }
    if (services_.commits != nullptr) {
      commit_listener_ = services_.commits->listen([this] {
        if (!has_committed_.exchange(true)) detail::asio::post(io_, [this] { acknowledge_committed(); });
      });
    }
    try {
      thread_ = std::thread([this] { io_.run(); });
    } catch (...) {
      forget_listeners();
      throw;
    }
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { stop(Deadline::now(), Farewell::stopping); }

  const Address& address() const noexcept { return address_; }
  const Id& run() const noexcept { return options_.run; }

  std::vector<Session> sessions() const {
    const std::lock_guard lock(sessions_mutex_);
    return copy_sessions();
  }

  Held hold() {
    std::unique_lock lock(sessions_mutex_);
    return {std::move(lock), copy_sessions()};
  }

  ServerStatistics statistics() const {
    ServerStatistics s;
    const Counters& c = counters_;
    s.connections = c.connections, s.receive_bytes = c.receive_bytes, s.accepted = c.accepted;
    s.admitted = c.admitted, s.frames = c.frames, s.batches = c.batches, s.items = c.items;
    s.duplicates = c.duplicates, s.lost = c.lost, s.packed = c.packed, s.waits = c.waits,
    s.memory_waits = c.memory_waits;
    s.bytes_received = c.bytes_received, s.bytes_sent = c.bytes_sent, s.sessions = c.sessions;
    s.parameters = c.parameters, s.leases = c.leases, s.calls = c.calls, s.max_policy_lag = c.max_policy_lag;
    s.mean_policy_lag = mean_policy_lag_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < kNumRefusalCodes; ++i) s.refused[i] = c.refused[i];
    return s;
  }

  void stop(Deadline deadline, Farewell farewell) {
    if (!thread_.joinable()) return;
    forget_listeners();
    detail::asio::post(io_, [this, deadline, farewell] {
      stopping_ = true;
      error_code ignored;
      acceptor_.close(ignored);
      const auto latest = std::min(deadline.time(), Clock::now() + kLinger);
      for (const auto& connection : connections_) end(*connection, latest, farewell);
      ticker_.notify();
    });
    thread_.join();
  }

 private:
  using error_code = detail::error_code;
  using tcp = detail::tcp;
  template <class T>
  using awaitable = detail::asio::awaitable<T>;

  static constexpr Clock::duration kLinger = std::chrono::seconds(1);
  static constexpr std::size_t kProgress =
      64 << 10;                                  // bytes of an unfinished frame that count as a sign of life
  static constexpr std::size_t kMaxEnding = 64;  // connections beyond the limit that are told so
  static constexpr std::size_t kWritePiece = 256 << 10;  // of a block, within the idle deadline

  /// Written by the server's thread, read by any.
  class Counter {
   public:
    void add(std::uint64_t n) noexcept { set(*this + n); }
    void set(std::uint64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }
    operator std::uint64_t() const noexcept { return value_.load(std::memory_order_relaxed); }

   private:
    std::atomic<std::uint64_t> value_{0};
  };

  struct Counters {
    Counter connections, sessions, receive_bytes, accepted, admitted, frames, batches, items, duplicates,
        lost, packed, waits, memory_waits, parameters, leases, calls, max_policy_lag, bytes_received,
        bytes_sent;
    std::array<Counter, kNumRefusalCodes> refused;
  };

  struct Connection;

  static constexpr std::uint64_t kConnected = UINT64_MAX;

  struct Known {
    std::uint64_t last = 0;  // changed under the lock
    /// Tickets and numbers of batches that were applied and not committed; only the server's thread looks.
    std::deque<std::pair<std::uint64_t, std::uint64_t>> uncommitted;
    std::atomic<std::uint64_t> left{kConnected};  // the how manyeth connection to end was its last
    Connection* connection = nullptr;             // at present; only the server's thread looks
  };
  using Sessions = std::map<Id, Known>;

  enum class Phase { tls, hello, proof, open, ending };

  struct Connection {
    Connection(Impl& server, tcp::socket s)
        : socket(std::move(s)),
          phase(server.tls_ ? Phase::tls : Phase::hello),
          wake(server.io_),
          pause(server.io_),
          last_write(Clock::now()) {}

    detail::Stream socket;
    std::string peer;  // for the log
    std::list<std::shared_ptr<Connection>>::iterator place;
    Phase phase;
    Clock::time_point deadline;  // of the phase, or of the next sign of life

    detail::FrameBuffer in;
    std::size_t progress = 0;  // bytes since the last sign of life
    bool used_large = false;   // a large frame came since the last tick
    bool may_shrink = false;   // nobody uses the buffer
    bool has_waited = false;   // the frame at hand has
    Clock::time_point told_held;
    detail::Buffer unpacked;  // that frame's payload, if it was compressed and waits

    std::vector<std::byte> out;                  // frames to be written
    std::vector<ParameterServer::Frame> blocks;  // large ones, after `out`; shared with other connections
    std::uint64_t acknowledged = 0;              // the last number that the client was told
    bool acknowledge = false, heartbeat = false, is_writing = false;
    detail::Event wake, pause;  // wake: there is something to write; pause: before trying an insert again
    Clock::time_point last_write;

    std::optional<Fetch> fetch;  // that waits for new parameters

    std::vector<std::byte> hello_payload, challenge_payload;
    Hello hello;
    Sessions::iterator session;  // in phase open, and in phase ending after it unless displaced
    bool has_session = false;
    bool sends_items = false;
  };
  using ConnectionPointer = std::shared_ptr<Connection>;

  // Set-up.

  void forget_listeners() {
    if (services_.parameters != nullptr) services_.parameters->forget(listener_);
    if (services_.commits != nullptr) services_.commits->forget(commit_listener_);
  }

  bool takes_items() const noexcept { return services_.insert || services_.insert_from; }

  void restore(std::span<const Session> sessions) {
    if (sessions.size() > options_.max_sessions) sessions = sessions.last(options_.max_sessions);
    for (const Session& session : sessions) {
      const auto [known, is_new] = sessions_.try_emplace(session.client);
      require(is_new, "sessions", sessions.size(), "each client once");
      known->second.last = session.last;
      known->second.left = ++leaves_;
    }
    counters_.sessions.set(sessions_.size());
  }

  void listen() {
    const Address wanted = parse_address(options_.listen, "listen");
    error_code error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(wanted.host, std::to_string(wanted.port), tcp::resolver::passive, error);
    const std::string place = "cannot listen on " + to_string(wanted) + ": ";
    if (error) throw Error(place + error.message());
    const tcp::endpoint endpoint = *found.begin();
    if (!endpoint.address().is_loopback() && options_.token.is_empty() && !options_.insecure) {
      if (!options_.tls) {
        throw InvalidArgument(
            "listen", to_string(wanted),
            "a loopback address such as 127.0.0.1, or a token, or TLS, or insecure to let everybody in");
      }
      if (options_.tls->authority.empty())
        log_.say("everybody who can connect to " + to_string(wanted) +
                 " may insert: there is neither a token nor an authority for clients' certificates");
    }
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    if (error) throw Error(place + error.message());
    address_ = {wanted.host, acceptor_.local_endpoint().port()};
  }

  // Connections come and go.

  awaitable<void> accept() {
    while (!stopping_) {
      error_code error;
      tcp::socket socket = co_await acceptor_.async_accept(detail::into(error));
      if (stopping_) break;
      if (error) {  // out of descriptors or memory: later
        log_.say("cannot accept a connection: " + error.message());
        detail::Event pause(io_);
        co_await pause.wait_for(std::chrono::milliseconds(50));
        continue;
      }
      try {
        admit(std::move(socket));
      } catch (const std::exception& failure) {
        log_.say(std::string("cannot accept a connection: ") + failure.what());
      }
    }
  }

  void admit(tcp::socket socket) {
    error_code error;
    socket.set_option(tcp::no_delay(true), error);
    socket.set_option(detail::asio::socket_base::keep_alive(true), error);
    const tcp::endpoint peer = socket.remote_endpoint(error);
    counters_.accepted.add(1);
    const bool is_full = connections_.size() - num_ending_ >= options_.max_connections;
    if (is_full && num_ending_ >= kMaxEnding) {
      count_refusal(RefusalCode::crowded);
      return;
    }
    auto connection = std::make_shared<Connection>(*this, std::move(socket));
    connection->peer = error ? "somebody" : to_string(Address{peer.address().to_string(), peer.port()});
    connection->in.reserve(detail::FrameBuffer::kBase);
    connection->deadline = Clock::now() + options_.handshake_deadline;
    connection->place = connections_.insert(connections_.end(), connection);
    counters_.connections.set(connections_.size());
    if (is_full) make_room();
    detail::asio::co_spawn(io_, read(connection), detail::asio::detached);
    detail::asio::co_spawn(io_, write(connection), detail::asio::detached);
  }

  /// Refuses the oldest connection that has not proven itself, so that silent strangers cannot keep others
  /// out: the newest of all when there is no other.
  void make_room() {
    const auto victim = std::find_if(connections_.begin(), connections_.end(),
                                     [](const auto& connection) { return connection->phase < Phase::open; });
    refuse(**victim, RefusalCode::crowded, true,
           "there are " + std::to_string(options_.max_connections) + " connections already");
  }

  void remove(Connection& connection) {
    connection.socket.close();
    if (connection.phase == Phase::ending) --num_ending_;
    connection.phase = Phase::ending;
    connection.wake.notify();
    receive_bytes_ -= connection.in.capacity() - detail::FrameBuffer::kBase + connection.unpacked.size;
    count_receive_bytes();
    if (connection.has_session) {
      if (services_.leases != nullptr) services_.leases->leave(connection.session->first);
      Known& known = connection.session->second;
      known.connection = nullptr;
      known.left = ++leaves_;
      connection.has_session = false;
    }
    connections_.erase(connection.place);
    counters_.connections.set(connections_.size());
    if (stopping_) ticker_.notify();
  }

  /// Nothing that the peer sends counts from now on; what is to be written still is, and the connection
  /// closes when the peer does, at the latest at `latest`.
  void begin_ending(Connection& connection, Clock::time_point latest) {
    connection.phase = Phase::ending;
    connection.blocks.clear();
    connection.fetch.reset();
    ++num_ending_;
    connection.deadline = latest;
    connection.wake.notify();
    connection.pause.notify();
  }

  void end(Connection& connection, Clock::time_point latest, Farewell farewell) {
    if (connection.phase == Phase::ending) {
      connection.deadline = std::min(connection.deadline, latest);
      return;
    }
    connection.acknowledge = connection.acknowledge || services_.commits != nullptr;
    append_acknowledgement(connection);
    if (farewell == Farewell::finished && connection.phase == Phase::open) {
      count_refusal(RefusalCode::finished);
      append_message(Refusal{RefusalCode::finished, false, "the training is finished"}, connection.out);
    } else if (connection.phase != Phase::tls) {
      append_frame(MessageType::goodbye, {}, connection.out);
    }
    begin_ending(connection, latest);
  }

  void count_refusal(RefusalCode code) { counters_.refused[static_cast<std::size_t>(code)].add(1); }

  void refuse(Connection& connection, RefusalCode code, bool again, const std::string& sentence) {
    if (connection.phase == Phase::ending) return;
    count_refusal(code);
    log_.say("refused " + who(connection) + ": " + printable(sentence));
    append_acknowledgement(connection);
    if (connection.phase != Phase::tls)  // else nobody could read it
      append_message(Refusal{code, again, sentence.substr(0, kMaxSentenceBytes)}, connection.out);
    begin_ending(connection, Clock::now() + kLinger);
  }

  // Reading.

  enum class Progress { done, again };

  awaitable<void> read(ConnectionPointer connection) {
    Connection& c = *connection;
    bool is_alive = true;
    try {
      if (c.phase == Phase::tls) co_await shake_hands(c);
      while (c.phase != Phase::ending) {
        detail::Frame frame;
        const auto state = c.in.next(limits(c), frame);
        if (state == detail::FrameBuffer::State::fault) {
          refuse_fault(c);
          break;
        }
        if (state == detail::FrameBuffer::State::frame) {
          Clock::duration pause = std::chrono::milliseconds(1);
          while (handle(c, frame) == Progress::again) {
            c.deadline = Clock::time_point::max();  // it is not the peer who keeps us waiting
            acknowledge_soon(c);
            co_await c.pause.wait_for(pause);
            pause = std::min<Clock::duration>(2 * pause, std::chrono::milliseconds(50));
            if (c.phase == Phase::ending) break;
          }
          continue;
        }
        acknowledge_soon(c);
        Clock::duration pause = std::chrono::milliseconds(1);
        while (c.phase != Phase::ending && !make_room_for_frame(c)) {
          c.deadline = Clock::time_point::max();
          co_await c.pause.wait_for(pause);
          pause = std::min<Clock::duration>(2 * pause, std::chrono::milliseconds(50));
        }
        if (c.phase == Phase::ending) break;
        if (c.deadline == Clock::time_point::max()) live(c);
        is_alive = co_await receive(c);
        if (!is_alive) break;
      }
      // Until the peer has read our last words and closes, which is not told a second time.
      while (is_alive && c.phase == Phase::ending) {
        c.in.clear();
        is_alive = co_await receive(c);
      }
    } catch (const std::exception& error) {  // no memory, no random numbers
      log_.say("closed " + c.peer + ": " + error.what());
    }
    remove(c);
  }

  /// The server's side of a TLS handshake. After it the phase is hello, or ending.
  awaitable<void> shake_hands(Connection& c) {
    error_code error;
    char first = 0;
    co_await c.socket.socket().async_receive(detail::asio::buffer(&first, 1), tcp::socket::message_peek,
                                             detail::into(error));
    if (c.phase == Phase::ending) co_return;
    if (error) {  // looked whether somebody listens here
      begin_ending(c, Clock::now());
    } else if (first == 'T') {  // a frame in the clear; the answer is one too
      c.phase = Phase::hello;
      refuse(c, RefusalCode::tls, false, "this server speaks TLS only, and the client does not");
    } else {
      co_await c.socket.accept_tls(*tls_, error);
      if (!error && c.phase != Phase::ending) c.phase = Phase::hello;
      if (!error) co_return;
      const std::string why = tls_->failure(c.socket.tls(), error, "client");
      c.socket.drop_tls();
      refuse(c, RefusalCode::tls, false, why);
    }
  }

  awaitable<bool> receive(Connection& c) {
    error_code error;
    std::size_t count = 0;
    if (c.in.empty() && c.in.capacity() > detail::FrameBuffer::kBase) {  // it may be taken away meanwhile
      std::array<std::byte, 64> few;
      c.may_shrink = true;
      count = co_await c.socket.wait(few, error);
      c.may_shrink = false;
      if (error) co_return false;
      std::memcpy(c.in.space().data(), few.data(), count);
    }
    if (count == 0) {
      const auto space = c.in.space();
      const auto buffer = detail::asio::buffer(space.data(), space.size());
      count = co_await c.socket.async_read_some(buffer, detail::into(error));
      if (error) co_return false;
    }
    counters_.bytes_received.add(count);
    c.in.received(count);
    c.progress += count;
    if (c.progress >= kProgress && c.phase == Phase::open) live(c);
    co_return true;
  }

  void live(Connection& c) {
    c.progress = 0;
    c.deadline =
        Clock::now() + (c.phase == Phase::open ? options_.idle_deadline : options_.handshake_deadline);
  }

  /// Strangers cannot send batches, so nothing large.
  detail::FrameLimits limits(const Connection& c) const {
    if (c.phase != Phase::open) return {};
    return {.insert = options_.max_frame_bytes, .call = options_.max_frame_bytes};
  }

  /// Whether the frame at the front fits into the buffer, which grows if the limit of all buffers allows it;
  /// buffers that lie idle are taken away first, and those in use after the frame that they hold.
  bool make_room_for_frame(Connection& c) {
    const std::size_t needed = c.in.needed(), held = c.in.capacity();
    if (needed > detail::FrameBuffer::kBase) c.used_large = true;
    if (needed <= held) return true;
    if (receive_bytes_ + (needed - held) > options_.max_receive_bytes) {
      for (const auto& other : connections_) {
        if (other->may_shrink) resize(*other, detail::FrameBuffer::kBase);
      }
    }
    if (receive_bytes_ + (needed - held) > options_.max_receive_bytes) {
      if (!std::exchange(c.has_waited, true)) counters_.memory_waits.add(1);
      is_short_of_memory_ = true;
      return false;
    }
    resize(c, needed);
    return true;
  }

  void resize(Connection& c, std::size_t capacity) {
    const std::size_t before = c.in.capacity();
    c.in.reserve(capacity);
    receive_bytes_ = receive_bytes_ - before + capacity;
    count_receive_bytes();
  }

  void count_receive_bytes() { counters_.receive_bytes.set(receive_bytes_ + unpacking_.size); }

  void refuse_fault(Connection& c) {
    const FrameFault fault = c.in.fault();
    if (fault == FrameFault::version) {
      return refuse(c, RefusalCode::version, false,
                    "protocol version " + std::to_string(c.in.head().version) +
                        ", this server speaks version " + std::to_string(kProtocolVersion));
    }
    if (fault == FrameFault::length) {
      return refuse(c, RefusalCode::malformed, false,
                    "a frame of " + std::to_string(c.in.head().length) + " bytes, more than allowed");
    }
    if (fault == FrameFault::magic && !c.socket.tls() && detail::is_tls_record(c.in.front())) {
      return refuse(c, RefusalCode::tls, false, "the client speaks TLS, and this server does not");
    }
    const bool is_damage = fault == FrameFault::checksum;
    refuse(c, is_damage ? RefusalCode::damaged : RefusalCode::malformed, is_damage,
           std::string(to_string(fault)));
  }

  // What frames say.

  Progress handle(Connection& c, const detail::Frame& frame) {
    try {
      const Progress progress = dispatch(c, frame);
      if (progress == Progress::again) return progress;
    } catch (const Error& error) {
      refuse(c, RefusalCode::malformed, false, error.what());
    }
    c.has_waited = false;
    counters_.frames.add(1);
    if (is_short_of_memory_ && c.in.capacity() > detail::FrameBuffer::kBase)
      resize(c, detail::FrameBuffer::kBase);
    if (c.phase == Phase::open) live(c);
    return Progress::done;
  }

  Progress dispatch(Connection& c, const detail::Frame& frame) {
    const MessageType type = frame.head.type;
    if (c.phase == Phase::hello && type == MessageType::hello) return on_hello(c, frame.payload);
    if (c.phase == Phase::proof && type == MessageType::proof) return on_proof(c, frame.payload);
    if (c.phase == Phase::open) {
      if (type == MessageType::insert) return on_insert(c, frame);
      if (type == MessageType::call) return on_call(c, frame.payload);
      if (type == MessageType::fetch) return on_fetch(c, frame.payload);
      if (type == MessageType::lease) return on_lease(c, frame.payload);
      if (type == MessageType::report && services_.report) {
        services_.report(frame.payload);
        return Progress::done;
      }
      if (type == MessageType::heartbeat && frame.payload.empty()) return Progress::done;
      if (type == MessageType::goodbye && frame.payload.empty()) return on_goodbye(c);
    }
    throw Error("a message of type " + std::to_string(static_cast<int>(type)) + " where none is expected");
  }

  Progress on_hello(Connection& c, std::span<const std::byte> payload) {
    c.hello = read_message<Hello>(payload);
    if (c.hello.name.size() > kMaxNameBytes) throw Error("a name of more than 128 bytes");
    const auto role = static_cast<int>(c.hello.role);
    if (role < 1 || role > 4) throw Error("role " + std::to_string(role) + ", which is none");
    if (c.hello.first == 0) throw Error("a first sequence number of 0");
    c.hello_payload.assign(payload.begin(), payload.end());
    const Challenge challenge{.nonce = random_bytes<32>(), .needs_token = !options_.token.is_empty()};
    c.challenge_payload = to_bytes(challenge);
    append_frame(MessageType::challenge, c.challenge_payload, c.out);
    c.wake.notify();
    c.phase = Phase::proof;
    return Progress::done;
  }

  Progress on_proof(Connection& c, std::span<const std::byte> payload) {
    const auto message = read_message<ProofMessage>(payload);
    const std::unique_lock lock(sessions_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return Progress::again;
    if (!options_.token.is_empty()) {
      const Proof expected = client_proof(options_.token, c.hello_payload, c.challenge_payload);
      if (!equal_in_constant_time(message.proof, expected)) {
        const bool has_none = message.proof == Proof{};
        refuse(c, RefusalCode::token, false,
               has_none ? "this server wants a token, and the client has none"
                        : "the token is not the server's");
        return Progress::done;
      }
    }
    // Who sends no layout sends no items; who sends one to a server that takes none finds out when he inserts.
    const std::string difference =
        c.hello.layout.empty() || !takes_items() ? std::string() : layout_difference(c.hello.layout, layout_);
    if (!difference.empty()) {
      refuse(c, RefusalCode::layout, false, difference);
      return Progress::done;
    }
    const std::uint64_t lost = attach(c);
    Welcome welcome{.run = options_.run,
                    .last = committed(c.session->second),
                    .lost = lost,
                    .window = options_.window,
                    .heartbeat_ms = static_cast<std::uint32_t>(
                        std::chrono::duration_cast<std::chrono::milliseconds>(options_.heartbeat).count()),
                    .max_frame_bytes = static_cast<std::uint32_t>(options_.max_frame_bytes),
                    .features = c.hello.features & (services_.report ? kFeatures : kFeatures & ~kReports)};
    c.in.set_features(welcome.features);
    c.acknowledged = welcome.last;
    welcome.proof = server_proof(options_.token, c.hello_payload, c.challenge_payload, welcome);
    append_message(welcome, c.out);
    c.wake.notify();
    c.phase = Phase::open;
    c.sends_items = !c.hello.layout.empty();
    c.hello.layout = {}, c.hello_payload = {}, c.challenge_payload = {};
    counters_.admitted.add(1);
    return Progress::done;
  }

  /// Gives the connection its client's session; returns how many batches that client knows to be acknowledged
  /// and the session does not. Needs the lock.
  std::uint64_t attach(Connection& c) {
    auto found = sessions_.find(c.hello.client);
    if (found == sessions_.end()) {
      if (sessions_.size() >= options_.max_sessions) forget_oldest_session();
      found = sessions_.try_emplace(c.hello.client).first;
      found->second.last = c.hello.first - 1;
      counters_.sessions.set(sessions_.size());
    }
    Known& known = found->second;
    const std::uint64_t lost = c.hello.first - 1 - std::min(known.last, c.hello.first - 1);
    known.last += lost;
    counters_.lost.add(lost);
    if (known.connection != nullptr) {
      known.connection->has_session = false;
      refuse(*known.connection, RefusalCode::displaced, false,
             "another connection with the same client id came");
    }
    known.connection = &c;
    known.left = kConnected;
    c.session = found;
    c.has_session = true;
    return lost;
  }

  /// There is one that is not connected: there are at least as many sessions as connections, and this one has
  /// none yet.
  void forget_oldest_session() {
    auto oldest = sessions_.end();
    for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
      if (it->second.connection != nullptr) continue;
      if (oldest == sessions_.end() || it->second.left < oldest->second.left) oldest = it;
    }
    if (oldest != sessions_.end()) sessions_.erase(oldest);
  }

  /// Something that this server does not do for this client.
  Progress refuse_service(Connection& c, const char* sentence) {
    refuse(c, RefusalCode::role, false, sentence);
    return Progress::done;
  }

  Progress on_insert(Connection& c, const detail::Frame& frame) {
    if (frame.head.codec == PayloadCodec::none) return on_insert(c, frame.payload);
    const std::span<const std::byte> payload = unpack(c, frame);
    const Progress progress = on_insert(c, payload);
    if (progress == Progress::again) {
      keep_unpacked(c);
    } else {
      counters_.packed.add(1);
      receive_bytes_ -= c.unpacked.size;
      c.unpacked = {};
      count_receive_bytes();
    }
    return progress;
  }

  /// The payload of an insert as it was before it was compressed, at a multiple of 8 in memory.
  std::span<const std::byte> unpack(Connection& c, const detail::Frame& frame) {
    const std::size_t size = detail::PackedInsert::unpacked_bytes(frame.payload, options_.max_frame_bytes);
    if (c.unpacked.data) return {c.unpacked.data.get(), size};
    if (unpacking_.size < size) {
      unpacking_ = {};
      unpacking_ = detail::Buffer(size);
      count_receive_bytes();
    }
    used_unpacking_ = true;
    const std::span<std::byte> out(unpacking_.data.get(), size);
    if (!detail::PackedInsert::unpack(frame.head.codec, frame.payload, out))
      throw Error("a batch that cannot be unpacked");
    return out;
  }

  /// Spares the batch that must wait being unpacked again, if the limit allows it.
  void keep_unpacked(Connection& c) {
    if (c.unpacked.data || receive_bytes_ + unpacking_.size > options_.max_receive_bytes) return;
    c.unpacked = std::exchange(unpacking_, {});
    receive_bytes_ += c.unpacked.size;
  }

  Progress on_insert(Connection& c, std::span<const std::byte> payload) {
    if (!takes_items()) return refuse_service(c, "this server takes no items");
    if (!c.sends_items) return refuse_service(c, "items from a client that has told no record layout");
    const InsertView batch = read_insert(payload, layout_);
    Known& known = c.session->second;
    if (batch.sequence <= known.last) {
      counters_.duplicates.add(1);
      c.acknowledge = true;
      return Progress::done;
    }
    if (batch.sequence != known.last + 1) {
      throw Error("batch " + std::to_string(batch.sequence) + " came after batch " +
                  std::to_string(known.last));
    }
    const std::unique_lock lock(sessions_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return Progress::again;
    const Outcome outcome = apply(c, batch);
    if (outcome == Outcome::timeout) {
      if (!std::exchange(c.has_waited, true)) counters_.waits.add(1);
      if (const auto now = Clock::now(); services_.held && now - c.told_held >= std::chrono::seconds(1)) {
        c.told_held = now;
        services_.held(c.hello.name);
      }
      return Progress::again;
    }
    if (outcome != Outcome::ok) {
      refuse(c, RefusalCode::stopping, true, "the replay is closed");
      return Progress::done;
    }
    if (c.phase == Phase::ending) return Progress::done;  // refused in `apply`
    known.last = batch.sequence;
    if (services_.commits != nullptr)
      known.uncommitted.emplace_back(services_.commits->issued(), batch.sequence);
    c.acknowledge = true;
    counters_.batches.add(1);
    counters_.items.add(batch.records.size());
    count_policy_lag(batch.version);
    return Progress::done;
  }

  void count_policy_lag(std::uint64_t version) {
    if (services_.parameters == nullptr || version == 0) return;
    const std::uint64_t newest = services_.parameters->version();
    if (version > newest) return;
    const std::uint64_t lag = newest - version;
    num_lags_ = std::min<std::uint64_t>(num_lags_ + 1, 100);
    const double mean = mean_policy_lag_.load(std::memory_order_relaxed);
    mean_policy_lag_.store(mean + (static_cast<double>(lag) - mean) / static_cast<double>(num_lags_),
                           std::memory_order_relaxed);
    counters_.max_policy_lag.set(std::max<std::uint64_t>(counters_.max_policy_lag, lag));
  }

  /// What a client asks for is looked at when everything before has been written: who asks and does not read
  /// makes nothing grow.
  static bool is_answering(const Connection& c) {
    return c.is_writing || !c.out.empty() || !c.blocks.empty();
  }

  Progress on_fetch(Connection& c, std::span<const std::byte> payload) {
    if (is_answering(c)) return Progress::again;
    const auto fetch = read_message<Fetch>(payload);
    if (services_.parameters == nullptr) return refuse_service(c, "this server has no parameters");
    c.fetch = fetch;
    send_parameters(c);
    return Progress::done;
  }

  /// Answers the fetch if there is something to answer.
  void send_parameters(Connection& c) {
    if (!c.fetch) return;
    const auto [frame, version] = services_.parameters->frame(c.fetch->as_float16);
    if (frame && version != c.fetch->version) {
      c.blocks.push_back(frame);
      counters_.parameters.add(1);
    } else if (!c.fetch->wait) {
      std::array<std::byte, ParametersView::kHeadBytes> none;
      ParametersView::write_head(version, 0, false, none.data());
      append_frame(MessageType::parameters, none, c.out);
    } else {
      return;
    }
    c.fetch.reset();
    c.wake.notify();
  }

  void send_new_parameters() {
    is_told_ = false;
    for (const auto& connection : connections_) {
      try {
        send_parameters(*connection);
      } catch (const std::exception& failure) {  // no memory
        log_.say("closed " + connection->peer + ": " + failure.what());
        close(*connection);
      }
    }
  }

  Progress on_lease(Connection& c, std::span<const std::byte> payload) {
    if (is_answering(c)) return Progress::again;
    const auto wish = read_message<Lease>(payload);
    if (services_.leases == nullptr) return refuse_service(c, "this server leases no places on the ladder");
    const Leased leased = services_.leases->lease(c.session->first, wish);
    counters_.leases.add(1);
    if (leased.first + wish.count > leased.planned) {
      log_.say("more environments than the " + std::to_string(leased.planned) +
               " that are planned: " + who(c) + " has " + std::to_string(leased.first) + " to " +
               std::to_string(leased.first + wish.count - 1) + ", on rungs that others have too");
    }
    append_message(leased, c.out);
    c.wake.notify();
    return Progress::done;
  }

  Progress on_call(Connection& c, std::span<const std::byte> payload) {
    if (!services_.call) return refuse_service(c, "this server answers no calls");
    if (payload.size() < CallPayload::kHeadBytes) throw Error("a call without a number");
    if (is_answering(c)) return Progress::again;
    auto reply = std::make_shared<std::vector<std::byte>>(FrameHead::kBytes + CallPayload::kReplyHeadBytes);
    std::memcpy(reply->data() + FrameHead::kBytes, payload.data(), CallPayload::kHeadBytes);
    try {
      services_.call(payload.subspan(CallPayload::kHeadBytes), *reply);
      if (reply->size() > (std::size_t{1} << 30)) throw Error("a reply of more than 2^30 bytes");
    } catch (const std::exception& error) {
      reply->resize(FrameHead::kBytes + CallPayload::kReplyHeadBytes);
      (*reply)[FrameHead::kBytes + CallPayload::kHeadBytes] = std::byte{1};
      const std::string_view sentence = std::string_view(error.what()).substr(0, kMaxSentenceBytes);
      const auto bytes = std::as_bytes(std::span(sentence));
      reply->insert(reply->end(), bytes.begin(), bytes.end());
    }
    finish_frame(MessageType::reply, *reply);
    c.blocks.push_back(std::move(reply));
    counters_.calls.add(1);
    c.wake.notify();
    return Progress::done;
  }

  static std::string who(const Connection& c) {
    return c.peer + (c.hello.name.empty() ? "" : " (" + printable(c.hello.name) + ")");
  }

  Outcome apply(Connection& c, const InsertView& batch) {
    try {
      if (services_.insert_from)
        return services_.insert_from(batch.records, batch.priorities, {c.session->first, batch.sequence});
      return services_.insert(batch.records, batch.priorities);
    } catch (const InvalidArgument& error) {
      refuse(c, RefusalCode::rejected, false, error.what());
    } catch (const LayoutMismatch& error) {
      refuse(c, RefusalCode::rejected, false, error.what());
    } catch (const std::exception& error) {
      refuse(c, RefusalCode::failed, true, error.what());
    }
    return Outcome::ok;
  }

  Progress on_goodbye(Connection& c) {
    const std::unique_lock lock(sessions_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return Progress::again;
    if (services_.leases != nullptr) services_.leases->end(c.session->first);
    sessions_.erase(c.session);
    c.has_session = false;
    counters_.sessions.set(sessions_.size());
    begin_ending(c, Clock::now() + kLinger);
    return Progress::done;
  }

  std::vector<Session> copy_sessions() const {
    std::vector<std::pair<std::uint64_t, Session>> ordered;
    ordered.reserve(sessions_.size());
    for (const auto& [client, known] : sessions_) {
      ordered.push_back({known.left, {client, known.last}});
    }
    std::stable_sort(ordered.begin(), ordered.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Session> sessions;
    sessions.reserve(ordered.size());
    for (const auto& entry : ordered) sessions.push_back(entry.second);
    return sessions;
  }

  // Writing.

  void acknowledge_soon(Connection& c) {
    if (c.acknowledge && !c.is_writing) c.wake.notify();
  }

  /// The number up to which a client's batches were applied and, where there is a log, are in it for good.
  std::uint64_t committed(Known& known) const {
    auto& waiting = known.uncommitted;
    while (!waiting.empty() && waiting.front().first <= services_.commits->reached()) waiting.pop_front();
    return waiting.empty() ? known.last : waiting.front().second - 1;
  }

  void append_acknowledgement(Connection& c) const {
    if (!c.acknowledge || !c.has_session) return;
    c.acknowledge = false;
    const std::uint64_t number = committed(c.session->second);
    if (services_.commits != nullptr && number == c.acknowledged) return;  // as soon as more is committed
    c.acknowledged = number;
    append_message(Acknowledge{number}, c.out);
  }

  void acknowledge_committed() {
    has_committed_ = false;
    for (const auto& connection : connections_) {
      if (!connection->has_session || connection->session->second.uncommitted.empty()) continue;
      connection->acknowledge = true;
      acknowledge_soon(*connection);
    }
  }

  awaitable<void> write(ConnectionPointer connection) {
    Connection& c = *connection;
    try {
      co_await write_all(c);
    } catch (const std::exception& failure) {  // no memory
      log_.say("closed " + c.peer + ": " + failure.what());
      close(c);
    }
  }

  /// Writes whatever is to be written until the connection ends.
  awaitable<void> write_all(Connection& c) {
    std::vector<std::byte> sending;
    std::vector<ParameterServer::Frame> blocks;
    while (c.socket.is_open()) {
      append_acknowledgement(c);
      if (std::exchange(c.heartbeat, false) && c.out.empty()) append_frame(MessageType::heartbeat, {}, c.out);
      if (c.out.empty() && c.blocks.empty()) {
        if (c.phase == Phase::ending) {
          c.socket.shut_down();
          break;
        }
        co_await c.wake.wait();
        continue;
      }
      sending.clear();
      sending.swap(c.out);
      blocks.swap(c.blocks);
      c.is_writing = true;
      bool is_written = co_await write_piecewise(c, sending);
      for (const auto& block : blocks) is_written = is_written && co_await write_piecewise(c, *block);
      blocks.clear();
      c.is_writing = false;
      if (!is_written) break;  // the reader sees it too
      c.pause.notify();        // a call may be waiting for room
    }
  }

  /// Writes bytes in pieces, each of which the peer must take within the idle deadline.
  awaitable<bool> write_piecewise(Connection& c, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), kWritePiece));
      c.last_write = Clock::now();
      error_code error;
      const auto buffer = detail::asio::buffer(piece.data(), piece.size());
      counters_.bytes_sent.add(co_await detail::asio::async_write(c.socket, buffer, detail::into(error)));
      if (error) co_return false;
      bytes = bytes.subspan(piece.size());
    }
    co_return true;
  }

  /// Ends the reader and the writer, whatever they are doing.
  static void close(Connection& c) {
    c.socket.close();
    c.wake.notify();
    c.pause.notify();
  }

  // The clock.

  awaitable<void> tick() {
    while (!stopping_ || !connections_.empty()) {
      co_await ticker_.wait_for(stopping_ ? std::chrono::milliseconds(1) : tick_);
      const Clock::time_point now = Clock::now();
      is_short_of_memory_ = false;  // who still is says so again
      for (const auto& connection : connections_) {
        try {
          look_after(*connection, now);
        } catch (const std::exception&) {  // no memory to say more
          close(*connection);
        }
      }
      if (!std::exchange(used_unpacking_, false) && unpacking_.data) {
        unpacking_ = {};
        count_receive_bytes();
      }
      log_.catch_up(now);
    }
  }

  void look_after(Connection& c, Clock::time_point now) {
    const bool is_stuck = c.is_writing && now - c.last_write > options_.idle_deadline;
    if (now >= c.deadline || is_stuck) {
      if (c.phase == Phase::ending || is_stuck) {
        close(c);
        if (c.phase != Phase::ending) refuse(c, RefusalCode::slow, true, "does not read what it is sent");
      } else if (c.phase == Phase::open) {
        refuse(c, RefusalCode::slow, true, "nothing was heard for " + seconds(options_.idle_deadline));
      } else if (c.phase == Phase::tls) {
        refuse(c, RefusalCode::slow, true, "no TLS handshake within " + seconds(options_.handshake_deadline));
      } else {
        refuse(c, RefusalCode::slow, true, "no proof came within " + seconds(options_.handshake_deadline));
      }
      return;
    }
    if (c.phase != Phase::open) return;
    if (!c.is_writing && now - c.last_write >= options_.heartbeat - tick_) {
      c.heartbeat = true;
      c.wake.notify();
    }
    const bool was_used = std::exchange(c.used_large, false);
    if (!was_used && c.may_shrink) resize(c, detail::FrameBuffer::kBase);
  }

  static std::string seconds(Clock::duration duration) {
    return troop::detail::to_text(std::chrono::duration<double>(duration).count()) + " s";
  }

  ServerOptions options_;
  const RecordLayout layout_;
  const Services services_;
  Address address_;

  mutable std::mutex sessions_mutex_;  // guards sessions_; held while a batch is applied
  Sessions sessions_;
  std::uint64_t leaves_ = 0;

  // Only the server's thread uses these.
  detail::asio::io_context io_{1};
  tcp::acceptor acceptor_;
  detail::Event ticker_;
  Clock::duration tick_{};
  detail::LimitedLog log_;
  std::optional<detail::TlsContext> tls_;
  std::list<ConnectionPointer> connections_;
  std::size_t num_ending_ = 0, receive_bytes_ = 0;
  detail::Buffer unpacking_;     // where batches are unpacked
  bool used_unpacking_ = false;  // since the last tick
  bool is_short_of_memory_ = false;
  bool stopping_ = false;
  std::uint64_t num_lags_ = 0;  // that are in the mean, 100 at most

  Counters counters_;
  std::atomic<double> mean_policy_lag_{0.0};
  std::atomic<bool> is_told_{false};        // of new parameters; it will look at them
  std::atomic<bool> has_committed_{false};  // more; it will look at it
  std::uint64_t listener_ = 0, commit_listener_ = 0;
  std::thread thread_;
};

Server::Server(const ServerOptions& options, const RecordLayout& layout, Services services,
               std::span<const Session> sessions)
    : impl_(std::make_unique<Impl>(options, layout, std::move(services), sessions)) {}
Server::~Server() = default;

const Address& Server::address() const noexcept {
  return impl_->address();
}
const Id& Server::run() const noexcept {
  return impl_->run();
}
std::vector<Session> Server::sessions() const {
  return impl_->sessions();
}
Server::Held Server::hold_sessions() {
  return impl_->hold();
}
ServerStatistics Server::statistics() const {
  return impl_->statistics();
}
void Server::stop(Deadline deadline, Farewell farewell) {
  impl_->stop(deadline, farewell);
}

}  // namespace troop::net
