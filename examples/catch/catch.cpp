// Ape-X on Catch, a small task of pixels, by way of a convolution: the quick start for images. See `catch --help`.
#include <troop/apex.hpp>

int main(int argc, char** argv) {
  using namespace troop::nn;
  troop::apex::Options defaults;
  defaults.replay.capacity = 20'000;
  defaults.learner.batch_size = 64;
  defaults.evaluation_interval = 500;
  const auto options = troop::apex::parse_options(argc, argv, defaults);
  const Network network({Conv2d{16, 4, 4}, Relu{}, Dueling{64}});
  return troop::apex::run<troop::env::Catch>(options, network);
}
