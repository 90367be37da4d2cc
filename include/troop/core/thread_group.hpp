/// @file
/// Threads that stop together, and whose first exception is not lost.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace troop {

/// Runs functions in threads of their own. When one of them throws, all are asked to stop; `join` waits for
/// all and rethrows the first exception.
///
/// `on_stop` is called once, when the stop is requested, by whichever thread requests it: there one closes
/// the queues that the functions may be waiting on. `start` and `join` belong to one thread; `request_stop`
/// may be called by any.
///
///     ThreadGroup group([&] { queue.close(); });
///     group.start([&](std::stop_token stop) { while (!stop.stop_requested()) work(); });
///     group.join();
class ThreadGroup {
 public:
  explicit ThreadGroup(std::function<void()> on_stop = [] {})
      : callback_(source_.get_token(), std::move(on_stop)) {}

  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  /// Stops and waits; an exception that `join` did not rethrow is dropped.
  ~ThreadGroup() {
    request_stop();
    join_all();
  }

  /// Runs `function(stop_token)` in a new thread.
  template <class F>
  void start(F function) {
    threads_.emplace_back([this, function = std::move(function)]() mutable {
      try {
        function(source_.get_token());
      } catch (...) {
        {
          const std::lock_guard lock(mutex_);
          if (!error_) error_ = std::current_exception();
        }
        request_stop();
      }
    });
  }

  void request_stop() noexcept { source_.request_stop(); }
  bool stop_requested() const noexcept { return source_.stop_requested(); }

  /// Waits until every function has returned; rethrows the first exception.
  void join() {
    join_all();
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void join_all() noexcept {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

  std::stop_source source_;
  std::stop_callback<std::function<void()>> callback_;
  std::mutex mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace troop
