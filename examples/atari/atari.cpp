// Ape-X on Atari games: `atari --game pong`. See `atari --help` and docs/atari.md.
#include <algorithm>
#include <string>

#include <troop/apex.hpp>
#include <troop/compression/lz4.hpp>
#include <troop/gymnasium/atari.hpp>
#include <troop/replay/frame_storage.hpp>

#include "record.hpp"

/// What suits one machine with few cores, as in cores_2.toml; the paper's own settings are in paper.toml.
troop::apex::Options defaults() {
  troop::apex::Options options;
  options.replay.capacity = 500'000;
  options.rate = {.min_inserts = 20'000, .samples_per_insert = 8.0, .tolerance = 1'000.0};
  options.learner.batch_size = 32;
  options.learner.beta.steps = 200'000;
  options.learner.target_interval = 1'000;
  options.learner.publish_interval = 50;
  options.train.optimizer.learning_rate = 1e-4;
  options.evaluation_interval = 20'000;
  options.evaluation_episodes = 30;
  options.evaluation_epsilon = 0.001;
  options.max_seconds = 24 * 3600;
  return options;
}

int main(int argc, char** argv) {
  using troop::env::AtariVector;
  troop::env::AtariOptions rules{.game = "pong"};
  std::string record;
  const auto options = troop::apex::parse_options(
      argc, argv, defaults(),
      {{"game", &rules.game, "name of the game's ROM", "NAME"},
       {"record", &record, "play an episode of --evaluate and write it there, as an animated GIF", "FILE"},
       {"frame_skip", &rules.frame_skip, "emulator frames of a step"},
       {"max_of_two_frames", &rules.max_of_two_frames, "see the larger of the last two of them"},
       {"height", &rules.height, "rows of a picture"},
       {"width", &rules.width, "columns of a picture"},
       {"stack", &rules.stack, "pictures of an observation"},
       {"max_noops", &rules.max_noops, "an episode begins after up to so many frames without action"},
       {"fire_on_reset", &rules.fire_on_reset, "and after one frame of FIRE"},
       {"clip_rewards", &rules.clip_rewards, "learn from rewards clipped to [-1, 1]"},
       {"life_loss_terminates", &rules.life_loss_terminates, "do not bootstrap across a lost life"},
       {"max_episode_frames", &rules.max_episode_frames, "then an episode is cut off"},
       {"repeat_action_probability", &rules.repeat_action_probability, "sticky actions"},
       {"full_action_set", &rules.full_action_set, "all 18 actions"},
       {"emulator_threads", &rules.num_threads, "of each actor (0: one a core)"}});
  const auto make = [&](const troop::env::VectorOptions& vector) {
    try {
      return AtariVector(vector, rules);
    } catch (const troop::InvalidArgument& error) {  // of a field that is an option here
      std::string option = "--" + error.field();
      std::ranges::replace(option, '_', '-');
      throw troop::InvalidArgument(option, error.value(), error.expected());
    }
  };
  if (!record.empty()) return examples::record(options, record, make);
  return troop::apex::run<AtariVector, troop::FrameStorage<troop::Lz4>>(options, troop::nn::nature_dueling(),
                                                                        make);
}
