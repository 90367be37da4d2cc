/// @file
/// A small fixed pool of threads for loops over independent tasks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>

namespace troop {

/// Runs the tasks of one loop at a time on `size` threads, the calling one among them.
///
/// A pool of size 1 has no thread of its own and runs everything inline. `parallel_for` blocks until all
/// tasks are done, allocates nothing, and costs two or three wake-ups: worth it for loops of 50 microseconds
/// or more. Which thread runs which task is not fixed, so tasks that are to give the same result for any size
/// must not depend on it.
///
/// `parallel_for` is called by one thread at a time, and not from inside a task.
///
///     ThreadPool pool(4);
///     pool.parallel_for(rows.size(), [&](std::size_t task) { rows[task].normalise(); });
///     pool.parallel_for(8, [&](std::size_t task, std::size_t worker) { work(task, scratch[worker]); });
class ThreadPool {
 public:
  /// Throws InvalidArgument unless `size` is from 1 to 1024.
  explicit ThreadPool(std::size_t size) {
    require(size >= 1 && size <= 1024, "num_threads", size, "an integer from 1 to 1024");
    threads_.reserve(size - 1);
    try {
      for (std::size_t worker = 1; worker < size; ++worker)
        threads_.emplace_back([this, worker] { serve(worker); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() { stop(); }

  std::size_t size() const noexcept { return threads_.size() + 1; }

  /// Calls f(task) or f(task, worker) for every task in [0, num_tasks), worker in [0, size()), no two calls
  /// with the same worker at once. When tasks throw, the ones not yet begun are dropped and the first
  /// exception is thrown here after the running ones have ended.
  template <class F>
  void parallel_for(std::size_t num_tasks, F&& f) {
    if (threads_.empty() || num_tasks <= 1) {
      for (std::size_t task = 0; task < num_tasks; ++task) call(f, task, 0);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      run_ = [](void* context, std::size_t task, std::size_t worker) {
        call(*static_cast<std::remove_reference_t<F>*>(context), task, worker);
      };
      context_ = const_cast<void*>(static_cast<const void*>(std::addressof(f)));
      num_tasks_ = num_tasks;
      next_.store(0, std::memory_order_relaxed);
      error_ = nullptr;
      busy_ = threads_.size();
      ++loop_;
    }
    start_.notify_all();
    work(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  template <class F>
  static void call(F& f, std::size_t task, std::size_t worker) {
    if constexpr (std::is_invocable_v<F&, std::size_t, std::size_t>) {
      f(task, worker);
    } else {
      static_assert(
          std::is_invocable_v<F&, std::size_t>,
          "parallel_for needs a callable f(std::size_t task) or f(std::size_t task, std::size_t worker)");
      f(task);
    }
  }

  void work(std::size_t worker) noexcept {
    while (true) {
      const std::size_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks_) return;
      try {
        run_(context_, task, worker);
      } catch (...) {
        next_.store(num_tasks_, std::memory_order_relaxed);
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
  }

  void serve(std::size_t worker) {
    std::size_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      start_.wait(lock, [&] { return stopping_ || loop_ != seen; });
      if (stopping_) return;
      seen = loop_;
      lock.unlock();
      work(worker);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    start_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::vector<std::thread> threads_;
  std::atomic<std::size_t> next_{0};
  void (*run_)(void*, std::size_t, std::size_t) = nullptr;
  void* context_ = nullptr;
  std::size_t num_tasks_ = 0, busy_ = 0, loop_ = 0;
  std::exception_ptr error_;
  bool stopping_ = false;
};

}  // namespace troop
