#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/core/file.hpp>

namespace {

namespace fs = std::filesystem;

/// A new directory, removed with its content at the end.
struct Directory {
  Directory() {
    std::string name = (fs::temp_directory_path() / "troop-file-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() { fs::remove_all(path); }
  std::string file(const std::string& name) const { return (path / name).string(); }
  std::size_t count() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  fs::path path;
};

auto bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// What the FileError of `f` says.
template <class F>
std::string file_error(F f) {
  try {
    f();
  } catch (const troop::FileError& error) {
    return error.what();
  }
  return "no FileError";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a file is written from its parts and read back") {
  const Directory directory;
  const std::string path = directory.file("a");
  troop::write_file_atomically(path, bytes_of("one "), bytes_of(""), bytes_of("two"));
  CHECK(text_of(troop::read_file(path, 7)) == "one two");
  troop::write_file_atomically(path, bytes_of("three"));
  CHECK(text_of(troop::read_file(path, 100)) == "three");
  troop::write_file_atomically(path);
  CHECK(troop::read_file(path, 0).empty());
  CHECK(directory.count() == 1);
}

TEST_CASE("a relative name without a directory works") {
  const Directory directory;
  const fs::path before = fs::current_path();
  fs::current_path(directory.path);
  troop::write_file_atomically("plain", bytes_of("x"));
  CHECK(text_of(troop::read_file("plain", 1)) == "x");
  fs::current_path(before);
}

TEST_CASE("an error names the path and the reason, and leaves no temporary file") {
  const Directory directory;
  const std::string missing = directory.file("no/such/file");
  std::string error = file_error([&] { troop::write_file_atomically(missing, bytes_of("x")); });
  CHECK(has(error, missing));
  CHECK(has(error, "No such file or directory"));

  fs::create_directory(directory.path / "folder");
  error = file_error([&] { troop::write_file_atomically(directory.file("folder"), bytes_of("x")); });
  CHECK(has(error, "is a directory"));
  CHECK(has(file_error([&] { troop::write_file_atomically("", bytes_of("x")); }), "not the name of a file"));
  CHECK(directory.count() == 1);
}

TEST_CASE("when the disk refuses, the old file is intact and the temporary one removed") {
  const Directory directory;
  const std::string path = directory.file("a");
  troop::write_file_atomically(path, bytes_of("old"));
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  rlimit small = limit;
  small.rlim_cur = 1000;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string error =
      file_error([&] { troop::write_file_atomically(path, bytes_of(std::string(5000, 'x'))); });
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(has(error, path));
  CHECK(has(error, "File too large"));
  CHECK(text_of(troop::read_file(path, 100)) == "old");
  CHECK(directory.count() == 1);
}

TEST_CASE("a temporary file that a killed process left is not in the way") {
  const Directory directory;
  const std::string path = directory.file("a");
  for (int i = 0; i < 64; ++i) {  // whatever the counter's value is now
    const std::string stale = path + "." + std::to_string(getpid()) + "-" + std::to_string(i) + ".tmp";
    troop::write_file_atomically(stale, bytes_of("stale"));
  }
  troop::write_file_atomically(path, bytes_of("new"));
  CHECK(text_of(troop::read_file(path, 100)) == "new");
}

TEST_CASE("a reader sees the old file or the new one, whatever the writers do") {
  const Directory directory;
  const std::string path = directory.file("a");
  troop::write_file_atomically(path, bytes_of(std::string(3000, 'a')));
  std::vector<std::thread> writers;
  for (const char letter : {'a', 'b'})
    writers.emplace_back([&, letter] {
      for (int i = 0; i < 20; ++i) troop::write_file_atomically(path, bytes_of(std::string(3000, letter)));
    });
  bool whole = true;
  for (int i = 0; i < 200; ++i) {
    const std::string text = text_of(troop::read_file(path, 5000));
    whole = whole && text == std::string(3000, text.empty() ? '?' : text[0]);
  }
  for (auto& writer : writers) writer.join();
  CHECK(whole);
  CHECK(directory.count() == 1);
}

TEST_CASE("reading refuses what is missing, too large or not a regular file") {
  const Directory directory;
  const std::string path = directory.file("a");
  CHECK(has(file_error([&] { troop::read_file(path, 10); }), "No such file"));
  troop::write_file_atomically(path, bytes_of("12345678901"));
  CHECK(file_error([&] { troop::read_file(path, 10); }) == path + ": 11 bytes, more than the 10 allowed");
  CHECK(has(file_error([&] { troop::read_file(directory.path.string(), 10); }), "not a regular file"));
  REQUIRE(mkfifo(directory.file("pipe").c_str(), 0600) == 0);
  CHECK(has(file_error([&] { troop::read_file(directory.file("pipe"), 10); }), "not a regular file"));
  CHECK(has(file_error([&] { troop::read_file("/proc/self/status", 10); }), "became") == false);
}

TEST_CASE("check_writable finds a bad place early and leaves nothing behind") {
  const Directory directory;
  troop::check_writable(directory.file("new"));
  CHECK(directory.count() == 0);
  troop::write_file_atomically(directory.file("old"), bytes_of("old"));
  troop::check_writable(directory.file("old"));
  CHECK(text_of(troop::read_file(directory.file("old"), 100)) == "old");
  CHECK_THROWS_AS(troop::check_writable(directory.file("no/file")), troop::FileError);
  CHECK_THROWS_AS(troop::check_writable(directory.path.string()), troop::FileError);
  CHECK_THROWS_AS(troop::check_writable("/proc/file"), troop::FileError);
  CHECK(directory.count() == 1);
}

TEST_CASE("what is not a regular file is refused, not replaced") {
  const Directory directory;
  const std::string pipe = directory.file("pipe"), link = directory.file("link");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink(pipe, link);
  for (const std::string& path : {pipe, link}) {
    CHECK(file_error([&] { troop::write_file_atomically(path, bytes_of("x")); }) ==
          path + ": is not a regular file");
    CHECK(file_error([&] { troop::check_writable(path); }) == path + ": is not a regular file");
    CHECK(fs::is_fifo(path));
  }
  CHECK(directory.count() == 2);
}

TEST_CASE("new files have the permissions of the process's umask") {
  const Directory directory;
  const mode_t before = umask(027);
  troop::write_file_atomically(directory.file("a"), bytes_of("x"));
  umask(before);
  struct stat status {};
  REQUIRE(stat(directory.file("a").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
}

TEST_CASE("an earlier file is kept under the first number that is free") {
  const Directory directory;
  const std::string path = directory.file("net.work.troop");
  const auto content = [&](const std::string& name) {
    return text_of(troop::read_file(directory.file(name), 100));
  };
  CHECK(troop::keep_earlier_file(path).empty());
  CHECK(directory.count() == 0);
  for (const char* text : {"a", "b", "c"}) {
    troop::keep_earlier_file(path);
    CHECK((!fs::exists(path) || fs::hard_link_count(path) == 2));  // it is there until it is replaced
    troop::write_file_atomically(path, bytes_of(text));
  }
  CHECK(content("net.work.1.troop") == "a");
  CHECK(content("net.work.2.troop") == "b");
  CHECK(content("net.work.troop") == "c");
  fs::remove(directory.file("net.work.1.troop"));
  CHECK(troop::keep_earlier_file(path) == directory.file("net.work.1.troop"));
  CHECK(content("net.work.1.troop") == "c");
  CHECK(directory.count() == 3);
}

TEST_CASE("the number goes before the last ending of a file's own name") {
  const Directory directory;
  fs::create_directory(directory.file("v0.1"));
  for (const auto& [name, kept] : {std::pair{"v0.1/network", "v0.1/network.1"},
                                   {".hidden", ".hidden.1"},
                                   {"v0.1/.hidden.x", "v0.1/.hidden.1.x"}}) {
    troop::write_file_atomically(directory.file(name), bytes_of("x"));
    CHECK(troop::keep_earlier_file(directory.file(name)) == directory.file(kept));
  }
}

TEST_CASE("a file that cannot be kept is refused with the system's reason") {
  const std::string path = "/proc/self/status";
  CHECK(file_error([&] {
          troop::keep_earlier_file(path);
        }).starts_with("/proc/self/status: cannot keep it as /proc/self/status.1: "));
}
