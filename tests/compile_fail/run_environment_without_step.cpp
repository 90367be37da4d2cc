// expect: an environment must make a step
#include <cstdint>
#include <span>

#include <troop/apex/run.hpp>

struct Environment {
  using Scalar = float;
  const troop::env::Spec& spec() const;
  void reset(std::uint64_t seed, std::span<float> observation);
};

int main() {
  return troop::apex::run<Environment>({}, troop::nn::mlp({8}));
}
