#include <doctest/doctest.h>

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>
#include <troop/replay/removers.hpp>
#include <troop/replay/samplers.hpp>
#include <troop/replay/snapshot.hpp>

#include "replay_records.hpp"
#include "temporary_directory.hpp"
#include "testing.hpp"

using troop::ArrayStorage;
using troop::FileError;
using troop::InversePriorityRemover;
using troop::Key;
using troop::load_snapshot;
using troop::NewestFirstSampler;
using troop::OldestFirstRemover;
using troop::Outcome;
using troop::PrioritizedReplay;
using troop::ProportionalSampler;
using troop::Random;
using troop::RateLimiter;
using troop::save_snapshot;
using troop::UniformRemover;
using troop::UniformSampler;
using troop::testing::Failures;
using troop::testing::kTorn;
using troop::testing::LargeRecord;
using troop::testing::number_of;
using troop::testing::record_of;
using troop::testing::records_from;
using troop::testing::SmallRecord;
using troop::testing::TemporaryDirectory;

namespace {

using Bytes = std::vector<char>;
using troop::testing::error_of;

Bytes read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::ptrdiff_t entries(const TemporaryDirectory& directory) {
  return std::distance(std::filesystem::directory_iterator(directory.path()), {});
}

/// The path at which the tests write, left out of messages.
std::string without(const std::string& path, std::string text) {
  const auto at = text.find(path);
  return at == std::string::npos ? text : text.replace(at, path.size(), "FILE");
}

/// A replay that has been used: full or not, with items of priority 0, updates and trims behind it.
template <class Replay, class Record>
void use(Replay& replay, std::size_t inserts, std::uint64_t seed) {
  Random random(seed, "use");
  for (Key next = 0; next < inserts;) {
    const std::size_t count = std::min<std::size_t>(1 + random.below(70), inserts - next);
    std::vector<float> priorities(count);
    for (auto& priority : priorities)
      priority = random.below(10) == 0 ? 0.0f : static_cast<float>(std::pow(10.0, random.uniform(-4, 4)));
    CHECK(replay.add(records_from<Record>(next, count), priorities) == next);
    next += count;
    std::vector<Key> keys(20);
    std::vector<float> updated(20);
    for (auto& key : keys) key = random.below(next);
    for (auto& priority : updated) priority = static_cast<float>(random.uniform(0.0, 100.0));
    replay.update(keys, updated);
    if (random.below(8) == 0) replay.trim();
    if (random.below(4) == 0 && replay.statistics().total_priority > 0.0) replay.sample(5, {}, random);
  }
}

/// What can be drawn, with its probability; every record is checked.
template <class Replay>
std::map<Key, double> content(Replay& replay) {
  Random random(1, "content");
  std::map<Key, double> probabilities;
  Failures failures;
  for (int round = 0; round < 20; ++round) {
    const auto batch = replay.sample(std::max<std::size_t>(replay.size(), 200), {}, random);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (number_of(batch.records()[i]) != batch.keys[i])
        failures.add("key " + std::to_string(batch.keys[i]));
      probabilities[batch.keys[i]] = batch.probabilities[i];
    }
  }
  TROOP_CHECK_NONE(failures);
  return probabilities;
}

template <class Statistics>
auto counters(const Statistics& s) {
  return std::array{s.size,    s.inserts, s.evictions, s.trimmed,
                    s.samples, s.redraws, s.updates,   s.stale_updates};
}

