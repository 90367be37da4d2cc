/// @file
/// What the threads of a program do, moment by moment, for the trace viewers of Chrome and Perfetto.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/file.hpp>

namespace troop {

/// Records spans of time while it is active: what is a TraceSpan at that time in whichever thread. One trace of a
/// process is active at a time; while none is, a span costs one read of an atomic.
///
/// Thread-safe, but for `start` and `stop`, which are one thread's. It must outlive the spans that began while it was
/// active. Memory: 32 bytes for each of `max_spans`, taken at once; what comes after them is counted, not kept.
///
///     Trace trace;
///     trace.start();
///     { const TraceSpan span("sample"); replay.sample(...); }
///     trace.stop();
///     trace.write("trace.json");       // open it in https://ui.perfetto.dev or chrome://tracing
class Trace {
 public:
  explicit Trace(std::size_t max_spans = 200'000)
      : max_spans_((require(max_spans >= 1 && max_spans <= (std::size_t{1} << 28), "max_spans", max_spans,
                            "an integer from 1 to 2^28"),
                    max_spans)),
        spans_(std::make_unique<Span[]>(max_spans)) {}

  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace() { stop(); }

  /// To be called once. Throws Error when another trace is active.
  void start() {
    Trace* none = nullptr;
    start_ = Clock::now();
    if (!active_.compare_exchange_strong(none, this, std::memory_order_acq_rel) && none != this)
      throw Error("another trace is being recorded");
  }

  /// Spans that are under way are still recorded when they end.
  void stop() noexcept {
    Trace* self = this;
    active_.compare_exchange_strong(self, nullptr, std::memory_order_acq_rel);
  }

  static Trace* active() noexcept { return active_.load(std::memory_order_acquire); }

  /// Names the calling thread, for every trace. Quotes, backslashes and control characters become underscores.
  static void name_thread(std::string name) {
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == '"' || c == '\\' || (c >= 0 && c < ' '); }, '_');
    Threads& all = threads();
    const std::uint32_t thread = this_thread();
    const std::lock_guard lock(all.mutex);
    all.names[thread] = std::move(name);
  }

  /// `name` must be there for as long as the trace, as a literal is.
  void add(const char* name, Clock::time_point begin, Clock::time_point end) noexcept {
    const std::size_t place = next_.fetch_add(1, std::memory_order_relaxed);
    if (place >= max_spans_) return;
    Span& span = spans_[place];
    span.begin = begin - start_;
    span.length = end - begin;
    span.thread = this_thread();
    span.name.store(name, std::memory_order_release);
  }

  /// Spans that are kept.
  std::size_t size() const noexcept { return std::min(max_spans_, next_.load(std::memory_order_relaxed)); }
  /// Spans that there was no room for.
  std::uint64_t dropped() const noexcept {
    const std::size_t all = next_.load(std::memory_order_relaxed);
    return all > max_spans_ ? all - max_spans_ : 0;
  }

  /// As JSON, in the Trace Event Format: complete events, times in microseconds since `start`.
  std::string json() const {
    std::string text =
        "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":" + std::to_string(dropped()) +
        "},\"traceEvents\":[";
    {
      Threads& all = threads();
      const std::lock_guard lock(all.mutex);
      for (std::size_t i = 0; i < all.names.size(); ++i)
        text += "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":" + std::to_string(i) +
                ",\"args\":{\"name\":\"" + all.names[i] + "\"}},\n";
    }
    const auto microseconds = [](Clock::duration time) {
      return std::chrono::duration<double, std::micro>(time).count();
    };
    for (const Span& span : std::span<const Span>(spans_.get(), size())) {
      const char* const name = span.name.load(std::memory_order_acquire);
      if (name == nullptr) continue;  // it is being written
      char line[256];
      std::snprintf(line, sizeof line,
                    "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f},\n", name,
                    span.thread, microseconds(span.begin), microseconds(span.length));
      text += line;
    }
    text += "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"troop\"}}]}\n";
    return text;
  }

  /// Throws FileError.
  void write(const std::string& path) const {
    const std::string text = json();
    write_file_atomically(path, std::as_bytes(std::span(text)));
  }

 private:
  struct Span {
    std::atomic<const char*> name{nullptr};
    Clock::duration begin{}, length{};
    std::uint32_t thread = 0;
  };

  struct Threads {
    std::mutex mutex;
    std::vector<std::string> names;
  };

  static Threads& threads() {
    static Threads threads;
    return threads;
  }

  static std::uint32_t this_thread() {
    thread_local const std::uint32_t number = [] {
      Threads& all = threads();
      const std::lock_guard lock(all.mutex);
      all.names.push_back("thread " + std::to_string(all.names.size()));
      return static_cast<std::uint32_t>(all.names.size() - 1);
    }();
    return number;
  }

  static inline std::atomic<Trace*> active_{nullptr};

  const std::size_t max_spans_;
  const std::unique_ptr<Span[]> spans_;
  std::atomic<std::size_t> next_{0};
  Clock::time_point start_{};
};

/// A span from here to the end of the scope. `name`: a literal without quotes and backslashes.
class TraceSpan {
 public:
  explicit TraceSpan(const char* name) noexcept : trace_(Trace::active()), name_(name) {
    if (trace_ != nullptr) begin_ = Clock::now();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (trace_ != nullptr) trace_->add(name_, begin_, Clock::now());
  }

 private:
  Trace* const trace_;
  const char* const name_;
  Clock::time_point begin_{};
};

}  // namespace troop
