// Every component at once, through the one include.
#include <troop/apex.hpp>

int main(int argc, char** argv) {
  const auto options = troop::apex::parse_options(argc, argv, {.deterministic = true, .target_return = 20.0, .output = "", .quiet = true});
  return troop::apex::run<troop::env::CartPole>(options, troop::nn::dueling_mlp({16, 16}));
}
