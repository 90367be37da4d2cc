/// @file
/// Atari games: many emulators side by side, by the Arcade Learning Environment's own vector of environments.
#pragma once

#include <troop/gymnasium/detail/python.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/nearest_word.hpp>
#include <troop/core/random.hpp>
#include <troop/core/view.hpp>
#include <troop/env/environment.hpp>
#include <troop/env/vector_environment.hpp>
#include <troop/gymnasium/atari_scores.hpp>

namespace troop::env {

/// A game and its rules. The defaults are those of Ape-X (Horgan et al. 2018, appendix C), which are those of DQN
/// (Mnih et al. 2015, Methods) but for the length of an episode, here that of the published evaluations.
struct AtariOptions {
  std::string game = {};  ///< by the name of its ROM: "pong", "space_invaders"

  std::size_t frame_skip = 4;     ///< emulator frames a step; the action is repeated in each
  bool max_of_two_frames = true;  ///< the picture is the larger of the last two frames, pixel by pixel
  bool grey = true;               ///< one channel a picture; else RGB, channels last
  std::size_t height = 84;        ///< of a picture, after area interpolation from 210
  std::size_t width = 84;         ///< of a picture, after area interpolation from 160
  std::size_t stack = 4;          ///< pictures an observation, oldest first; black before the episode's first

  std::size_t max_noops = 30;  ///< an episode begins after 0 to so many frames without an action
  bool fire_on_reset = false;  ///< and after one frame of FIRE, in games that have it; counts as a no-op

  bool clip_rewards = true;  ///< rewards() in [-1, 1]; Episode::episode_return is the true score either way
  /// A lost life gives terminated() = 1, so that nothing is bootstrapped across it. The game goes on, and no
  /// episode is reported.
  bool life_loss_terminates = true;
  std::size_t max_episode_frames = 108'000;  ///< then truncated: 30 minutes of play; no-ops do not count

  /// Probability that a frame repeats the frame before's action: 0.25 in Machado et al. 2018 ("sticky actions").
  double repeat_action_probability = 0.0;
  bool full_action_set = false;  ///< all 18 actions, else those that the game knows

  std::size_t num_threads = 0;  ///< of the emulators; 0: one a core, at most one an environment

  void validate() const {
    require(!game.empty(), "game", "\"\"", "the name of a game, such as pong");
    require(frame_skip >= 1 && frame_skip <= 1000, "frame_skip", frame_skip, "an integer from 1 to 1000");
    require(height >= 1 && height <= 1000, "height", height, "an integer from 1 to 1000");
    require(width >= 1 && width <= 1000, "width", width, "an integer from 1 to 1000");
    require(stack >= 1 && stack <= 64, "stack", stack, "an integer from 1 to 64");
    require(max_noops <= 10'000, "max_noops", max_noops, "an integer from 0 to 10000");
    require(max_episode_frames >= frame_skip && max_episode_frames <= 1'000'000'000, "max_episode_frames",
            max_episode_frames, "an integer from frame_skip to 10^9");
    require_between("repeat_action_probability", repeat_action_probability, 0.0, 1.0);
    require(num_threads <= 1024, "num_threads", num_threads, "an integer from 0 to 1024");
  }
};

/// `count` games as one VectorizedEnvironment, emulated and made into pictures by ale_py's AtariVectorEnv in
/// threads of its own. Python is only the door: a step passes it twice, without its lock while the emulators
/// work, so that vectors in several threads do not wait for each other.
///
/// What the emulators are asked for, and what is done here so that learning and reports are right:
/// - The emulators give true rewards; they are clipped here, and the episodes' returns are the true scores.
/// - A lost life ends the bootstrapping and nothing else; see `life_loss_terminates`.
/// - The limit of frames is kept here, by resetting the environments concerned: the emulators' own limit would
///   end the step before its last frame is looked at, and a truncated episode bootstraps from just that one.
/// - The last observation of a game that is over has as its newest picture the last frames that were looked
///   at, as in DQN: an emulator stops within the step. Nothing is bootstrapped from it.
///
/// Environment i's emulator is seeded from the random stream (seed, stream, first_index + i) and draws its
/// no-ops and repeated actions from there, so its episodes depend on its index in the run and its actions only.
/// Observations are u8 [stack, height, width], with RGB [stack, height, width, 3].
///
/// Memory: about 5 MB an environment. A step costs the emulators' time, some 0.3 ms an environment and core, and
/// 20 us of Python. Observations are not copied: the views are of the emulators' results. Not thread-safe: one
/// thread at a time, which may change. Throws Error for what Python raises and for missing packages, with the
/// `pip install` line; see Gymnasium for the Python that is used.
///
///     AtariVector games({.count = 16, .seed = 1}, {.game = "breakout"});
///     choose(games.observations(), actions);                             // [16, 28224] -> [16]
///     games.step(actions);   log(games.finished_episodes());
class AtariVector {
 public:
  using Scalar = std::uint8_t;

