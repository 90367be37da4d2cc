#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/replay/heap_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/removers.hpp>
#include <troop/replay/samplers.hpp>
#include <troop/replay/snapshot.hpp>
#include <troop/serialization/cereal.hpp>

#include "temporary_directory.hpp"
#include "testing.hpp"

using troop::Batch;
using troop::ByteWriter;
using troop::HeapStorage;
using troop::InversePriorityRemover;
using troop::Key;
using troop::NewestFirstSampler;
using troop::OldestFirstRemover;
using troop::PrioritizedReplay;
using troop::ProportionalSampler;
using troop::Random;
using troop::UniformRemover;
using troop::UniformSampler;
using troop::testing::Failures;
using troop::testing::TemporaryDirectory;

namespace {

/// As many rewards as its number says, so that a mixed-up one is recognised.
struct Episode {
  Episode() = default;
  explicit Episode(std::uint64_t number_)
      : number(number_), rewards(number_ % 37, static_cast<float>(number_)) {}

  std::uint64_t number = 0;
  std::vector<float> rewards;
  std::string note = "an episode";

  bool is_whole() const { return *this == Episode(number); }
  friend bool operator==(const Episode&, const Episode&) = default;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(number, rewards, note);
  }
};

std::vector<Episode> episodes_from(std::uint64_t first, std::size_t count) {
  std::vector<Episode> episodes;
  for (std::size_t i = 0; i < count; ++i) episodes.emplace_back(first + i);
  return episodes;
}

template <class Replay>
Key add(Replay& replay, std::size_t count, float priority = 1.0f) {
  return replay.add(episodes_from(replay.statistics().inserts, count), std::vector<float>(count, priority));
}

/// Counts itself; calls back when one is destroyed; throws when the `throw_at`-th copy is made.
struct Counted {
  explicit Counted(int number_) : number(number_) { ++alive; }
  Counted(const Counted& other) : number(other.number) {
    if (++copies == throw_at) throw std::runtime_error("no copy");
    ++alive;
  }
  Counted& operator=(const Counted&) = delete;
  ~Counted() {
    --alive;
    if (on_destruction) on_destruction();
  }

  static void reset() {
    copies = 0;
    throw_at = -1;
    on_destruction = nullptr;
  }

  int number;
  static inline std::atomic<int> alive{0};
  static inline int copies = 0, throw_at = -1;
  static inline std::function<void()> on_destruction;
};

struct NoSerializer;

template <class Remover = OldestFirstRemover>
using CountedReplay =
    PrioritizedReplay<Counted, HeapStorage<Counted, NoSerializer>, ProportionalSampler, Remover>;
using troop::testing::error_of;

std::vector<std::byte> bytes_of(std::uint64_t length, const std::string& text) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.number(length);
  writer.bytes(std::as_bytes(std::span(text)));
  return bytes;
}

