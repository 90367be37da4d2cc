// expect: a run makes its environments itself: give yours a default constructor, or give the run a function
#include <troop/apex/run.hpp>
#include <troop/env/cart_pole.hpp>

struct Environment : troop::env::CartPole {
  explicit Environment(int level);
};

int main() {
  return troop::apex::run<Environment>({}, troop::nn::mlp({8}));
}
