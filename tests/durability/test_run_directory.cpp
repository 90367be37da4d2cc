#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <temporary_directory.hpp>
#include <testing.hpp>

#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/core/random.hpp>
#include <troop/durability/lease.hpp>
#include <troop/durability/object_store.hpp>
#include <troop/durability/run_directory.hpp>

using namespace std::chrono_literals;
using namespace troop;
using namespace troop::durability;
using troop::testing::error_of;

namespace {

const std::vector<StoreKind> kKinds{StoreKind::disk, StoreKind::sequential};

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// Calls `f` in another process and returns that process's number at once.
template <class F>
pid_t in_another_process(F f) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    f();
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);
}

void kill_and_wait(pid_t process) {
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
}

/// A lease as somebody on another machine would have left it.
void write_foreign_lease(const ObjectStore& store, int number) {
  std::ofstream(store.path(durability::detail::numbered("lease-", static_cast<std::uint64_t>(number))))
      << "host elsewhere\nprocess 7\nsince 2026-01-01 00:00:00\nboot another\nend\n";
}

Manifest manifest() {
  Manifest manifest;
  manifest.environment = "CartPole";
  manifest.network = "input(4) output(2)";
  manifest.layout = bytes_of("layout");
  manifest.options = "seed = 1\n";
  return manifest;
}

}  // namespace

TEST_CASE("objects are found again in the order of their names, temporary ones not at all") {
  for (const StoreKind kind : kKinds) {
    const testing::TemporaryDirectory directory;
    const ObjectStore store(directory.file("a/b"), kind);
    store.make("sub");
    CHECK(store.names("sub/", "").empty());
    CHECK(store.names("nowhere/", "").empty());
    for (const char* name : {"sub/x-2", "sub/x-1", "sub/y-1"})
      store.write(name, bytes_of(name), bytes_of("!"));
    store.write("sub/x-3.tmp", bytes_of("left by a crash"));
    CHECK(store.names("sub/", "x-") == std::vector<std::string>{"sub/x-1", "sub/x-2"});
    CHECK(read_file(store.path("sub/x-2"), 100) == bytes_of("sub/x-2!"));
    store.remove("sub/x-1");
    store.remove("sub/x-1");
    store.remove_temporary("sub/");
    CHECK(store.names("sub/", "") == std::vector<std::string>{"sub/x-2", "sub/y-1"});
    CHECK_FALSE(std::filesystem::exists(store.path("sub/x-3.tmp")));
  }
}

TEST_CASE("a sequential store never writes over an object") {
  const testing::TemporaryDirectory directory;
  const ObjectStore store(directory.file("store"), StoreKind::sequential);
  store.write("one", bytes_of("first"));
  CHECK(error_of([&] { store.write("one", bytes_of("second")); }) ==
        store.path("one") + ": cannot create: File exists");
  CHECK(read_file(store.path("one"), 100) == bytes_of("first"));
}

TEST_CASE("a store where there can be no folder says which and why") {
  const testing::TemporaryDirectory directory;
  std::ofstream(directory.file("file")) << "x";
  const std::string path = directory.file("file");
  CHECK(error_of([&] { ObjectStore(path, StoreKind::disk); }) ==
        path + ": cannot make this folder: Not a directory");
  CHECK(
      error_of([&] { ObjectStore(path + "/sub", StoreKind::disk); }).starts_with(path + "/sub: cannot make"));
  CHECK(error_of([&] { ObjectStore("", StoreKind::disk); }) ==
        "folder: \"\" is not allowed; expected the name of a folder");
}

TEST_CASE("a second writer is refused and told who holds the directory, and gets it when that one is done") {
  for (const StoreKind kind : kKinds) {
    const testing::TemporaryDirectory directory;
    const RunDirectoryOptions options{.path = directory.file("run"), .store = kind};
    {
      const RunDirectory first(options);
      const std::string error = error_of([&] { const RunDirectory second(options); });
      CHECK(error.starts_with(options.path + ": is in use by process " + std::to_string(::getpid()) + " on " +
                              durability::detail::host_name() + ", since 20"));
      CHECK(error.ends_with(" UTC"));
    }
    CHECK_NOTHROW(RunDirectory{options});
  }
}

TEST_CASE("a process that is killed loses the directory at once") {
  const testing::TemporaryDirectory directory;
  const RunDirectoryOptions options{.path = directory.file("run")};
  const pid_t child = in_another_process([&] {
    const RunDirectory held(options);
    std::this_thread::sleep_for(60s);
  });
  const ObjectStore store(options.path, StoreKind::disk);
  while (!durability::detail::newest_lease(store)) std::this_thread::sleep_for(1ms);
  const std::string error = error_of([&] { const RunDirectory second(options); });
  CHECK(error.starts_with(options.path + ": is in use by process " + std::to_string(child)));
  kill_and_wait(child);
  const Clock::time_point start = Clock::now();
  CHECK_NOTHROW(RunDirectory{options});
  CHECK(seconds_since(start) < 15.0);  // the duration of a lease, which it need not wait for
}

