// expect: an environment must make a step
#include <cstdint>
#include <span>

#include <troop/env/vector_environment.hpp>

struct Environment {
  using Scalar = std::uint8_t;
  const troop::env::Spec& spec() const;
  void reset(std::uint64_t seed, std::span<std::uint8_t> observation);
  float step(std::int32_t action, std::span<std::uint8_t> observation);  // not a StepResult
};

troop::env::VectorEnvironment<Environment> environments({.count = 8});
