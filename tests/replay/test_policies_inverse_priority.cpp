#include <doctest/doctest.h>

#include "replay_oracle.hpp"

using troop::InversePriorityRemover;
using troop::NewestFirstSampler;
using troop::ProportionalSampler;
using troop::RankBasedSampler;
using troop::UniformSampler;

TEST_CASE_TEMPLATE("with InversePriorityRemover a replay does what a slow one does, over 100,000 operations",
                   Sampler, ProportionalSampler, RankBasedSampler, UniformSampler, NewestFirstSampler) {
  troop::testing::compare_policies_with_oracle<Sampler, InversePriorityRemover>();
}
