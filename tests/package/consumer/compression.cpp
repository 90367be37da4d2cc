// A storage of the replay with a codec of another component.
#include <array>
#include <cstdint>

#include <troop/compression/lz4.hpp>
#include <troop/replay/frame_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>

struct Transition {
  std::array<std::array<std::array<std::uint8_t, 84>, 84>, 4> observation;
  float reward;
};

int main() {
  troop::PrioritizedReplay<Transition, troop::FrameStorage<troop::Lz4>> replay({.capacity = 64});
  Transition transition{};
  transition.observation[3][83][83] = 7;
  replay.add(transition, 1.0f);
  troop::Random random(7);
  return replay.sample(1, {}, random).records()[0].observation[3][83][83] == 7 ? 0 : 1;
}