/// Whether another thread gets through to the replay: then nobody holds its lock.
template <class Replay>
bool lock_is_free(const Replay& replay) {
  std::atomic<bool> through{false};
  std::thread other([&] {
    replay.size();
    through = true;
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!through && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  const bool free = through;
  if (free) other.join();
  if (!free) other.detach();
  return free;
}

}  // namespace

TEST_CASE("the heap storage is a storage of objects, and swaps pointers in and out") {
  using Storage = HeapStorage<std::string>;
  static_assert(troop::ObjectStorage<Storage>);
  static_assert(troop::ObjectStorage<HeapStorage<Counted, NoSerializer>>);
  Storage storage(5);
  CHECK(storage.capacity() == 5);
  const auto object = std::make_shared<const std::string>("a");
  std::array<Storage::Pointer, 2> items{object, std::make_shared<const std::string>("b")};
  storage.exchange(3, items);
  CHECK((items[0] == nullptr && items[1] == nullptr));
  CHECK(object.use_count() == 2);
  std::array<Storage::Pointer, 3> got;
  storage.gather(std::array<std::size_t, 3>{4, 3, 0}, got.data());
  CHECK(*got[0] == "b");
  CHECK(got[1] == object);
  CHECK(got[2] == nullptr);
  storage.exchange(3, items);
  CHECK(items[0] == object);
  CHECK(error_of([] { Storage(0); }) == "capacity: 0 is not allowed; expected a positive integer");
  CHECK(error_of([] { Storage(std::size_t{1} << 50); }) ==
        "capacity: 1125899906842624 is not allowed; expected at most 4398046511104");
}

TEST_CASE("objects are read back from their bytes, and other bytes are refused") {
  using Storage = HeapStorage<std::string>;
  CHECK(Storage::format() == "objects, cereal");
  const std::vector<Storage::Pointer> items{std::make_shared<const std::string>("first"),
                                            std::make_shared<const std::string>()};
  std::vector<std::byte> bytes;
  Storage::save(items, bytes);
  const auto loaded = Storage::load(2, bytes);
  REQUIRE(loaded.size() == 2);
  CHECK(*loaded[0] == "first");
  CHECK(loaded[1]->empty());
  CHECK(Storage::load(0, {}).empty());

  CHECK(error_of([&] { Storage::load(1, bytes); }) == "16 bytes too many");
  CHECK(error_of([&] { Storage::load(3, bytes); }) == "ends 8 bytes too early");
  CHECK(error_of([&] { Storage::load(std::size_t{1} << 60, bytes); }) ==
        std::to_string(bytes.size()) + " bytes for 1152921504606846976 objects");
  CHECK(error_of([&] { Storage::load(1, bytes_of(~std::uint64_t{0}, "abc")); }) ==
        "18446744073709551615 elements in 3 bytes");
  CHECK(error_of([&] { Storage::load(1, bytes_of(3, "abc")); }) == "ends 5 bytes too early");

  Random random(troop::testing::seed(), "mutations");
  for (int round = 0; round < 5000; ++round) {
    auto changed = bytes;
    for (int i = 0; i < 3; ++i)
      changed[random.below(changed.size())] = static_cast<std::byte>(random.below(256));
    changed.resize(random.below(changed.size() + 1));
    try {
      Storage::load(random.below(4), changed);
    } catch (const troop::Error&) {
    }
  }
}

TEST_CASE_TEMPLATE("a replay of objects adds, samples, updates, trims and clears", Remover,
                   OldestFirstRemover, InversePriorityRemover, UniformRemover) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "objects");
  PrioritizedReplay<Episode, HeapStorage<Episode>, ProportionalSampler, Remover> replay(
      {.capacity = 50, .soft_capacity = 30});
  Failures failures;
  std::size_t inserted = 0;
  Batch<Episode> batch;
  for (int round = 0; round < 400; ++round) {
    const std::size_t count = random.below(round % 10 == 0 ? 120 : 9);
    CHECK(add(replay, count, 0.5f) == inserted);
    inserted += count;
    if (inserted == 0) continue;
    if (replay.statistics().total_priority > 0.0) {
      replay.sample(20, {}, random, batch);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const auto& object = *batch.records()[i];
        if (object.number != batch.keys[i] || !object.is_whole())
          failures.add("key " + std::to_string(batch.keys[i]));
      }
      replay.update(batch.keys, std::vector<float>(20, static_cast<float>(random.uniform(0.1, 9.0))));
    }
    if (random.below(7) == 0) {
      replay.trim();
      CHECK(replay.size() <= 30);
    }
    if (random.below(50) == 0) {
      replay.clear();
      CHECK(replay.size() == 0);
    }
  }
  TROOP_CHECK_NONE(failures);
  CHECK(replay.statistics().evictions + replay.size() == inserted);
}

TEST_CASE_TEMPLATE("objects are drawn with every sampler", Sampler, ProportionalSampler, UniformSampler,
                   NewestFirstSampler) {
  PrioritizedReplay<std::string, HeapStorage<std::string>, Sampler> replay({.capacity = 3});
  replay.add(std::string("zero"), 1.0f);
  replay.add(std::make_shared<const std::string>("one"), 0.0f);
  replay.add("two", 3.0f);
  Random random(1);
  const auto batch = replay.sample(100, {}, random);
  for (std::size_t i = 0; i < 100; ++i) CHECK(*batch.records()[i] == (batch.keys[i] == 0 ? "zero" : "two"));
}

