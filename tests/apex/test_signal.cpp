#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
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

TEST_CASE("writing to a pipe whose reader is gone is remembered, and goes on being no more than that") {
  const int status = status_after([] {
    int ends[2];
    if (pipe(ends) != 0) _exit(99);
    close(ends[0]);
    for (int repeat = 0; repeat < 2; ++repeat) {
      if (write(ends[1], "x", 1) != -1 || errno != EPIPE) _exit(98);
      if (repeat == 0) std::this_thread::sleep_for(std::chrono::milliseconds(510));
    }
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == SIGPIPE);
}

TEST_CASE("a terminal that is closed stops the run unless the caller ignores that, as nohup does") {
  int status = status_after([] { raise(SIGHUP); });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == SIGHUP);
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &ignore, &before);
  status = status_after([] { raise(SIGHUP); });
  sigaction(SIGHUP, &before, nullptr);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
