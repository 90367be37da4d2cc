#include <troop/gymnasium/atari.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <troop/agent/actor.hpp>
#include <troop/agent/item_sink.hpp>
#include <troop/agent/parameter_store.hpp>
#include <troop/compression/lz4.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/env/environment.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/transition_batch.hpp>
#include <troop/replay/frame_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>

#include "testing.hpp"

using namespace troop;
using env::AtariOptions;
using env::AtariVector;
using testing::error_of;

namespace {

using Pixels = std::vector<std::uint8_t>;

/// The hash of make_atari.py: FNV-1a over words of 8 bytes.
std::string hash_of(std::span<const std::uint8_t> pixels) {
  std::uint64_t value = 0xCBF29CE484222325u;
  for (std::size_t k = 0; k + 8 <= pixels.size(); k += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, &pixels[k], sizeof word);
    value = (value ^ word) * 0x100000001B3u;
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

Pixels to_vector(std::span<const std::uint8_t> pixels) {
  return {pixels.begin(), pixels.end()};
}

/// Plays as AtariVectorEnv itself does, in Python, with resets that are asked for: the reference for our path.
class Reference {
 public:
  Reference(const std::string& game, std::size_t count, std::uint64_t seed) : count_(count) {
    env::detail::with_python([&] {
      namespace py = pybind11;
      py::list seeds;
      for (std::size_t i = 0; i < count; ++i) seeds.append(Random(seed, "environment", i)() >> 33);
      py::object made = py::module_::import("ale_py.vector_env")
                            .attr("AtariVectorEnv")(
                                game, count, py::arg("noop_max") = 31, py::arg("reward_clipping") = false,
                                py::arg("use_fire_reset") = false, py::arg("autoreset_mode") = "NextStep",
                                py::arg("life_loss_info") = true);
      take(made.attr("reset")(py::arg("seed") = py::module_::import("numpy").attr("array")(seeds)));
      made_ = env::detail::PythonObject(std::move(made));
    });
  }

  void step(std::span<const std::int32_t> actions) {
    env::detail::with_python([&] {
      namespace py = pybind11;
      py::list list;
      for (const std::int32_t action : actions) list.append(action);
      take(made_.get().attr("step")(py::module_::import("numpy").attr("array")(list)));
    });
  }

  void reset(const std::vector<bool>& which) {
    env::detail::with_python([&] {
      namespace py = pybind11;
      py::list mask;
      for (const bool chosen : which) mask.append(chosen);
      py::dict options;
      options["reset_mask"] = py::module_::import("numpy").attr("array")(mask);
      take(made_.get().attr("reset")(py::arg("options") = options));
    });
  }

  Pixels observation(std::size_t i) const {
    const std::size_t size = pixels_.size() / count_;
    return {pixels_.begin() + static_cast<std::ptrdiff_t>(i * size),
            pixels_.begin() + static_cast<std::ptrdiff_t>((i + 1) * size)};
  }
  bool terminated(std::size_t i) const { return terminated_[i]; }  // lives lost included
  float reward(std::size_t i) const { return static_cast<float>(rewards_[i]); }

 private:
  void take(const pybind11::tuple& result) {
    const env::detail::PythonBuffer pixels(result[0]);
    pixels_.assign(static_cast<const std::uint8_t*>(pixels.data()),
                   static_cast<const std::uint8_t*>(pixels.data()) + pixels.bytes());
    if (result.size() != 5) return;
    rewards_.clear();
    terminated_.clear();
    for (const pybind11::handle reward : result[1].attr("tolist")()) rewards_.push_back(reward.cast<int>());
    for (const pybind11::handle ended : result[2].attr("tolist")()) terminated_.push_back(ended.cast<bool>());
  }

  std::size_t count_;
  env::detail::PythonObject made_;
  Pixels pixels_;
  std::vector<int> rewards_;
  std::vector<bool> terminated_;
};

/// Trajectories of a game as make_atari.py wrote them down.
struct Recording {
  struct Row {
    std::int32_t action = 0, lives = 0;
    float reward = 0;
    bool over = false, terminated = false;  // the game; the game or a life
    std::string hash, first;                // of what the step led to, and of the next game's start
  };
  AtariOptions options;
  std::int32_t num_actions = 0;
  std::vector<std::string> starts;      // [environments]
  std::vector<std::vector<Row>> steps;  // [steps][environments]
};

std::vector<Recording> recordings() {
  std::ifstream file(TROOP_GOLDEN_DIR "/atari.txt");
  std::string word, line;
  REQUIRE(std::getline(file, line));  // a comment
  file >> word;
  for (std::uint64_t i = 0; i < 2; ++i) {
    std::uint64_t seed = 0;
    file >> seed;
    REQUIRE(seed == Random(1, "environment", i)() >> 33);
  }
  const std::map<std::string, AtariOptions> settings{
      {"pong", {}},
      {"breakout", {.fire_on_reset = true}},
      {"seaquest", {.repeat_action_probability = 0.25, .full_action_set = true}}};
  std::vector<Recording> result;
  std::string game;
  while (file >> word >> game) {
    REQUIRE(word == "game");
    std::size_t count = 0, steps = 0;
    Recording recording;
    file >> count >> steps >> recording.num_actions >> word;
    recording.options = settings.at(game);
    recording.options.game = game;
    recording.options.height = 210;
    recording.options.width = 160;
    recording.starts.resize(count);
    for (std::string& start : recording.starts) file >> start;
    recording.steps.assign(steps, std::vector<Recording::Row>(count));
    for (std::size_t t = 0; t < steps; ++t) {
      for (std::size_t i = 0; i < count; ++i) {
        std::size_t step = 0, environment = 0;
        Recording::Row& row = recording.steps[t][i];
        file >> step >> environment >> row.action >> row.reward >> row.lives >> row.over >> row.hash >>
            row.first;
        REQUIRE(step == t);
        REQUIRE(environment == i);
        const bool life_lost = t > 0 && row.lives > 0 && row.lives < recording.steps[t - 1][i].lives;
        row.terminated = row.over || life_lost;
      }
    }
    result.push_back(std::move(recording));
  }
  REQUIRE(result.size() == 3);
  return result;
}

/// Plays given actions, whatever it sees; the first one when they have come to their end.
struct ReplayingNetwork {
  std::size_t num_actions = 0;
  std::vector<std::int32_t> actions = {};
  std::size_t step = 0;
  nn::Network layers = nn::nature_dueling();

  const nn::Network& network() const { return layers; }
  void evaluate(nn::ObservationsView, MatrixView<float> q) {
    const auto action = step < actions.size() ? static_cast<std::size_t>(actions[step]) : 0;
    for (std::size_t i = 0; i < q.rows(); ++i) {
      for (std::size_t a = 0; a < num_actions; ++a) q(i, a) = a == action ? 1.0f : 0.0f;
    }
    ++step;
  }
  std::span<const float> parameters() const { return {}; }
  void set_parameters(std::span<const float>) {}
};

/// Keeps the hashes of the observations of items, and what else they hold.
struct ItemHashes {
  struct Item {
    std::string observation;
    std::int32_t action;
    float reward, discount;
    std::string next_observation;
    bool operator==(const Item&) const = default;
  };
  std::vector<Item> items;

  Outcome insert(const BatchView& records, std::span<const float>, Deadline) {
    const auto observations = records.field<std::uint8_t>("observation"),
               next_observations = records.field<std::uint8_t>("next_observation");
    for (std::size_t k = 0; k < records.size(); ++k) {
      items.push_back({hash_of(observations.row_span(k)), records.field<std::int32_t>("action")(k, 0),
                       records.field<float>("reward")(k, 0), records.field<float>("discount")(k, 0),
                       hash_of(next_observations.row_span(k))});
    }
    return Outcome::ok;
  }
};

}  // namespace

TEST_CASE("recorded trajectories of ale_py are reproduced frame by frame") {
  std::size_t ends = 0;
  for (const Recording& recording : recordings()) {
    CAPTURE(recording.options.game);
    const std::size_t count = recording.starts.size();
    AtariVector environments({.count = count, .seed = 1}, recording.options);
    CHECK(environments.spec().num_actions == recording.num_actions);
    for (std::size_t i = 0; i < count; ++i)
      CHECK(hash_of(environments.observations().row_span(i)) == recording.starts[i]);
    std::vector<double> returns(count);
    std::vector<std::uint64_t> lengths(count);
    testing::Failures failures;
    for (std::size_t t = 0; t < recording.steps.size(); ++t) {
      const std::vector<Recording::Row>& rows = recording.steps[t];
      std::vector<std::int32_t> actions;
      for (const Recording::Row& row : rows) actions.push_back(row.action);
      environments.step(actions);
      std::size_t finished = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const Recording::Row& row = rows[i];
        const auto check = [&](bool right, const char* what) {
          if (!right)
            failures.add(std::string(what) + " of environment " + std::to_string(i) + " in step " +
                         std::to_string(t));
        };
        check(hash_of(environments.next_observation(i)) == row.hash, "observation");
        check(environments.rewards()[i] == std::clamp(row.reward, -1.0f, 1.0f), "reward");
        check(environments.terminated()[i] == row.terminated, "terminated");
        check(environments.truncated()[i] == 0, "truncated");
        check(row.over || environments.lives()[i] == row.lives, "lives");
        check(hash_of(environments.observations().row_span(i)) == (row.over ? row.first : row.hash),
              "next start");
        returns[i] += static_cast<double>(row.reward);
        ++lengths[i];
        if (!row.over) continue;
        const auto episodes = environments.finished_episodes();
        check(finished < episodes.size() && episodes[finished] == env::Episode{i, returns[i], lengths[i]},
              "episode");
        returns[i] = 0;
        lengths[i] = 0;
        ++finished;
        ++ends;
      }
      if (finished != environments.finished_episodes().size())
        failures.add("an episode too many in step " + std::to_string(t));
    }
    TROOP_CHECK_NONE(failures);
  }
  CHECK(ends == 3);
}

