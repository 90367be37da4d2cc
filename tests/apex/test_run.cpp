#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <doctest/doctest.h>

#include <troop/apex/run.hpp>
#include <troop/compression/lz4.hpp>
#include <troop/env/cart_pole.hpp>
#include <troop/env/catch.hpp>
#include <troop/env/vector_environment.hpp>
#include <troop/replay/frame_storage.hpp>

#include "temporary_directory.hpp"

namespace {

using troop::apex::Options;
using troop::apex::RunResult;
using troop::env::CartPole;
using troop::env::Spec;
using troop::env::StepResult;

const troop::nn::Network kNetwork = troop::nn::dueling_mlp({32, 32});

/// A task that a minute of any machine solves: a mean return of 100 is well above the 20 of a random policy.
Options easy(std::uint64_t seed) {
  Options options;
  options.seed = seed;
  options.quiet = true;
  options.target_return = 100.0;
  options.evaluation_episodes = 10;
  options.max_seconds = 240.0;
  options.output = "";
  return options;
}

/// A CartPole with another description or another step. One type with functions in it, and one type of what makes it:
/// for each the compiler would do a whole run anew.
struct OtherCartPole : CartPole {
  using Step = std::function<StepResult(CartPole&, std::int32_t, std::span<float>)>;
  OtherCartPole(Spec text, Step function = {})
      : description(std::move(text)), other_step(std::move(function)) {}
  const Spec& spec() const { return description; }
  StepResult step(std::int32_t action, std::span<float> observation) {
    return other_step ? other_step(*this, action, observation) : CartPole::step(action, observation);
  }
  Spec description;
  Step other_step;
};
using Make = std::function<OtherCartPole(std::uint64_t)>;

/// A CartPole that raises an error, or gives what is no number, after its first steps.
OtherCartPole failing(int good, bool is_number = true) {
  return {CartPole().spec(),
          [good, is_number](CartPole& cart, std::int32_t action, std::span<float> observation) mutable {
            const StepResult result = cart.step(action, observation);
            if (good-- > 0) return result;
            if (is_number) throw troop::Error("the cart left the rails");
            observation[2] = std::nanf("");
            return result;
          }};
}

}  // namespace

TEST_CASE("a deterministic run learns, and twice the same seed gives the same run bit for bit") {
  Options options = easy(3);
  options.deterministic = true;
  const RunResult first = troop::apex::train<CartPole>(options, kNetwork);
  CHECK(first.solved);
  CHECK(first.mean_return >= 100.0);
  CHECK(first.episodes == 10);
  CHECK(first.seed == 3);
  const RunResult second = troop::apex::train<CartPole>(options, kNetwork);
  CHECK(second.parameters == first.parameters);
  CHECK(second.environment_steps == first.environment_steps);
  CHECK(second.learner_steps == first.learner_steps);
  options.seed = 4;
  CHECK(troop::apex::train<CartPole>(options, kNetwork).parameters != first.parameters);
}

TEST_CASE("threads learn as well, with several actors") {
  Options options = easy(5);
  options.num_actors = 2;
  const RunResult result = troop::apex::train<CartPole>(options, kNetwork);
  CHECK(result.solved);
  CHECK(result.mean_return >= 100.0);
  CHECK(result.learner_steps > 0);
  CHECK(result.environment_steps > options.rate.min_inserts);
}

TEST_CASE("the samples of a run keep to their ratio to its inserts") {
  Options options = easy(6);
  options.deterministic = true;
  options.rate.samples_per_insert = 4.0;
  const RunResult result = troop::apex::train<CartPole>(options, kNetwork);
  const double samples = static_cast<double>(result.learner_steps * options.learner.batch_size);
  const double paid = 4.0 * static_cast<double>(result.environment_steps - options.rate.min_inserts);
  CHECK(std::abs(samples - paid) <=
        4.0 * (options.rate.tolerance + 200.0));  // 200: items not handed over yet
}