  /// Starts the emulators and the first episodes. Throws InvalidArgument for options out of range and for a game
  /// that there is not, with the nearest name.
  AtariVector(const VectorOptions& options, const AtariOptions& atari)
      : options_((atari.validate(), atari)), count_(options.count) {
    require(count_ >= 1 && count_ <= 65536, "count", count_, "an integer from 1 to 65536");
    for (std::size_t i = 0; i < count_; ++i)
      streams_.emplace_back(options.seed, options.stream, options.first_index + i);
    rewards_.resize(count_);
    terminated_.resize(count_);
    truncated_.resize(count_);
    lives_.resize(count_);
    returns_.resize(count_);
    lengths_.resize(count_);
    next_.resize(count_);
    finished_.reserve(count_);
    detail::ensure_python();
    call([&] { make(); });
    reset();
  }

  std::size_t size() const noexcept { return count_; }
  const Spec& spec() const noexcept { return spec_; }
  const AtariOptions& options() const noexcept { return options_; }

  /// Starts a new episode everywhere, from the next seed of each environment's stream.
  void reset() {
    std::fill(rewards_.begin(), rewards_.end(), 0.0f);
    std::fill(terminated_.begin(), terminated_.end(), std::uint8_t{0});
    std::fill(truncated_.begin(), truncated_.end(), std::uint8_t{0});
    finished_.clear();
    call([&] {
      namespace py = pybind11;
      py::list seeds;
      for (Random& stream : streams_) seeds.append(stream() >> 33);  // the emulators take 31 bits
      const py::object result = environments_.get().attr("reset")(
          py::arg("seed") = py::module_::import("numpy").attr("array")(seeds));
      observe(result);
    });
    for (std::size_t i = 0; i < count_; ++i) start_episode(i);
  }

  /// One step of every game, `actions[i]` in game i. Throws InvalidArgument, before any has moved, unless there
  /// are size() actions and all are in [0, num_actions).
  void step(std::span<const std::int32_t> actions) {
    require_actions(actions, count_, spec_.num_actions);
    finished_.clear();
    call([&] {
      namespace py = pybind11;
      std::memcpy(action_values_, actions.data(), actions.size_bytes());
      environments_.get().attr("send")(actions_.get());
      const py::tuple result = environments_.get().attr("recv")();
      collect(result);
      if (std::ranges::find(truncated_, 1) != truncated_.end()) reset_truncated();
    });
  }

  MatrixView<const std::uint8_t> observations() const noexcept { return {pixels_, count_, columns_}; }

  std::span<const std::uint8_t> next_observation(std::size_t i) const noexcept {
    assert(i < count_);
    return {next_[i], columns_};
  }

  std::span<const float> rewards() const noexcept { return rewards_; }
  std::span<const std::uint8_t> terminated() const noexcept { return terminated_; }
  std::span<const std::uint8_t> truncated() const noexcept { return truncated_; }
  std::span<const Episode> finished_episodes() const noexcept { return finished_; }

  /// Lives left in each game; 0 in games that have none.
  std::span<const std::int32_t> lives() const noexcept { return lives_; }

