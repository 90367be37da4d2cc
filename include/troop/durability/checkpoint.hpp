/// @file
/// Checkpoints: everything that a run has learned, written beside the training.
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <latch>
#include <limits>
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

#include <troop/core/bytes.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/random.hpp>
#include <troop/durability/detail/blocks.hpp>
#include <troop/durability/object_store.hpp>
#include <troop/durability/run_directory.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace troop::durability {

/// The last batch of a client that was applied: what makes its inserts arrive exactly once over a restart.
struct ClientBatch {
  std::array<std::byte, 16> client{};
  std::uint64_t number = 0;

  friend bool operator==(const ClientBatch&, const ClientBatch&) = default;
};
static_assert(sizeof(ClientBatch) == 24);

/// The counters of a checkpoint: all of it but the networks.
struct CheckpointInfo {
  std::string network;              ///< canonical text, bound
  std::uint64_t parameters = 0;     ///< of one network
  std::uint64_t learner_steps = 0;  ///< beta and other schedules follow from them
  std::uint64_t skipped_steps = 0;
  std::uint64_t optimizer_steps = 0;
  std::uint64_t environment_steps = 0;
  std::uint64_t parameter_version = 0;  ///< the newest that actors may have seen
  std::uint64_t next_key = 0;           ///< of the replay
  double seconds = 0.0;                 ///< that the run has lasted
  RateLimiter::State limiter = {};
  Random::State sampler{1, 0, 0, 0};  ///< of the learner's sampling
  /// Mean return of the last evaluation before, NaN before the first.
  double mean_return = std::numeric_limits<double>::quiet_NaN();
  std::uint64_t evaluations = 0;

  friend bool operator==(const CheckpointInfo&, const CheckpointInfo&) = default;
};

namespace detail {

/// What `Checkpoint::copy_later` has put off. Whoever destroys it lets the network go on.
struct PendingCopy {
  std::span<const float> online, target, optimizer;
  std::shared_ptr<std::latch> done = std::make_shared<std::latch>(1);

  ~PendingCopy() { done->count_down(); }
};

}  // namespace detail

/// A whole checkpoint.
struct Checkpoint {
  CheckpointInfo info;
  std::vector<float> online, target, optimizer;
  std::vector<ClientBatch> sessions;  ///< the longest away first

  /// Copies a network's state; the vectors keep their memory from one time to the next.
  template <nn::QNetwork Network>
  void copy_from(Network& network) {
    const auto copy = [](std::span<const float> from, std::vector<float>& to) {
      to.assign(from.begin(), from.end());
    };
    pending_.reset();
    copy(network.parameters(), online);
    copy(network.target_parameters(), target);
    copy(network.optimizer_state(), optimizer);
    describe(network);
  }

  /// The same in two parts: `finish_copy`, which another thread may call, copies, and the network waits for that when
  /// it would change (`before_next_change`). So a learner goes on with its next step meanwhile, up to the point where
  /// it changes the parameters. A network that cannot wait is copied at once.
  template <nn::QNetwork Network>
  void copy_later(Network& network) {
    pending_.reset();
    if constexpr (requires(std::function<void()> wait) { network.before_next_change(wait); }) {
      auto copy = std::make_shared<detail::PendingCopy>();
      copy->online = network.parameters();
      copy->target = network.target_parameters();
      copy->optimizer = network.optimizer_state();
      if (network.before_next_change([done = copy->done] { done->wait(); })) {
        describe(network);
        pending_ = std::move(copy);
        return;
      }
    }
    copy_from(network);
  }

  void finish_copy() {
    const auto copy = std::exchange(pending_, nullptr);  // its end lets the network go on
    if (!copy) return;
    online.assign(copy->online.begin(), copy->online.end());
    target.assign(copy->target.begin(), copy->target.end());
    optimizer.assign(copy->optimizer.begin(), copy->optimizer.end());
  }

  /// Gives the network this state. Throws LayoutMismatch when it is another network, InvalidArgument when its
  /// optimizer is of another kind; then nothing has changed.
  template <nn::QNetwork Network>
  void copy_to(Network& network) const {
    const std::string text = to_string(network.network());
    if (text != info.network)
      throw LayoutMismatch("the checkpoint is of the network " + info.network + ", expected " + text);
    network.set_optimizer_state(info.optimizer_steps, optimizer);
    network.set_parameters(online);
    network.set_target_parameters(target);
  }

 private:
  template <nn::QNetwork Network>
  void describe(Network& network) {
    info.network = to_string(network.network());
    info.parameters = network.parameters().size();
    info.optimizer_steps = network.optimizer_steps();
  }

  std::shared_ptr<const detail::PendingCopy> pending_;
};

