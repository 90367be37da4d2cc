#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include <troop/apex/progress.hpp>

namespace {

using troop::apex::Progress;
using troop::apex::ProgressReport;

/// What was written to a stream that is no terminal.
struct Stream {
  std::FILE* file = std::tmpfile();
  ~Stream() { std::fclose(file); }
  std::string text() const {
    std::string result(static_cast<std::size_t>(std::ftell(file)), '\0');
    std::rewind(file);
    const std::size_t got = std::fread(result.data(), 1, result.size(), file);
    CHECK(got == result.size());
    return result;
  }
};

troop::apex::Console console(std::FILE* stream, bool is_quiet = false) {
  return troop::apex::Console(troop::apex::LogFormat::text, "all", is_quiet, stream);
}

/// A stream that is one, with what is shown on it.
struct Terminal {
  Terminal() {
    if (screen < 0 || grantpt(screen) != 0 || unlockpt(screen) != 0) return;
    stream = std::fopen(ptsname(screen), "w");
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (stream != nullptr) std::fclose(stream);
    if (screen >= 0) close(screen);
  }

  bool is_there() const {
    if (stream == nullptr) MESSAGE("not tried: there is no pseudo-terminal here (is /dev/pts mounted?)");
    return stream != nullptr;
  }
  void resize(unsigned short rows, unsigned short columns) const {
    const winsize size{rows, columns, 0, 0};
    CHECK(ioctl(screen, TIOCSWINSZ, &size) == 0);
  }
  /// So many bytes; a terminal may hand them over in parts.
  std::string read(std::size_t count) const {
    std::string shown(count, '\0');
    for (std::size_t have = 0; have < count;) {
      pollfd more{screen, POLLIN, 0};
      REQUIRE(poll(&more, 1, 10'000) == 1);
      const ssize_t got = ::read(screen, shown.data() + have, count - have);
      REQUIRE(got > 0);
      have += static_cast<std::size_t>(got);
    }
    return shown;
  }

  int screen = posix_openpt(O_RDWR | O_NOCTTY);
  std::FILE* stream = nullptr;
};

ProgressReport report() {
  ProgressReport now;
  now.seconds = 2.0;
  now.environment_steps = 30'000;
  now.learner_steps = 800;
  now.replay_size = 25;
  now.replay_capacity = 100;
  now.least_epsilon = 0.0007;
  now.greatest_epsilon = 0.4;
  return now;
}

}  // namespace

TEST_CASE("a plain line shows steps, updates, rates, fill, epsilons and returns") {
  const Stream stream;
  Progress progress(console(stream.file));
  progress.print(report());
  CHECK(stream.text() == "  2.0s  15k steps/s  400 updates/s  replay 25%  eps 0.0007-0.40  return -\n");
}

TEST_CASE("a learner with actors elsewhere shows its clients and the policy lag") {
  const Stream stream;
  Progress progress(console(stream.file));
  ProgressReport now = report();
  now.clients = 32;
  now.policy_lag = 1.25;
  progress.print(now);
  CHECK(stream.text().ends_with("return -  clients 32  lag 1.2\n"));
}

TEST_CASE("a learner with shards shows how many are there, and how often one was lost") {
  const Stream stream;
  Progress progress(console(stream.file));
  ProgressReport now = report();
  now.replay_size = now.replay_capacity = 0;
  now.clients = 32;
  now.shards = {.num_there = 0, .count = 3};
  progress.print(now);
  now.seconds += 1.0;
  now.shards = {.num_there = 2, .count = 3, .losses = 1};
  progress.print(now);
  const std::string text = stream.text();
  CHECK(text.find("replay 0%  eps 0.0007-0.40  return -  clients 32  shards 0/3\n") != std::string::npos);
  CHECK(text.ends_with("clients 32  shards 2/3  lost 1\n"));
}

TEST_CASE("what is wrong with the run directory stands at the end of the line") {
  const Stream stream;
  Progress progress(console(stream.file));
  ProgressReport now = report();
  now.alarm = "no checkpoint";
  progress.print(now);
  CHECK(stream.text().ends_with("return -  [no checkpoint]\n"));
}

TEST_CASE("rates are those since the line before, and a line is due every second") {
  const Stream stream;
  Progress progress(console(stream.file));
  CHECK_FALSE(progress.is_due(0.5));
  CHECK(progress.is_due(1.0));
  progress.print(report());
  CHECK_FALSE(progress.is_due(2.9));
  CHECK(progress.is_due(3.0));
  ProgressReport later = report();
  later.seconds = 4.0;
  later.environment_steps += 2'000;
  later.greedy_return = 499.96;
  progress.print(later);
  progress.finish();
  const std::string text = stream.text();
  CHECK(text.find("1.0k steps/s") != std::string::npos);
  CHECK(text.find("0 updates/s") != std::string::npos);
  CHECK(text.find("return 500.0\n") != std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
}

TEST_CASE("quiet prints nothing") {
  const Stream stream;
  Progress progress(console(stream.file, true));
  CHECK_FALSE(progress.is_due(1e9));
  progress.print(report());
  progress.finish();
  CHECK(stream.text().empty());
}

TEST_CASE("on a terminal the live line is written over, and ended when the run ends by an exception") {
  const Terminal terminal;
  if (!terminal.is_there()) return;
  try {
    Progress progress(console(terminal.stream));
    progress.print(report());
    progress.print(report());
    throw 1;
  } catch (int) {
  }
  const std::string line =
      "\r  2.0s  15k steps/s  400 updates/s  replay 25%  eps 0.0007-0.40  return -\033[K\033[J";
  const std::string again =
      "\r  2.0s  0 steps/s  0 updates/s  replay 25%  eps 0.0007-0.40  return -\033[K\033[J";
  const std::string expected = line + again + "\r\n";
  CHECK(terminal.read(expected.size()) == expected);
}

TEST_CASE("on a terminal further lines are cut to its width, and all are written over") {
  const Terminal terminal;
  if (!terminal.is_there()) return;
  terminal.resize(3, 11);
  std::string bars;
  for (int i = 0; i < 20; ++i) bars += "\u2588";
  Progress progress(console(terminal.stream));
  progress.print(report(), "one\ntwo\n" + bars + "\n");  // two rows are left of four lines
  std::string expected = "\r";
  expected.append(bars, 0, 30).append("\033[K\r\n  2.0s  15\033[K\033[J");
  CHECK(terminal.read(expected.size()) == expected);
  progress.print(report(), "one\n");
  expected = "\r\033[1Aone\033[K\r\n  2.0s  0 \033[K\033[J";
  CHECK(terminal.read(expected.size()) == expected);
}

TEST_CASE("a line fits into 80 columns") {
  const Stream stream;
  Progress progress(console(stream.file));
  ProgressReport now = report();
  now.seconds = 999.9;
  now.environment_steps = 9'950'000 * 1'000ull;
  now.learner_steps = 9'949 * 1'000ull;
  now.replay_size = 100;
  now.greedy_return = -999.9;
  progress.print(now);
  const std::string line = stream.text();
  CHECK(line == "999.9s  10M steps/s  9.9k updates/s  replay 100%  eps 0.0007-0.40  return -999.9\n");
  CHECK(line.size() <= 81);
}

TEST_CASE("returns of every size are shown with the decimals that tell them apart") {
  for (const auto& [value, text] : {std::pair{500.0, "500.0"},
                                    {-999.96, "-1000.0"},
                                    {99.996, "100.0"},
                                    {21.347, "21.35"},
                                    {-21.0, "-21.00"},
                                    {9.9996, "10.00"},
                                    {0.7432, "0.743"},
                                    {0.0, "0.000"},
                                    {1e15, "1.0e+15"}})
    CHECK(troop::apex::return_text(value) == text);
}