 private:
  template <class F>
  void call(F&& f) {
    try {
      detail::with_python(f);
    } catch (const InvalidArgument&) {
      throw;
    } catch (const Error& error) {
      throw Error(options_.game + ": " + error.what());
    }
  }

  void make() {
    namespace py = pybind11;
    const py::module_ ale = detail::import_package("ale_py", detail::kAlePackage);
    detail::import_package("gymnasium", detail::kGymnasiumPackage);
    const auto names = py::module_::import("ale_py.roms").attr("get_all_rom_ids")();
    std::vector<std::string> games;
    for (const py::handle name : names) games.push_back(name.cast<std::string>());
    if (std::ranges::find(games, options_.game) == games.end()) refuse_game(games);

    py::object made =
        py::module_::import("ale_py.vector_env")
            .attr("AtariVectorEnv")(
                options_.game, count_, py::arg("num_threads") = options_.num_threads,
                py::arg("max_num_frames_per_episode") = kNoLimit,
                py::arg("repeat_action_probability") = options_.repeat_action_probability,
                py::arg("full_action_space") = options_.full_action_set,
                py::arg("autoreset_mode") = "SameStep", py::arg("img_height") = options_.height,
                py::arg("img_width") = options_.width, py::arg("grayscale") = options_.grey,
                py::arg("stack_num") = options_.stack, py::arg("frameskip") = options_.frame_skip,
                py::arg("maxpool") = options_.max_of_two_frames,
                py::arg("noop_max") = options_.max_noops + 1,  // there the first number that is never drawn
                py::arg("episodic_life") = false, py::arg("life_loss_info") = false,
                py::arg("reward_clipping") = false, py::arg("use_fire_reset") = options_.fire_on_reset);
    spec_ = {
        .name = options_.game,
        .observation_dtype = DType::u8,
        .observation_shape = {options_.stack, options_.height, options_.width},
        .num_actions = made.attr("single_action_space").attr("n").cast<std::int32_t>(),
        .max_episode_steps = (options_.max_episode_frames + options_.frame_skip - 1) / options_.frame_skip};
    if (const AtariScore* const score = find_atari_score(options_.game); score != nullptr) {
      spec_.random_return = score->random;
      spec_.human_return = score->human;
    }
    if (!options_.grey) spec_.observation_shape.push_back(3);
    columns_ = spec_.observation_size();
    py::object actions = py::module_::import("numpy").attr("zeros")(count_, "int32");
    action_values_ = const_cast<void*>(detail::PythonBuffer(actions).data());
    actions_ = detail::PythonObject(std::move(actions));
    environments_ = detail::PythonObject(std::move(made));
  }

  [[noreturn]] void refuse_game(const std::vector<std::string>& games) const {
    std::string given;  // "SpaceInvaders" and "ALE/Space_Invaders-v5" are near space_invaders
    for (const char letter : options_.game.substr(options_.game.find('/') + 1)) {
      if (letter >= 'A' && letter <= 'Z' && !given.empty() && given.back() != '_') given += '_';
      given += letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
    }
    const std::string nearest = nearest_word(given.substr(0, given.rfind("-v")), games);
    throw InvalidArgument("game", options_.game,
                          "one of the " + std::to_string(games.size()) + " that ale_py has" +
                              (nearest.empty() ? ", such as pong" : "; did you mean " + nearest + "?"));
  }

  /// The memory of an array of `count` rows of T that a result holds.
  template <class T>
  const T* data_of(pybind11::handle array, const char* format, std::size_t columns = 1) const {
    const detail::PythonBuffer buffer(array);
    if (buffer.format() != format || buffer.bytes() != count_ * columns * sizeof(T))
      throw Error("ale_py gave an array of " + std::to_string(buffer.bytes()) + " bytes of format " +
                  std::string(buffer.format()) + " where " + std::to_string(count_ * columns * sizeof(T)) +
                  " of format " + format + " were expected; this was tested with " + detail::kAlePackage);
    return static_cast<const T*>(buffer.data());
  }

