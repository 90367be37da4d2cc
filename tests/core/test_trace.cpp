#include <troop/core/trace.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "temporary_directory.hpp"
#include "testing.hpp"

using troop::Clock;
using troop::Trace;
using troop::TraceSpan;

namespace {

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("spans are recorded while a trace is active, and cost nothing else") {
  { const TraceSpan span("before"); }
  Trace trace;
  CHECK(Trace::active() == nullptr);
  trace.start();
  {
    const TraceSpan outer("outer");
    const TraceSpan inner("inner");
  }
  trace.stop();
  { const TraceSpan span("after"); }
  CHECK(trace.size() == 2);
  CHECK(trace.dropped() == 0);
  const std::string json = trace.json();
  CHECK(count_of(json, "\"ph\":\"X\"") == 2);
  CHECK(json.find("\"inner\"") < json.find("\"outer\""));  // in the order of their ends
  CHECK(json.find("before") == std::string::npos);
  CHECK(json.find("after") == std::string::npos);
}

TEST_CASE("times are microseconds since the start") {
  Trace trace;
  trace.start();
  const auto now = Clock::now();
  trace.add("long", now + std::chrono::seconds(2), now + std::chrono::milliseconds(2250));
  const std::string json = trace.json();
  CHECK(json.find("\"dur\":250000.000}") != std::string::npos);
  const double at = std::stod(json.substr(json.find("\"ts\":") + 5));
  CHECK(at >= 2e6);
  CHECK(at < 60e6);
}

TEST_CASE("a span that began in time is recorded when it ends, though the trace has been stopped") {
  Trace trace;
  trace.start();
  {
    const TraceSpan span("late");
    trace.stop();
  }
  CHECK(trace.size() == 1);
}

TEST_CASE("threads have their names, and none can break the file") {
  Trace trace;
  trace.start();
  std::thread([] {
    Trace::name_thread("a \"name\\\n");
    const TraceSpan span("work");
  }).join();
  const std::string json = trace.json();
  CHECK(json.find("{\"name\":\"a _name__\"}") != std::string::npos);
  CHECK(json.find("a \"name") == std::string::npos);
}

TEST_CASE("what there is no room for is counted") {
  Trace trace(3);
  trace.start();
  for (int i = 0; i < 5; ++i) const TraceSpan span("one of many");
  CHECK(trace.size() == 3);
  CHECK(trace.dropped() == 2);
  CHECK(trace.json().find("\"dropped_spans\":2") != std::string::npos);
  CHECK_THROWS_AS(Trace(0), troop::InvalidArgument);
}

TEST_CASE("only one trace is active at a time, until it is stopped or gone") {
  {
    Trace first, second;
    first.start();
    CHECK(troop::testing::error_of([&] { second.start(); }) == "another trace is being recorded");
    second.stop();  // changes nothing
    CHECK(Trace::active() == &first);
  }
  CHECK(Trace::active() == nullptr);
  Trace third;
  third.start();
  CHECK(Trace::active() == &third);
}

TEST_CASE("threads record at once, and nothing is lost") {
  Trace trace(10'000);
  trace.start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 1000; ++i) const TraceSpan span("short");
    });
  }
  for (int i = 0; i < 5; ++i) CHECK(trace.json().ends_with("]}\n"));
  for (auto& thread : threads) thread.join();
  CHECK(trace.size() == 4000);
  CHECK(count_of(trace.json(), "\"short\"") == 4000);
}

TEST_CASE("a file that cannot be written is told") {
  const troop::testing::TemporaryDirectory directory;
  Trace trace;
  trace.start();
  trace.write(directory.file("trace.json"));
  CHECK_THROWS_AS(trace.write(directory.file("no/such/folder/trace.json")), troop::FileError);
}
