#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include <doctest/doctest.h>

#include <troop/apex/signal.hpp>

namespace {

using troop::apex::StopSignal;

/// How a process ended that did `f` while a StopSignal lived and then left with what it had received.
template <class F>
int status_after(F f) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const StopSignal signal;
    f();
    _exit(StopSignal::received());
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("the first signal is remembered, and handlers come back at the end") {
  struct sigaction before {
  }, after{};
  sigaction(SIGINT, nullptr, &before);
  {
    const StopSignal signal;
    CHECK(StopSignal::received() == 0);
    raise(SIGINT);
    CHECK(StopSignal::received() == SIGINT);
  }
  sigaction(SIGINT, nullptr, &after);
  CHECK((after.sa_handler == before.sa_handler));
  const StopSignal another;
  CHECK(StopSignal::received() == 0);
}

TEST_CASE("a signal that is sent twice is one, as `timeout` does it") {
  const int status = status_after([] {
    raise(SIGTERM);
    raise(SIGTERM);
    raise(SIGINT);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == SIGTERM);
}

TEST_CASE("a later signal of either kind ends the process at once") {
  for (const int second : {SIGINT, SIGTERM}) {
    const int status = status_after([second] {
      raise(SIGINT);
      std::this_thread::sleep_for(std::chrono::milliseconds(510));
      raise(second);
    });
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == second);
  }
}