TEST_CASE("objects are added by value, by pointer, one or many, with or without priorities") {
  PrioritizedReplay<Episode, HeapStorage<Episode>> replay({.capacity = 8, .alpha = 1.0});
  const auto shared = std::make_shared<const Episode>(1u);
  CHECK(replay.add(Episode(0), 1.0f) == 0);
  CHECK(replay.add(shared, 2.0f) == 1);
  CHECK(shared.use_count() == 2);
  CHECK(replay.add(std::make_shared<Episode>(2u), 2.0f) == 2);
  CHECK(replay.add(episodes_from(3, 2), std::array{1.0f, 1.0f}) == 3);
  CHECK(replay.add(std::vector{std::make_shared<const Episode>(5u)}, std::array{4.0f}) == 5);
  CHECK(replay.add(episodes_from(6, 1)) == 6);
  CHECK(replay.add(std::vector{std::make_shared<const Episode>(7u)}) == 7);
  CHECK(replay.statistics().total_priority == 1 + 2 + 2 + 1 + 1 + 4 + 4 + 4);
  Random random(1);
  const auto batch = replay.sample(200, {}, random);
  for (std::size_t i = 0; i < 200; ++i) CHECK(batch.records()[i]->number == batch.keys[i]);
  CHECK(std::any_of(batch.records().begin(), batch.records().end(),
                    [&](const auto& object) { return object == shared; }));
}

TEST_CASE("a null pointer or a wrong number of priorities is refused, and nothing is added") {
  PrioritizedReplay<Episode, HeapStorage<Episode>> replay({.capacity = 8});
  CHECK(error_of([&] {
          replay.add(std::vector{std::make_shared<const Episode>(0u), std::shared_ptr<const Episode>()},
                     std::array{1.0f, 1.0f});
        }) == "records[1]: null is not allowed; expected a pointer to an object");
  CHECK(error_of([&] { replay.add(episodes_from(0, 2), std::array{1.0f}); }) ==
        "number of priorities: 1 is not allowed; expected 2, one for each of the records");
  CHECK(error_of([&] { replay.add(Episode(0), -1.0f); }).starts_with("priorities[0]: -1"));
  CHECK(replay.statistics().inserts == 0);
}

TEST_CASE("a copy that throws leaves the replay as it was") {
  Counted::reset();
  {
    CountedReplay<> replay({.capacity = 4, .alpha = 1.0});
    std::vector<Counted> objects;
    objects.reserve(3);
    for (int i = 0; i < 3; ++i) objects.emplace_back(i);
    replay.add(objects, std::array{1.0f, 2.0f, 4.0f});
    CHECK(Counted::alive == 6);
    Counted::copies = 0;
    Counted::throw_at = 3;
    CHECK_THROWS_AS(replay.add(objects, std::array{8.0f, 8.0f, 8.0f}), std::runtime_error);
    CHECK(Counted::alive == 6);
    CHECK(replay.statistics().inserts == 3);
    CHECK(replay.statistics().total_priority == 7.0);
    CHECK(replay.max_priority() == 4.0f);
  }
  CHECK(Counted::alive == 0);
}

TEST_CASE_TEMPLATE("an object is destroyed when nobody holds it, and never under the replay's lock", Remover,
                   OldestFirstRemover, InversePriorityRemover, UniformRemover) {
  Counted::reset();
  int destroyed = 0, under_lock = 0;
  {
    CountedReplay<Remover> replay({.capacity = 8, .soft_capacity = 4});
    const auto add = [&](int count) {
      for (int i = 0; i < count; ++i) replay.add(std::make_shared<const Counted>(i), 1.0f);
    };
    add(8);
    CHECK(Counted::alive == 8);
    Counted::on_destruction = [&] {
      ++destroyed;
      if (!lock_is_free(replay)) ++under_lock;
    };
    add(2);
    CHECK(destroyed == 2);
    CHECK(replay.trim() == 4);
    CHECK(destroyed == 6);
    CHECK(Counted::alive == 4);

    // A batch keeps its objects; sampled into again, it lets go those that the replay does not hold either.
    Random random(1);
    auto batch = replay.sample(64, {}, random);
    replay.clear();
    CHECK(Counted::alive == 4);
    CHECK(destroyed == 6);
    add(1);
    CHECK(Counted::alive == 5);
    replay.sample(2, {}, random, batch);
    CHECK(destroyed == 10);
    CHECK(Counted::alive == 1);
    std::vector<std::shared_ptr<const Counted>> many(100);
    for (int i = 0; i < 100; ++i) many[static_cast<std::size_t>(i)] = std::make_shared<const Counted>(i);
    replay.add(std::exchange(many, {}), std::vector<float>(100, 1.0f));
    CHECK(Counted::alive == 9);  // one of them in the batch
    replay.clear();
    CHECK(Counted::alive == 1);
    Counted::on_destruction = nullptr;
  }
  CHECK(under_lock == 0);
  CHECK(Counted::alive == 0);
}

