/// @file
/// The newest parameters of the learner's network, for actors in this process and, behind a Server, elsewhere.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/float16.hpp>
#include <troop/net/frame.hpp>
#include <troop/net/messages.hpp>

namespace troop::net {

/// Takes the place of agent::ParameterStore where actors are elsewhere too: `publish` gives the next version,
/// `fetch` copies the newest one out, and a Server that was given it sends it to the clients that ask.
///
/// The parameters lie in memory once, as the very frame that goes to all clients; a second frame in float16
/// exists while somebody asks for that. A frame that is being sent to slow clients stays until they have it:
/// each client holds up at most one.
///
/// Thread-safe. A publication costs one copy and a checksum; a fetch with nothing new one atomic load.
///
///     net::ParameterServer parameters;
///     net::Server server(options, layout, {.insert = insert, .parameters = &parameters});
///     agent::Learner learner(network, replay, limiter, parameters, learner_options);
class ParameterServer {
 public:
  using Frame = std::shared_ptr<const std::vector<std::byte>>;

  /// The first publication gets the version `last_version + 1`: a program that goes on where another one
  /// stopped goes on counting.
  explicit ParameterServer(std::uint64_t last_version = 0) : version_(last_version) {}

  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  /// Makes `parameters` the newest version and returns its number. Throws InvalidArgument for none, for more
  /// than a frame can carry (2^30 - 16 bytes), and for a number that differs from the first version's.
  std::uint64_t publish(std::span<const float> parameters) {
    require(!parameters.empty() && parameters.size() <= kMost, "parameters", parameters.size(),
            "from 1 to " + std::to_string(kMost) + " numbers");
    const std::lock_guard lock(mutex_);
    require(size_ == 0 || parameters.size() == size_, "parameters", parameters.size(),
            std::to_string(size_) + ", as many as in the first version");
    const std::uint64_t version = this->version() + 1;
    frame_ = half_ = nullptr;  // their memory serves again if nobody is sending them
    frame_ = make_frame(version, parameters);
    size_ = parameters.size();
    version_.store(version, std::memory_order_release);
    for (const auto& [number, listener] : listeners_) listener();
    return version;
  }

  /// The number of the newest version; that of the constructor before the first.
  std::uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }

  /// Copies the newest parameters and their version out when that is newer than `version`; false when it is
  /// not.
  bool fetch(std::uint64_t& version, std::vector<float>& parameters) const {
    if (this->version() <= version) return false;
    const auto [frame, newest] = this->frame(false);
    if (!frame) return false;
    const ParametersView view = view_of(*frame);
    parameters.resize(view.count);
    view.copy_to(parameters);
    version = newest;
    return true;
  }

  /// The newest parameters as a frame, and their version; no frame before the first.
  std::pair<Frame, std::uint64_t> frame(bool as_float16) const {
    const std::lock_guard lock(mutex_);
    if (!as_float16 || !frame_) return {frame_, version()};
    if (!half_) half_ = make_half_frame();
    return {half_, version()};
  }

  /// Calls `listener` after every publication, in the publishing thread and under a lock: it must be quick and
  /// must not call this object. Returns a number for `forget`.
  std::uint64_t listen(std::function<void()> listener) {
    const std::lock_guard lock(mutex_);
    listeners_.emplace(++last_listener_, std::move(listener));
    return last_listener_;
  }

  /// After its return the listener is not called any more.
  void forget(std::uint64_t listener) {
    const std::lock_guard lock(mutex_);
    listeners_.erase(listener);
  }

 private:
  using Listener = std::function<void()>;
  using Bytes = std::vector<std::byte>;

  static constexpr std::size_t kMost = ((std::size_t{1} << 30) - ParametersView::kHeadBytes) / sizeof(float);

  static ParametersView view_of(const Bytes& frame) {
    FrameHead head;
    parse_frame_head(std::span(frame).first<FrameHead::kBytes>(), head);
    return read_parameters(std::span(frame).subspan(FrameHead::kBytes, head.length));
  }

  /// Memory of a frame that nobody sends any more comes back here.
  struct Spare {
    std::mutex mutex;
    Bytes bytes;
  };

  Bytes take_spare() const {
    const std::lock_guard lock(spare_->mutex);
    return std::move(spare_->bytes);
  }

  /// The bytes as a frame, whose last owner gives its memory back.
  Frame share(Bytes bytes) const {
    return {new Bytes(std::move(bytes)), [spare = spare_](const Bytes* done) {
              const std::unique_ptr<Bytes> owned(const_cast<Bytes*>(done));
              const std::lock_guard lock(spare->mutex);
              spare->bytes = std::move(*owned);
            }};
  }

  Frame make_frame(std::uint64_t version, std::span<const float> values) const {
    Bytes frame = begin_frame(version, values.size(), false);
    std::memcpy(values_in(frame), values.data(), values.size_bytes());
    finish_frame(MessageType::parameters, frame);
    return share(std::move(frame));
  }

  Frame make_half_frame() const {
    Bytes frame = begin_frame(version(), size_, true);
    to_float16(std::span(reinterpret_cast<const float*>(view_of(*frame_).values), size_),
               std::span(reinterpret_cast<std::uint16_t*>(values_in(frame)), size_));
    finish_frame(MessageType::parameters, frame);
    return share(std::move(frame));
  }

  static std::byte* values_in(Bytes& frame) noexcept {
    return frame.data() + FrameHead::kBytes + ParametersView::kHeadBytes;
  }

  Bytes begin_frame(std::uint64_t version, std::size_t count, bool as_float16) const {
    const std::size_t size = FrameHead::kBytes + ParametersView::bytes(count, as_float16);
    Bytes frame = take_spare();
    frame.reserve(size + FrameHead::kAlignment);  // room for the zeros at its end
    frame.resize(size);
    ParametersView::write_head(version, count, as_float16, frame.data() + FrameHead::kBytes);
    return frame;
  }

  const std::shared_ptr<Spare> spare_ = std::make_shared<Spare>();
  mutable std::mutex mutex_;  // guards the following
  Frame frame_;
  mutable Frame half_;
  std::size_t size_ = 0;
  std::map<std::uint64_t, Listener> listeners_;
  std::uint64_t last_listener_ = 0;

  std::atomic<std::uint64_t> version_;
};

}  // namespace troop::net
