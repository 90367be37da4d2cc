#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <killed_process.hpp>
#include <temporary_directory.hpp>
#include <testing.hpp>

#include <troop/core/file.hpp>
#include <troop/core/random.hpp>
#include <troop/durability/replay_log.hpp>
#include <troop/durability/run_directory.hpp>
#include <troop/replay/prioritized_replay.hpp>

using namespace std::chrono_literals;
using namespace troop;
using troop::durability::ClientBatch;
using troop::durability::ReplayLogOptions;
using troop::durability::RunDirectory;
using troop::durability::StoreKind;
using troop::testing::error_of;

namespace {

struct Item {
  std::uint64_t number;
  float filling[14];
};
using Replay = PrioritizedReplay<Item>;
using ReplayLog = durability::ReplayLog<Replay>;

std::vector<Item> items_from(std::uint64_t first, std::size_t count) {
  std::vector<Item> items(count);
  for (std::size_t i = 0; i < count; ++i) {
    items[i].number = first + i;
    std::fill(std::begin(items[i].filling), std::end(items[i].filling), static_cast<float>(first + i));
  }
  return items;
}

float priority_of(std::uint64_t number) {
  return 1.0f + static_cast<float>(number % 7);
}

ClientBatch client(int number, std::uint64_t batch) {
  ClientBatch result{.number = batch};
  result.client.fill(static_cast<std::byte>(number));
  return result;
}

/// Adds `count` items, whose numbers are their keys.
std::uint64_t add(ReplayLog& log, Replay& replay, std::size_t count, const ClientBatch& from = {}) {
  const std::uint64_t first = replay.next_key();
  const auto items = items_from(first, count);
  std::vector<float> priorities;
  for (std::size_t i = 0; i < count; ++i) priorities.push_back(priority_of(first + i));
  return log.add(from, BatchView(std::span<const Item>(items)), priorities);
}

/// One program's life with a run directory.
struct Life {
  explicit Life(const std::string& path, const ReplayLogOptions& options = {}, std::size_t capacity = 1000,
                StoreKind store = StoreKind::disk)
      : run({.path = path,
             .store = store,
             .lease = {.log = [this](const std::string& sentence) { said.push_back(sentence); }}}),
        replay({.capacity = capacity, .alpha = 0.6}),
        log(run, replay, options) {
    run.write_manifest({});
  }

  std::vector<std::string> said;
  RunDirectory run;
  Replay replay;
  ReplayLog log;
};

/// All items with keys [first, end) are there, whole, and nothing else.
void check_holds(Replay& replay, std::uint64_t first, std::uint64_t end) {
  CHECK(replay.next_key() == end);
  CHECK(replay.size() == end - first);
  if (end == first) return;
  Random random(1);
  testing::Failures failures;
  for (int round = 0; round < 20; ++round) {
    const auto batch = replay.sample(256, {.beta = 0.4}, random);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Item& item = batch.records()[i];
      if (item.number != batch.keys[i] || item.filling[13] != static_cast<float>(item.number))
        failures.add("key " + std::to_string(batch.keys[i]) + " holds " + std::to_string(item.number));
      if (item.number < first || item.number >= end) failures.add("an item that was not inserted");
    }
  }
  TROOP_CHECK_NONE(failures);
}

std::vector<std::string> segments_in(const std::string& path) {
  return durability::ObjectStore(path, StoreKind::disk).names("replay/", "segment-");
}

}  // namespace