TEST_CASE("an actor makes of the recorded trajectories the items that they hold, frame by frame") {
  constexpr std::size_t kHorizon = 3;
  std::size_t shortened = 0;
  for (const Recording& recording : recordings()) {
    CAPTURE(recording.options.game);
    const std::size_t steps = recording.steps.size();
    for (std::size_t i = 0; i < recording.starts.size(); ++i) {
      ItemHashes sink;
      agent::ParameterStore parameters;
      ReplayingNetwork network{.num_actions = static_cast<std::size_t>(recording.num_actions)};
      for (const auto& rows : recording.steps) network.actions.push_back(rows[i].action);
      AtariVector games({.count = 1, .seed = 1, .first_index = i}, recording.options);
      agent::Actor actor(std::move(games), network, sink, parameters,
                         {.n_step = {.n = kHorizon, .gamma = 0.5}, .epsilon = {.base = 0.0}});
      for (std::size_t t = 0; t < steps; ++t) REQUIRE(actor.step() == Outcome::ok);
      REQUIRE(actor.finish() == Outcome::ok);

      // What was observed before step t is what step t - 1 led to, or the first of a new game.
      testing::Failures failures;
      std::string before = recording.starts[i];
      for (std::size_t t = 0; t < sink.items.size(); ++t) {
        float reward = 0, discount = 1;
        std::size_t last = t;
        for (std::size_t k = 0; k < kHorizon; ++k) {
          last = t + k;
          const Recording::Row& row = recording.steps[last][i];
          reward += discount * std::clamp(row.reward, -1.0f, 1.0f);
          discount *= row.terminated ? 0.0f : 0.5f;
          if (row.terminated) break;
        }
        shortened += last < t + kHorizon - 1;
        const ItemHashes::Item expected{before, recording.steps[t][i].action, reward, discount,
                                        recording.steps[last][i].hash};
        if (sink.items[t] != expected) failures.add("item " + std::to_string(t));
        const Recording::Row& row = recording.steps[t][i];
        before = row.over ? row.first : row.hash;
      }
      TROOP_CHECK_NONE(failures);
      CHECK(sink.items.size() >= steps - (kHorizon - 1));
    }
  }
  CHECK(shortened > 20);
}

