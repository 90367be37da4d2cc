// expect: write `using Scalar = float
#include <cstdint>
#include <span>

#include <troop/env/environment.hpp>

struct Environment {
  const troop::env::Spec& spec() const;
  void reset(std::uint64_t seed, std::span<float> observation);
  troop::env::StepResult step(std::int32_t action, std::span<float> observation);
};

static_assert(troop::env::check_environment<Environment>());