TEST_CASE("what was committed is there again, with its keys, priorities and sessions") {
  for (const StoreKind store : {StoreKind::disk, StoreKind::sequential}) {
    const testing::TemporaryDirectory directory;
    const std::string path = directory.file("run");
    double total = 0.0;
    {
      Life life(path, {.sequential_interval = 1ms}, 1000, store);
      CHECK(life.log.restored().items == 0);
      for (std::uint64_t i = 1; i <= 10; ++i) add(life.log, life.replay, 20, client(1, i));
      add(life.log, life.replay, 7, client(2, 5));
      add(life.log, life.replay, 3);
      CHECK(life.log.flush(Deadline::never()));
      CHECK(life.log.commits().reached() == 12);
      CHECK(life.log.statistics().items == 210);
      CHECK(life.log.statistics().written_bytes < life.log.statistics().raw_bytes);
      total = life.replay.total_priority();
      CHECK(life.said.empty());
    }
    Life life(path, {}, 1000, store);
    CHECK(life.log.restored().items == 210);
    CHECK(life.log.restored().sessions == std::vector<ClientBatch>{client(1, 10), client(2, 5)});
    check_holds(life.replay, 0, 210);
    CHECK(life.replay.total_priority() == doctest::Approx(total));
    add(life.log, life.replay, 5, client(1, 11));
    CHECK(life.log.flush(Deadline::never()));
    check_holds(life.replay, 0, 215);
    CHECK(life.said.empty());
  }
}

TEST_CASE("a table gives items the priorities that they had, and newer items keep their own") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  double total = 0.0;
  {
    Life life(path);
    add(life.log, life.replay, 100);
    CHECK(life.log.flush(Deadline::never()));
    std::vector<Key> keys;
    std::vector<float> priorities;
    for (Key key = 0; key < 100; ++key) {
      keys.push_back(key);
      priorities.push_back(0.01f * static_cast<float>(key + 1));
    }
    life.replay.update(keys, priorities);
    life.log.write_priorities();
    const durability::ObjectStore& store = life.run.store();
    while (store.names("replay/", "priorities-").empty()) std::this_thread::sleep_for(1ms);
    add(life.log, life.replay, 10);
    total = life.replay.total_priority();
  }
  {
    Life life(path);
    CHECK(life.log.restored().priorities == 100);
    check_holds(life.replay, 0, 110);
    CHECK(life.replay.total_priority() == doctest::Approx(total));
  }
  // A damaged table is said to be and passed over.
  const std::string table =
      path + "/" + durability::ObjectStore(path, StoreKind::disk).names("replay/", "priorities-").at(0);
  std::filesystem::resize_file(table, std::filesystem::file_size(table) - 30);
  Life life(path);
  CHECK(life.said ==
        std::vector<std::string>{table + ": is damaged: it ends in the middle; looking for the one before"});
  CHECK(life.log.restored().priorities == 0);
  check_holds(life.replay, 0, 110);
}

TEST_CASE("segments end at their size and go with their last item") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  std::size_t most = 0;
  {
    Life life(path, {.segment_bytes = 4096}, 500);
    for (std::uint64_t i = 1; i <= 300; ++i) {
      add(life.log, life.replay, 50, client(3, i));
      CHECK(life.log.flush(Deadline::never()));
      most = std::max(most, segments_in(path).size());
    }
    check_holds(life.replay, 14'500, 15'000);
  }
  CHECK(most > 2);
  CHECK(most < 60);
  Life life(path, {.segment_bytes = 4096}, 500);
  CHECK(life.log.restored().sessions == std::vector<ClientBatch>{client(3, 300)});
  check_holds(life.replay, 14'500, 15'000);
  CHECK(life.said.empty());
}

TEST_CASE("a smaller replay holds the newest items, a larger one all that there are") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  {
    Life life(path, {}, 300);
    for (int i = 0; i < 10; ++i) add(life.log, life.replay, 50);
  }
  {
    Life life(path, {}, 100);
    check_holds(life.replay, 400, 500);
  }
  Life life(path, {}, 1000);
  CHECK(life.replay.next_key() == 500);
  CHECK(life.replay.size() >= 100);
  check_holds(life.replay, 500 - life.replay.size(), 500);
}

