#include <doctest/doctest.h>

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <google/protobuf/io/coded_stream.h>

#include <temporary_directory.hpp>
#include <testing.hpp>

#include <troop/core/file.hpp>
#include <troop/monitor/event_file.hpp>

using troop::monitor::EventFile;
using troop::monitor::EventHistogram;
using troop::testing::error_of;
using troop::testing::TemporaryDirectory;

namespace {

/// A message as its fields, read by the library's own decoder: numbers as bits, the rest as bytes.
struct Fields {
  std::multimap<int, std::string> bytes;
  std::multimap<int, std::uint64_t> numbers;

  explicit Fields(const std::string& message) {
    google::protobuf::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(message.data()),
                                              static_cast<int>(message.size()));
    while (const std::uint32_t tag = in.ReadTag()) {
      const int field = static_cast<int>(tag >> 3);
      std::uint64_t number = 0;
      std::uint32_t small = 0, length = 0;
      std::string text;
      switch (tag & 7) {
        case 0:
          REQUIRE(in.ReadVarint64(&number));
          break;
        case 1:
          REQUIRE(in.ReadLittleEndian64(&number));
          break;
        case 2:
          REQUIRE(in.ReadVarint32(&length));
          REQUIRE(in.ReadString(&text, static_cast<int>(length)));
          bytes.emplace(field, text);
          continue;
        case 5:
          REQUIRE(in.ReadLittleEndian32(&small));
          number = small;
          break;
        default:
          FAIL("wire type " << (tag & 7));
      }
      numbers.emplace(field, number);
    }
    REQUIRE(in.CurrentPosition() == static_cast<int>(message.size()));
  }

  std::string text(int field) const { return bytes.find(field)->second; }
  Fields message(int field) const { return Fields(text(field)); }
  double real(int field) const { return std::bit_cast<double>(numbers.find(field)->second); }
  float single(int field) const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(numbers.find(field)->second));
  }
  std::uint64_t integer(int field) const {
    const auto found = numbers.find(field);
    return found == numbers.end() ? 0 : found->second;
  }
  std::vector<double> reals(int field) const {
    const std::string packed = text(field);
    std::vector<double> values(packed.size() / 8);
    std::memcpy(values.data(), packed.data(), packed.size());
    return values;
  }
};