  /// Takes over the observations and lives of a result of reset or step.
  void observe(const pybind11::tuple& result) {
    namespace py = pybind11;
    py::object observations = result[0];
    pixels_ = data_of<std::uint8_t>(observations, "B", columns_);
    observations_ = detail::PythonObject(std::move(observations));
    const py::object info = result[result.size() - 1];
    std::copy_n(data_of<std::int32_t>(info["lives"], "i"), count_, lives_.data());
    for (std::size_t i = 0; i < count_; ++i) next_[i] = pixels_ + i * columns_;
  }

  /// Makes outcomes and episodes of a result of a step.
  void collect(const pybind11::tuple& result) {
    namespace py = pybind11;
    const std::vector<std::int32_t>& before = (lives_before_ = lives_);
    observe(result);
    const auto* const rewards = data_of<std::int32_t>(result[1], "i");
    const auto* const over = data_of<std::uint8_t>(result[2], "?");
    const py::object info = result[4];
    const std::uint8_t* last = nullptr;
    if (std::find(over, over + count_, 1) != over + count_) {
      py::object final_observations = info["final_obs"];
      last = data_of<std::uint8_t>(final_observations, "B", columns_);
      final_observations_ = detail::PythonObject(std::move(final_observations));
    }
    for (std::size_t i = 0; i < count_; ++i) {
      const auto reward = static_cast<float>(rewards[i]);
      returns_[i] += static_cast<double>(reward);
      ++lengths_[i];
      const bool life_lost = lives_[i] > 0 && lives_[i] < before[i];
      rewards_[i] = options_.clip_rewards ? std::clamp(reward, -1.0f, 1.0f) : reward;
      truncated_[i] = over[i] == 0 && lengths_[i] >= spec_.max_episode_steps;
      terminated_[i] = over[i] != 0 || (options_.life_loss_terminates && life_lost && truncated_[i] == 0);
      if (over[i] == 0 && truncated_[i] == 0) continue;
      if (over[i] != 0) next_[i] = last + i * columns_;
      finished_.push_back({i, returns_[i], lengths_[i]});
      start_episode(i);
    }
  }

  /// Starts new episodes where the limit of frames was reached. What was observed last stays, and is what those
  /// episodes bootstrap from.
  void reset_truncated() {
    namespace py = pybind11;
    const py::module_ numpy = py::module_::import("numpy");
    py::list mask;
    for (const std::uint8_t truncated : truncated_) mask.append(py::bool_(truncated != 0));
    py::dict options;
    options["reset_mask"] = numpy.attr("array")(mask, "bool");
    const py::object result = environments_.get().attr("reset")(py::arg("options") = options);
    std::vector<const std::uint8_t*> last;
    last.swap(next_);
    next_.resize(count_);
    last_observations_ = std::move(observations_);
    observations_ = {};
    observe(result);
    for (std::size_t i = 0; i < count_; ++i) {
      if (truncated_[i] != 0 || terminated_[i] != 0) next_[i] = last[i];
    }
  }

  void start_episode(std::size_t i) noexcept {
    returns_[i] = 0;
    lengths_[i] = 0;
  }

  static constexpr std::int32_t kNoLimit = 2'000'000'000;

  AtariOptions options_;
  std::size_t count_ = 0, columns_ = 0;
  std::vector<Random> streams_;
  Spec spec_;
  detail::PythonObject environments_, actions_;
  void* action_values_ = nullptr;  // the memory of actions_

  // What the views show, as ale_py gave it: of the last step or reset, of games that ended, of games cut off.
  detail::PythonObject observations_, final_observations_, last_observations_;
  const std::uint8_t* pixels_ = nullptr;   // of observations_
  std::vector<const std::uint8_t*> next_;  // into any of the three
  std::vector<float> rewards_;
  std::vector<std::uint8_t> terminated_, truncated_;
  std::vector<std::int32_t> lives_, lives_before_;
  std::vector<double> returns_;
  std::vector<std::uint64_t> lengths_;
  std::vector<Episode> finished_;
};

static_assert(check_vectorized_environment<AtariVector>());

}  // namespace troop::env
