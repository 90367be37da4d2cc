#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rank_based.hpp>
#include <troop/replay/removers.hpp>
#include <troop/replay/samplers.hpp>
#include <troop/replay/snapshot.hpp>

#include "replay_records.hpp"
#include "temporary_directory.hpp"
#include "testing.hpp"

using troop::ArrayStorage;
using troop::Batch;
using troop::BatchView;
using troop::Key;
using troop::NewestFirstSampler;
using troop::OldestFirstRemover;
using troop::PrioritizedReplay;
using troop::PriorityHistogram;
using troop::ProportionalSampler;
using troop::Random;
using troop::RankBasedSampler;
using troop::UniformRemover;
using troop::UniformSampler;
using troop::WeightNormalizer;
using troop::testing::Failures;
using troop::testing::LargeRecord;
using troop::testing::number_of;
using troop::testing::records_from;
using troop::testing::SmallRecord;
using troop::testing::TemporaryDirectory;

namespace {

template <class Replay>
std::map<int, std::uint64_t> bins_of(const Replay& replay) {
  std::map<int, std::uint64_t> bins;
  for (const PriorityHistogram::Bin& bin : replay.priority_histogram().bins)
    if (bin.count > 0) bins[bin.exponent] = bin.count;
  return bins;
}

/// Lets a test do something in the middle of a call of the replay, under its lock.
class SlowStorage {
 public:
  using Options = ArrayStorage::Options;
  SlowStorage(std::size_t capacity, troop::RecordLayout layout, const Options& options)
      : storage_(capacity, std::move(layout), options) {}
  const troop::RecordLayout& layout() const { return storage_.layout(); }
  std::size_t capacity() const { return storage_.capacity(); }
  void write(std::size_t slot, const BatchView& batch) {
    if (on_write) on_write();
    storage_.write(slot, batch);
  }
  void gather(std::span<const std::size_t> slots, std::byte* records) const noexcept {
    storage_.gather(slots, records);
  }
  void prefetch(std::size_t slot) const noexcept { storage_.prefetch(slot); }
  static std::string format() { return ArrayStorage::format(); }
  void save(std::span<const std::size_t> slots, std::vector<std::byte>& out) const {
    storage_.save(slots, out);
  }
  void validate(std::size_t count, std::span<const std::byte> bytes) const {
    storage_.validate(count, bytes);
  }
  void load(std::span<const std::size_t> slots, std::span<const std::byte> bytes) {
    storage_.load(slots, bytes);
  }

  static inline std::function<void()> on_write;

 private:
  ArrayStorage storage_;
};

}  // namespace

TEST_CASE_TEMPLATE("items without a priority get the greatest that was ever given", Record, SmallRecord,
                   LargeRecord) {
  PrioritizedReplay<Record> replay({.capacity = 4, .alpha = 1.0});
  CHECK(replay.max_priority() == 1.0f);
  CHECK(replay.add(records_from<Record>(0, 2)) == 0);
  CHECK(replay.statistics().total_priority == 2.0);
  replay.update(std::array<Key, 2>{0, 1}, std::array{0.25f, 0.5f});
  CHECK(replay.max_priority() == 1.0f);  // that of the first items counts, for it was given to them
  replay.add(records_from<Record>(2, 2), std::array{8.0f, 0.0f});
  CHECK(replay.max_priority() == 8.0f);
  replay.add(BatchView(replay.layout(), records_from<Record>(4, 1).data(), 1));
  CHECK(replay.statistics().total_priority == 0.5 + 8 + 8);
  // It is not forgotten with its item, and a refused one does not count.
  replay.clear();
  CHECK(replay.statistics().max_priority == 8.0f);
  CHECK_THROWS_AS(replay.add(records_from<Record>(5, 2), std::array{16.0f, -1.0f}), troop::InvalidArgument);
  CHECK(replay.max_priority() == 8.0f);
  CHECK(replay.add(records_from<Record>(5, 1)) == 5);
  CHECK(replay.statistics().total_priority == 8.0);
}

TEST_CASE("without a priority above 0 ever given, items get 1") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 4, .alpha = 1.0});
  replay.add(records_from<SmallRecord>(0, 1), std::array{0.0f});
  CHECK(replay.max_priority() == 1.0f);
  CHECK(replay.max_priority(7.0f) == 7.0f);
  replay.add(records_from<SmallRecord>(1, 1));
  CHECK(replay.statistics().total_priority == 1.0);
  CHECK(replay.max_priority(7.0f) == 1.0f);
  CHECK(replay.add(std::span<const SmallRecord>()) == 2);
}

