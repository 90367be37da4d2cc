// expect: Record is a trivially copyable aggregate: give the replay an ArrayStorage as Storage
#include <troop/replay/heap_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>

struct Transition {
  float reward;
};

troop::PrioritizedReplay<Transition, troop::HeapStorage<Transition>> replay({.capacity = 8});
