/// @file
/// A process that is killed in the middle of its work.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace troop::testing {

/// A process under ThreadSanitizer starts no threads after a fork.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kMayForkAndThread = false;
#else
inline constexpr bool kMayForkAndThread = true;
#endif

/// Runs `work(begun)` in another process, which is killed so long after it called `begun()`; when `work` throws or
/// returns before, that is thrown as an error.
template <class Work>
void work_until_killed(std::chrono::microseconds after, Work work) {
  int pipe[2];
  if (::pipe(pipe) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work([&] { return ::write(pipe[1], "x", 1); });
    } catch (...) {
    }
    ::_exit(1);
  }
  ::close(pipe[1]);
  char byte = 0;
  const bool has_begun = ::read(pipe[0], &byte, 1) == 1;
  ::close(pipe[0]);
  if (has_begun) std::this_thread::sleep_for(after);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!has_begun || !WIFSIGNALED(status)) throw std::runtime_error("the process ended by itself");
}

}  // namespace troop::testing
