#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/address.hpp>
#include <troop/net/client.hpp>
#include <troop/net/detail/asio.hpp>
#include <troop/net/detail/buffer.hpp>
#include <troop/net/detail/frame_buffer.hpp>
#include <troop/net/detail/packed_insert.hpp>
#include <troop/net/detail/resolve.hpp>
#include <troop/net/detail/stream.hpp>
#include <troop/replay/detail/priorities.hpp>
#include <troop/replay/detail/scratch.hpp>

namespace troop::net {

void ClientOptions::validate() const {
  using std::chrono::milliseconds;
  parse_address(connect, "connect");
  if (tls) tls->validate();
  require(name.size() <= kMaxNameBytes, "name", name.size(), "at most 128 bytes");
  require(max_outbox_bytes >= 4096 && max_outbox_bytes <= (std::size_t{1} << 46), "max_outbox_bytes",
          max_outbox_bytes, "an integer from 4096 to 2^46");
  require(max_frame_bytes >= 1024 && max_frame_bytes <= (std::size_t{1} << 30), "max_frame_bytes",
          max_frame_bytes, "an integer from 1024 to 2^30");
  require(max_receive_bytes >= kMaxControlBytes && max_receive_bytes <= (std::size_t{1} << 30),
          "max_receive_bytes", max_receive_bytes, "an integer from 65536 to 2^30");
  const auto in_seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  require(connect_deadline >= milliseconds(1) && connect_deadline <= std::chrono::hours(1),
          "connect_deadline", in_seconds(connect_deadline), "from 0.001 to 3600 seconds");
  require(min_backoff >= milliseconds(1), "min_backoff", in_seconds(min_backoff), "at least 0.001 seconds");
  require(max_backoff >= min_backoff && max_backoff <= std::chrono::hours(1), "max_backoff",
          in_seconds(max_backoff), "from min_backoff to 3600 seconds");
}

/// All of it; the header says what its functions promise.
class Client::Impl {
 public:
  Impl(const ClientOptions& options, std::optional<RecordLayout> layout, LookUp look_up)
      : options_((options.validate(), options)),
        layout_(std::move(layout)),
        layout_bytes_(layout_ ? layout_bytes(*layout_) : std::vector<std::byte>()),
        address_(parse_address(options.connect, "connect")),
        id_(random_bytes<16>()),
        random_(options.seed != 0 ? options.seed : std::bit_cast<std::uint64_t>(random_bytes<8>()),
                "backoff"),
        resolver_(io_, std::move(look_up)),
        socket_(io_),
        wake_(io_),
        writer_ended_(io_),
        pause_(io_),
        ticker_(io_) {
    if (options_.tls) tls_.emplace(*options_.tls, address_.host);
    detail::asio::co_spawn(io_, run(), detail::asio::detached);
    detail::asio::co_spawn(io_, tick(), detail::asio::detached);
    thread_ = std::thread([this] { io_.run(); });
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { stop(Deadline::now()); }

  const std::optional<RecordLayout>& layout() const noexcept { return layout_; }
  const Id& id() const noexcept { return id_; }

  Outcome insert(const BatchView& records, std::span<const float> priorities, Deadline deadline,
                 const std::stop_token& stop) {
    require(layout_.has_value(), "records", records.size(), "none: this client was made without a layout");
    Batch batch{.length = check(records, priorities), .items = records.size()};
    const std::size_t plain_bytes = batch.frame_bytes();
    const std::span<const std::byte> packed = pack(batch, records, priorities);
    std::unique_lock lock(mutex_);
    if (records.empty()) return outcome_of(true);
    const auto has_room = [&] {
      return statistics_.outbox_bytes + batch.frame_bytes() <= options_.max_outbox_bytes;
    };
    if (options_.when_full == FullPolicy::drop_oldest) {
      while (!failure_ && !closed_ && !has_room() && !queue_.empty()) drop_oldest();
    }
    const Outcome outcome = wait(lock, deadline, stop, has_room);
    if (outcome != Outcome::ok) return outcome;
    batch.buffer = take_buffer(batch.frame_bytes());
    batch.version = acting_version_;
    statistics_.outbox_bytes += batch.frame_bytes();  // ours from here on; filled without the lock
    lock.unlock();
    fill(batch, packed, records, priorities);
    lock.lock();
    if (failure_ || closed_) {
      statistics_.outbox_bytes -= batch.frame_bytes();
      return outcome_of(false);
    }
    ++statistics_.waiting;
    statistics_.bytes_saved += plain_bytes - batch.frame_bytes();
    batch.ordinal = ++last_ordinal_;
    queue_.push_back(std::move(batch));
    const bool must_wake = std::exchange(writer_waits_, false);
    lock.unlock();
    if (must_wake) detail::asio::post(io_, [this] { wake_.notify(); });
    return Outcome::ok;
  }

  Outcome flush(Deadline deadline, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const std::uint64_t last = last_ordinal_;
    return wait(lock, deadline, stop, [&] { return is_settled(last); });
  }

  bool fetch(std::uint64_t& version, std::vector<float>& parameters) {
    std::shared_ptr<const std::vector<float>> newest;
    {
      const std::lock_guard lock(mutex_);
      outcome_of(false);
      want_parameters();
      acting_version_ = server_version_;
      if (!parameters_ || version_ <= version) return false;
      version = version_;
      newest = parameters_;
    }
    parameters = *newest;
    return true;
  }

  Outcome await_parameters(std::uint64_t version, Deadline deadline, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto has_newer = [&] { return parameters_ && version_ > version; };
    if (!has_newer()) want_parameters();
    return wait(lock, deadline, stop, has_newer);
  }

  std::optional<Leased> lease(std::uint32_t count, Deadline deadline, const std::stop_token& stop) {
    require(count >= 1 && count <= (1u << 20), "count", count, "an integer from 1 to 2^20");
    std::unique_lock lock(mutex_);
    require(lease_count_ == 0 || lease_count_ == count, "count", count,
            std::to_string(lease_count_) + ", as many as this client has leased");
    if (std::exchange(lease_count_, count) == 0) {
      detail::asio::post(io_, [this] {
        if (is_open_) ask_for_lease();
      });
    }
    wait(lock, deadline, stop, [&] { return leased_.has_value(); });
    return leased_;
  }

  void report(std::span<const std::byte> body) {
    require(body.size() <= kMaxControlBytes, "report", body.size(), "at most 65536 bytes");
    std::vector<std::byte> frame;
    append_frame(MessageType::report, body, frame);
    {
      const std::lock_guard lock(mutex_);
      outcome_of(false);
      report_ = std::move(frame);
    }
    detail::asio::post(io_, [this] { wake_.notify(); });
  }

  bool begin(PendingCall& call, std::span<const std::byte> body) {
    require(body.size() <= options_.max_frame_bytes - CallPayload::kHeadBytes, "call", body.size(),
            "at most max_frame_bytes, less 8");
    std::vector<std::byte> frame(FrameHead::kBytes + CallPayload::kHeadBytes + body.size());
    if (!body.empty())
      std::memcpy(frame.data() + FrameHead::kBytes + CallPayload::kHeadBytes, body.data(), body.size());
    std::unique_lock lock(mutex_);
    outcome_of(false);
    call.state_ = PendingCall::State::lost;
    if (!statistics_.is_connected || closed_) return false;
    call.number_ = ++last_call_;
    call.state_ = PendingCall::State::waiting;
    call.error_ = nullptr;
    std::memcpy(frame.data() + FrameHead::kBytes, &call.number_, sizeof call.number_);
    finish_frame(MessageType::call, frame);
    calls_.emplace(call.number_, &call);
    outgoing_calls_.push_back(std::move(frame));
    lock.unlock();
    detail::asio::post(io_, [this] { wake_.notify(); });
    return true;
  }

  Outcome finish(PendingCall& call, Deadline deadline, const std::stop_token& stop) {
    using State = PendingCall::State;
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return call.state_ == State::done || call.state_ == State::lost; };
    Outcome outcome = Outcome::ok;
    try {
      outcome = wait(lock, deadline, stop, is_over);
    } catch (...) {
      give_up(lock, call);
      throw;
    }
    give_up(lock, call);
    if (call.error_) std::rethrow_exception(call.error_);
    if (call.state_ == State::done) return Outcome::ok;
    return call.state_ == State::lost ? Outcome::closed : outcome;
  }