template <class Record, class Sampler, class Remover>
void save_load_save(std::size_t capacity, std::size_t inserts) {
  CAPTURE(capacity);
  CAPTURE(inserts);
  using Replay = PrioritizedReplay<Record, ArrayStorage, Sampler, Remover>;
  const TemporaryDirectory directory;
  const std::string first = directory.file("first"), second = directory.file("second");
  const troop::ReplayOptions options{
      .capacity = capacity, .soft_capacity = capacity - capacity / 4, .seed = 5};
  Replay saved(options);
  use<Replay, Record>(saved, inserts, 3);
  RateLimiter limiter({.min_inserts = 10});
  limiter.await_insert(17);
  limiter.await_sample(5);
  Random random(99);
  random();
  CHECK(save_snapshot(first, saved, {.limiter = &limiter, .random = &random}) == Outcome::ok);

  Replay loaded(options);
  loaded.add(record_of<Record>(1), 7.0f);  // is replaced
  RateLimiter other_limiter({.min_inserts = 10});
  Random other_random(1);
  load_snapshot(first, loaded, {.limiter = &other_limiter, .random = &other_random});
  CHECK(counters(loaded.statistics()) == counters(saved.statistics()));
  CHECK(loaded.statistics().total_priority == saved.statistics().total_priority);
  CHECK(loaded.max_priority() == saved.max_priority());
  CHECK(other_limiter.state() == limiter.state());
  CHECK(other_random == random);
  CHECK(save_snapshot(second, loaded, {.limiter = &other_limiter, .random = &other_random}) == Outcome::ok);
  CHECK(read(first) == read(second));

  const auto info = troop::read_snapshot_info(first);
  CHECK(info.items == saved.size());
  CHECK(info.replays == 1);
  CHECK(info.layout == saved.layout().describe());
  CHECK(info.sampler == Sampler::kName);
  if (!(saved.statistics().total_priority > 0.0)) return;
  CHECK(content(loaded) == content(saved));
  // It goes on: new keys follow, and stale ones are recognised.
  CHECK(loaded.add(record_of<Record>(static_cast<std::uint32_t>(inserts)), 1.0f) == inserts);
  content(loaded);
}

template <class Sampler, class Remover>
void save_load_save_all() {
  for (const auto& [capacity, inserts] :
       std::vector<std::pair<std::size_t, std::size_t>>{{1, 1}, {1, 5}, {7, 3}, {64, 1000}, {1000, 700}}) {
    save_load_save<SmallRecord, Sampler, Remover>(capacity, inserts);
    save_load_save<LargeRecord, Sampler, Remover>(capacity, inserts);
  }
}

}  // namespace

TEST_CASE("saved, loaded and saved again, a replay gives the same bytes, and goes on as it was") {
  SUBCASE("proportional, oldest first") {
    save_load_save_all<ProportionalSampler, OldestFirstRemover>();
    save_load_save<SmallRecord, ProportionalSampler, OldestFirstRemover>(10'000, 25'000);  // several pieces
  }
  SUBCASE("proportional, inverse priority") {
    save_load_save_all<ProportionalSampler, InversePriorityRemover>();
    save_load_save<SmallRecord, ProportionalSampler, InversePriorityRemover>(10'000, 25'000);
  }
  SUBCASE("uniform, uniform") {
    save_load_save_all<UniformSampler, UniformRemover>();
  }
  SUBCASE("newest first, oldest first") {
    save_load_save_all<NewestFirstSampler, OldestFirstRemover>();
  }
}

TEST_CASE("the shards of a replay are saved in one file and loaded into as many shards") {
  using Sharded = troop::ShardedReplay<PrioritizedReplay<SmallRecord>>;
  const TemporaryDirectory directory;
  const std::string first = directory.file("first"), second = directory.file("second");
  Sharded saved({.capacity = 300}, 3), loaded({.capacity = 300}, 3), two({.capacity = 300}, 2);
  for (std::uint32_t batch = 0; batch < 40; ++batch) {
    std::vector<float> priorities(10);
    for (std::size_t i = 0; i < 10; ++i) priorities[i] = static_cast<float>(1 + batch % 7 + i);
    saved.add(records_from<SmallRecord>(10 * batch, 10), priorities);
  }
  CHECK(save_snapshot(first, saved) == Outcome::ok);
  CHECK(troop::read_snapshot_info(first).replays == 3);
  load_snapshot(first, loaded);
  CHECK(counters(loaded.statistics()) == counters(saved.statistics()));
  save_snapshot(second, loaded);
  CHECK(read(first) == read(second));
  Random a(5), b(5);
  const auto expected = saved.sample(100, {}, a), found = loaded.sample(100, {}, b);
  CHECK(found.keys == expected.keys);
  CHECK(found.probabilities == expected.probabilities);
  for (std::size_t i = 0; i < 100; ++i)
    CHECK(number_of(found.records()[i]) == number_of(expected.records()[i]));
  CHECK(without(first, error_of([&] { load_snapshot(first, two); })) == "FILE: holds 3 replays, expected 2");
}