namespace detail {

inline constexpr FileKind kCheckpointFile{"TROOPCKP", 1, "checkpoint"};
inline constexpr std::string_view kCheckpointFolder = "checkpoints/", kCheckpointPrefix = "checkpoint-";

enum class CheckpointBlock : std::uint32_t { info = 1, online = 2, target = 3, optimizer = 4, sessions = 5 };

std::vector<std::byte> info_bytes(const CheckpointInfo& info);

CheckpointInfo info_from(std::span<const std::byte> bytes);

/// Calls `f(block)` with the bytes of each block but the last one, in order.
template <class F>
void for_blocks(const Checkpoint& checkpoint, std::span<const std::byte> info, F&& f) {
  f(CheckpointBlock::info, info);
  f(CheckpointBlock::online, std::as_bytes(std::span(checkpoint.online)));
  f(CheckpointBlock::target, std::as_bytes(std::span(checkpoint.target)));
  f(CheckpointBlock::optimizer, std::as_bytes(std::span(checkpoint.optimizer)));
  f(CheckpointBlock::sessions, std::as_bytes(std::span(checkpoint.sessions)));
}

/// Numbers that stand one behind the other.
template <class T>
void values_from(std::span<const std::byte> bytes, std::vector<T>& values) {
  if (bytes.size() % sizeof(T) != 0) throw Error("a part of a number");
  values.resize(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

/// Lets the next reading of the file come from the disk.
void drop_from_memory(const std::string& path);

}  // namespace detail

/// Writes a checkpoint as a new object, without a copy of its networks. Throws FileError.
void write_checkpoint(const ObjectStore& store, std::string_view name, const Checkpoint& checkpoint);

/// Reads a checkpoint file. Throws FileError, with its name and the reason, for one that cannot be read, is
/// foreign, of a newer version, cut off, changed in any bit, or says what cannot be.
Checkpoint read_checkpoint(const std::string& path);

/// Whether a file begins as a checkpoint does.
bool is_checkpoint(const std::string& path);

/// What a checkpoint file says of itself. Reads and checks its first block only. Throws FileError.
CheckpointInfo read_checkpoint_info(const std::string& path);

/// A checkpoint that was found in a run directory.
struct FoundCheckpoint {
  std::string name;  ///< of the object
  Checkpoint checkpoint;
};

/// The newest checkpoint that is whole; none in a directory without any. `say` takes a sentence for each newer
/// one that is not. Throws FileError when there are some and none is whole: what the run has learned must not be
/// lost by beginning anew.
template <class Say>
std::optional<FoundCheckpoint> read_newest_checkpoint(const ObjectStore& store, Say&& say) {
  const auto names = store.names(detail::kCheckpointFolder, detail::kCheckpointPrefix);
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    try {
      return FoundCheckpoint{*name, read_checkpoint(store.path(*name))};
    } catch (const FileError& error) {
      say(std::string(error.what()) + "; looking for the one before");
    }
  }
  if (names.empty()) return std::nullopt;
  throw FileError(store.path("checkpoints"),
                  "none of its " + std::to_string(names.size()) + " checkpoints is whole");
}

struct CheckpointOptions {
  std::size_t keep = 3;  ///< the newest ones; the one with the best return is kept besides

  void validate() const { require(keep >= 1 && keep <= 1000, "keep", keep, "an integer from 1 to 1000"); }
};

/// Since construction.
struct CheckpointStatistics {
  std::uint64_t written = 0, failures = 0;
  std::uint64_t learner_steps = 0;    ///< of the last one that was written
  std::uint64_t bytes = 0;            ///< of that one
  double age_seconds = std::nan("");  ///< since that one was written; NaN before the first
  double write_seconds = 0.0;         ///< of the last attempt, verification included
  bool is_failing = false;            ///< the last attempt failed: an alarm
};

/// Writes checkpoints by a thread of its own, which also copies what the caller has put off. Each is read again after it was written, from
/// the disk where the system allows that; then older ones are removed, but for the last few and the best. What
/// goes wrong is said in a sentence and counted, and the checkpoints that are there stay.
///
/// Thread-safe, but for one caller of `take` and `flush` at a time. Memory: one copy of networks and optimizer.
///
///     CheckpointWriter writer(directory, {.keep = 3});
///     if (is_due) writer.take([&](Checkpoint& c) { c.copy_later(network); ... });   // between two steps
class CheckpointWriter {
 public:
  explicit CheckpointWriter(RunDirectory& directory, const CheckpointOptions& options = {});

  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Finishes the checkpoint that is being written.
  ~CheckpointWriter();

  /// Calls `fill(checkpoint)`, which is to copy all of it, now or later, and lets the thread write it. False, and nothing is
  /// called, while the one before is still being written.
  template <class Fill>
  bool take(Fill&& fill) {
    if (is_busy_.load(std::memory_order_acquire)) return false;
    fill(checkpoint_);
    {
      const std::lock_guard lock(mutex_);
      is_busy_.store(true, std::memory_order_release);
    }
    condition_.notify_all();
    return true;
  }

  /// Waits until nothing is being written any more. False when the deadline passed before, or when the last
  /// attempt failed.
  bool flush(Deadline deadline);

  CheckpointStatistics statistics() const;

 private:
  void work();

  /// Returns the checkpoint's bytes, nothing where it was not written.
  std::optional<std::uintmax_t> write();

  static void verify(const std::string& path);

  /// Keeps the newest ones and, of all, the newest of those with the best return.
  void remove_older();

  const CheckpointOptions options_;
  RunDirectory& directory_;
  Checkpoint checkpoint_;  // whoever may use it says is_busy_
  std::map<std::string, double> returns_;
  std::uint64_t number_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable condition_;
  std::atomic<bool> is_busy_{false};
  bool is_ending_ = false;
  CheckpointStatistics statistics_;
  std::optional<Clock::time_point> written_at_;
  std::thread thread_;
};

}  // namespace troop::durability