  Outcome stop(Deadline deadline) {
    if (!thread_.joinable()) return Outcome::closed;
    std::unique_lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    const std::uint64_t last = last_ordinal_;
    deadline.wait(changed_, lock, [&] { return failure_ || is_settled(last); });
    const bool is_done = !failure_ && is_settled(last);
    lock.unlock();
    detail::asio::post(io_, [this, is_done] { begin_ending(is_done); });
    thread_.join();
    return is_done ? Outcome::ok : Outcome::timeout;
  }

  ClientStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  using error_code = detail::error_code;
  using tcp = detail::tcp;
  using Buffer = detail::Buffer;
  template <class T>
  using awaitable = detail::asio::awaitable<T>;

  static constexpr Clock::duration kLinger = std::chrono::seconds(1);
  static constexpr std::size_t kMaxSpares = 8;             // buffers that are kept
  static constexpr std::size_t kMaxGather = 64;            // frames in one write
  static constexpr std::size_t kMaxGatherBytes = 1 << 20;  // after which no further frame joins it

  struct Failure {
    RefusalCode code;
    std::string sentence;
  };

  /// A batch as the frame that will be sent.
  struct Batch {
    std::uint32_t length = 0;  // of the payload
    PayloadCodec codec = PayloadCodec::none;
    std::size_t items = 0;
    Buffer buffer = {};
    std::uint64_t ordinal = 0;   // among all that were inserted
    std::uint64_t sequence = 0;  // among all that were sent
    std::uint64_t version = 0;   // of the parameters that acted
    Clock::time_point sent_at = {};

    std::size_t frame_bytes() const noexcept { return FrameHead{.length = length}.frame_bytes(); }
    std::span<std::byte> payload() const noexcept { return {buffer.data.get() + FrameHead::kBytes, length}; }
  };

  // Callers' threads.

  std::uint32_t check(const BatchView& records, std::span<const float> priorities) const {
    if (&records.layout() != &*layout_) records.layout().require_equal(*layout_);
    require(priorities.size() == records.size(), "number of priorities", priorities.size(),
            std::to_string(records.size()) + ", as many as records");
    troop::detail::check_priorities(priorities, 1.0);
    const std::size_t bytes = InsertPayload::bytes(records.size(), layout_->size());
    const std::size_t most = std::min(options_.max_frame_bytes, options_.max_outbox_bytes / 2 - 64);
    if (!records.empty() && (bytes == 0 || bytes > most)) {
      throw InvalidArgument(
          "batch",
          std::to_string(records.size()) + " records of " + std::to_string(layout_->size()) + " bytes",
          "at most " + std::to_string(most) + " bytes with their priorities");
    }
    return static_cast<std::uint32_t>(bytes);
  }

