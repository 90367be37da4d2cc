#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/thread_pool.hpp>

TEST_CASE("every task runs exactly once, for any number of tasks and threads") {
  for (const std::size_t size : {1, 2, 3, 8}) {
    troop::ThreadPool pool(size);
    CHECK(pool.size() == size);
    for (const std::size_t tasks : {0, 1, 2, 7, 100}) {
      std::vector<int> runs(tasks);
      pool.parallel_for(tasks, [&](std::size_t task) { ++runs[task]; });
      CHECK(runs == std::vector<int>(tasks, 1));
    }
  }
}

TEST_CASE("loops follow each other without losing or repeating tasks") {
  troop::ThreadPool pool(4);
  std::atomic<std::size_t> sum{0};
  for (std::size_t loop = 0; loop < 500; ++loop)
    pool.parallel_for(loop % 9, [&](std::size_t task) { sum += task + 1; });
  std::size_t expected = 0;
  for (std::size_t loop = 0; loop < 500; ++loop)
    for (std::size_t task = 0; task < loop % 9; ++task) expected += task + 1;
  CHECK(sum == expected);
}

TEST_CASE("no two tasks have the same worker at once") {
  troop::ThreadPool pool(3);
  std::array<std::atomic<int>, 3> busy{};
  std::atomic<int> clashes{0}, strangers{0};
  pool.parallel_for(200, [&](std::size_t, std::size_t worker) {
    if (worker >= busy.size()) {
      ++strangers;
      return;
    }
    if (busy[worker].fetch_add(1) != 0) ++clashes;
    std::this_thread::yield();
    busy[worker].fetch_sub(1);
  });
  CHECK(clashes == 0);
  CHECK(strangers == 0);
}

TEST_CASE("a pool of one runs everything on the calling thread, in order") {
  troop::ThreadPool pool(1);
  std::vector<std::size_t> order;
  bool same_thread = true;
  const auto caller = std::this_thread::get_id();
  pool.parallel_for(5, [&](std::size_t task, std::size_t worker) {
    order.push_back(task);
    same_thread = same_thread && worker == 0 && std::this_thread::get_id() == caller;
  });
  CHECK(order == std::vector<std::size_t>{0, 1, 2, 3, 4});
  CHECK(same_thread);
}

TEST_CASE("all threads take part when there is work for them") {
  troop::ThreadPool pool(2);
  std::atomic<int> arrived{0};
  // Each of the two tasks waits for the other, so one thread alone would not get through.
  pool.parallel_for(2, [&](std::size_t) {
    ++arrived;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived < 2 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  });
  CHECK(arrived == 2);
}

TEST_CASE("the exception of a task reaches the caller, and the pool stays usable") {
  for (const std::size_t size : {1, 3}) {
    troop::ThreadPool pool(size);
    const auto work = [](std::size_t task) {
      if (task == 5) throw std::runtime_error("task 5");
    };
    CHECK_THROWS_WITH_AS(pool.parallel_for(20, work), "task 5", std::runtime_error);
    int runs = 0;
    pool.parallel_for(1, [&](std::size_t) { ++runs; });
    CHECK(runs == 1);
    CHECK_NOTHROW(pool.parallel_for(4, [](std::size_t) {}));
  }
}

TEST_CASE("a pool must have from 1 to 1024 threads") {
  CHECK_THROWS_AS(troop::ThreadPool(0), troop::InvalidArgument);
  CHECK_THROWS_AS(troop::ThreadPool(1025), troop::InvalidArgument);
}