TEST_CASE_TEMPLATE("weights of the whole replay are relative to its least probable item", Sampler,
                   ProportionalSampler, RankBasedSampler, UniformSampler, NewestFirstSampler) {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "weights");
  PrioritizedReplay<SmallRecord, ArrayStorage, Sampler> replay(
      {.capacity = 200, .alpha = 0.8, .normalizer = WeightNormalizer::replay});
  std::map<Key, float> priorities;
  Failures failures;
  for (int round = 0; round < 300; ++round) {
    const std::size_t count = 1 + random.below(12);
    std::vector<float> added(count);
    for (float& p : added)
      p = random.below(4) == 0 ? 0.0f : static_cast<float>(std::pow(10, random.uniform(-3, 3)));
    const Key first = replay.add(records_from<SmallRecord>(replay.next_key(), count), added);
    for (std::size_t i = 0; i < count; ++i) priorities[first + i] = added[i];
    while (priorities.size() > 200) priorities.erase(priorities.begin());
    if (!(replay.total_priority() > 0.0)) continue;

    std::vector<float> positive;
    for (const auto& [key, priority] : priorities)
      if (priority > 0.0f) positive.push_back(priority);
    std::sort(positive.begin(), positive.end());
    const auto n = static_cast<double>(positive.size());
    double least = 1.0 / n;
    if (std::is_same_v<Sampler, ProportionalSampler>) {
      double total = 0.0;
      for (const float p : positive) total += std::pow(double{p}, 0.8);
      least = std::pow(double{positive.front()}, 0.8) / total;
    } else if (std::is_same_v<Sampler, RankBasedSampler>) {
      double total = 0.0;
      for (double rank = 1; rank <= n; ++rank) total += std::pow(rank, -0.8);
      least = std::pow(n, -0.8) / total;
    }
    const auto batch = replay.sample(16, {.beta = 0.5}, random);
    for (std::size_t i = 0; i < 16; ++i) {
      // (N P)^-beta / (N P_min)^-beta
      const double weight = std::pow(n * batch.probabilities[i], -0.5) / std::pow(n * least, -0.5);
      if (std::abs(batch.weights[i] - weight) > 1e-5 * weight)
        failures.add(std::to_string(batch.weights[i]) + " for " + std::to_string(weight));
      if (batch.weights[i] > 1.0f) failures.add("more than 1");
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("the weight of a lone draw tells the two normalizers apart") {
  for (const auto normalizer : {WeightNormalizer::batch, WeightNormalizer::replay}) {
    PrioritizedReplay<SmallRecord> replay({.capacity = 2, .alpha = 1.0, .normalizer = normalizer});
    replay.add(records_from<SmallRecord>(0, 2), std::array{1.0f, 999'999.0f});
    Random random(1);
    const auto batch = replay.sample(1, {.beta = 1.0}, random);
    CHECK(batch.keys[0] == 1);
    CHECK(batch.weights[0] == doctest::Approx(normalizer == WeightNormalizer::batch ? 1.0 : 1.0 / 999'999.0));
  }
}

TEST_CASE("the histogram counts priorities by powers of two") {
  for (const double alpha : {0.3, 0.6, 1.0, 2.0}) {
    CAPTURE(alpha);
    PrioritizedReplay<SmallRecord> replay({.capacity = 100, .alpha = alpha});
    CHECK(replay.priority_histogram().bins.empty());
    CHECK(replay.priority_histogram().zeros == 0);
    const std::vector<float> priorities{0, 0, 1, 1.5f, 1.99f, 2, 4, 0.25f, 0.26f, 1024};
    replay.add(records_from<SmallRecord>(0, priorities.size()), priorities);
    const PriorityHistogram histogram = replay.priority_histogram();
    CHECK(histogram.zeros == 2);
    REQUIRE(histogram.bins.size() == 13);  // from 2^-2 to 2^10, those between that are empty too
    CHECK(histogram.bins.front().exponent == -2);
    CHECK(histogram.bins.back().exponent == 10);
    CHECK(bins_of(replay) == std::map<int, std::uint64_t>{{-2, 2}, {0, 3}, {1, 1}, {2, 1}, {10, 1}});
    replay.update(std::array<Key, 2>{0, 9}, std::array{16.0f, 0.0f});
    CHECK(bins_of(replay) == std::map<int, std::uint64_t>{{-2, 2}, {0, 3}, {1, 1}, {2, 1}, {4, 1}});
    replay.clear();
    CHECK(replay.priority_histogram().bins.empty());
    CHECK(replay.priority_histogram().zeros == 0);
  }
}

TEST_CASE("every power of two is counted in its own bin") {
  PrioritizedReplay<SmallRecord> replay({.capacity = 10'000, .alpha = 0.6});  // more than one piece
  std::vector<float> priorities;
  for (int exponent = -140; exponent < 128; ++exponent) priorities.push_back(std::ldexp(1.0f, exponent));
  for (std::size_t i = 0; i < 40; ++i)
    replay.add(records_from<SmallRecord>(0, priorities.size()), priorities);
  const auto histogram = replay.priority_histogram();
  CHECK(histogram.zeros == 0);
  std::uint64_t counted = 0;
  for (const auto& bin : histogram.bins) counted += bin.count;
  CHECK(counted == 10'000);
  const auto bins = bins_of(replay);
  for (int exponent = -139; exponent < 127; ++exponent) {
    CAPTURE(exponent);
    REQUIRE(bins.contains(exponent));
    CHECK(bins.at(exponent) >= 37);
    CHECK(bins.at(exponent) <= 38);
  }
}

TEST_CASE_TEMPLATE("samplers that keep no priorities count them as 1", Sampler, UniformSampler,
                   NewestFirstSampler) {
  PrioritizedReplay<SmallRecord, ArrayStorage, Sampler> replay({.capacity = 10});
  replay.add(records_from<SmallRecord>(0, 5), std::array{0.0f, 3.0f, 0.01f, 0.0f, 7.0f});
  CHECK(bins_of(replay) == std::map<int, std::uint64_t>{{0, 3}});
  CHECK(replay.priority_histogram().zeros == 2);
  CHECK(replay.statistics().total_priority == 3.0);
}

TEST_CASE("a rank-based replay counts priorities as they were given") {
  PrioritizedReplay<SmallRecord, ArrayStorage, RankBasedSampler, UniformRemover> replay({.capacity = 10});
  replay.add(records_from<SmallRecord>(0, 4), std::array{0.0f, 3.0f, 0.01f, 64.0f});
  CHECK(bins_of(replay) == std::map<int, std::uint64_t>{{-7, 1}, {1, 1}, {6, 1}});
}

TEST_CASE("a call that found the lock taken is counted, with its time") {
  PrioritizedReplay<SmallRecord, SlowStorage> replay({.capacity = 4});
  replay.add(records_from<SmallRecord>(0, 1), std::array{1.0f});
  CHECK(replay.statistics().lock_waits == 0);
  CHECK(replay.statistics().lock_wait_seconds == 0.0);
  std::thread other;
  SlowStorage::on_write = [&] {
    other = std::thread([&] { replay.size(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  // The other thread may be late; then it is tried again.
  for (int attempt = 0; attempt < 100 && replay.statistics().lock_waits == 0; ++attempt) {
    replay.add(records_from<SmallRecord>(1, 1), std::array{1.0f});
    other.join();
  }
  SlowStorage::on_write = nullptr;
  CHECK(replay.statistics().lock_waits >= 1);
  CHECK(replay.statistics().lock_wait_seconds > 0.0);
}

TEST_CASE_TEMPLATE("after a snapshot of smaller keys was loaded, new large records are taken", Remover,
                   OldestFirstRemover, UniformRemover) {
  using Replay = PrioritizedReplay<LargeRecord, ArrayStorage, ProportionalSampler, Remover>;
  const TemporaryDirectory directory;
  Replay young({.capacity = 20}), old({.capacity = 20});
  young.add(records_from<LargeRecord>(0, 5), std::vector<float>(5, 1.0f));
  old.add(records_from<LargeRecord>(0, 500), std::vector<float>(500, 1.0f));
  save_snapshot(directory.file("young"), young);
  load_snapshot(directory.file("young"), old);
  CHECK(old.add(records_from<LargeRecord>(5, 10), std::vector<float>(10, 1.0f)) == 5);
  Random random(1);
  const auto batch = old.sample(60, {}, random);
  for (std::size_t i = 0; i < batch.size(); ++i) CHECK(number_of(batch.records()[i]) == batch.keys[i]);
  CHECK(*std::max_element(batch.keys.begin(), batch.keys.end()) == 14);
  CHECK(old.statistics().redraws == 0);
}

TEST_CASE_TEMPLATE("after a snapshot was loaded, the newest come first as before", Remover,
                   OldestFirstRemover, UniformRemover) {
  using Replay = PrioritizedReplay<SmallRecord, ArrayStorage, NewestFirstSampler, Remover>;
  const TemporaryDirectory directory;
  Replay replay({.capacity = 20});
  for (std::uint64_t i = 0; i < 100; ++i) replay.add(records_from<SmallRecord>(i, 1), std::array{1.0f});
  Random random(1);
  const auto before = replay.sample(20, {}, random);
  CHECK(std::is_sorted(before.keys.rbegin(), before.keys.rend()));
  save_snapshot(directory.file("replay"), replay);
  Replay loaded({.capacity = 20});
  load_snapshot(directory.file("replay"), loaded);
  CHECK(loaded.sample(20, {}, random).keys == before.keys);
}
