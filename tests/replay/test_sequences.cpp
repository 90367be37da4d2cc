#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sequences.hpp>

#include "testing.hpp"

using troop::DType;
using troop::EnvironmentStep;
using troop::MatrixView;
using troop::Random;
using troop::RecordLayout;
using troop::SequenceItem;
using troop::SequenceOptions;
using troop::Sequences;
using troop::testing::Failures;

namespace {

enum class End { terminated, truncated, both };

constexpr std::size_t kObservation = 3;

/// An episode whose every number tells environment, episode and step apart, and none of which is 0.
struct Episode {
  std::array<int, kObservation> observation(std::size_t t) const {
    return {environment + 1, number + 1, static_cast<int>(t) + 1};
  }
  std::int32_t action(std::size_t t) const {
    return environment * 10000 + number * 100 + static_cast<int>(t) + 1;
  }
  float reward(std::size_t t) const { return static_cast<float>(action(t)) + 0.25f; }
  float action_value(std::size_t t) const { return static_cast<float>(action(t)) + 0.5f; }
  std::vector<float> state(std::size_t t, std::size_t size) const {
    return std::vector<float>(size, static_cast<float>(action(t)) + 0.75f);
  }

  int environment, number;
  std::size_t length;
  End end;
};

/// A sequence, copied.
struct Sequence {
  explicit Sequence(const SequenceItem<int>& item)
      : observations(item.observations.begin(), item.observations.end()),
        actions(item.actions.begin(), item.actions.end()),
        rewards(item.rewards.begin(), item.rewards.end()),
        discounts(item.discounts.begin(), item.discounts.end()),
        action_values(item.action_values.begin(), item.action_values.end()),
        state(item.state.begin(), item.state.end()),
        valid(item.valid.begin(), item.valid.end()),
        loss_mask(item.loss_mask.begin(), item.loss_mask.end()),
        steps(item.steps),
        burn_in(item.burn_in) {}

