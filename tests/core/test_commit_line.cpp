#include <doctest/doctest.h>

#include <cstdint>
#include <thread>

#include <troop/core/commit_line.hpp>

using troop::CommitLine;

TEST_CASE("tickets are issued in order, and listeners told whenever more is reached") {
  CommitLine line;
  CHECK(line.issued() == 0);
  CHECK(line.reached() == 0);
  int told = 0, others = 0;
  const std::uint64_t listener = line.listen([&] { ++told; });
  const std::uint64_t other = line.listen([&] { ++others; });
  CHECK(line.issue() == 1);
  CHECK(line.issue() == 2);
  CHECK(line.issued() == 2);
  line.reach(1);
  CHECK(line.reached() == 1);
  CHECK(told == 1);
  line.forget(listener);
  line.reach(2);
  CHECK(told == 1);
  CHECK(others == 2);
  line.forget(other);
}

TEST_CASE("what one thread issues another one reaches") {
  CommitLine line;
  std::jthread writer([&] {
    for (std::uint64_t reached = 0; reached < 1000;) {
      const std::uint64_t issued = line.issued();
      if (issued > reached) line.reach(reached = issued);
    }
  });
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t ticket = line.issue();
    while (line.reached() < ticket) std::this_thread::yield();
  }
  CHECK(line.reached() == 1000);
}
