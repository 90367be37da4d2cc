// expect: include <troop/serialization/cereal.hpp>
#include <string>
#include <troop/replay/heap_storage.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/snapshot.hpp>

troop::PrioritizedReplay<std::string, troop::HeapStorage<std::string>> replay({.capacity = 8});
const auto outcome = troop::save_snapshot("replay", replay);