  std::vector<int> observations, actions;
  std::vector<float> rewards, discounts, action_values, state;
  std::vector<bool> valid, loss_mask;
  std::size_t steps, burn_in;
};

/// Plays step `t` of an episode into `sequences`, from memory that is overwritten afterwards.
template <class Emit>
void play(Sequences<int>& sequences, const Episode& episode, std::size_t t, Emit&& emit) {
  auto now = episode.observation(t), next = episode.observation(t + 1);
  auto state = episode.state(t, sequences.state_size());
  const bool last = t + 1 == episode.length;
  EnvironmentStep<int> step;
  step.observation = now;
  step.action = episode.action(t);
  step.reward = episode.reward(t);
  step.terminated = last && episode.end != End::truncated;
  step.truncated = last && episode.end != End::terminated;
  step.next_observation = next;
  step.action_value = episode.action_value(t);
  sequences.add(static_cast<std::size_t>(episode.environment), step, state, emit);
  now.fill(-1);
  next.fill(-1);
  std::fill(state.begin(), state.end(), -1.0f);
}

/// First step and number of steps.
struct Range {
  std::size_t first, steps;
};

/// The sequences that `played` steps of an episode must have given, from their definition: one every period
/// as long as it is full, and at the end one more if some steps are in none yet.
std::vector<Range> ranges_of(const SequenceOptions& options, std::size_t played, bool has_ended) {
  const std::size_t size = options.burn_in + options.length;
  std::vector<Range> ranges;
  std::size_t covered = 0, first = 0;
  while (first + size <= played && covered < played) {
    ranges.push_back({first, size});
    covered = first + size;
    first += options.length - options.overlap;
  }
  if (has_ended && covered < played) ranges.push_back({first, played - first});
  return ranges;
}

/// Compares a sequence with what the episode says, row by row.
void check(const Sequence& sequence, const Episode& episode, Range range, const SequenceOptions& options,
           std::size_t state_size, Failures& failures) {
  const std::size_t size = options.burn_in + options.length;
  const std::size_t burn_in = range.first == 0 ? 0 : options.burn_in;
  const auto expect = [&](bool good, const char* what, std::size_t t) {
    if (!good)
      failures.add(std::string(what) + " at row " + std::to_string(t) + " of the sequence from step " +
                   std::to_string(range.first) + " of an episode of " + std::to_string(episode.length));
  };
  expect(sequence.steps == range.steps, "steps", 0);
  expect(sequence.burn_in == burn_in, "burn_in", 0);
  expect(sequence.state == episode.state(range.first, state_size), "state", 0);
  expect(sequence.observations.size() == (size + 1) * kObservation, "number of observations", size);
  for (const std::size_t rows :
       {sequence.actions.size(), sequence.rewards.size(), sequence.discounts.size(),
        sequence.action_values.size(), sequence.valid.size(), sequence.loss_mask.size()})
    expect(rows == size, "number of rows", size);
  if (failures.count() > 0) return;
  for (std::size_t t = 0; t <= size; ++t) {
    std::array<int, kObservation> observation;
    std::copy_n(sequence.observations.begin() + static_cast<std::ptrdiff_t>(t * kObservation), kObservation,
                observation.begin());
    expect(observation == (t <= range.steps ? episode.observation(range.first + t) : decltype(observation){}),
           "observation", t);
    if (t == size) break;
    const bool made = t < range.steps;
    const std::size_t step = range.first + t;
    const bool terminates = step + 1 == episode.length && episode.end != End::truncated;
    const float discount = terminates ? 0.0f : static_cast<float>(options.gamma);
    expect(sequence.actions[t] == (made ? episode.action(step) : 0), "action", t);
    expect(sequence.rewards[t] == (made ? episode.reward(step) : 0.0f), "reward", t);
    expect(sequence.discounts[t] == (made ? discount : 0.0f), "discount", t);
    expect(sequence.action_values[t] == (made ? episode.action_value(step) : 0.0f), "action value", t);
    expect(sequence.valid[t] == made, "valid", t);
    expect(sequence.loss_mask[t] == (made && t >= burn_in), "loss mask", t);
  }
}

/// Steps of an episode that count in the loss of a sequence.
std::vector<bool> loss_part(const Sequence& sequence, Range range, std::size_t length) {
  std::vector<bool> part(length, false);
  for (std::size_t t = 0; t < sequence.loss_mask.size(); ++t)
    if (sequence.loss_mask[t]) part.at(range.first + t) = true;
  return part;
}

SequenceOptions random_options(Random& random) {
  SequenceOptions options{
      .length = 1 + random.below(8), .overlap = 0, .burn_in = random.below(6), .gamma = 0.97};
  const std::uint64_t kind = random.below(4);
  options.overlap = kind == 0 ? 0 : kind == 1 ? options.length - 1 : random.below(options.length);
  return options;
}

std::string describe(const SequenceOptions& options) {
  return "length " + std::to_string(options.length) + ", overlap " + std::to_string(options.overlap) +
         ", burn_in " + std::to_string(options.burn_in);
}

}  // namespace

TEST_CASE("with the options of R2D2 a sequence begins every 40 steps, and the first has no burn-in") {
  Sequences<int> sequences(1, kObservation, 2, {});
  const Episode episode{0, 0, 205, End::terminated};
  std::vector<Sequence> emitted;
  std::vector<std::size_t> emitted_at;
  for (std::size_t t = 0; t < episode.length; ++t) {
    play(sequences, episode, t, [&](const SequenceItem<int>& item) {
      emitted.emplace_back(item);
      emitted_at.push_back(t + 1);
    });
  }
  CHECK(emitted_at == std::vector<std::size_t>{120, 160, 200, 205});
  REQUIRE(emitted.size() == 4);
  const auto count = [](const std::vector<bool>& mask) { return std::count(mask.begin(), mask.end(), true); };
  CHECK(count(emitted[0].loss_mask) == 120);
  CHECK(count(emitted[1].loss_mask) == 80);
  CHECK(count(emitted[2].loss_mask) == 80);
  CHECK(count(emitted[3].loss_mask) == 45);  // steps 160 to 204
  CHECK(emitted[3].steps == 85);             // and the burn-in, steps 120 to 159
  CHECK(emitted[3].discounts[84] == 0.0f);
  CHECK(emitted[2].discounts[119] == static_cast<float>(0.997));
  CHECK(emitted[1].state == episode.state(40, 2));
  CHECK(sequences.pending(0) == 0);
}

