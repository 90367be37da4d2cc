#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/core/queue.hpp>

#include "testing.hpp"

using namespace std::chrono_literals;
using troop::BoundedQueue;
using troop::Deadline;
using troop::Outcome;

namespace {

/// Throws when it is moved and the fuse is lit.
struct Fragile {
  explicit Fragile(int number) : value(number) {}
  Fragile(Fragile&& other) : value(other.value) {
    if (*fuse()) throw std::runtime_error("broken");
    other.value = -1;
  }
  Fragile& operator=(Fragile&&) = delete;
  ~Fragile() = default;

  static bool* fuse() {
    static bool lit = false;
    return &lit;
  }
  int value;
};

}  // namespace

TEST_CASE("elements leave in the order in which they came, through many rounds of the ring") {
  for (const std::size_t capacity : {1u, 2u, 3u, 7u}) {
    CAPTURE(capacity);
    BoundedQueue<int> queue(capacity);
    CHECK(queue.capacity() == capacity);
    int pushed = 0, popped = 0;
    for (int round = 0; round < 20; ++round) {
      const std::size_t count = 1 + static_cast<std::size_t>(round) % capacity;
      for (std::size_t i = 0; i < count; ++i) CHECK(queue.push(pushed++) == Outcome::ok);
      CHECK(queue.size() == count);
      for (std::size_t i = 0; i < count; ++i) CHECK(queue.pop() == std::optional(popped++));
    }
    CHECK(queue.size() == 0);
  }
}

TEST_CASE("a capacity of 0 is refused") {
  CHECK_THROWS_WITH_AS(BoundedQueue<int>(0), "capacity: 0 is not allowed; expected a positive integer",
                       troop::InvalidArgument);
}

TEST_CASE("a full queue turns an element away and leaves it with the caller") {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1), second = std::make_unique<int>(2);
  CHECK(queue.try_push(std::move(first)) == Outcome::ok);
  CHECK(first == nullptr);
  CHECK(queue.try_push(std::move(second)) == Outcome::timeout);
  REQUIRE(second != nullptr);
  CHECK(*second == 2);
  CHECK(queue.push(std::move(second), Deadline::after(1ms)) == Outcome::timeout);
  REQUIRE(second != nullptr);
  queue.close();
  CHECK(queue.push(std::move(second)) == Outcome::closed);
  REQUIRE(second != nullptr);
  CHECK(*second == 2);
  CHECK(**queue.pop() == 1);
}

TEST_CASE("an empty queue gives nothing at the deadline, and try_pop does not wait") {
  BoundedQueue<int> queue(2);
  CHECK_FALSE(queue.try_pop().has_value());
  const Deadline deadline = Deadline::after(2ms);
  CHECK_FALSE(queue.pop(deadline).has_value());
  CHECK(deadline.has_passed());
  CHECK_FALSE(queue.is_closed());
}

TEST_CASE("a copy can be pushed and the original stays") {
  BoundedQueue<std::string> queue(1);
  const std::string text = "a text that is too long for a small buffer";
  CHECK(queue.push(text) == Outcome::ok);
  CHECK(queue.push(text, Deadline::now()) == Outcome::timeout);
  CHECK(queue.pop() == std::optional(text));
}

TEST_CASE("what was pushed before closing is still received, and nothing can be pushed after") {
  BoundedQueue<int> queue(3);
  queue.push(1);
  queue.push(2);
  queue.close();
  queue.close();
  CHECK(queue.is_closed());
  CHECK(queue.push(3) == Outcome::closed);
  CHECK(queue.try_push(3) == Outcome::closed);
  CHECK(queue.pop() == std::optional(1));
  CHECK(queue.try_pop() == std::optional(2));
  CHECK_FALSE(queue.pop().has_value());
}

TEST_CASE("elements that were never popped are destroyed with the queue, popped ones leave nothing behind") {
  const auto watched = std::make_shared<int>(7);
  {
    BoundedQueue<std::shared_ptr<int>> queue(4);
    for (int i = 0; i < 4; ++i) queue.push(watched);
    CHECK(watched.use_count() == 5);
    queue.pop();
    queue.pop();
    CHECK(watched.use_count() == 3);
  }
  CHECK(watched.use_count() == 1);

  // A type that is copied where others are moved.
  struct Copied {
    explicit Copied(std::shared_ptr<int> held) : pointer(std::move(held)) {}
    Copied(const Copied&) = default;
    Copied& operator=(const Copied&) = delete;
    ~Copied() = default;
    std::shared_ptr<int> pointer;
  };
  BoundedQueue<Copied> queue(2);
  queue.push(Copied(watched));
  CHECK(watched.use_count() == 2);
  CHECK(queue.pop()->pointer == watched);
  CHECK(watched.use_count() == 1);
}

