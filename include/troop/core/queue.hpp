/// @file
/// A bounded queue between threads that can be closed and whose calls have deadlines.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>

namespace troop {

/// First-in, first-out queue of at most `capacity` elements, for any number of producers and consumers.
///
/// A full queue makes producers wait, an empty one makes consumers wait, each until its deadline. After
/// `close()` nothing more can be pushed, waiting producers return at once, and consumers still receive what
/// was pushed before. Every element that `push` accepted is popped exactly once; an element that it did not
/// accept is left in the caller's hands.
///
/// Thread-safe. `push` and `pop` cost one lock; the ring is allocated once, at construction.
///
///     BoundedQueue<Batch> queue(4);
///     queue.push(batch);                       // Outcome::ok, or Outcome::closed
///     while (auto batch = queue.pop()) ...     // ends when the queue is closed and drained
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity)
      : ring_((require(capacity > 0, "capacity", capacity, "a positive integer"), capacity)) {}

  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  /// Appends `value`, moving from it only when the outcome is ok. Waits while the queue is full.
  Outcome push(T&& value, Deadline deadline = Deadline::never()) {
    std::unique_lock lock(mutex_);
    const bool ready = deadline.wait(not_full_, lock, [this] { return closed_ || size_ < ring_.size(); });
    if (closed_) return Outcome::closed;
    if (!ready) return Outcome::timeout;
    ring_[(head_ + size_) % ring_.size()].emplace(std::move(value));
    ++size_;
    lock.unlock();
    not_empty_.notify_one();
    return Outcome::ok;
  }

  Outcome push(const T& value, Deadline deadline = Deadline::never()) {
    T copy(value);
    return push(std::move(copy), deadline);
  }

  /// `push` that does not wait.
  Outcome try_push(T&& value) { return push(std::move(value), Deadline::now()); }

  /// Takes the oldest element. Empty when the deadline passed, or when the queue is closed and drained
  /// (`is_closed()` tells which).
  std::optional<T> pop(Deadline deadline = Deadline::never()) {
    std::unique_lock lock(mutex_);
    deadline.wait(not_empty_, lock, [this] { return closed_ || size_ > 0; });
    if (size_ == 0) return std::nullopt;
    std::optional<T> value(std::in_place, std::move(*ring_[head_]));
    ring_[head_].reset();
    head_ = (head_ + 1) % ring_.size();
    --size_;
    lock.unlock();
    not_full_.notify_one();
    return value;
  }

  /// `pop` that does not wait.
  std::optional<T> try_pop() { return pop(Deadline::now()); }

  /// Refuses further pushes and wakes everybody. May be called more than once.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_full_.notify_all();
    not_empty_.notify_all();
  }

  bool is_closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return size_;
  }

  std::size_t capacity() const noexcept { return ring_.size(); }

 private:
  mutable std::mutex mutex_;
  std::condition_variable not_full_, not_empty_;
  std::vector<std::optional<T>> ring_;
  std::size_t head_ = 0, size_ = 0;
  bool closed_ = false;
};

}  // namespace troop
