// A network of one's own, and the pieces of Ape-X put together by hand in one thread.
//   custom_network ["conv(16,4,4) relu dense(64) relu dueling(32)"]
#include <cstdio>
#include <exception>

#include <troop/apex.hpp>

namespace {

using namespace troop;

int train(const nn::Network& layers) {
  const env::Spec spec = env::Catch().spec();
  const nn::Network network = layers.bind(spec.observation_shape, static_cast<std::size_t>(spec.num_actions));
  for (const nn::ParameterBlock& block : network.parameter_blocks())
    std::printf("%-28s %6zu parameters\n", block.name.c_str(), block.size());

  PrioritizedReplay<DynamicRecord> replay({.capacity = 20'000}, env::transition_layout(spec));
  RateLimiter limiter({.min_inserts = 1'000, .samples_per_insert = 16.0, .tolerance = 500.0});
  agent::ParameterStore parameters;
  nn::EigenNetwork online(network, 1, {.optimizer = {.learning_rate = 1e-3}});
  agent::Learner learner(online, replay, limiter, parameters, {.batch_size = 64, .target_interval = 200});

  using Environments = env::VectorEnvironment<env::Catch>;
  agent::LocalSink sink(replay, limiter);
  agent::Actor actor(Environments({.count = 16, .seed = 1}), nn::EigenNetwork(network, 1), sink, parameters,
                     {.num_environments = 16});
  agent::Evaluator evaluator(Environments({.count = 100, .seed = 1, .stream = "evaluation"}),
                             nn::EigenNetwork(network, 1));

  for (std::uint64_t next = 500; next <= 10'000;) {
    actor.step(Deadline::now());
    while (learner.steps() < next && learner.step(Deadline::now()) == Outcome::ok) {
    }
    if (learner.steps() < next) continue;
    next += 500;
    evaluator.network().set_parameters(online.parameters());
    const double mean = evaluator.evaluate(1).mean();
    std::printf("%5llu learner steps: mean return %.2f\n", static_cast<unsigned long long>(learner.steps()),
                mean);
    if (mean >= spec.return_to_solve) return 0;
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) try {
  return train(nn::parse_network(argc > 1 ? argv[1] : "conv(16,4,4) relu dense(64) relu dueling(32)"));
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