TEST_CASE("an element that throws while it is moved leaves the queue as it was") {
  BoundedQueue<Fragile> queue(2);
  queue.push(Fragile(1));
  *Fragile::fuse() = true;
  Fragile second(2);
  CHECK_THROWS_AS(queue.push(std::move(second)), std::runtime_error);
  CHECK(queue.size() == 1);
  CHECK_THROWS_AS(queue.pop(), std::runtime_error);
  CHECK(queue.size() == 1);
  *Fragile::fuse() = false;
  CHECK(queue.push(std::move(second)) == Outcome::ok);
  CHECK(queue.pop()->value == 1);
  CHECK(queue.pop()->value == 2);
}

TEST_CASE("closing wakes every waiting producer and consumer") {
  BoundedQueue<int> full(1), empty(1);
  full.push(0);
  std::atomic<int> closed_pushes{0}, empty_pops{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] { closed_pushes += full.push(i + 1) == Outcome::closed ? 1 : 0; });
    threads.emplace_back([&] { empty_pops += empty.pop().has_value() ? 0 : 1; });
  }
  std::this_thread::sleep_for(5ms);  // so that most of them wait; the outcome is the same if they do not
  full.close();
  empty.close();
  for (auto& thread : threads) thread.join();
  CHECK(closed_pushes == 3);
  CHECK(empty_pops == 3);
  CHECK(full.pop() == std::optional(0));
  CHECK_FALSE(full.pop().has_value());
}

TEST_CASE("every pushed element is popped exactly once, in its producer's order, by whatever calls") {
  struct Element {
    int producer, number;
  };
  constexpr int kProducers = 3, kConsumers = 3, kEach = 1500;
  for (const std::size_t capacity : {1u, 4u, 64u}) {
    CAPTURE(capacity);
    BoundedQueue<Element> queue(capacity);
    std::array<std::vector<Element>, kConsumers> received;
    std::atomic<int> refused{0};
    std::vector<std::thread> producers, consumers;
    for (int p = 0; p < kProducers; ++p) {
      producers.emplace_back([&, p] {
        for (int number = 0; number < kEach; ++number) {
          Outcome outcome = Outcome::timeout;
          while (outcome == Outcome::timeout) {
            Element element{p, number};
            switch (p) {
              case 0:
                outcome = queue.push(std::move(element));
                break;
              case 1:
                outcome = queue.push(element, Deadline::after(50us));
                break;
              default:
                outcome = queue.try_push(std::move(element));
                if (outcome == Outcome::timeout) std::this_thread::yield();
            }
          }
          refused += outcome == Outcome::ok ? 0 : 1;
        }
      });
    }
    for (int c = 0; c < kConsumers; ++c) {
      consumers.emplace_back([&, c] {
        auto& mine = received[static_cast<std::size_t>(c)];
        while (true) {
          std::optional<Element> element;
          if (c == 0) element = queue.pop();
          if (c == 1) element = queue.pop(Deadline::after(50us));
          if (c == 2) element = queue.try_pop();
          if (element) {
            mine.push_back(*element);
          } else if (queue.is_closed() && queue.size() == 0) {
            return;
          } else {
            std::this_thread::yield();
          }
        }
      });
    }
    for (auto& thread : producers) thread.join();
    queue.close();
    for (auto& thread : consumers) thread.join();

    CHECK(refused == 0);
    std::vector<int> times(kProducers * kEach);
    for (const auto& elements : received) {
      std::array<int, kProducers> last{-1, -1, -1};
      for (const auto& element : elements) {
        ++times[static_cast<std::size_t>(element.producer * kEach + element.number)];
        int& previous = last[static_cast<std::size_t>(element.producer)];
        if (element.number <= previous) FAIL("producer " << element.producer << ": order lost");
        previous = element.number;
      }
    }
    CHECK(std::count(times.begin(), times.end(), 1) == kProducers * kEach);
  }
}

TEST_CASE("a producer that waits on a full queue goes on when room is made") {
  BoundedQueue<int> queue(1);
  queue.push(1);
  Outcome outcome = Outcome::closed;
  std::thread producer([&] { outcome = queue.push(2); });
  CHECK(queue.pop() == std::optional(1));
  CHECK(queue.pop() == std::optional(2));
  producer.join();
  CHECK(outcome == Outcome::ok);
}