/// CRC-32C bit by bit, for the library's own is what is tested.
std::uint32_t slow_crc(const std::string& bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/// The events of a file; fails for a record whose checksums are wrong or which is not whole.
std::vector<Fields> read(const std::string& path) {
  const auto raw = troop::read_file(path, 1 << 24);
  const std::string file(reinterpret_cast<const char*>(raw.data()), raw.size());
  std::vector<Fields> events;
  std::size_t at = 0;
  while (at < file.size()) {
    std::uint64_t length = 0;
    std::uint32_t crc = 0;
    REQUIRE(at + 12 <= file.size());
    std::memcpy(&length, file.data() + at, 8);
    std::memcpy(&crc, file.data() + at + 8, 4);
    CHECK(crc == slow_crc(file.substr(at, 8)));
    REQUIRE(at + 16 + length <= file.size());
    const std::string data = file.substr(at + 12, length);
    std::memcpy(&crc, file.data() + at + 12 + length, 4);
    CHECK(crc == slow_crc(data));
    events.emplace_back(data);
    at += 16 + length;
  }
  return events;
}

std::vector<std::string> files_in(const std::filesystem::path& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TEST_CASE("an event file begins with its version, and scalars follow with step and time") {
  const TemporaryDirectory directory;
  EventFile events({.directory = directory.file("run/7")});
  events.scalar("learner/loss", 0.25, 1000);
  const std::vector<troop::monitor::Scalar> both{{"replay/size", 5.0}, {"user/x", -1.5}};
  events.scalars(both, 2000);
  events.scalars({}, 3000);
  events.flush();
  const auto read_back = read(events.path());
  REQUIRE(read_back.size() == 3);
  CHECK(read_back[0].text(3) == "brain.Event:2");
  CHECK(read_back[1].integer(2) == 1000);
  CHECK(read_back[1].real(1) > 1.6e9);
  const Fields value = read_back[1].message(5).message(1);
  CHECK(value.text(1) == "learner/loss");
  CHECK(value.single(2) == 0.25f);
  const Fields summary = read_back[2].message(5);
  REQUIRE(summary.bytes.count(1) == 2);
  CHECK(Fields(std::next(summary.bytes.find(1))->second).single(2) == -1.5f);
}

TEST_CASE("a histogram has as many counts as values, between the least and the greatest") {
  const TemporaryDirectory directory;
  EventFile events({.directory = directory.file("run")});
  const std::vector<float> values{1.0f, 2.0f, 2.0f, 5.0f, std::nanf(""), INFINITY};
  events.histogram("replay/priorities", EventHistogram::of(values, 4), 5);
  events.histogram("replay/none", EventHistogram::of({}), 6);
  events.histogram("replay/equal", EventHistogram::of(std::vector<float>(3, 2.0f), 2), 7);
  events.flush();
  const auto read_back = read(events.path());
  REQUIRE(read_back.size() == 4);
  const Fields histogram = read_back[1].message(5).message(1).message(5);
  CHECK(histogram.real(1) == 1.0);
  CHECK(histogram.real(2) == 5.0);
  CHECK(histogram.real(3) == 4.0);
  CHECK(histogram.real(4) == 10.0);
  CHECK(histogram.real(5) == 34.0);
  CHECK(histogram.reals(6) == std::vector<double>{2.0, 3.0, 4.0, 5.0});
  CHECK(histogram.reals(7) == std::vector<double>{1.0, 2.0, 0.0, 1.0});
  CHECK(read_back[2].message(5).message(1).message(5).real(3) == 0.0);
  CHECK(read_back[3].message(5).message(1).message(5).real(3) == 3.0);
}

TEST_CASE("options of a run go out as text and as hyper-parameters of three types") {
  const TemporaryDirectory directory;
  EventFile events({.directory = directory.file("run")});
  events.text("options", "`alpha = 0.6`");
  const std::vector<troop::monitor::HyperParameter> parameters{
      {"alpha", 0.6}, {"deterministic", true}, {"optimizer", std::string("adam")}};
  const std::vector<std::string> metrics{"evaluation/mean_return"};
  events.hyper_parameters(parameters, metrics);
  events.flush();
  const auto read_back = read(events.path());
  REQUIRE(read_back.size() == 4);
  const Fields text = read_back[1].message(5).message(1);
  CHECK(text.message(8).text(8) == "`alpha = 0.6`");
  CHECK(text.message(9).message(1).text(1) == "text");
  const Fields experiment = read_back[2].message(5).message(1);
  CHECK(experiment.text(1) == "_hparams_/experiment");
  const Fields content = experiment.message(9).message(1).message(2).message(2);
  CHECK(content.bytes.count(4) == 3);
  CHECK(content.message(5).message(1).text(2) == "evaluation/mean_return");
  const Fields start = read_back[3].message(5).message(1).message(9).message(1).message(2).message(3);
  auto entry = start.bytes.find(1);
  CHECK(Fields(entry->second).text(1) == "alpha");
  CHECK(Fields(entry->second).message(2).real(2) == 0.6);
  CHECK(Fields((++entry)->second).message(2).integer(4) == 1);
  CHECK(Fields((++entry)->second).message(2).text(3) == "adam");
}

TEST_CASE("a run that goes on tells from which step on its events count") {
  const TemporaryDirectory directory;
  EventFile events({.directory = directory.file("run"), .resumed_at = 700});
  events.flush();
  const auto read_back = read(events.path());
  REQUIRE(read_back.size() == 2);
  CHECK(read_back[1].integer(2) == 700);
  CHECK(read_back[1].message(7).integer(1) == 1);
}

TEST_CASE("a long file is followed by another one, and no event is lost between them") {
  const TemporaryDirectory directory;
  {
    EventFile events({.directory = directory.file("run"), .max_bytes = 4096, .buffer_bytes = 512});
    for (std::uint64_t step = 0; step < 500; ++step) events.scalar("learner/loss", 1.0, step);
  }
  std::uint64_t next = 0;
  const auto files = files_in(directory.path() / "run");
  CHECK(files.size() >= 5);
  for (const std::string& file : files) {
    const auto events = read(file);
    CHECK(events[0].text(3) == "brain.Event:2");
    for (std::size_t i = 1; i < events.size(); ++i) CHECK(events[i].integer(2) == next++);
  }
  CHECK(next == 500);
}

TEST_CASE("a full disk costs one line and the events meanwhile, and leaves a file that can be read") {
  const TemporaryDirectory directory;
  std::vector<std::string> lines;
  EventFile events(
      {.directory = directory.file("run"), .log = [&](const std::string& line) { lines.push_back(line); }});
  events.scalar("learner/loss", 1.0, 1);
  events.flush();
  const auto size = std::filesystem::file_size(events.path());
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit full{size + 20, before.rlim_max};  // in the middle of a record
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &full) == 0);
  for (std::uint64_t step = 2; step < 5; ++step) {
    events.scalar("learner/loss", 1.0, step);
    events.flush();
  }
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(events.dropped() == 3);
  CHECK(lines ==
        std::vector<std::string>{events.path() + ": cannot write, so events are left out: File too large"});
  events.scalar("learner/loss", 1.0, 5);
  events.flush();
  const auto read_back = read(events.path());
  REQUIRE(read_back.size() == 3);
  CHECK(read_back[2].integer(2) == 5);
  CHECK(events.dropped() == 3);
}

TEST_CASE("a directory that cannot be made is refused with its name") {
  const TemporaryDirectory directory;
  troop::write_file_atomically(directory.file("file"), std::as_bytes(std::span("x", 1)));
  CHECK(error_of([&] {
          EventFile({.directory = directory.file("file")});
        }).starts_with(directory.file("file")));
  CHECK(error_of([] { EventFile({}); }) ==
        "directory: \"\" is not allowed; expected the name of a directory");
}

TEST_CASE("threads write events at once") {
  const TemporaryDirectory directory;
  EventFile events({.directory = directory.file("run"), .buffer_bytes = 256});
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t step = 0; step < 100; ++step) events.scalar("x", 1.0, step);
    });
  }
  for (auto& thread : threads) thread.join();
  events.flush();
  CHECK(read(events.path()).size() == 301);
}
