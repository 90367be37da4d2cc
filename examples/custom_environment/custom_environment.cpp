// An environment of one's own: find the door at one end of a corridor. See `custom_environment --help`.
#include <troop/apex.hpp>

/// Stands on one of `kLength` cells and sees how far it has come, and on which side the door is.
class Corridor {
 public:
  using Scalar = float;

  const troop::env::Spec& spec() const { return spec_; }

  void reset(std::uint64_t seed, std::span<float> observation) {
    troop::Random random(seed, "corridor");
    cell_ = kLength / 2;
    door_ = random.below(2) == 0 ? 0 : kLength - 1;
    observe(observation);
  }

  troop::env::StepResult step(std::int32_t action, std::span<float> observation) {
    troop::env::require_action(action, spec_.num_actions);
    cell_ = std::clamp(cell_ + (action == 0 ? -1 : 1), 0, kLength - 1);
    observe(observation);
    const bool found = cell_ == door_;
    return {.reward = found ? 1.0f : -0.05f, .terminated = found};
  }

 private:
  static constexpr int kLength = 9;

  void observe(std::span<float> observation) const {
    observation[0] = static_cast<float>(cell_) / kLength;
    observation[1] = door_ == 0 ? -1.0f : 1.0f;
  }

  int cell_ = 0, door_ = 0;
  troop::env::Spec spec_{.name = "Corridor",
                         .observation_dtype = troop::DType::f32,
                         .observation_shape = {2},
                         .num_actions = 2,
                         .max_episode_steps = 50,
                         .return_to_solve = 0.8};
};

static_assert(troop::env::check_environment<Corridor>());  // says in words what a class lacks

int main(int argc, char** argv) {
  const auto options = troop::apex::parse_options(argc, argv);
  return troop::apex::run<Corridor>(options, troop::nn::dueling_mlp({32, 32}));
}
