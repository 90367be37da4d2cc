// expect: Record is no trivially copyable aggregate: give the replay a HeapStorage<Record> as Storage
#include <string>
#include <troop/replay/prioritized_replay.hpp>

struct Transition {
  float reward;
  std::string note;
};

troop::PrioritizedReplay<Transition> replay({.capacity = 8});