TEST_CASE("whatever is cut off or changed, the items that are used are whole and follow each other") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  {
    Life life(path, {.segment_bytes = 4096});
    for (std::uint64_t i = 1; i <= 16; ++i) {
      add(life.log, life.replay, 50, client(1, i));
      CHECK(life.log.flush(Deadline::never()));
    }
  }
  const auto segments = segments_in(path);
  REQUIRE(segments.size() >= 3);
  Random random(testing::seed(), "damage");
  CAPTURE(testing::seed());
  for (int round = 0; round < 40; ++round) {
    const std::string copy = directory.file("copy" + std::to_string(round));
    std::filesystem::copy(path, copy, std::filesystem::copy_options::recursive);
    const std::string file = copy + "/" + segments[random.below(segments.size())];
    std::vector<std::byte> bytes = read_file(file, 1 << 20);
    const std::size_t at = random.below(bytes.size());
    if (round % 2 == 0) {
      std::filesystem::resize_file(file, at);
    } else {
      if (at >= 12 && at < 16) continue;  // zeros that mean nothing yet
      bytes[at] ^= std::byte{1} << random.below(8);
      std::ofstream(file, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    Life life(copy);
    CHECK_FALSE(life.said.empty());
    CHECK(life.said.front().starts_with(file + ": "));
    check_holds(life.replay, life.replay.next_key() - life.replay.size(), life.replay.next_key());
  }
}

TEST_CASE("a segment that is missing is said to be, and older items are not used") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  {
    Life life(path, {.segment_bytes = 4096});
    for (std::uint64_t i = 1; i <= 16; ++i) {
      add(life.log, life.replay, 50, client(1, i));
      CHECK(life.log.flush(Deadline::never()));
    }
  }
  const auto segments = segments_in(path);
  REQUIRE(segments.size() >= 3);
  std::filesystem::remove(path + "/" + segments[1]);
  Life life(path);
  REQUIRE(life.said.size() == 1);
  CHECK(life.said[0].starts_with(path + "/" + segments[2] + ": items "));
  CHECK(life.said[0].ends_with(" are missing before it; they and older ones are lost"));
  CHECK(life.replay.next_key() == 800);
  check_holds(life.replay, 800 - life.replay.size(), 800);
}

TEST_CASE("records of another layout are refused, with the difference") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  {
    Life life(path);
    add(life.log, life.replay, 5);
  }
  struct Other {
    std::uint64_t number;
    float value;
  };
  RunDirectory run({.path = path});
  PrioritizedReplay<Other> replay({.capacity = 10});
  const std::string error = error_of([&] { durability::ReplayLog log(run, replay); });
  CHECK(error.starts_with(path + "/replay/segment-000001-000000000001: record layouts differ: "));
}

TEST_CASE("a disk that takes no more makes inserts wait, and goes on where it stopped") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  {
    Life life(path, {.max_pending_bytes = 4096});
    add(life.log, life.replay, 50, client(1, 1));
    CHECK(life.log.flush(Deadline::never()));
    struct rlimit before {};
    ::getrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small {
      std::filesystem::file_size(path + "/" + segments_in(path)[0]) + 10, before.rlim_max
    };
    ::setrlimit(RLIMIT_FSIZE, &small);
    for (std::uint64_t i = 2; i <= 4; ++i) add(life.log, life.replay, 50, client(1, i));
    while (!life.log.statistics().is_failing) std::this_thread::sleep_for(1ms);
    add(life.log, life.replay, 60, client(1, 5));
    CHECK(life.log.await_room(Deadline::now()) == Outcome::timeout);
    CHECK(life.log.statistics().waits == 1);
    CHECK(life.log.commits().reached() == 1);
    ::setrlimit(RLIMIT_FSIZE, &before);
    CHECK(life.log.await_room(Deadline::never()) == Outcome::ok);
    CHECK(life.log.flush(Deadline::never()));
    CHECK_FALSE(life.log.statistics().is_failing);
    CHECK(life.said ==
          std::vector<std::string>{"the log of the replay cannot be written: " + path +
                                   "/replay/segment-000001-000000000001: cannot write: File too large"});
  }
  Life life(path);
  CHECK(life.said.empty());
  CHECK(life.log.restored().sessions == std::vector<ClientBatch>{client(1, 5)});
  check_holds(life.replay, 0, 260);
}

