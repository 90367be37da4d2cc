#include <atomic>
#include <stdexcept>
#include <stop_token>

#include <doctest/doctest.h>

#include <troop/core/queue.hpp>
#include <troop/core/thread_group.hpp>

TEST_CASE("join waits for every function") {
  std::atomic<int> done{0};
  troop::ThreadGroup group;
  for (int i = 0; i < 4; ++i) group.start([&](const std::stop_token&) { ++done; });
  group.join();
  CHECK(done == 4);
}

TEST_CASE("the first exception stops all and comes out of join, once") {
  troop::BoundedQueue<int> queue(1);
  std::atomic<int> stops{0};
  troop::ThreadGroup group([&] {
    ++stops;
    queue.close();
  });
  group.start([&](const std::stop_token&) { queue.pop(); });  // would wait for ever
  group.start([&](const std::stop_token&) { throw std::runtime_error("no more bananas"); });
  CHECK_THROWS_WITH_AS(group.join(), "no more bananas", std::runtime_error);
  CHECK(stops == 1);
  CHECK(group.stop_requested());
  group.join();
}

TEST_CASE("a stop that is requested reaches functions and callback once") {
  std::atomic<int> stops{0};
  troop::ThreadGroup group([&] { ++stops; });
  group.start([](const std::stop_token& stop) {
    while (!stop.stop_requested()) std::this_thread::yield();
  });
  group.request_stop();
  group.request_stop();
  group.join();
  CHECK(stops == 1);
}

TEST_CASE("a group that is left stops its threads and drops their exception") {
  std::atomic<bool> stopped{false};
  {
    troop::ThreadGroup group;
    group.start([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
      stopped = true;
      throw std::runtime_error("too late");
    });
  }
  CHECK(stopped);
}