TEST_CASE("the run gives up when its time is over") {
  Options options = easy(1);
  options.target_return = 501.0;  // out of reach
  options.max_seconds = 0.3;
  for (const bool deterministic : {false, true}) {
    options.deterministic = deterministic;
    const RunResult result = troop::apex::train<CartPole>(options, kNetwork);
    CHECK_FALSE(result.solved);
    CHECK(result.seconds >= 0.3);
    CHECK_FALSE(result.parameters.empty());
    CHECK(troop::apex::to_string(result).starts_with("not solved: mean_return="));
  }
}

TEST_CASE("the network is saved and can be played again") {
  const troop::testing::TemporaryDirectory directory;
  Options options = easy(2);
  options.deterministic = true;
  options.output = directory.file("net work.troop");
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 0);
  const auto saved = troop::nn::load_network(options.output);
  CHECK(saved.network == kNetwork.bind({4}, 2));
  options.evaluate = options.output;
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 0);
}

TEST_CASE("a run keeps the network of an earlier one under another name, solved or not") {
  const troop::testing::TemporaryDirectory directory;
  Options options = easy(2);
  options.deterministic = true;
  options.output = directory.file("network.troop");
  REQUIRE(troop::apex::run<CartPole>(options, kNetwork) == 0);
  const auto solved = troop::nn::load_network(options.output);
  options.seed = 3;
  options.target_return = 501.0;
  options.max_seconds = 0.1;
  CHECK(troop::apex::detail::notes(options, CartPole().spec()) ==
        std::vector{options.output +
                    " is there already: it will be kept, under another name, when this run saves its own"});
  REQUIRE(troop::apex::run<CartPole>(options, kNetwork) == 1);
  const auto unsolved = troop::nn::load_network(options.output);
  CHECK(troop::nn::load_network(directory.file("network.1.troop")).parameters == solved.parameters);
  CHECK(unsolved.parameters != solved.parameters);
  REQUIRE(troop::apex::run<CartPole>(options, kNetwork) == 1);
  CHECK(troop::nn::load_network(directory.file("network.1.troop")).parameters == solved.parameters);
  CHECK(troop::nn::load_network(directory.file("network.2.troop")).parameters == unsolved.parameters);
}

TEST_CASE("an environment that states no goal is trained as long as asked, and the user is told so") {
  Spec spec = CartPole().spec();
  spec.return_to_solve = std::nan("");
  const Make make = [&](std::uint64_t) { return OtherCartPole(spec); };
  Options options = easy(1);
  options.target_return = std::nan("");
  options.max_seconds = 0.2;
  CHECK(troop::apex::detail::notes(options, spec) ==
        std::vector<std::string>{
            "CartPole-v1 states no return that counts as solved: the run lasts --max-seconds 0.2; "
            "--target-return X ends it at a mean return of X"});
  CHECK(to_string(troop::apex::train<OtherCartPole>(options, kNetwork, make)).starts_with("finished: mean"));
  CHECK(troop::apex::run<OtherCartPole>(options, kNetwork, make) == 0);
  options.target_return = 501.0;
  CHECK(troop::apex::detail::notes(options, spec).empty());
  CHECK(troop::apex::run<OtherCartPole>(options, kNetwork, make) == 1);
}

TEST_CASE("episodes that never end do not make a run or an evaluation endless") {
  const troop::testing::TemporaryDirectory directory;
  Options options = easy(1);
  options.max_seconds = 0.3;
  options.evaluation_interval = 1;
  options.output = directory.file("network.troop");
  Spec spec = CartPole().spec();
  spec.name = "Endless";
  spec.max_episode_steps = 0;
  spec.return_to_solve = std::nan("");
  const Make make = [&](std::uint64_t) {
    return OtherCartPole(spec, [](CartPole& cart, std::int32_t action, std::span<float> observation) {
      cart.step(action, observation);
      cart.set_state({});
      return StepResult{.reward = 1};
    });
  };
  const auto notes = troop::apex::detail::notes(options, spec);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].starts_with(
      "Endless states no max_episode_steps: an evaluation lasts until all its episodes"));
  CHECK(troop::apex::run<OtherCartPole>(options, kNetwork, make) == 1);
  options.evaluate = options.output;
  CHECK(troop::apex::run<OtherCartPole>(options, kNetwork, make) == 1);
}