TEST_CASE("a million transitions of a game fit into 7.5 GB") {
  AtariVector games({.count = 4, .seed = 1}, {.game = "ms_pacman"});
  const RecordLayout layout = env::transition_layout(games.spec());
  PrioritizedReplay<DynamicRecord, FrameStorage<Lz4>> replay({.capacity = 10'000}, layout);
  RateLimiter limiter({.samples_per_insert = 0});
  agent::LocalSink sink(replay, limiter);
  agent::ParameterStore parameters;
  agent::Actor actor(std::move(games), ReplayingNetwork{.num_actions = 9}, sink, parameters,
                     {.epsilon = {.base = 1.0}});
  for (int t = 0; t < 1'500; ++t) REQUIRE(actor.step() == Outcome::ok);
  const FrameStatistics frames = replay.storage().statistics();
  const auto items = static_cast<double>(replay.size());
  const double frame = static_cast<double>(frames.frame_bytes) / static_cast<double>(frames.frames);
  MESSAGE("a frame of Ms. Pac-Man takes " << frame << " bytes");
  CHECK(frame > 500);
  CHECK(frame < 7'056);
  CHECK(static_cast<double>(frames.frames) < 1.05 * items);  // one new frame an item, four at a start
  const double most = 7'056 + 12 + static_cast<double>(frames.table_bytes) / items + 16;
  CHECK(1e6 * most < 7.5e9);  // even if no frame could be packed
}

TEST_CASE("life loss, truncation and the borders of stacks are those of the emulator, to the pixel") {
  constexpr std::size_t kCount = 3, kFrame = 84 * 84;
  AtariVector environments({.count = kCount, .seed = 5}, {.game = "breakout", .max_episode_frames = 399});
  Reference reference("breakout", kCount, 5);
  CHECK(environments.spec().max_episode_steps == 100);
  const Pixels black(kFrame, 0);
  const auto frame = [](const Pixels& stack, std::size_t k) {
    return Pixels(stack.begin() + static_cast<std::ptrdiff_t>(k * kFrame),
                  stack.begin() + static_cast<std::ptrdiff_t>((k + 1) * kFrame));
  };
  Random random(testing::seed());
  CAPTURE(testing::seed());
  testing::Failures failures;
  std::size_t lives_lost = 0, truncated = 0, over = 0, both = 0;
  std::vector<std::uint64_t> lengths(kCount);
  std::vector<double> returns(kCount);
  for (std::size_t t = 0; t < 500; ++t) {
    std::vector<std::int32_t> actions;
    for (std::size_t i = 0; i < kCount; ++i) actions.push_back(static_cast<std::int32_t>(random.below(4)));
    std::vector<Pixels> before;
    for (std::size_t i = 0; i < kCount; ++i)
      before.push_back(to_vector(environments.observations().row_span(i)));
    environments.step(actions);
    reference.step(actions);
    std::vector<bool> ended(kCount);
    for (const env::Episode& episode : environments.finished_episodes()) ended[episode.index] = true;
    std::vector<Pixels> expected;
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto check = [&](bool right, const char* what) {
        if (!right)
          failures.add(std::string(what) + " of environment " + std::to_string(i) + " in step " +
                       std::to_string(t));
      };
      const Pixels next = to_vector(environments.next_observation(i));
      expected.push_back(reference.observation(i));
      check(next == expected[i], "observation");
      for (std::size_t k = 0; k < 3; ++k) check(frame(next, k) == frame(before[i], k + 1), "stack");
      returns[i] += static_cast<double>(reference.reward(i));
      const bool limit = ++lengths[i] == 100;
      if (limit) check(environments.truncated()[i] + environments.terminated()[i] == 1, "limit");
      if (environments.truncated()[i] != 0) check(limit, "truncated");
      if (environments.truncated()[i] == 0)
        check(environments.terminated()[i] == reference.terminated(i), "terminated");
      check(!ended[i] || environments.terminated()[i] + environments.truncated()[i] == 1, "end");
      truncated += environments.truncated()[i];
      if (!ended[i]) lives_lost += environments.terminated()[i];
      over += ended[i] && !limit;
      if (ended[i]) {
        for (const env::Episode& episode : environments.finished_episodes()) {
          if (episode.index == i) check(episode == env::Episode{i, returns[i], lengths[i]}, "episode");
        }
        lengths[i] = 0;
        returns[i] = 0;
      }
    }
    if (std::ranges::find(ended, true) != ended.end()) reference.reset(ended);
    both += std::ranges::count(ended, true) > 1;
    for (std::size_t i = 0; i < kCount; ++i) {
      const Pixels now = to_vector(environments.observations().row_span(i));
      if (now != reference.observation(i))
        failures.add("row " + std::to_string(i) + " after step " + std::to_string(t));
      if (!ended[i] && now != expected[i])
        failures.add("a game that goes on was disturbed in step " + std::to_string(t));
      if (!ended[i]) continue;
      for (std::size_t k = 0; k < 3; ++k) {
        if (frame(now, k) != black)
          failures.add("a stack crosses the start of an episode in step " + std::to_string(t));
      }
      if (frame(now, 3) == black) failures.add("an episode starts in the dark in step " + std::to_string(t));
    }
  }
  TROOP_CHECK_NONE(failures);
  CHECK(lives_lost > 10);
  CHECK(truncated > 3);
  CHECK(both > 0);
  MESSAGE(lives_lost << " lives lost, " << truncated << " episodes cut off, " << over << " games over");
}

TEST_CASE("a life lost in an episode ends no episode and resets nothing, and can be ignored") {
  const auto play = [](bool terminates) {
    AtariVector environments({.count = 2, .seed = 3},
                             {.game = "breakout", .life_loss_terminates = terminates});
    std::size_t terminations = 0, episodes = 0;
    std::string pixels;
    for (int t = 0; t < 300; ++t) {
      environments.step(std::array{t % 4, (t / 3) % 4});
      terminations += static_cast<std::size_t>(environments.terminated()[0] + environments.terminated()[1]);
      episodes += environments.finished_episodes().size();
      pixels += hash_of(environments.observations().row_span(0));
    }
    return std::tuple(terminations, episodes, pixels);
  };
  const auto [with, episodes, pixels] = play(true);
  const auto [without, same_episodes, same_pixels] = play(false);
  CHECK(without == same_episodes);
  CHECK(episodes == same_episodes);
  CHECK(episodes > 0);
  CHECK(with >= 5 * episodes);
  CHECK(pixels == same_pixels);
}

TEST_CASE("rewards are clipped for learning, and episodes report the true score") {
  const auto play = [](bool clip) {
    AtariVector environments({.count = 1, .seed = 3},
                             {.game = "space_invaders", .clip_rewards = clip, .max_episode_frames = 2000});
    double sum = 0, score = 0;
    float largest = 0;
    for (int t = 0; t < 500; ++t) {
      environments.step(std::array{t % 6});
      sum += static_cast<double>(environments.rewards()[0]);
      largest = std::max(largest, environments.rewards()[0]);
      for (const env::Episode& episode : environments.finished_episodes()) score += episode.episode_return;
      if (score > 0) break;
    }
    return std::tuple(sum, score, largest);
  };
  const auto [clipped_sum, score, clipped_largest] = play(true);
  const auto [sum, same_score, largest] = play(false);
  CHECK(score > 0);
  CHECK(score == same_score);
  CHECK(sum == score);
  CHECK(largest >= 5);
  CHECK(clipped_largest == 1);
  CHECK(clipped_sum < sum);
}

TEST_CASE("no-op starts differ, and without no-ops all episodes begin alike") {
  const auto starts = [](std::size_t max_noops, bool fire) {
    AtariVector environments({.count = 4, .seed = 2},
                             {.game = "breakout", .max_noops = max_noops, .fire_on_reset = fire});
    std::map<std::string, int> hashes;
    for (std::size_t i = 0; i < 4; ++i) ++hashes[hash_of(environments.observations().row_span(i))];
    return hashes;
  };
  CHECK(starts(30, true).size() > 1);
  CHECK(starts(0, false).size() == 1);
  CHECK(starts(0, true).size() == 1);
  CHECK(starts(0, true) != starts(0, false));
}

TEST_CASE("action sets, pictures and stacks are as asked for") {
  const auto spec = [](AtariOptions options) {
    options.game = "pong";
    return AtariVector({.count = 1}, options).spec();
  };
  CHECK(spec({}).num_actions == 6);
  CHECK(spec({}).observation_shape == std::vector<std::size_t>{4, 84, 84});
  CHECK(spec({}).max_episode_steps == 27'000);
  CHECK(spec({}).name == "pong");
  CHECK(spec({}).human_normalised(14.6) == 1.0);
  CHECK(spec({.full_action_set = true}).num_actions == 18);
  CHECK(spec({.grey = false, .height = 42, .width = 40, .stack = 2}).observation_shape ==
        std::vector<std::size_t>{2, 42, 40, 3});
  CHECK(spec({.frame_skip = 7, .max_episode_frames = 50}).max_episode_steps == 8);
}

TEST_CASE("a frame skip of 4 with the larger of two frames is made of four single frames") {
  const AtariOptions raw{
      .game = "pong", .frame_skip = 1, .max_of_two_frames = false, .height = 210, .width = 160, .stack = 1};
  AtariOptions skipping = raw;
  skipping.frame_skip = 4;
  skipping.max_of_two_frames = true;
  AtariVector singles({.count = 1, .seed = 4}, raw), steps({.count = 1, .seed = 4}, skipping);
  testing::Failures failures;
  for (std::int32_t t = 0; t < 60; ++t) {
    Pixels last, before;
    float reward = 0;
    for (int k = 0; k < 4; ++k) {
      before = last;
      singles.step(std::array{t % 6});
      last = to_vector(singles.observations().row_span(0));
      reward += singles.rewards()[0];
    }
    for (std::size_t k = 0; k < last.size(); ++k) last[k] = std::max(last[k], before[k]);
    steps.step(std::array{t % 6});
    if (last != to_vector(steps.observations().row_span(0)) || reward != steps.rewards()[0])
      failures.add("step " + std::to_string(t));
  }
  TROOP_CHECK_NONE(failures);
}

TEST_CASE(
    "a game depends on its index in the run and its actions, not on how many others there are or on "
    "threads") {
  const auto history = [](std::size_t count, std::uint64_t first_index, std::size_t threads,
                          const char* stream = "environment") {
    AtariVector environments({.count = count, .seed = 9, .stream = stream, .first_index = first_index},
                             {.game = "seaquest", .num_threads = threads});
    const std::size_t row = 3 - first_index;
    std::string pixels = hash_of(environments.observations().row_span(row));
    for (int t = 0; t < 40; ++t) {
      std::vector<std::int32_t> actions(count);
      for (std::size_t i = 0; i < count; ++i)
        actions[i] = static_cast<std::int32_t>((first_index + i) * 7 + static_cast<std::size_t>(t)) % 18;
      environments.step(actions);
      pixels += hash_of(environments.observations().row_span(row));
    }
    return pixels;
  };
  const std::string alone = history(1, 3, 1);
  CHECK(history(1, 3, 1) == alone);
  CHECK(history(5, 0, 2) == alone);
  CHECK(history(2, 2, 0) == alone);
  CHECK(history(1, 3, 1, "evaluation") != alone);
  std::array<std::string, 3> together;
  {
    std::vector<std::jthread> threads;
    for (std::string& result : together) threads.emplace_back([&] { result = history(2, 2, 1); });
  }
  for (const std::string& result : together) CHECK(result == alone);
}

TEST_CASE("reset abandons the running games without reporting them") {
  AtariVector environments({.count = 2, .seed = 1}, {.game = "pong"});
  for (int t = 0; t < 5; ++t) environments.step(std::array{1, 2});
  environments.reset();
  CHECK(environments.finished_episodes().empty());
  CHECK(environments.next_observation(1).data() == environments.observations().row(1));
  CHECK(environments.rewards()[0] == 0);
  CHECK(std::ranges::all_of(environments.observations().row_span(0).first(3 * 84 * 84),
                            [](auto v) { return v == 0; }));
  std::map<std::string, int> games;  // another seed each time
  for (int k = 0; k < 6; ++k) {
    environments.reset();
    for (int t = 0; t < 25; ++t) environments.step(std::array{3, 3});
    ++games[hash_of(environments.observations().row_span(0))];
  }
  CHECK(games.size() > 2);
}

TEST_CASE("a vector of games can be moved") {
  AtariVector first({.count = 2, .seed = 1}, {.game = "pong"});
  first.step(std::array{1, 2});
  AtariVector second(std::move(first));
  AtariVector reference({.count = 2, .seed = 1}, {.game = "pong"});
  reference.step(std::array{1, 2});
  for (int t = 0; t < 10; ++t) {
    second.step(std::array{3, t % 6});
    reference.step(std::array{3, t % 6});
    CHECK(hash_of(second.observations().row_span(1)) == hash_of(reference.observations().row_span(1)));
  }
}

TEST_CASE("an unknown game is refused with the nearest name") {
  const auto error = [](const std::string& game) {
    return error_of([&] { AtariVector({.count = 1}, {.game = game}); });
  };
  const auto expected = [&](const std::string& game, const std::string& nearest) {
    return error(game).starts_with("game: " + game + " is not allowed; expected one of the ") &&
           error(game).ends_with(" that ale_py has" + nearest);
  };
  CHECK(expected("ponk", "; did you mean pong?"));
  CHECK(expected("Pong", "; did you mean pong?"));
  CHECK(expected("ALE/SpaceInvaders-v5", "; did you mean space_invaders?"));
  CHECK(expected("mspacman", "; did you mean ms_pacman?"));
  CHECK(expected("half-life", ", such as pong"));
  CHECK(error("") == "game: \"\" is not allowed; expected the name of a game, such as pong");
}

TEST_CASE("wrong actions are refused before any game has moved, options out of range before any has begun") {
  AtariVector environments({.count = 2}, {.game = "pong"});
  CHECK(error_of([&] {
          environments.step(std::array{0, 6});
        }) == "actions[1]: 6 is not allowed; expected an integer from 0 to 5");
  CHECK(error_of([&] { environments.step(std::array{0}); }) ==
        "actions.size(): 1 is not allowed; expected the number of environments, 2");
  CHECK_NOTHROW(environments.step(std::array{0, 5}));
  const auto error = [](AtariOptions options) {
    options.game = "pong";
    return error_of([&] { AtariVector({.count = 1}, options); });
  };
  CHECK(error({.frame_skip = 0}) == "frame_skip: 0 is not allowed; expected an integer from 1 to 1000");
  CHECK(error({.height = 0}) == "height: 0 is not allowed; expected an integer from 1 to 1000");
  CHECK(error({.width = 1001}) == "width: 1001 is not allowed; expected an integer from 1 to 1000");
  CHECK(error({.stack = 0}) == "stack: 0 is not allowed; expected an integer from 1 to 64");
  CHECK(error({.max_noops = 20000}) ==
        "max_noops: 20000 is not allowed; expected an integer from 0 to 10000");
  CHECK(error({.max_episode_frames = 3}) ==
        "max_episode_frames: 3 is not allowed; expected an integer from frame_skip to 10^9");
  CHECK(error({.repeat_action_probability = 1.5}) ==
        "repeat_action_probability: 1.5 is not allowed; expected a number from 0 to 1");
  CHECK(error_of([] { AtariVector({.count = 0}, {.game = "pong"}); }) ==
        "count: 0 is not allowed; expected an integer from 1 to 65536");
}