TEST_CASE("a replay without items is saved with its next key") {
  const TemporaryDirectory directory;
  PrioritizedReplay<SmallRecord> replay({.capacity = 5}), loaded({.capacity = 5});
  replay.add(records_from<SmallRecord>(0, 12), std::vector<float>(12, 1.0f));
  replay.clear();
  save_snapshot(directory.file("empty"), replay);
  load_snapshot(directory.file("empty"), loaded);
  CHECK(loaded.size() == 0);
  CHECK(loaded.add(record_of<SmallRecord>(12), 1.0f) == 12);
}

TEST_CASE("a snapshot goes into a replay of another capacity if its items fit in") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  PrioritizedReplay<SmallRecord> replay({.capacity = 50}), larger({.capacity = 77}),
      smaller({.capacity = 49});
  replay.add(records_from<SmallRecord>(0, 120), std::vector<float>(120, 1.0f));
  save_snapshot(path, replay);
  load_snapshot(path, larger);
  CHECK(larger.size() == 50);
  CHECK(content(larger) == content(replay));
  smaller.add(record_of<SmallRecord>(0), 3.0f);
  CHECK(without(path, error_of([&] { load_snapshot(path, smaller); })) ==
        "FILE: holds more items than the capacity of the replay, 49");
  CHECK(smaller.size() == 1);
}

TEST_CASE("a snapshot of another kind of replay is refused by what differs, and nothing changes") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  PrioritizedReplay<SmallRecord> replay({.capacity = 8, .alpha = 0.6});
  replay.add(records_from<SmallRecord>(0, 3), std::vector<float>(3, 2.0f));
  save_snapshot(path, replay);
  const auto refused = [&](auto& other, const std::string& text) {
    const auto before = counters(other.statistics());
    CHECK(without(path, error_of([&] { load_snapshot(path, other); })) == text);
    CHECK(counters(other.statistics()) == before);
  };
  PrioritizedReplay<SmallRecord> alpha({.capacity = 8, .alpha = 0.5});
  refused(alpha, "FILE: holds priorities to the power of 0.6, expected 0.5 (alpha)");
  PrioritizedReplay<SmallRecord, ArrayStorage, UniformSampler> sampler({.capacity = 8});
  refused(sampler, "FILE: holds a replay with sampler \"proportional\", expected \"uniform\"");
  PrioritizedReplay<SmallRecord, ArrayStorage, ProportionalSampler, UniformRemover> remover({.capacity = 8});
  refused(remover, "FILE: holds a replay with remover \"oldest first\", expected \"uniform\"");
  PrioritizedReplay<LargeRecord> layout({.capacity = 8});
  refused(layout, "FILE: record layouts differ: field 0: observation u32[4], expected words u64[255]");
  PrioritizedReplay<SmallRecord> same({.capacity = 8});
  RateLimiter limiter({});
  CHECK(without(path, error_of([&] { load_snapshot(path, same, {.limiter = &limiter}); })) ==
        "FILE: holds no counters of a rate limiter");
  Random random(1);
  CHECK(without(path, error_of([&] { load_snapshot(path, same, {.random = &random}); })) ==
        "FILE: holds no state of a random generator");
  CHECK(same.size() == 0);
}