  /// Compresses the batch if that is wanted and makes it smaller: then `batch` is of that length and codec,
  /// and the payload is returned, valid until this thread's next insert. Else nothing is.
  std::span<const std::byte> pack(Batch& batch, const BatchView& records, std::span<const float> priorities) {
    if (!packs_.load(std::memory_order_relaxed) || records.empty()) return {};
    struct Scratch {
      std::vector<std::byte> plain, packed;
    };
    auto& scratch = troop::detail::of_this_thread<Scratch>();
    scratch.plain.resize(batch.length);
    InsertPayload::write(records, priorities, scratch.plain);
    if (!detail::PackedInsert::pack(options_.compression, scratch.plain, scratch.packed)) return {};
    batch.codec = options_.compression;
    batch.length = static_cast<std::uint32_t>(scratch.packed.size());
    return scratch.packed;
  }

  static void fill(Batch& batch, std::span<const std::byte> packed, const BatchView& records,
                   std::span<const float> priorities) {
    const std::size_t size = batch.frame_bytes();
    if (packed.empty()) {
      InsertPayload::write(records, priorities, batch.payload());
    } else {
      std::memcpy(batch.payload().data(), packed.data(), packed.size());
    }
    InsertPayload::set_version(batch.version, batch.payload());
    std::memset(batch.payload().data() + batch.length, 0, size - FrameHead::kBytes - batch.length);
  }

  // The following need the lock.

  Outcome outcome_of(bool is_ready) const {
    if (failure_) throw RefusedError(failure_->code, failure_->sentence);
    return closed_ ? Outcome::closed : is_ready ? Outcome::ok : Outcome::timeout;
  }

  template <class Ready>
  Outcome wait(std::unique_lock<std::mutex>& lock, Deadline deadline, const std::stop_token& stop,
               Ready ready) {
    const auto is_over = [&] { return failure_ || closed_ || ready(); };
    if (!is_over() && !deadline.has_passed()) {
      if (deadline.is_never()) {
        changed_.wait(lock, stop, is_over);
      } else {
        changed_.wait_until(lock, stop, deadline.time(), is_over);
      }
    }
    const Outcome outcome = outcome_of(ready());
    return outcome == Outcome::timeout && stop.stop_requested() ? Outcome::cancelled : outcome;
  }

  void want_parameters() {
    if (std::exchange(wants_parameters_, true)) return;
    detail::asio::post(io_, [this] {
      if (is_open_) ask_for_parameters();
    });
  }

  /// Nobody will look at the reply any more.
  void give_up(std::unique_lock<std::mutex>& lock, PendingCall& call) {
    changed_.wait(lock, [&] { return call.state_ != PendingCall::State::taking; });
    if (call.state_ == PendingCall::State::waiting) calls_.erase(call.number_);
  }

  void drop_oldest() {
    const Batch& oldest = queue_.front();
    ++statistics_.dropped;
    statistics_.dropped_items += oldest.items;
    statistics_.outbox_bytes -= oldest.frame_bytes();
    --statistics_.waiting;
    queue_.pop_front();
    changed_.notify_all();
  }

  /// A buffer that was used before spares the system clearing its pages.
  Buffer take_buffer(std::size_t bytes) {
    for (auto spare = spares_.begin(); spare != spares_.end(); ++spare) {
      if (spare->size < bytes || spare->size / 2 > bytes) continue;
      Buffer buffer = std::move(*spare);
      spares_.erase(spare);
      return buffer;
    }
    return Buffer(bytes);
  }

  void keep_buffer(Buffer buffer) {
    if (spares_.size() == kMaxSpares) spares_.erase(spares_.begin());
    spares_.push_back(std::move(buffer));
  }

  bool is_settled(std::uint64_t ordinal) const {
    return first_in_flight_ > ordinal && (queue_.empty() || queue_.front().ordinal > ordinal);
  }

  // The client's thread: connections.

  awaitable<void> run() {
    unsigned attempts = 0;
    while (!is_ending_ && !has_failed()) {
      std::string why;
      try {
        why = co_await attempt();
      } catch (const std::exception& error) {  // no memory, no threads
        why = error.what();
      }
      close();
      if (is_ending_ || has_failed()) break;
      say_lost(why);
      attempts = std::exchange(was_useful_, false) ? 0 : std::min(attempts + 1, 30u);
      const auto most =
          std::min<double>(static_cast<double>(options_.max_backoff.count()),
                           static_cast<double>(options_.min_backoff.count()) * std::exp2(attempts));
      co_await pause_.wait_for(Clock::duration(static_cast<Clock::rep>(random_.uniform() * most)));
    }
    is_over_ = true;
    ticker_.notify();
  }