TEST_CASE("environments without a default constructor are made by a function of their index") {
  Options options = easy(1);
  options.num_actors = 2;
  options.environments_per_actor = 3;
  options.max_seconds = 0.1;
  options.target_return = 501.0;
  std::vector<std::uint64_t> indices;
  const Make make = [&](std::uint64_t index) {
    indices.push_back(index);
    return OtherCartPole(CartPole().spec());
  };
  CHECK(troop::apex::run<OtherCartPole>(options, kNetwork, make) == 1);
  const std::vector<std::uint64_t> expected{0, 0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  CHECK(indices == expected);  // two looks at the description, the actors', the evaluation's
}

TEST_CASE("a description that is not valid is refused by the name of its field, before the network is") {
  Spec spec = CartPole().spec();
  spec.observation_shape.clear();
  const Make make = [&](std::uint64_t) { return OtherCartPole(spec); };
  CHECK_THROWS_WITH_AS(troop::apex::train<OtherCartPole>(easy(1), kNetwork, make),
                       "CartPole-v1.observation_shape: {} is not allowed; expected at least one dimension",
                       troop::InvalidArgument);
  CHECK(troop::apex::run<OtherCartPole>(easy(1), kNetwork, make) == 2);
}

TEST_CASE("no more threads are used for a learner step than the machine has cores, and the user is told so") {
  Options options = easy(1);
  options.train.num_threads = 1024;
  const auto notes = troop::apex::detail::notes(options, CartPole().spec());
  const std::string cores = std::to_string(troop::apex::detail::useful_threads(1024));
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == "--num-threads 1024: this machine has " + cores + " cores, so " + cores + " are used");
  CHECK(troop::apex::detail::useful_threads(1) == 1);
}

TEST_CASE("a network that was made for another task is refused") {
  const troop::testing::TemporaryDirectory directory;
  Options options = easy(1);
  const auto other = kNetwork.bind({5}, 2);
  options.evaluate = directory.file("other.troop");
  troop::nn::save_network(options.evaluate, other, std::vector<float>(other.num_parameters()));
  CHECK_THROWS_AS(troop::apex::evaluate<CartPole>(options), troop::FileError);
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 2);
}

TEST_CASE("bad options and unwritable files end the program with 2 before anything is begun") {
  const troop::testing::TemporaryDirectory directory;
  Options options = easy(1);
  options.learner.batch_size = 0;
  options.output = directory.file("network.troop");
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 2);
  options = easy(1);
  options.output = directory.file("no/such/folder/network.troop");
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 2);
  options = easy(1);
  options.replay.capacity = std::size_t{1} << 39;
  options.output = directory.file("network.troop");
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 2);
  options = easy(1);
  options.evaluate = directory.file("missing.troop");
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 2);
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("a deterministic run ends in time although its learner need not wait for any insert") {
  Options options = easy(1);
  options.deterministic = true;
  options.rate.samples_per_insert = 0.0;
  options.evaluation_interval = 1'000'000'000;
  options.max_seconds = 0.3;
  const RunResult result = troop::apex::train<CartPole>(options, kNetwork);
  CHECK(result.learner_steps > 0);
  CHECK(result.seconds < 30.0);
  CHECK(result.episodes == 0);
  CHECK(result.parameters.size() == kNetwork.bind({4}, 2).num_parameters());
}

TEST_CASE("more environments than there is memory for are refused") {
  Options options = easy(1);
  options.num_actors = 1024;
  options.environments_per_actor = 65536;
  options.actor.n_step.n = 1000;
  CHECK_THROWS_AS(troop::apex::train<CartPole>(options, kNetwork), troop::InvalidArgument);
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 2);
}

