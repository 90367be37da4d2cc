// expect: an environment must start an episode
#include <cstdint>
#include <span>

#include <troop/env/vector_environment.hpp>

struct Environment {
  using Scalar = float;
  const troop::env::Spec& spec() const;
  void reset(std::span<float> observation);  // the seed is missing
  troop::env::StepResult step(std::int32_t action, std::span<float> observation);
};

troop::env::VectorEnvironment<Environment> environments({.count = 8});