TEST_CASE("the lease of another machine is taken when nobody renews it, and not while somebody does") {
  const testing::TemporaryDirectory directory;
  const ObjectStore store(directory.file("run"), StoreKind::disk);
  write_foreign_lease(store, 5);
  SUBCASE("nobody does") {
    const Clock::time_point start = Clock::now();
    const Lease lease(store, {.duration = 200ms});
    CHECK(seconds_since(start) >= 0.2);
    CHECK(durability::detail::newest_lease(store)->number >= 6);
    CHECK(durability::detail::newest_lease(store)->host == durability::detail::host_name());
  }
  SUBCASE("somebody does") {
    std::jthread owner([&](const std::stop_token& stop) {
      for (int number = 6; !stop.stop_requested(); ++number) {
        std::this_thread::sleep_for(20ms);
        write_foreign_lease(store, number);
      }
    });
    CHECK(error_of([&] { const Lease lease(store, {.duration = 10s}); }) ==
          store.folder() + ": is in use by process 7 on elsewhere, since 2026-01-01 00:00:00 UTC");
  }
  SUBCASE("one that is not whole is watched as well") {
    std::ofstream(store.path("lease-000000000009")) << "host else";
    CHECK(durability::detail::newest_lease(store)->describe() == "somebody unknown");
    const Lease lease(store, {.duration = 50ms});
    CHECK(durability::detail::newest_lease(store)->number >= 10);
  }
}

TEST_CASE("an owner that was taken for dead finds out before it writes") {
  const testing::TemporaryDirectory directory;
  const ObjectStore store(directory.file("run"), StoreKind::disk);
  Lease lease(store, {.duration = 90ms});
  CHECK_NOTHROW(lease.require_held());
  write_foreign_lease(store, 1'000'000);
  while (!lease.is_lost()) std::this_thread::sleep_for(1ms);
  CHECK(error_of([&] { lease.require_held(); }) ==
        store.folder() + ": was taken over by process 7 on elsewhere, since 2026-01-01 00:00:00 UTC");
}

TEST_CASE("the number of the lease grows while it is held and only the newest one stays") {
  for (const StoreKind kind : kKinds) {
    const testing::TemporaryDirectory directory;
    const ObjectStore store(directory.file("run"), kind);
    const Lease lease(store, {.duration = 60ms});
    while (durability::detail::newest_lease(store)->number < 4) std::this_thread::sleep_for(1ms);
    CHECK(store.names("", "lease-").size() <= 2);  // one is being replaced
    CHECK_FALSE(lease.is_lost());
  }
}

TEST_CASE("a manifest comes back as it was written, and each program is a generation") {
  for (const StoreKind kind : kKinds) {
    const testing::TemporaryDirectory directory;
    const RunDirectoryOptions options{.path = directory.file("run"), .store = kind};
    std::string created;
    {
      RunDirectory run(options);
      CHECK_FALSE(run.manifest());
      CHECK(run.generation() == 1);
      run.write_manifest(manifest());
      created = run.manifest()->created;
    }
    RunDirectory run(options);
    CHECK(run.generation() == 2);
    REQUIRE(run.manifest());
    CHECK(run.manifest()->network == manifest().network);
    CHECK(run.manifest()->layout == manifest().layout);
    CHECK_FALSE(run.manifest()->is_finished);
    Manifest finished = *run.manifest();
    finished.is_finished = true;
    finished.result = "solved";
    run.write_manifest(finished);
    CHECK(run.store().names("", "manifest-").size() == 1);
    const auto read = read_manifest(run.store(), [](const std::string& sentence) { FAIL(sentence); });
    CHECK(read->is_finished);
    CHECK(read->result == "solved");
    CHECK(read->created == created);
    CHECK(read->generation == 2);
  }
}

TEST_CASE("a damaged manifest is said to be, and the one before is taken") {
  const testing::TemporaryDirectory directory;
  const RunDirectoryOptions options{.path = directory.file("run")};
  {
    RunDirectory run(options);
    run.write_manifest(manifest());
  }
  const std::string damaged = options.path + "/manifest-000003-000000000001";
  std::string reason;
  SUBCASE("cut off") {
    std::filesystem::copy_file(options.path + "/manifest-000001-000000000001", damaged);
    std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) - 20);
    reason = ": is damaged: it ends in the middle";
  }
  SUBCASE("foreign") {
    std::ofstream(damaged) << "something else altogether";
    reason = ": is not a troop run manifest (it does not begin with TROOPRUN)";
  }
  SUBCASE("empty") {
    std::ofstream(damaged) << "";
    reason = ": is not a troop run manifest (it does not begin with TROOPRUN)";
  }
  std::vector<std::string> said;
  RunDirectoryOptions talking = options;
  talking.lease.log = [&](const std::string& sentence) { said.push_back(sentence); };
  const RunDirectory run(talking);
  CHECK(said == std::vector<std::string>{damaged + reason});
  CHECK(run.generation() == 4);  // names tell it, too
  CHECK(run.manifest()->environment == "CartPole");
}

TEST_CASE("whoever writes objects and is killed at any moment leaves the one before or the new one") {
  for (const StoreKind kind : kKinds) {
    const testing::TemporaryDirectory directory;
    const RunDirectoryOptions options{.path = directory.file("run"), .store = kind};
    Random random(testing::seed(), "kills");
    CAPTURE(testing::seed());
    std::uint64_t least = 0;
    for (int round = 0; round < 25; ++round) {
      const pid_t child = in_another_process([&] {
        RunDirectory run(options);
        Manifest counting = manifest();
        counting.options.assign(200'000, 'x');  // long enough to be cut off
        for (std::uint64_t number = least + 1;; ++number) {
          counting.environment = std::to_string(number);
          run.write_manifest(counting);
        }
      });
      std::this_thread::sleep_for(std::chrono::microseconds(2'000 + random.below(20'000)));
      kill_and_wait(child);
      const ObjectStore store(options.path, kind);
      const auto found = read_manifest(store, [](const std::string&) {});
      if (!found) {
        CHECK(least == 0);
        continue;
      }
      const std::uint64_t number = std::stoull(found->environment);
      CHECK(number >= least);
      least = number;
    }
    CHECK(least > 0);
  }
}
