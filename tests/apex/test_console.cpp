#include <troop/apex/console.hpp>

#include <cstdio>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace {

using troop::apex::Console;
using troop::apex::LogFormat;

/// What was written to a stream since the last look.
struct Stream {
  std::FILE* file = std::tmpfile();
  ~Stream() { std::fclose(file); }
  std::string take() {
    std::string text(static_cast<std::size_t>(std::ftell(file)) - taken, '\0');
    std::fseek(file, static_cast<long>(taken), SEEK_SET);
    CHECK(std::fread(text.data(), 1, text.size(), file) == text.size());
    taken += text.size();
    return text;
  }
  std::size_t taken = 0;
};

struct Streams {
  Stream out, warnings;
  Console console(LogFormat format, bool is_quiet = false) const {
    return Console(format, "actor", is_quiet, out.file, warnings.file);
  }
};

}  // namespace

TEST_CASE("as text a line is the sentence, and an error says that it is one") {
  Streams streams;
  const Console console = streams.console(LogFormat::text);
  console.info("leased %d to %s", 16, "31");
  console.result("%s", "100% solved");
  CHECK(streams.out.take() == "leased 16 to 31\n100% solved\n");
  CHECK(streams.warnings.take().empty());
  console.warning("cannot reach %s", "head");
  console.warnings()("10% lost");
  console.error("no %s", "file");
  CHECK(streams.warnings.take() == "cannot reach head\n10% lost\nerror: no file\n");
  CHECK(streams.out.take().empty());
}

TEST_CASE("a quiet console says results and errors only") {
  Streams streams;
  for (const LogFormat format : {LogFormat::text, LogFormat::json}) {
    const Console console = streams.console(format, true);
    CHECK(console.is_quiet());
    console.info("here");
    console.warning("careful");
    console.warnings()("careful");
    CHECK(streams.out.take().empty());
    CHECK(streams.warnings.take().empty());
    console.result("solved");
    console.error("broken");
    CHECK(streams.out.take().find("solved") != std::string::npos);
    CHECK(streams.warnings.take().find("broken") != std::string::npos);
  }
  CHECK_FALSE(streams.console(LogFormat::text).is_quiet());
}

TEST_CASE("as JSON a line is an object with time, severity, role and the index once it is known") {
  Streams streams;
  const Console console = streams.console(LogFormat::json);
  CHECK(console.format() == LogFormat::json);
  const Console copy = console;
  const std::string time = R"(\{"time":"20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d\.\d\d\dZ",)";
  copy.info("a \"quoted\" one\nof two lines");
  CHECK(std::regex_match(
      streams.out.take(),
      std::regex(
          time +
          R"("severity":"INFO","role":"actor","message":"a \\"quoted\\" one\\u000aof two lines"\}\n)")));
  console.set_index(16);
  copy.result("solved");
  CHECK(std::regex_match(
      streams.out.take(),
      std::regex(time + R"("severity":"INFO","role":"actor","index":16,"message":"solved"\}\n)")));
  copy.warning("careful");
  copy.error("no file");
  const std::string line = R"(","role":"actor","index":16,"message":")";
  CHECK(std::regex_match(streams.warnings.take(),
                         std::regex(time + R"("severity":"WARNING)" + line + R"(careful"\}\n)" + time +
                                    R"("severity":"ERROR)" + line + R"(no file"\}\n)")));
}

TEST_CASE("when nobody reads the standard output any more everything goes to the other stream") {
  Streams streams;
  const Console console = streams.console(LogFormat::text);
  console.use_only_stderr();
  console.info("saved");
  console.result("not solved");
  CHECK(streams.out.take().empty());
  CHECK(streams.warnings.take() == "saved\nnot solved\n");
}

TEST_CASE("a long line is whole, and lines of several threads are not mixed") {
  Streams streams;
  const Console console = streams.console(LogFormat::text);
  const std::string much(100'000, 'x');
  console.info("%s", much.c_str());
  CHECK(streams.out.take() == much + "\n");
  std::vector<std::thread> threads;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    threads.emplace_back([&, text = std::string(50, letter)] {
      for (int i = 0; i < 200; ++i) console.info("%s", text.c_str());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string all = streams.out.take();
  CHECK(all.size() == 800 * 51);
  CHECK(std::regex_search(all, std::regex("a{50}\n")));
  for (std::size_t at = 0; at + 51 <= all.size(); at += 51)
    if (all.substr(at, 51) != std::string(50, all[at]) + "\n") FAIL_CHECK("a torn line at " << at);
}
