/// @file
/// How far something that grows is safe, for those who must not promise more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace troop {

/// Tickets are issued in order, and reached in order when what they stand for is safe: on a disk, say.
///
/// Thread-safe. `issued` and `reached` cost one atomic load.
///
///     const std::uint64_t ticket = line.issue();   // whoever appends
///     line.reach(ticket);                          // whoever writes to the disk
///     if (line.reached() >= ticket) acknowledge();
class CommitLine {
 public:
  /// The next ticket, from 1.
  std::uint64_t issue() noexcept { return issued_.fetch_add(1, std::memory_order_acq_rel) + 1; }

  /// The newest ticket; 0 before the first.
  std::uint64_t issued() const noexcept { return issued_.load(std::memory_order_acquire); }

  /// Everything up to this ticket is safe.
  std::uint64_t reached() const noexcept { return reached_.load(std::memory_order_acquire); }

  /// Makes everything up to `ticket` safe and tells the listeners. By one thread.
  void reach(std::uint64_t ticket) {
    reached_.store(ticket, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    for (const auto& [number, listener] : listeners_) listener();
  }

  /// Calls `listener` whenever more is safe, under a lock: it must be quick and must not call this object's
  /// `listen` or `forget`. Returns a number for `forget`.
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
  std::atomic<std::uint64_t> issued_{0}, reached_{0};
  std::mutex mutex_;
  std::map<std::uint64_t, std::function<void()>> listeners_;
  std::uint64_t last_listener_ = 0;
};

}  // namespace troop
