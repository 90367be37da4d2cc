// expect: the sampler's draws from parts of the items are not draws from all of them
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sharded_replay.hpp>

struct Transition {
  float reward;
};

using Shard = troop::PrioritizedReplay<Transition, troop::ArrayStorage, troop::NewestFirstSampler>;
troop::ShardedReplay<Shard> replay({.capacity = 8}, 2);