TEST_CASE("episodes of every length, ended in every way, give the sequences of their definition") {
  for (const SequenceOptions options : {SequenceOptions{.length = 4, .overlap = 2, .burn_in = 2},
                                        SequenceOptions{.length = 4, .overlap = 0, .burn_in = 3},
                                        SequenceOptions{.length = 4, .overlap = 3, .burn_in = 0},
                                        SequenceOptions{.length = 1, .overlap = 0, .burn_in = 0},
                                        SequenceOptions{.length = 1, .overlap = 0, .burn_in = 4},
                                        SequenceOptions{.length = 5, .overlap = 2, .burn_in = 1}}) {
    CAPTURE(describe(options));
    Sequences<int> sequences(1, kObservation, 2, options);  // one for all: no episode must see the one before
    Failures failures;
    int number = 0;
    for (std::size_t length = 1; length <= 30; ++length) {
      for (const End end : {End::terminated, End::truncated, End::both}) {
        const Episode episode{0, number++, length, end};
        std::vector<Sequence> emitted;
        for (std::size_t t = 0; t < length; ++t) {
          play(sequences, episode, t, [&](const SequenceItem<int>& item) { emitted.emplace_back(item); });
          if (emitted.size() != ranges_of(options, t + 1, t + 1 == length).size())
            failures.add("number of sequences after step " + std::to_string(t));
        }
        const auto ranges = ranges_of(options, length, true);
        REQUIRE(emitted.size() == ranges.size());
        for (std::size_t k = 0; k < ranges.size(); ++k)
          check(emitted[k], episode, ranges[k], options, 2, failures);
      }
    }
    TROOP_CHECK_NONE(failures);
  }
}