  /// One connection from beginning to end. Returns why it ended.
  awaitable<std::string> attempt() {
    error_code error;
    {
      const std::lock_guard lock(mutex_);
      ++statistics_.attempts;
    }
    const auto endpoints =
        co_await resolver_.resolve(address_, Deadline::after(options_.connect_deadline), error);
    if (is_ending_) co_return "";
    if (error) {
      co_return error == detail::asio::error::timed_out ? "its name was not found within " + connect_seconds()
                                                        : error.message();
    }
    for (const tcp::endpoint& endpoint : endpoints) {
      close();
      expire_after(options_.connect_deadline, "no answer within " + connect_seconds());
      co_await socket_.socket().async_connect(endpoint, detail::into(error));
      if (!error || is_ending_) break;
    }
    if (is_ending_) co_return "";
    if (error) co_return reason(error);
    socket_.socket().set_option(tcp::no_delay(true), error);
    socket_.socket().set_option(detail::asio::socket_base::keep_alive(true), error);
    in_.clear();
    in_.reserve(detail::FrameBuffer::kBase);
    out_.clear();
    expire_after(options_.connect_deadline, "no welcome within " + connect_seconds());
    if (tls_) co_await socket_.connect_tls(*tls_, error);
    if (is_ending_) co_return "";
    if (tls_ && error) co_return reason(error);
    std::string why = co_await shake_hands();
    if (!why.empty() || has_failed() || is_ending_) co_return why;
    const Clock::time_point opened_at = Clock::now();
    is_open_ = true;
    begin_asking();
    live();
    writer_runs_ = true;
    detail::asio::co_spawn(io_, write(), detail::asio::detached);
    try {
      why = co_await read();
    } catch (const std::exception& failure) {
      why = failure.what();
    }
    is_open_ = false;
    if (seconds_since(opened_at) > std::chrono::duration<double>(options_.max_backoff).count())
      was_useful_ = true;
    close();
    wake_.notify();
    while (writer_runs_) co_await writer_ended_.wait();
    const std::lock_guard lock(mutex_);
    statistics_.is_connected = false;
    writer_waits_ = false;
    lose_calls();
    co_return why;
  }

  void close() {
    socket_.close();
    deadline_ = Clock::time_point::max();
  }

  void expire_after(Clock::duration duration, std::string why) {
    deadline_ = Clock::now() + duration;
    why_closed_ = std::move(why);
    has_expired_ = false;
  }

  void live() { deadline_ = Clock::now() + 3 * heartbeat_; }

  std::string reason(const error_code& error) {
    if (has_expired_) return why_closed_;
    if (tls_) return tls_->failure(socket_.tls(), error, "server");
    return error == detail::asio::error::eof ? "the server closed the connection" : error.message();
  }

  std::string connect_seconds() const {
    return troop::detail::to_text(std::chrono::duration<double>(options_.connect_deadline).count()) + " s";
  }

  bool has_failed() const {
    const std::lock_guard lock(mutex_);
    return failure_.has_value();
  }