TEST_CASE("a snapshot that is cut off anywhere or has any bit flipped is refused, and nothing changes") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  PrioritizedReplay<SmallRecord> replay({.capacity = 8}), target({.capacity = 8});
  replay.add(records_from<SmallRecord>(0, 11), std::vector<float>(11, 2.0f));
  target.add(records_from<SmallRecord>(0, 2), std::vector<float>{1.0f, 3.0f});
  RateLimiter limiter({.min_inserts = 1});
  Random random(4);
  save_snapshot(path, replay, {.limiter = &limiter, .random = &random});
  const Bytes whole = read(path);
  const auto before = counters(target.statistics());
  const double total = target.statistics().total_priority;
  Failures failures;
  const auto try_to_load = [&](const Bytes& bytes, const std::string& what) {
    write(path, bytes);
    try {
      load_snapshot(path, target, {.limiter = &limiter, .random = &random});
      failures.add(what + " was accepted");
    } catch (const FileError& error) {
      if (std::string(error.what()).find(path) != 0) failures.add(what + " without a name: " + error.what());
    }
    if (counters(target.statistics()) != before || target.statistics().total_priority != total)
      failures.add(what + " changed the replay");
  };
  for (std::size_t length = 0; length < whole.size(); ++length)
    try_to_load(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)),
                "the first " + std::to_string(length) + " bytes");
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    Bytes changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    try_to_load(changed, "flipped bit " + std::to_string(bit));
  }
  Bytes longer = whole;
  longer.push_back(0);
  try_to_load(longer, "one byte more");
  TROOP_CHECK_NONE(failures);
  write(path, whole);
  load_snapshot(path, target, {.limiter = &limiter, .random = &random});
  CHECK(content(target) == content(replay));
}

TEST_CASE("counts that no rate limiter can have had are refused before anything is loaded") {
  using troop::detail::SnapshotBlockHead;
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  PrioritizedReplay<SmallRecord> replay({.capacity = 8}), target({.capacity = 8});
  replay.add(records_from<SmallRecord>(0, 3), std::vector<float>(3, 2.0f));
  RateLimiter limiter({.min_inserts = 1});
  save_snapshot(path, replay, {.limiter = &limiter});
  Bytes bytes = read(path);
  char* content = bytes.data() + bytes.size() - sizeof(SnapshotBlockHead) - 16;
  const std::array<std::uint64_t, 2> counts{0, 5};  // inserts, samples; found by fuzzing
  std::memcpy(content, counts.data(), sizeof counts);
  SnapshotBlockHead block;
  std::memcpy(&block, content - sizeof block, sizeof block);
  block.crc = troop::detail::checksum(block, std::as_bytes(std::span(counts)));
  std::memcpy(content - sizeof block, &block, sizeof block);
  write(path, bytes);
  CHECK(without(path, error_of([&] { load_snapshot(path, target, {.limiter = &limiter}); })) ==
        "FILE: is damaged: samples: 5 is not allowed; expected 0, as there were no inserts");
  CHECK(target.size() == 0);
}

TEST_CASE("a file that is foreign, of a newer version or not there is refused with the reason") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  PrioritizedReplay<SmallRecord> replay({.capacity = 8});
  const auto message = [&] { return without(path, error_of([&] { load_snapshot(path, replay); })); };
  CHECK(message() == "FILE: cannot open: No such file or directory");
  write(path, {'h', 'e', 'l', 'l', 'o'});
  CHECK(message() == "FILE: is not a troop replay (it does not begin with TROOPRPL)");
  CHECK(without(path, error_of([&] { troop::read_snapshot_info(path); })) ==
        "FILE: is not a troop replay (it does not begin with TROOPRPL)");
  save_snapshot(path, replay);
  Bytes newer = read(path);
  newer[8] = 2;
  write(path, newer);
  CHECK(message() == "FILE: is of format version 2; this program reads version 1");
}