TEST_CASE("a log that may give up does so after its patience and leaves nothing behind") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  Life life(path, {.slow_disk = durability::SlowDisk::give_up, .patience = 1ms});
  add(life.log, life.replay, 50);
  CHECK(life.log.flush(Deadline::never()));
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 10, before.rlim_max };
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::uint64_t ticket = add(life.log, life.replay, 50);
  CHECK_FALSE(life.log.flush(Deadline::never()));
  ::setrlimit(RLIMIT_FSIZE, &before);
  while (life.log.commits().reached() < ticket) std::this_thread::sleep_for(1ms);
  CHECK(life.log.statistics().has_given_up);
  CHECK(life.log.await_room(Deadline::now()) == Outcome::ok);
  while (!segments_in(path).empty()) std::this_thread::sleep_for(1ms);
  CHECK(life.replay.size() == 100);
}

TEST_CASE("a log that is closed lets nobody wait") {
  const testing::TemporaryDirectory directory;
  Life life(directory.file("run"));
  life.log.close();
  CHECK(life.log.await_room(Deadline::never()) == Outcome::closed);
}

TEST_CASE("several threads add while their batches are written, and all are there again") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  {
    Life life(path, {.segment_bytes = 20'000, .max_pending_bytes = 20'000}, 5000);
    std::vector<std::jthread> threads;
    for (int t = 1; t <= 3; ++t)
      threads.emplace_back([&life, t] {
        // Who adds does not know the keys beforehand: these items are not told apart by them.
        const auto items = items_from(0, 10);
        const std::vector<float> priorities(10, 1.0f);
        for (std::uint64_t i = 1; i <= 100; ++i) {
          while (life.log.await_room(Deadline::after(1s)) != Outcome::ok) {
          }
          life.log.add(client(t, i), BatchView(std::span<const Item>(items)), priorities);
          if (i % 10 == 0) life.log.write_priorities();
        }
      });
    threads.clear();
    CHECK(life.log.flush(Deadline::never()));
  }
  Life life(path, {}, 5000);
  CHECK(life.log.restored().items == 3000);
  auto sessions = life.log.restored().sessions;
  std::sort(sessions.begin(), sessions.end(),
            [](const auto& a, const auto& b) { return a.client < b.client; });
  CHECK(sessions == std::vector<ClientBatch>{client(1, 100), client(2, 100), client(3, 100)});
}

TEST_CASE("after a kill at any moment, what was committed is there once, over many lives" *
          doctest::skip(!testing::kMayForkAndThread)) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  Random random(testing::seed(), "kills");
  CAPTURE(testing::seed());
  std::uint64_t committed = 0;
  for (int round = 0; round < 50; ++round) {
    const std::string acknowledged = directory.file("acknowledged");
    testing::work_until_killed(std::chrono::microseconds(random.below(10'000)), [&](auto begun) {
      Life life(path, {.segment_bytes = 30'000}, 2000);
      const auto sessions = life.log.restored().sessions;
      std::uint64_t batch = sessions.empty() ? 0 : sessions.front().number;
      std::ofstream file(acknowledged, std::ios::app);
      for (bool first = true;; first = false) {
        add(life.log, life.replay, 1 + batch % 40, client(1, batch + 1));
        ++batch;
        if (batch % 3 == 0 && !life.log.flush(Deadline::never())) ::_exit(2);
        if (batch % 3 == 0) file << life.replay.next_key() << " " << batch << std::endl;
        if (batch % 10 == 0) life.log.write_priorities();
        if (first) begun();
      }
    });
    std::ifstream file(acknowledged);
    std::uint64_t next = 0, batch = 0, last = 0;
    while (file >> next >> batch) committed = std::max(committed, next), last = batch;
    Life life(path, {.segment_bytes = 30'000}, 2000);
    const std::uint64_t end = life.replay.next_key();
    CHECK(end >= committed);
    check_holds(life.replay, end - life.replay.size(), end);
    CHECK(life.replay.size() >= std::min<std::uint64_t>(end, 2000));
    const auto sessions = life.log.restored().sessions;
    CHECK((sessions.empty() ? 0 : sessions.front().number) >= last);
    // Each batch once: the numbers of all batches up to the last one give the number of items.
    std::uint64_t expected = 0;
    for (std::uint64_t i = 0; !sessions.empty() && i < sessions.front().number; ++i) expected += 1 + i % 40;
    CHECK(end == expected);
  }
  CHECK(committed > 0);
}