  void fail(RefusalCode code, const std::string& sentence) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = Failure{code, sentence};
      statistics_.last_error = sentence;
      statistics_.is_connected = false;
      lose_calls();
    }
    changed_.notify_all();
    say(to_string(address_) + " refused this client for good: " + sentence);
  }

  void say(const std::string& line) const noexcept {
    try {
      if (options_.log) options_.log(line);
    } catch (...) {
    }
  }

  void say_lost(const std::string& why) {
    bool has_met = false;
    {
      const std::lock_guard lock(mutex_);
      statistics_.last_error = why;
      has_met = statistics_.connections > 0;
    }
    if (down_since_) return;
    down_since_ = Clock::now();
    say((has_met ? "lost the connection to " : "cannot reach ") + to_string(address_) + ": " + why +
        "; trying again");
  }

  void say_connected() {
    if (!down_since_) return;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f", seconds_since(*down_since_));
    down_since_.reset();
    say("connected to " + to_string(address_) + " after " + seconds + " s");
  }

  void begin_ending(bool is_done) {
    is_ending_ = true;
    if (is_open_ && is_done) {
      append_frame(MessageType::goodbye, {}, out_);
      says_goodbye_ = true;
      expire_after(kLinger, "the server did not close the connection");
      wake_.notify();
      return;
    }
    close();
    resolver_.cancel();
    pause_.notify();
  }

  // The client's thread: the handshake.

  /// Returns why it did not succeed, if it did not and may do so another time.
  awaitable<std::string> shake_hands() {
    Hello hello{.role = options_.role,
                .client = id_,
                .nonce = random_bytes<32>(),
                .features = feature_of(options_.compression) | kReports,
                .first = in_flight_.empty() ? next_sequence_ : in_flight_.front().sequence,
                .name = options_.name,
                .layout = layout_bytes_};
    const std::vector<std::byte> hello_payload = to_bytes(hello);
    append_frame(MessageType::hello, hello_payload, out_);
    std::string why = co_await send();
    if (!why.empty()) co_return why;

    detail::Frame frame;
    why = co_await receive(frame);
    if (!why.empty() || !expect(frame, MessageType::challenge, why)) co_return why;
    const std::vector<std::byte> challenge_payload(frame.payload.begin(), frame.payload.end());
    const auto challenge = read_message<Challenge>(challenge_payload);
    if (!options_.token.is_empty() && !challenge.needs_token) {
      fail(RefusalCode::token, "the server does not know a token, and this client has one");
      co_return "";
    }
    append_message(ProofMessage{client_proof(options_.token, hello_payload, challenge_payload)}, out_);
    why = co_await send();
    if (!why.empty()) co_return why;

    why = co_await receive(frame);
    if (!why.empty() || !expect(frame, MessageType::welcome, why)) co_return why;
    const auto welcome = read_message<Welcome>(frame.payload);
    const Proof expected = server_proof(options_.token, hello_payload, challenge_payload, welcome);
    if (!options_.token.is_empty() && !equal_in_constant_time(welcome.proof, expected)) {
      fail(RefusalCode::token, "the server does not know the token");
      co_return "";
    }
    co_return take(welcome, hello.first);
  }

  /// What is asked of a server anew at every connection.
  void begin_asking() {
    is_asking_ = has_asked_for_lease_ = false;
    const auto [wants, needs_lease] = [&] {
      const std::lock_guard lock(mutex_);
      return std::pair(wants_parameters_, lease_count_ > 0);
    }();
    if (needs_lease) ask_for_lease();
    if (wants || options_.fetch == FetchPolicy::always) ask_for_parameters();
  }

  void ask_for_parameters() {
    if (std::exchange(is_asking_, true)) return;
    Fetch fetch{.as_float16 = options_.float16_parameters};
    {
      const std::lock_guard lock(mutex_);
      fetch.version = server_version_;
    }
    append_message(fetch, out_);
    wake_.notify();
  }

  void ask_for_lease() {
    if (std::exchange(has_asked_for_lease_, true)) return;
    Lease wish;
    {
      const std::lock_guard lock(mutex_);
      wish.count = lease_count_;
      if (leased_) wish.ticket = leased_->ticket, wish.first = leased_->first;
    }
    append_message(wish, out_);
    wake_.notify();
  }

  /// Needs the lock.
  void lose_calls() {
    for (const auto& [number, call] : calls_) call->state_ = PendingCall::State::lost;
    calls_.clear();
    outgoing_calls_.clear();
    changed_.notify_all();
  }

  std::string take(const Welcome& welcome, std::uint64_t first) {
    if (welcome.last >= next_sequence_) {
      fail(RefusalCode::malformed, "the server has batch " + std::to_string(welcome.last) +
                                       " of this client, which sent " + std::to_string(next_sequence_ - 1));
      return "";
    }
    if (welcome.max_frame_bytes < options_.max_frame_bytes) {
      fail(RefusalCode::rejected,
           "the server takes batches of at most " + std::to_string(welcome.max_frame_bytes) +
               " bytes, less than max_frame_bytes here, " + std::to_string(options_.max_frame_bytes));
      return "";
    }
    if (welcome.window == 0 || welcome.heartbeat_ms == 0 || welcome.last + 1 < first)
      return "a welcome with numbers that cannot be";
    features_ = welcome.features & (feature_of(options_.compression) | kReports);
    packs_ = (features_ & feature_of(options_.compression)) != 0;
    window_ = welcome.window;
    heartbeat_ = std::chrono::milliseconds(welcome.heartbeat_ms);
    num_given_ = num_written_ = in_flight_.size();  // nobody is writing: all that is applied may go
    acknowledged_ = welcome.last;
    release();
    num_given_ = num_written_ = 0;
    last_given_ = welcome.last;
    says_goodbye_ = false;
    {
      const std::lock_guard lock(mutex_);
      statistics_.is_connected = true;
      ++statistics_.connections;
      statistics_.lost += welcome.lost;
      if (std::exchange(run_, welcome.run) != welcome.run) {
        ++statistics_.servers;
        version_offset_ = version_;
        server_version_ = 0;
      }
    }
    say_connected();
    return "";
  }

  /// Whether the frame is of this type; if not, `why` says so, or the client has failed.
  bool expect(const detail::Frame& frame, MessageType type, std::string& why) {
    if (frame.head.type == type) return true;
    if (frame.head.type == MessageType::refusal) {
      why = refused(frame.payload);
    } else if (frame.head.type == MessageType::goodbye) {
      why = "the server ends";
    } else {
      why = "a message of type " + std::to_string(static_cast<int>(frame.head.type)) +
            " where none is expected";
    }
    return false;
  }

  /// Returns the sentence of a refusal that may be tried again.
  std::string refused(std::span<const std::byte> payload) {
    const auto refusal = read_message<Refusal>(payload);
    const std::string sentence = printable(refusal.sentence);
    if (refusal.again) return sentence;
    fail(refusal.code, sentence);
    return "";
  }

  // The client's thread: frames.

  /// Writes `out_`. Returns why it could not.
  awaitable<std::string> send() {
    std::vector<std::byte> sending;
    sending.swap(out_);
    error_code error;
    const std::size_t count = co_await detail::asio::async_write(
        socket_, detail::asio::buffer(sending.data(), sending.size()), detail::into(error));
    count_bytes(count, 0);
    co_return error ? reason(error) : "";
  }

  /// Reads one frame, which stays valid until the next. Returns why it could not.
  awaitable<std::string> receive(detail::Frame& frame) {
    for (;;) {
      const auto state = in_.next(limits(), frame);
      if (state == detail::FrameBuffer::State::frame) co_return "";
      if (state == detail::FrameBuffer::State::fault) co_return on_fault();
      if (in_.needed() > in_.capacity()) in_.reserve(in_.needed());
      const auto space = in_.space();
      const auto buffer = detail::asio::buffer(space.data(), space.size());
      error_code error;
      const std::size_t count = co_await socket_.async_read_some(buffer, detail::into(error));
      if (error) co_return reason(error);
      in_.received(count);
      count_bytes(0, count);
      if (is_open_ && !is_ending_) live();
    }
  }

  detail::FrameLimits limits() const {
    if (!is_open_) return {};
    return {.parameters = options_.max_receive_bytes, .reply = options_.max_receive_bytes};
  }

  std::string on_fault() {
    if (in_.fault() != FrameFault::version) return std::string(to_string(in_.fault()));
    const FrameHead& head = in_.head();
    const auto payload = in_.rest();
    if (head.type == MessageType::refusal && payload.size() >= head.length) {
      try {
        return refused(payload.first(head.length));
      } catch (const Error&) {
      }
    }
    fail(RefusalCode::version, "the server speaks protocol version " + std::to_string(head.version) +
                                   ", this client version " + std::to_string(kProtocolVersion));
    return "";
  }

  void count_bytes(std::size_t sent, std::size_t received) {
    const std::lock_guard lock(mutex_);
    statistics_.bytes_sent += sent;
    statistics_.bytes_received += received;
  }

  /// Takes what the server says until the connection ends. Returns why it ended.
  awaitable<std::string> read() {
    detail::Frame frame;
    std::string why;
    for (;;) {
      why = co_await receive(frame);
      if (!why.empty() || has_failed()) co_return why;
      if (frame.head.type == MessageType::heartbeat) continue;
      if (frame.head.type == MessageType::parameters) {
        on_parameters(read_parameters(frame.payload));
        continue;
      }
      if (frame.head.type == MessageType::leased) {
        on_leased(read_message<Leased>(frame.payload));
        continue;
      }
      if (frame.head.type == MessageType::reply) {
        on_reply(frame.payload);
        continue;
      }
      if (!expect(frame, MessageType::acknowledge, why)) co_return why;
      const auto message = read_message<Acknowledge>(frame.payload);
      if (message.last > last_given_) co_return "an acknowledgement of what was not sent";
      acknowledged_ = std::max(acknowledged_, message.last);
      was_useful_ = true;
      release();
      wake_.notify();
    }
  }

  void on_parameters(const ParametersView& view) {
    if (view.count > 0) {
      auto parameters = std::make_shared<std::vector<float>>(view.count);
      view.copy_to(*parameters);
      const std::lock_guard lock(mutex_);
      parameters_ = std::move(parameters);
      server_version_ = view.version;
      version_ = version_offset_ + view.version;
      wants_parameters_ = false;
      ++statistics_.fetched;
      statistics_.parameter_version = version_;
    }
    was_useful_ = true;
    is_asking_ = false;
    changed_.notify_all();
    if (options_.fetch == FetchPolicy::always) ask_for_parameters();
  }

  void on_leased(Leased leased) {
    if (leased.ticket == 0 || leased.planned == 0) throw Error("a lease that cannot be");
    const std::lock_guard lock(mutex_);
    if (!leased_ || leased_->ticket == leased.ticket) leased_ = std::move(leased);
    changed_.notify_all();
  }

  void on_reply(std::span<const std::byte> payload) {
    ByteReader reader(payload);
    const auto number = reader.number<std::uint64_t>();
    const auto status = reader.number<std::uint32_t>();
    reader.number<std::uint32_t>();
    PendingCall* call = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto found = calls_.find(number);
      if (found == calls_.end()) return;  // nobody waits any more
      call = found->second;
      call->state_ = PendingCall::State::taking;
      calls_.erase(found);
    }
    std::exception_ptr failure;
    const auto body = payload.subspan(CallPayload::kReplyHeadBytes);
    try {
      if (status != 0) throw Error(printable({reinterpret_cast<const char*>(body.data()), body.size()}));
      call->take_(body);
    } catch (...) {
      failure = std::current_exception();
    }
    was_useful_ = true;
    const std::lock_guard lock(mutex_);
    call->error_ = std::move(failure);
    call->state_ = PendingCall::State::done;
    changed_.notify_all();
  }

  /// Forgets the batches that are acknowledged and not being written any more.
  void release() {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);
    bool has_changed = false;
    while (num_written_ > 0 && in_flight_.front().sequence <= acknowledged_) {
      Batch& batch = in_flight_.front();
      const double seconds = std::chrono::duration<double>(now - batch.sent_at).count();
      double& mean = statistics_.acknowledge_seconds;
      mean = statistics_.acknowledged == 0 ? seconds : mean + (seconds - mean) / 8.0;
      statistics_.max_acknowledge_seconds = std::max(statistics_.max_acknowledge_seconds, seconds);
      ++statistics_.acknowledged;
      --statistics_.waiting;
      statistics_.outbox_bytes -= batch.frame_bytes();
      in_flight_bytes_ -= batch.frame_bytes();
      keep_buffer(std::move(batch.buffer));
      in_flight_.pop_front();
      --num_written_;
      --num_given_;
      has_changed = true;
    }
    if (!has_changed) return;
    first_in_flight_ = in_flight_.empty() ? UINT64_MAX : in_flight_.front().ordinal;
    changed_.notify_all();
  }

  awaitable<void> write() {
    try {
      co_await write_all();
    } catch (const std::exception&) {  // no memory; the reader says that the connection is lost
      close();
    }
    writer_runs_ = false;
    writer_ended_.notify();
  }

  /// Writes whatever may be written until the connection ends.
  awaitable<void> write_all() {
    std::vector<std::byte> control, report;
    std::vector<std::vector<std::byte>> calls;
    std::vector<detail::asio::const_buffer> buffers;
    while (socket_.is_open()) {
      buffers.clear();
      control.clear();
      control.swap(out_);
      report.clear();
      calls.clear();
      {
        const std::lock_guard lock(mutex_);
        calls.swap(outgoing_calls_);
        // Nothing follows a goodbye, which is the last of the control frames.
        const bool may_report = !says_goodbye_ || !control.empty();
        if (is_open_ && may_report && (features_ & kReports) != 0) report.swap(report_);
      }
      if (!report.empty()) buffers.emplace_back(report.data(), report.size());
      if (!control.empty()) buffers.emplace_back(control.data(), control.size());
      for (const auto& frame : calls) buffers.emplace_back(frame.data(), frame.size());
      gather(buffers);
      if (buffers.empty()) {
        if (says_goodbye_) {
          socket_.shut_down();
          break;
        }
        co_await wake_.wait();
        continue;
      }
      last_write_ = Clock::now();
      is_writing_ = true;
      error_code error;
      const std::size_t count = co_await detail::asio::async_write(socket_, buffers, detail::into(error));
      is_writing_ = false;
      count_bytes(count, 0);
      if (error) {
        close();  // so that the reader ends too
        break;
      }
      num_written_ = num_given_;
      release();
    }
  }

  /// The frames that may go out now: first those that went out on an earlier connection. Takes new ones from
  /// the queue as window and outbox allow; when there are none, `insert` wakes the writer.
  void gather(std::vector<detail::asio::const_buffer>& buffers) {
    const Clock::time_point now = Clock::now();
    std::size_t bytes = 0;
    std::uint64_t again = 0;
    unpacked_.clear();
    const auto may_give = [&] {
      return num_given_ < window_ && buffers.size() < kMaxGather && bytes < kMaxGatherBytes && !says_goodbye_;
    };
    const auto give = [&](Batch& batch) {
      batch.sent_at = now;
      bytes += bytes_to_send(batch);
      const Buffer& frame = must_unpack(batch) ? unpacked_.emplace_back(unpack(batch)) : batch.buffer;
      buffers.emplace_back(frame.data.get(), bytes_to_send(batch));
      last_given_ = batch.sequence;
      ++num_given_;
    };
    while (num_given_ < in_flight_.size() && may_give()) {
      ++again;
      give(in_flight_[num_given_]);
    }
    std::size_t num_new = 0;
    {
      const std::lock_guard lock(mutex_);
      statistics_.re_sent += again;
      while (num_given_ + num_new == in_flight_.size() && num_new + num_given_ < window_ &&
             buffers.size() + num_new < kMaxGather && bytes < kMaxGatherBytes && !queue_.empty() &&
             (in_flight_.empty() ||
              in_flight_bytes_ + queue_.front().frame_bytes() <= options_.max_outbox_bytes / 2)) {
        in_flight_.push_back(std::move(queue_.front()));
        queue_.pop_front();
        in_flight_bytes_ += in_flight_.back().frame_bytes();
        bytes += bytes_to_send(in_flight_.back());
        ++num_new;
      }
      if (num_new > 0) first_in_flight_ = in_flight_.front().ordinal;
      statistics_.sent += num_new;
      writer_waits_ = buffers.empty() && num_new == 0 && queue_.empty();
    }
    for (; num_new > 0; --num_new) {
      Batch& batch = in_flight_[num_given_];
      batch.sequence = next_sequence_++;
      InsertPayload::set_sequence(batch.sequence, batch.payload());
      const FrameHeadBytes head = make_frame_head(MessageType::insert, batch.payload(), batch.codec);
      std::memcpy(batch.buffer.data.get(), head.data(), head.size());
      give(batch);
    }
  }

  /// Whether the batch is packed in a way that this server does not know.
  bool must_unpack(const Batch& batch) const noexcept {
    return batch.codec != PayloadCodec::none && (features_ & feature_of(batch.codec)) == 0;
  }

  std::size_t bytes_to_send(const Batch& batch) const {
    if (!must_unpack(batch)) return batch.frame_bytes();
    const std::size_t length = detail::PackedInsert::unpacked_bytes(batch.payload(), UINT32_MAX);
    return FrameHead{.length = static_cast<std::uint32_t>(length)}.frame_bytes();
  }

  /// The batch as a frame that is not packed.
  static Buffer unpack(const Batch& batch) {
    const std::size_t length = detail::PackedInsert::unpacked_bytes(batch.payload(), UINT32_MAX);
    Buffer frame(FrameHead{.length = static_cast<std::uint32_t>(length)}.frame_bytes());
    const std::span<std::byte> payload(frame.data.get() + FrameHead::kBytes, length);
    if (!detail::PackedInsert::unpack(batch.codec, batch.payload(), payload))
      throw Error("a batch in the outbox is damaged");
    std::memset(payload.data() + length, 0, frame.size - FrameHead::kBytes - length);
    const FrameHeadBytes head = make_frame_head(MessageType::insert, payload);
    std::memcpy(frame.data.get(), head.data(), head.size());
    return frame;
  }

  // The client's thread: the clock.

  awaitable<void> tick() {
    while (!is_over_) {
      const Clock::duration shortest =
          is_open_ ? std::min(options_.connect_deadline, heartbeat_) : options_.connect_deadline;
      const Clock::duration period = std::clamp<Clock::duration>(shortest / 8, std::chrono::milliseconds(1),
                                                                 std::chrono::milliseconds(250));
      co_await ticker_.wait_for(period);
      const Clock::time_point now = Clock::now();
      if (now >= deadline_) {
        if (is_open_ && !is_ending_) why_closed_ = "nothing was heard for three heartbeats";
        has_expired_ = true;
        close();
      } else if (is_open_ && !is_writing_ && now - last_write_ >= heartbeat_ - period && out_.empty()) {
        append_frame(MessageType::heartbeat, {}, out_);
        wake_.notify();
      }
    }
  }

  const ClientOptions options_;
  const std::optional<RecordLayout> layout_;
  const std::vector<std::byte> layout_bytes_;
  const Address address_;
  const Id id_;

  std::atomic<bool> packs_{options_.compression != PayloadCodec::none};  // until a server does not know it

  mutable std::mutex mutex_;  // guards the following
  std::condition_variable_any changed_;
  std::deque<Batch> queue_;  // never sent
  std::vector<Buffer> spares_;
  std::uint64_t last_ordinal_ = 0;
  std::uint64_t first_in_flight_ =
      UINT64_MAX;  // ordinal of the first batch that was sent and is not acknowledged
  bool closed_ = false;
  bool writer_waits_ = false;  // for `insert` to wake it
  std::optional<Failure> failure_;
  ClientStatistics statistics_;
  std::shared_ptr<const std::vector<float>> parameters_;  // the newest that came
  std::uint64_t version_ = 0;                             // their version, as callers see it
  std::uint64_t server_version_ = 0;  // as the server that is connected counts; 0: none of its own came yet
  std::uint64_t version_offset_ = 0;  // between the two
  std::uint64_t acting_version_ = 0;  // as the server counts, of what callers have fetched
  bool wants_parameters_ = false;
  std::uint32_t lease_count_ = 0;
  std::optional<Leased> leased_;
  std::map<std::uint64_t, PendingCall*> calls_;
  std::vector<std::vector<std::byte>> outgoing_calls_;
  std::uint64_t last_call_ = 0;
  std::vector<std::byte> report_;  // the newest that was not sent

  // Only the client's thread uses these.
  Random random_;
  detail::asio::io_context io_{1};
  detail::Resolver resolver_;
  std::optional<detail::TlsContext> tls_;
  detail::Stream socket_;
  detail::Event wake_, writer_ended_, pause_, ticker_;
  detail::FrameBuffer in_;
  std::vector<std::byte> out_;  // control frames to be written
  Clock::time_point deadline_ = Clock::time_point::max(), last_write_;
  std::optional<Clock::time_point> down_since_;
  std::string why_closed_;
  bool has_expired_ = false;  // the deadline closed the socket
  bool is_open_ = false, is_writing_ = false, writer_runs_ = false;
  bool is_ending_ = false, says_goodbye_ = false, is_over_ = false;
  bool has_asked_for_lease_ = false;  // on this connection
  bool is_asking_ = false;            // a fetch is open
  bool was_useful_ = false;           // the connection was good for something: the next attempt comes soon
  Clock::duration heartbeat_ = std::chrono::seconds(5);
  Id run_{};

  std::deque<Batch> in_flight_;  // sent at least once, in order of sequence
  std::size_t in_flight_bytes_ = 0;
  std::size_t num_given_ = 0;     // of them, to this connection
  std::size_t num_written_ = 0;   // of those, completely
  std::vector<Buffer> unpacked_;  // what is being written to a server that does not know the codec
  std::uint32_t window_ = 1, features_ = 0;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t last_given_ = 0, acknowledged_ = 0;  // sequence numbers

  std::thread thread_;
};