TEST_CASE("whole episodes, kept apart, give what random interleaved environments gave") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "sequences");
  Failures failures;
  for (int round = 0; round < 150; ++round) {
    constexpr std::size_t kEnvironments = 3;
    const SequenceOptions options = random_options(random);
    const std::size_t state_size = random.below(3);
    const std::string where = " in round " + std::to_string(round) + ": " + describe(options);
    Sequences<int> sequences(kEnvironments, kObservation, state_size, options);
    std::vector<std::vector<Episode>> episodes(kEnvironments);
    std::vector<std::vector<std::vector<Sequence>>> emitted(kEnvironments);  // of environment, of episode
    std::vector<std::size_t> played(kEnvironments, 0);                       // steps of the last episode
    for (int call = 0; call < 300; ++call) {
      const std::size_t i = random.below(kEnvironments);
      if (episodes[i].empty() || played[i] == episodes[i].back().length) {
        episodes[i].push_back({static_cast<int>(i), static_cast<int>(episodes[i].size()),
                               1 + random.below(40), static_cast<End>(random.below(3))});
        emitted[i].emplace_back();
        played[i] = 0;
      }
      play(sequences, episodes[i].back(), played[i]++,
           [&](const SequenceItem<int>& item) { emitted[i].back().emplace_back(item); });
    }
    for (std::size_t i = 0; i < kEnvironments; ++i) {
      for (std::size_t e = 0; e < episodes[i].size(); ++e) {
        const Episode& episode = episodes[i][e];
        const bool is_last = e + 1 == episodes[i].size();
        const std::size_t steps = is_last ? played[i] : episode.length;
        const bool has_ended = steps == episode.length;
        const auto ranges = ranges_of(options, steps, has_ended);
        if (ranges.size() != emitted[i][e].size()) {
          failures.add("number of sequences" + where);
          continue;
        }
        std::vector<int> times(steps, 0);  // that a step counted in a loss
        std::vector<bool> before;
        for (std::size_t k = 0; k < ranges.size(); ++k) {
          check(emitted[i][e][k], episode, ranges[k], options, state_size, failures);
          const auto part = loss_part(emitted[i][e][k], ranges[k], steps);
          std::size_t shared = 0;
          for (std::size_t t = 0; t < steps; ++t) {
            times[t] += part[t];
            shared += k > 0 && part[t] && before[t];
          }
          if (k > 0 && shared != options.overlap) failures.add("overlap" + where);
          before = part;
        }
        const auto missing = static_cast<std::size_t>(std::count(times.begin(), times.end(), 0));
        if (has_ended && missing > 0) failures.add("steps in no loss" + where);
        if (is_last && !has_ended && missing != sequences.pending(i)) failures.add("pending" + where);
        if (options.overlap == 0 && std::any_of(times.begin(), times.end(), [](int n) { return n > 1; }))
          failures.add("steps in two losses" + where);
      }
    }
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("clearing forgets the pending steps of one environment only") {
  const SequenceOptions options{.length = 2, .overlap = 1, .burn_in = 1};
  Sequences<int> sequences(2, kObservation, 1, options);
  const Episode first{0, 0, 50, End::terminated}, other{1, 0, 50, End::terminated},
      second{0, 1, 3, End::truncated};
  std::vector<Sequence> emitted;
  const auto collect = [&](const SequenceItem<int>& item) { emitted.emplace_back(item); };
  for (std::size_t t = 0; t < 5; ++t) {
    play(sequences, first, t, [](const SequenceItem<int>&) {});
    if (t < 2) play(sequences, other, t, collect);
  }
  sequences.clear(0);
  CHECK(sequences.pending(0) == 0);
  CHECK(sequences.pending(1) == 2);
  for (std::size_t t = 0; t < 3; ++t) play(sequences, second, t, collect);
  play(sequences, other, 2, collect);
  REQUIRE(emitted.size() == 2);
  Failures failures;
  check(emitted[0], second, {0, 3}, options, 1, failures);  // a first sequence again: without burn-in
  check(emitted[1], other, {0, 3}, options, 1, failures);
  TROOP_CHECK_NONE(failures);
}

TEST_CASE("a sequence whose receiver throws is lost, the others are not, and episodes stay apart") {
  const SequenceOptions options{.length = 3, .overlap = 1, .burn_in = 1};
  Sequences<int> sequences(1, kObservation, 1, options);
  const auto refuse = [](const SequenceItem<int>&) { throw std::runtime_error("no room"); };
  std::vector<Sequence> emitted;
  const auto collect = [&](const SequenceItem<int>& item) { emitted.emplace_back(item); };
  const Episode episode{0, 0, 7, End::truncated}, next{0, 1, 2, End::terminated};
  for (std::size_t t = 0; t < 3; ++t) play(sequences, episode, t, collect);
  CHECK_THROWS_AS(play(sequences, episode, 3, refuse), std::runtime_error);
  play(sequences, episode, 4, collect);
  play(sequences, episode, 5, collect);
  CHECK_THROWS_AS(play(sequences, episode, 6, refuse), std::runtime_error);
  play(sequences, next, 0, collect);
  play(sequences, next, 1, collect);
  REQUIRE(emitted.size() == 2);
  Failures failures;
  check(emitted[0], episode, {2, 4}, options, 1, failures);
  check(emitted[1], next, {0, 2}, options, 1, failures);
  TROOP_CHECK_NONE(failures);
}

namespace {

/// Three steps that count and one of burn-in, as an aggregate; its other field is nobody's business.
struct SequenceRecord {
  std::array<std::array<int, kObservation>, 5> observation;
  std::array<std::int32_t, 4> action;
  std::array<float, 4> reward, discount;
  std::array<bool, 4> loss_mask;
  std::array<float, 2> state;
  std::uint32_t steps;
  double more;
};

constexpr SequenceOptions kSmall{.length = 3, .overlap = 1, .burn_in = 1, .gamma = 0.5};

template <class T>
std::vector<T> row(const troop::BatchView& batch, const char* field, std::size_t i = 0) {
  const auto values = batch.field<T>(field).row_span(i);
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("an aggregate takes a sequence into the replay and brings it back") {
  Sequences<int> sequences(1, kObservation, 2, kSmall);
  troop::PrioritizedReplay<SequenceRecord> replay({.capacity = 10, .alpha = 0.9});
  const Episode episode{0, 0, 5, End::terminated};
  for (std::size_t t = 0; t < episode.length; ++t) {
    play(sequences, episode, t, [&](const SequenceItem<int>& item) {
      SequenceRecord record;
      record.more = 7.0;
      write_sequence(item, record);
      const std::vector<float> td_errors(4, 1.0f);
      replay.add(record, troop::sequence_priority(td_errors, item.loss_mask));
    });
  }
  CHECK(replay.size() == 2);
  Random random(1);
  const auto batch = replay.sample(16, {}, random);
  const auto tail = std::find(batch.keys.begin(), batch.keys.end(), 1u) - batch.keys.begin();
  REQUIRE(tail < 16);
  const SequenceRecord& record = batch.records()[static_cast<std::size_t>(tail)];
  CHECK(record.observation == std::array<std::array<int, kObservation>, 5>{
                                  episode.observation(2), episode.observation(3), episode.observation(4),
                                  episode.observation(5), std::array<int, kObservation>{}});
  CHECK(record.action == std::array<std::int32_t, 4>{3, 4, 5, 0});
  CHECK(record.reward == std::array<float, 4>{3.25f, 4.25f, 5.25f, 0.0f});
  CHECK(record.discount == std::array<float, 4>{0.5f, 0.5f, 0.0f, 0.0f});
  CHECK(record.loss_mask == std::array<bool, 4>{false, true, true, false});
  CHECK(record.state == std::array<float, 2>{3.75f, 3.75f});
  CHECK(record.steps == 3);
  CHECK(record.more == 7.0);
}

TEST_CASE("a layout made at run time takes a sequence into the replay and brings it back") {
  Sequences<int> sequences(1, kObservation, 2, kSmall);
  troop::PrioritizedReplay<troop::DynamicRecord> replay(
      {.capacity = 10}, sequence_layout(kSmall, DType::i32, {kObservation}, 2));
  CHECK(replay.layout().describe() ==
        "observation i32[5,3], action i32[4], reward f32[4], discount f32[4], valid bool[4], loss_mask "
        "bool[4], "
        "state f32[2], steps u32");
  troop::RecordArray record(replay.layout(), 1);
  const Episode episode{0, 0, 3, End::truncated};
  for (std::size_t t = 0; t < episode.length; ++t) {
    play(sequences, episode, t, [&](const SequenceItem<int>& item) {
      write_sequence(item, record.layout(), record.record(0));
      replay.add(record.view(), std::array<float, 1>{1.0f});
    });
  }
  Random random(1);
  const auto batch = replay.sample(1, {}, random);
  CHECK(row<std::int32_t>(batch.view(), "observation") ==
        std::vector<std::int32_t>{1, 1, 1, 1, 1, 2, 1, 1, 3, 1, 1, 4, 0, 0, 0});
  CHECK(row<std::int32_t>(batch.view(), "action") == std::vector<std::int32_t>{1, 2, 3, 0});
  CHECK(row<float>(batch.view(), "reward") == std::vector<float>{1.25f, 2.25f, 3.25f, 0.0f});
  CHECK(row<float>(batch.view(), "discount") == std::vector<float>{0.5f, 0.5f, 0.5f, 0.0f});
  CHECK(row<bool>(batch.view(), "valid") == std::vector<bool>{true, true, true, false});
  CHECK(row<bool>(batch.view(), "loss_mask") == std::vector<bool>{true, true, true, false});
  CHECK(row<float>(batch.view(), "state") == std::vector<float>{1.75f, 1.75f});
  CHECK(row<std::uint32_t>(batch.view(), "steps") == std::vector<std::uint32_t>{3});
  CHECK_FALSE(sequence_layout(kSmall, DType::u8, {84, 84}, 0).has("state"));
}

TEST_CASE("a record that a sequence does not fit is refused by field") {
  Sequences<int> sequences(1, kObservation, 2, {.length = 4, .overlap = 1, .burn_in = 1});
  std::string longer, dtype;
  const auto message = [](auto&& write) {
    try {
      write();
    } catch (const troop::InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  play(sequences, {0, 0, 1, End::terminated}, 0, [&](const SequenceItem<int>& item) {
    SequenceRecord record{};
    longer = message([&] { write_sequence(item, record); });
    const RecordLayout layout({{"reward", DType::f64, {5}}});
    std::array<double, 5> rewards{};
    dtype = message([&] { write_sequence(item, layout, reinterpret_cast<std::byte*>(rewards.data())); });
  });
  CHECK(longer == "observation: observation i32[5,3] is not allowed; expected i32 with 18 elements");
  CHECK(dtype == "reward: reward f64[5] is not allowed; expected f32 with 5 elements");
}

TEST_CASE("a sequence's priority mixes the largest and the mean error of the steps that count") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::array<float, 5> errors{kNan, 1.0f, -4.0f, 1.0f, 100.0f};
  const std::array<bool, 5> mask{false, true, true, true, false};
  CHECK(troop::sequence_priority(errors, mask) == doctest::Approx(0.9 * 4.0 + 0.1 * 2.0));
  CHECK(troop::sequence_priority(errors, mask, 0.0) == doctest::Approx(2.0));
  CHECK(troop::sequence_priority(errors, mask, 1.0) == 4.0f);
  const std::array<bool, 5> one{false, false, true, false, false};
  CHECK(troop::sequence_priority(errors, one) == doctest::Approx(4.0));
}

TEST_CASE("the priorities of a batch are those of its rows, whatever their stride") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "priorities");
  constexpr std::size_t kBatch = 40, kSteps = 9, kStride = 12;
  std::vector<float> errors(kBatch * kStride, std::numeric_limits<float>::quiet_NaN());
  const auto mask = std::make_unique<bool[]>(kBatch * kStride);
  std::vector<double> expected;
  for (std::size_t i = 0; i < kBatch; ++i) {
    double greatest = 0.0, sum = 0.0, count = 0.0;
    for (std::size_t t = 0; t < kSteps; ++t) {
      const double error = random.normal();
      if (t > 0 && random.below(2) == 0) continue;  // stays NaN
      mask[i * kStride + t] = true;
      errors[i * kStride + t] = static_cast<float>(error);
      greatest = std::max(greatest, std::abs(error));
      sum += std::abs(error);
      ++count;
    }
    expected.push_back(0.7 * greatest + 0.3 * sum / count);
  }
  std::vector<float> priorities(kBatch);
  troop::sequence_priorities(MatrixView<const float>(errors.data(), kBatch, kSteps, kStride * sizeof(float)),
                             MatrixView<const bool>(mask.get(), kBatch, kSteps, kStride), priorities, 0.7);
  for (std::size_t i = 0; i < kBatch; ++i)
    CHECK(static_cast<double>(priorities[i]) == doctest::Approx(expected[i]).epsilon(1e-6));
}

TEST_CASE("errors that give no priority are refused by name") {
  const auto message = [](auto&& call) {
    try {
      call();
    } catch (const troop::InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  std::array<float, 4> errors{1.0f, 2.0f, 3.0f, 4.0f};
  std::array<bool, 4> mask{true, true, true, true}, none{};
  std::array<float, 2> priorities{};
  const MatrixView<const float> errors_2x2(errors.data(), 2, 2);
  const MatrixView<const bool> mask_2x2(mask.data(), 2, 2), mask_1x2(mask.data(), 1, 2),
      mask_2x1(mask.data(), 2, 1);
  using troop::sequence_priorities;
  using troop::sequence_priority;
  CHECK(message([&] { sequence_priority(errors, none); }) ==
        "td_errors that count: 0 is not allowed; expected at least one");
  CHECK(message([&] { sequence_priority({}, {}); }) ==
        "td_errors that count: 0 is not allowed; expected at least one");
  CHECK(message([&] { sequence_priority(errors, std::span(mask).first(3)); }) ==
        "mask elements: 3 is not allowed; expected as many as TD errors, 4");
  CHECK(message([&] { sequence_priority(errors, mask, 1.5); }) ==
        "eta: 1.5 is not allowed; expected a number from 0 to 1");
  CHECK(message([&] { sequence_priorities(errors_2x2, mask_1x2, priorities); }) ==
        "mask rows: 1 is not allowed; expected as many as of TD errors, 2");
  CHECK(message([&] { sequence_priorities(errors_2x2, mask_2x1, priorities); }) ==
        "mask columns: 1 is not allowed; expected as many as of TD errors, 2");
  CHECK(message([&] { sequence_priorities(errors_2x2, mask_2x2, std::span(priorities).first(1)); }) ==
        "priorities: 1 is not allowed; expected as many as rows of TD errors, 2");
  CHECK(message([&] { sequence_priorities(errors_2x2, mask_2x2, priorities, -1.0); }) ==
        "eta: -1 is not allowed; expected a number from 0 to 1");
  mask[3] = mask[2] = false;
  CHECK(message([&] { sequence_priorities(errors_2x2, mask_2x2, priorities); }) ==
        "td_errors[1] that count: 0 is not allowed; expected at least one");
  errors[1] = std::numeric_limits<float>::quiet_NaN();
  CHECK(message([&] { sequence_priority(errors, mask); }) ==
        "td_errors[1]: nan is not allowed; expected a finite number");
  CHECK(message([&] { sequence_priorities(errors_2x2, mask_2x2, priorities); }) ==
        "td_errors[0][1]: nan is not allowed; expected a finite number");
  errors[1] = -std::numeric_limits<float>::infinity();
  CHECK(message([&] { sequence_priority(errors, mask); }) ==
        "td_errors[1]: -inf is not allowed; expected a finite number");
}

TEST_CASE("bad options are refused by name") {
  const auto message = [](const SequenceOptions& options, std::size_t environments, std::size_t observation,
                          std::size_t state) {
    try {
      const Sequences<float> sequences(environments, observation, state, options);
    } catch (const troop::InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  CHECK(message({.length = 0}, 1, 1, 0) == "length: 0 is not allowed; expected an integer from 1 to 10000");
  CHECK(message({.length = 10001}, 1, 1, 0) ==
        "length: 10001 is not allowed; expected an integer from 1 to 10000");
  CHECK(message({.length = 80, .overlap = 80}, 1, 1, 0) ==
        "overlap: 80 is not allowed; expected less than length, 80");
  CHECK(message({.burn_in = 10001}, 1, 1, 0) ==
        "burn_in: 10001 is not allowed; expected an integer from 0 to 10000");
  CHECK(message({.gamma = 1.5}, 1, 1, 0) == "gamma: 1.5 is not allowed; expected a number from 0 to 1");
  CHECK(message({}, 0, 1, 0) == "num_environments: 0 is not allowed; expected a positive integer");
  CHECK(message({}, 1, 0, 0) == "observation_size: 0 is not allowed; expected an integer from 1 to 2^30");
  CHECK(message({}, 1, 1, std::size_t{1} << 25) ==
        "state_size: 33554432 is not allowed; expected an integer from 0 to 2^24");
  CHECK_THROWS_AS(sequence_layout({.length = 0}, DType::f32, {4}, 0), troop::InvalidArgument);
  CHECK(message({.length = 10000, .overlap = 9999, .burn_in = 0}, 1, 1, 1) == "nothing was thrown");
}
