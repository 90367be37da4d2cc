// Benchmarks whose parts are processes of their own, as they are on a cluster.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <new>
#include <string>
#include <type_traits>

#include <troop/core/error.hpp>

namespace troop::bench {

/// Memory that a process and its children have in common; holds atomics.
template <class T>
class Shared {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  Shared() {
    void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    value_ = new (memory) T();
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(value_, sizeof(T)); }

  T& operator*() const noexcept { return *value_; }
  T* operator->() const noexcept { return value_; }

 private:
  T* value_;
};

/// A child that calls `f()`, and is killed with this object. To be made while there is one thread.
class Process {
 public:
  template <class F>
  explicit Process(F&& f) : id_(::fork()) {
    if (id_ < 0) throw Error("cannot make another process");
    if (id_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      f();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(1);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (has_ended_) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }

  /// Throws Error if it does no more.
  void check() {
    if (!has_ended_ && ::waitpid(id_, nullptr, WNOHANG) != 0) has_ended_ = true;
    if (has_ended_) throw Error("a process of the benchmark has ended too early");
  }

  /// The most bytes of its memory that were in RAM at once.
  std::size_t peak() const { return memory(std::to_string(id_), "VmHWM:"); }
  /// Bytes of the caller's memory that are in RAM.
  static std::size_t resident() { return memory("self", "VmRSS:"); }

 private:
  static std::size_t memory(const std::string& id, const std::string& kind) {
    std::ifstream file("/proc/" + id + "/status");
    std::string word;
    while (file >> word && word != kind) continue;
    std::size_t kilobytes = 0;
    if (!(file >> kilobytes)) throw Error("the system does not say how much memory a process has");
    return kilobytes * 1024;
  }

  const pid_t id_;
  bool has_ended_ = false;
};

}  // namespace troop::bench