TEST_CASE("threads add, sample, trim and clear objects at once") {
  PrioritizedReplay<Episode, HeapStorage<Episode>, ProportionalSampler, UniformRemover> replay(
      {.capacity = 64, .soft_capacity = 32});
  add(replay, 1);
  std::atomic<std::uint64_t> drawn{0};
  Failures failures;
  std::vector<std::jthread> threads;
  for (std::uint64_t writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      for (std::uint64_t i = 0; i < 400; ++i)
        replay.add(episodes_from(writer * 100'000 + i * 7, 7), std::vector<float>(7, 1.0f));
    });
  }
  for (std::uint64_t sampler = 0; sampler < 2; ++sampler) {
    threads.emplace_back([&, sampler] {
      Random random(sampler, "sampler");
      Batch<Episode> batch;
      for (int i = 0; i < 400; ++i) {
        try {
          replay.sample(16, {}, random, batch);
        } catch (const troop::EmptyReplay&) {
          continue;
        }
        for (const auto& object : batch.records())
          if (object == nullptr || !object->is_whole()) failures.add("an object");
        drawn += 16;
        replay.update(batch.keys, batch.weights);
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 200; ++i) {
      replay.trim();
      if (i % 50 == 0) replay.clear();
    }
  });
  threads.clear();
  TROOP_CHECK_NONE(failures);
  CHECK(replay.statistics().samples == drawn);
  CHECK(replay.statistics().inserts == 1 + 2 * 400 * 7);
}

TEST_CASE_TEMPLATE("a replay of objects is saved and loaded", Remover, OldestFirstRemover,
                   InversePriorityRemover) {
  using Replay = PrioritizedReplay<Episode, HeapStorage<Episode>, ProportionalSampler, Remover>;
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  Replay replay({.capacity = 200, .soft_capacity = 150});
  add(replay, 250, 0.5f);
  add(replay, 40, 2.0f);
  replay.trim();
  CHECK(save_snapshot(path, replay) == troop::Outcome::ok);

  Replay loaded({.capacity = 200, .soft_capacity = 150});
  add(loaded, 77, 9.0f);
  load_snapshot(path, loaded);
  save_snapshot(directory.file("again"), loaded);
  CHECK(loaded.size() == 150);
  CHECK(loaded.statistics().total_priority == doctest::Approx(replay.statistics().total_priority));
  Random random(1);
  const auto batch = loaded.sample(1000, {}, random);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    CHECK(batch.records()[i]->number == batch.keys[i]);
    CHECK(batch.records()[i]->is_whole());
  }
  CHECK(troop::read_file(path, 1 << 24) == troop::read_file(directory.file("again"), 1 << 24));
  CHECK(troop::read_snapshot_info(path).storage == "objects, cereal");
}

TEST_CASE("a snapshot whose objects cannot be read is refused, and nothing changes") {
  using Written = PrioritizedReplay<std::string, HeapStorage<std::string>>;
  using Read = PrioritizedReplay<Episode, HeapStorage<Episode>>;
  const TemporaryDirectory directory;
  const std::string path = directory.file("replay");
  Written written({.capacity = 8});
  written.add("no episode", 1.0f);
  save_snapshot(path, written);
  Read replay({.capacity = 8});
  add(replay, 3);
  CHECK(error_of([&] { load_snapshot(path, replay); }).find("replay: is damaged: ") != std::string::npos);
  CHECK(replay.size() == 3);
  CHECK(replay.statistics().inserts == 3);
}
