// Ape-X on CartPole, whole: replay, learner, actors and evaluation in one process. See `cart_pole --help`.
#include <troop/apex.hpp>

int main(int argc, char** argv) {
  const auto options = troop::apex::parse_options(argc, argv);
  return troop::apex::run<troop::env::CartPole>(options, troop::nn::dueling_mlp({64, 64}));
}