TEST_CASE("a bad argument in the middle of the run is no bad option") {
  const Make make = [](std::uint64_t) {
    return OtherCartPole(CartPole().spec(), [](CartPole&, std::int32_t, std::span<float>) -> StepResult {
      throw troop::InvalidArgument("action", "0", "another one");
    });
  };
  CHECK(troop::apex::run<OtherCartPole>(easy(1), kNetwork, make) == 1);
}

TEST_CASE("a caller's stop signal outlives the training, so that the network can be saved") {
  Options options = easy(1);
  options.max_seconds = 0.1;
  const troop::apex::StopSignal signal;
  CHECK(troop::apex::train<CartPole>(options, kNetwork, {}, signal).signal == 0);
  raise(SIGINT);
  CHECK(signal.received() == SIGINT);
}

TEST_CASE("an environment that raises an error ends the run with its message and 1, the network is saved") {
  const troop::testing::TemporaryDirectory directory;
  Options options = easy(1);
  options.evaluation_interval = 1'000'000;
  for (const bool deterministic : {false, true}) {
    options.deterministic = deterministic;
    const Make make = [](std::uint64_t index) { return failing(index == 3 ? 200 : 1'000'000'000); };
    try {
      troop::apex::train<OtherCartPole>(options, kNetwork, make);
      FAIL("the run went on");
    } catch (const troop::apex::RunFailed& failed) {
      const std::string place = "CartPole-v1, environment 3, step ";
      CHECK(std::string(failed.what()).starts_with(place));
      CHECK(std::string(failed.what()).ends_with(" of its episode: the cart left the rails"));
      CHECK(failed.result().environment_steps == 200 * 16);
      CHECK(failed.result().parameters.size() == kNetwork.bind({4}, 2).num_parameters());
    }
    options.output = directory.file(deterministic ? "a.troop" : "b.troop");
    CHECK(troop::apex::run<OtherCartPole>(options, kNetwork, make) == 1);
    CHECK(troop::nn::load_network(options.output).network == kNetwork.bind({4}, 2));
  }
}

TEST_CASE("an actor whose environment fails ends alone: its items are used, and the others solve the task") {
  Options options = easy(5);
  options.num_actors = 3;
  for (const bool deterministic : {false, true}) {
    for (const bool is_number : {false, true}) {
      options.deterministic = deterministic;
      const Make make = [&](std::uint64_t index) {
        return failing(index == 20 ? 10 : 1'000'000'000, is_number);
      };
      const RunResult result = troop::apex::train<OtherCartPole>(options, kNetwork, make);
      CHECK(result.solved);
      CHECK(result.environment_steps > options.rate.min_inserts);
    }
  }
}

TEST_CASE("an evaluation that fails ends the run, and the network is kept") {
  Options options = easy(1);
  options.evaluation_interval = 1;
  int made = 0;  // the description's, the actors', then the evaluation's
  const Make make = [&](std::uint64_t) { return failing(made++ < 17 ? 1'000'000'000 : 5); };
  CHECK_THROWS_AS(troop::apex::train<OtherCartPole>(options, kNetwork, make), troop::apex::RunFailed);
}

TEST_CASE("a vector of environments is run as one environment is, over a replay that keeps frames once") {
  using troop::env::Catch;
  using Catches = troop::env::VectorEnvironment<Catch>;
  Options options = easy(5);
  options.deterministic = true;
  options.target_return = -0.5;  // a random player earns about -0.8
  options.learner.batch_size = 32;
  options.evaluation_epsilon = 0.01;
  const troop::nn::Network network = troop::nn::dueling_mlp({16});
  const auto make = [](const troop::env::VectorOptions& vector) { return Catches(vector); };
  const RunResult vectors =
      troop::apex::train<Catches, troop::FrameStorage<troop::RawFrames>>(options, network, make);
  CHECK(vectors.solved);
  CHECK(std::isnan(vectors.human_normalised));
  const RunResult environments = troop::apex::train<Catch>(options, network);
  CHECK(environments.parameters == vectors.parameters);
  CHECK(to_string(environments).substr(0, 40) == to_string(vectors).substr(0, 40));
}

TEST_CASE(
    "a replay that keeps frames once may be as large as its packed frames allow, and a note says when more") {
  using Frames = troop::FrameStorage<troop::RawFrames>;
  using Packed = troop::FrameStorage<troop::Lz4>;
  Spec spec = CartPole().spec();
  spec.name = "pictures";
  spec.observation_dtype = troop::DType::u8;
  spec.observation_shape = {4, 84, 84};
  spec.return_to_solve = 1.0;
  Options options = easy(1);
  const auto bytes = [&]<class Storage>() { return troop::apex::detail::item_bytes<Storage>(spec); };
  CHECK(bytes.operator()<troop::ArrayStorage>().most == 56'460);
  CHECK(bytes.operator()<Frames>().least == bytes.operator()<Frames>().most);
  CHECK(bytes.operator()<Packed>().most == bytes.operator()<Frames>().most);
  CHECK(bytes.operator()<Packed>().least < 400);
  CHECK(1e6 * static_cast<double>(bytes.operator()<Packed>().most + troop::apex::detail::kIndexBytes) <
        7.5e9);

  const auto notes = [&] { return troop::apex::detail::notes<Packed>(options, spec); };
  const std::size_t memory = troop::apex::detail::usable_memory();
  options.replay.capacity = memory / 7'200;
  CHECK(notes().empty());
  options.replay.capacity = memory / 7'100;
  REQUIRE(notes().size() == 1);
  CHECK(notes()[0].starts_with("--capacity " + std::to_string(options.replay.capacity) + " takes up to "));
  CHECK_NOTHROW(troop::apex::detail::require_memory<Packed>(options, spec, 0));
  CHECK_THROWS_AS(troop::apex::detail::require_memory<Frames>(options, spec, 0), troop::InvalidArgument);
  options.replay.capacity = memory / 300;
  CHECK_THROWS_AS(troop::apex::detail::require_memory<Packed>(options, spec, 0), troop::InvalidArgument);
  options.cluster.role = troop::apex::Role::actor;
  CHECK_NOTHROW(troop::apex::detail::require_memory<Packed>(options, spec, 0));
  CHECK(notes().empty());
}

TEST_CASE("a result says how good it is beside a person where that is known") {
  Spec spec = CartPole().spec();
  spec.random_return = 20.0;
  spec.human_return = 420.0;
  Options options = easy(3);
  options.evaluation_interval = 1;
  options.target_return = 1.0;
  const Make make = [&](std::uint64_t) { return OtherCartPole(spec); };
  const RunResult result = troop::apex::train<OtherCartPole>(options, kNetwork, make);
  CHECK(result.human_normalised == doctest::Approx((result.mean_return - 20.0) / 400.0));
  CHECK(to_string(result).find(" human_normalised=") != std::string::npos);
}

TEST_CASE("a signal stops the run, which saves its network and says so by its exit code") {
  const troop::testing::TemporaryDirectory directory;
  for (const int signal : {SIGINT, SIGTERM}) {
    Options options = easy(1);
    options.target_return = 501.0;
    options.output = directory.file("network.troop");
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    std::thread sender([signal, before] {
      // The run has its handlers once it has begun; until then nothing would save us from the signal.
      struct sigaction action {};
      do {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        sigaction(signal, nullptr, &action);
      } while (action.sa_handler == before.sa_handler);
      raise(signal);
    });
    CHECK(troop::apex::run<CartPole>(options, kNetwork) == 128 + signal);
    sender.join();
    CHECK(std::filesystem::exists(options.output));
    std::filesystem::remove(options.output);
  }
}