Client::Client(const ClientOptions& options, std::optional<RecordLayout> layout, LookUp look_up)
    : impl_(std::make_unique<Impl>(options, std::move(layout), std::move(look_up))) {}
Client::~Client() = default;

const std::optional<RecordLayout>& Client::layout() const noexcept {
  return impl_->layout();
}
const Id& Client::id() const noexcept {
  return impl_->id();
}
Outcome Client::insert(const BatchView& records, std::span<const float> priorities, Deadline deadline,
                       const std::stop_token& stop) {
  return impl_->insert(records, priorities, deadline, stop);
}
Outcome Client::flush(Deadline deadline, const std::stop_token& stop) {
  return impl_->flush(deadline, stop);
}
bool Client::fetch(std::uint64_t& version, std::vector<float>& parameters) {
  return impl_->fetch(version, parameters);
}
Outcome Client::await_parameters(std::uint64_t version, Deadline deadline, const std::stop_token& stop) {
  return impl_->await_parameters(version, deadline, stop);
}
std::optional<Leased> Client::lease(std::uint32_t count, Deadline deadline, const std::stop_token& stop) {
  return impl_->lease(count, deadline, stop);
}
void Client::report(std::span<const std::byte> body) {
  impl_->report(body);
}
bool Client::begin(PendingCall& call, std::span<const std::byte> body) {
  return impl_->begin(call, body);
}
Outcome Client::finish(PendingCall& call, Deadline deadline, const std::stop_token& stop) {
  return impl_->finish(call, deadline, stop);
}
Outcome Client::stop(Deadline deadline) {
  return impl_->stop(deadline);
}
ClientStatistics Client::statistics() const {
  return impl_->statistics();
}

Outcome Client::call(std::span<const std::byte> body, std::function<void(std::span<const std::byte>)> take,
                     Deadline deadline, const std::stop_token& stop) {
  PendingCall call(std::move(take));
  begin(call, body);
  return finish(call, deadline, stop);
}

}  // namespace troop::net
