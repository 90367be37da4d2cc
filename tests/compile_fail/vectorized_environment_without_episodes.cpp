// expect: a vector of environments must report episodes
#include <cstddef>
#include <cstdint>
#include <span>

#include <troop/env/environment.hpp>

struct Environments {
  using Scalar = float;
  std::size_t size() const;
  const troop::env::Spec& spec() const;
  void reset();
  void step(std::span<const std::int32_t> actions);
  troop::MatrixView<const float> observations() const;
  std::span<const float> next_observation(std::size_t i) const;
  std::span<const float> rewards() const;
  std::span<const std::uint8_t> terminated() const;
  std::span<const std::uint8_t> truncated() const;
};

static_assert(troop::env::check_vectorized_environment<Environments>());
