// expect: a record must be trivially copyable: no std::string, std::vector or pointer owner among its members
#include <string>
#include <troop/replay/prioritized_replay.hpp>

struct Transition {
  float reward;
  std::string note;
};

troop::PrioritizedReplay<Transition> replay({.capacity = 8});
