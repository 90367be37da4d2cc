#include <array>
#include <cstdint>

#include <troop/replay/prioritized_replay.hpp>

struct Transition {
  std::array<float, 4> observation;
  std::int32_t action;
  float reward;
};

int main() {
  troop::PrioritizedReplay<Transition> replay({.capacity = 1024, .alpha = 0.6});
  replay.add({.observation = {1, 2, 3, 4}, .action = 1, .reward = 0.5f}, 1.0f);
  troop::Random random(7);
  const auto batch = replay.sample(32, {.beta = 0.4}, random);
  return batch.records()[31].observation[3] == 4.0f ? 0 : 1;
}