TEST_CASE("a stop ends the saving, and the old file stays") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  PrioritizedReplay<SmallRecord> replay({.capacity = 20'000});
  replay.add(records_from<SmallRecord>(0, 20'000), std::vector<float>(20'000, 1.0f));
  save_snapshot(path, replay);
  const Bytes before = read(path);
  replay.update(std::array<Key, 1>{5}, std::array{9.0f});
  std::stop_source source;
  std::vector<std::uint64_t> reported;
  const auto outcome =
      save_snapshot(path, replay, {}, {.stop = source.get_token(), .progress = [&](auto done, auto all) {
                                         reported.push_back(done);
                                         CHECK(all == 20'000);
                                         if (reported.size() == 2) source.request_stop();
                                       }});
  CHECK(outcome == Outcome::cancelled);
  CHECK(reported == std::vector<std::uint64_t>{4096, 8192});
  CHECK(read(path) == before);
  CHECK(entries(directory) == 1);
}

TEST_CASE("a full disk is an error, the old file stays, and the replay goes on") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  PrioritizedReplay<SmallRecord> replay({.capacity = 20'000});
  replay.add(records_from<SmallRecord>(0, 20'000), std::vector<float>(20'000, 1.0f));
  save_snapshot(path, replay);
  const Bytes before = read(path);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = limit;
  small.rlim_cur = 300'000;  // write() then fails as it does on a full disk
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = error_of([&] { save_snapshot(path, replay); });
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, old_handler);
  CHECK(without(path, message) == "FILE: cannot write: File too large");
  CHECK(read(path) == before);
  CHECK(entries(directory) == 1);
  CHECK(replay.add(record_of<SmallRecord>(20'000), 1.0f) == 20'000);
}

namespace {

/// Saves again and again while writers, an updater and a sampler are at work: every file loads, and every
/// record in it belongs to its key.
template <class Record, class Remover>
void save_in_use(std::size_t capacity) {
  using Replay = PrioritizedReplay<Record, ArrayStorage, ProportionalSampler, Remover>;
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  Replay replay({.capacity = capacity, .alpha = 1.0});
  replay.add(records_from<Record>(0, capacity), std::vector<float>(capacity, 1.0f));
  std::atomic<bool> done{false};
  std::thread writer([&] {  // one, so that the key is the number
    Random random(1);
    for (Key next = capacity; !done;) {
      const std::size_t count = 1 + random.below(20);
      next = replay.add(records_from<Record>(next, count), std::vector<float>(count, 1.0f)) + count;
    }
  });
  std::thread learner([&] {
    Random random(2);
    while (!done) {
      const auto batch = replay.sample(8, {}, random);
      replay.update(batch.keys, std::vector<float>(8, 2.0f));
    }
  });
  Failures failures;
  for (int round = 0; round < 10; ++round) {
    save_snapshot(path, replay);
    Replay loaded({.capacity = capacity, .alpha = 1.0});
    load_snapshot(path, loaded);
    const auto statistics = loaded.statistics();
    if (statistics.size > capacity) failures.add("too many items");
    if (statistics.evictions + statistics.size != statistics.inserts) failures.add("counters");
    if (!(statistics.total_priority > 0.0)) continue;  // all were overwritten while they were copied
    Random random(3);
    const auto batch = loaded.sample(500, {}, random);
    for (std::size_t i = 0; i < batch.size(); ++i)
      if (number_of(batch.records()[i]) != batch.keys[i]) failures.add("a record of another key");
  }
  done = true;
  writer.join();
  learner.join();
  TROOP_CHECK_NONE(failures);
}

}  // namespace

TEST_CASE("a replay in use is saved without a torn or foreign record") {
  SUBCASE("44 bytes, oldest first") {
    save_in_use<SmallRecord, OldestFirstRemover>(10'000);
  }
  SUBCASE("44 bytes, inverse priority") {
    save_in_use<SmallRecord, InversePriorityRemover>(10'000);
  }
  SUBCASE("2 KiB, oldest first") {
    save_in_use<LargeRecord, OldestFirstRemover>(500);
  }
  SUBCASE("2 KiB, uniform") {
    save_in_use<LargeRecord, UniformRemover>(500);
  }
}
