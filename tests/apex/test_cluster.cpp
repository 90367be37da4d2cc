#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <troop/apex/run.hpp>
#include <troop/env/cart_pole.hpp>

namespace {

using troop::apex::Console;
using troop::apex::Options;
using troop::apex::Role;
using troop::apex::StopSignal;
using troop::env::CartPole;

const troop::nn::Network kNetwork = troop::nn::dueling_mlp({32, 32});
const troop::nn::Network kBound = kNetwork.bind({4}, 2);
const troop::apex::detail::MakeDefault<CartPole> kMake;

/// On loopback, with a port that was free a moment ago.
std::string free_address() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  ::close(listener);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

/// A task that a minute of any machine solves.
Options easy(Role role, const std::string& address) {
  Options options;
  options.seed = 3;
  options.quiet = true;
  options.target_return = 60.0;
  options.evaluation_episodes = 10;
  options.environments_per_actor = 4;
  options.max_seconds = 240.0;
  options.output = "";
  options.cluster.role = role;
  const bool is_server = role == Role::learner || role == Role::replay;
  (is_server ? options.cluster.listen : options.cluster.connect) = address;
  if (role == Role::learner) {
    options.cluster.planned_environments = 8;
    options.evaluation_interval =
        2000;  // so that it is still there when the last client tries for the first time
  }
  return options;
}

/// A server in a learner's place.
troop::net::Server server(const std::string& address, troop::net::Services services = {},
                          troop::net::Token token = {}) {
  return troop::net::Server({.listen = address, .token = std::move(token), .log = [](const std::string&) {}},
                            troop::env::transition_layout(CartPole().spec()), std::move(services));
}

/// A CartPole that raises an error after its first steps.
struct FailingCartPole : CartPole {
  explicit FailingCartPole(int good) : steps_left(good) {}
  troop::env::StepResult step(std::int32_t action, std::span<float> observation) {
    if (steps_left-- == 0) throw troop::Error("the cart left the rails");
    return CartPole::step(action, observation);
  }
  int steps_left;
};

}  // namespace

TEST_CASE("a learner, two actors and an evaluator solve a task together and end by themselves") {
  const std::string address = free_address();
  const StopSignal signal;
  troop::apex::RunResult result;
  int first = -1, second = -1, watching = -1;
  std::thread head(
      [&] { result = troop::apex::train<CartPole>(easy(Role::learner, address), kNetwork, {}, signal); });
  {
    troop::net::Client client({.connect = address, .log = [](const std::string&) {}});
    REQUIRE(client.await_parameters(0, troop::Deadline::after(std::chrono::seconds(60))) ==
            troop::Outcome::ok);
  }
  std::thread one(
      [&] { first = troop::apex::act<CartPole>(easy(Role::actor, address), kBound, kMake, signal); });
  std::thread two([&] {
    Options options = easy(Role::actor, address);
    options.num_actors = 2;
    options.environments_per_actor = 2;
    options.cluster.float16_parameters = true;
    options.cluster.compression = troop::net::PayloadCodec::lz4;
    second = troop::apex::act<CartPole>(options, kBound, kMake, signal);
  });
  std::thread three([&] {
    const Options options = easy(Role::evaluator, address);
    watching = troop::apex::evaluate_newest<CartPole>(options, kBound, kMake, signal);
  });
  head.join();
  one.join();
  two.join();
  three.join();
  CHECK(result.solved);
  CHECK(result.environment_steps > 1000);
  CHECK(first == 0);
  CHECK(second == 0);
  CHECK(watching == 0);
}

TEST_CASE("a learner, two shards and two actors solve a task together, and the shards stay until a signal") {
  const std::string head_address = free_address();
  const std::vector<std::string> shards{free_address(), free_address()};
  const auto layout = troop::env::transition_layout(CartPole().spec());
  const StopSignal signal;
  troop::apex::RunResult result;
  std::array<int, 2> held{-1, -1}, acted{-1, -1};
  std::vector<std::thread> shard_threads, actor_threads;
  for (std::size_t i = 0; i < 2; ++i) {
    shard_threads.emplace_back(
        [&, i] { held[i] = troop::apex::serve_shard(easy(Role::replay, shards[i]), layout, signal); });
    actor_threads.emplace_back([&, i] {
      acted[i] = troop::apex::act<CartPole>(easy(Role::actor, head_address), kBound, kMake, signal);
    });
  }
  Options options = easy(Role::learner, head_address);
  options.cluster.shards = shards;
  result = troop::apex::train<CartPole>(options, kNetwork, {}, signal);
  for (auto& thread : actor_threads) thread.join();
  CHECK(result.solved);
  CHECK(result.environment_steps > 1000);
  CHECK(acted == std::array{0, 0});
  raise(SIGTERM);
  for (auto& thread : shard_threads) thread.join();
  CHECK(held == std::array{128 + SIGTERM, 128 + SIGTERM});
}

TEST_CASE("an actor ends when the next learner has its replay elsewhere") {
  const std::string address = free_address(), shard_address = free_address();
  const auto take = [](const troop::BatchView&, std::span<const float>) { return troop::Outcome::ok; };
  const auto shard = server(shard_address, {.insert = take});
  troop::net::ActorLeases leases({.planned = 8, .replays = {shard_address}}), others({.planned = 8});
  troop::net::ParameterServer parameters;
  const auto make_head = [&](troop::net::ActorLeases& given) {
    return new troop::net::Server(server(address, {.parameters = &parameters, .leases = &given}));
  };
  std::unique_ptr<troop::net::Server> head(make_head(leases));
  std::string sentence;
  std::thread actor([&] {
    try {
      troop::apex::act<CartPole>(easy(Role::actor, address), kBound, kMake, StopSignal());
    } catch (const troop::Error& error) {
      sentence = error.what();
    }
  });
  while (shard.statistics().admitted == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  head.reset();
  head.reset(make_head(others));
  actor.join();
  CHECK(sentence == "the learner that is there now has its replay elsewhere: start this process anew");
}

TEST_CASE("who is refused before he has begun ends with 2") {
  const std::string address = free_address();
  const auto head = server(address, {}, troop::net::Token("0123456789abcdef"));
  for (const Role role : {Role::actor, Role::evaluator}) {
    const Options options = easy(role, address);
    CHECK(troop::apex::run<CartPole>(options, kNetwork) == 2);
  }
  const StopSignal signal;
  CHECK_THROWS_WITH_AS(troop::apex::act<CartPole>(easy(Role::actor, address), kBound, kMake, signal),
                       "this server wants a token, and the client has none", troop::apex::NotAdmitted);
}

TEST_CASE("who is refused after he had begun ends with 1") {
  const std::string address = free_address();
  const auto layout = troop::env::transition_layout(CartPole().spec());
  troop::net::ActorLeases leases({.planned = 8});
  const auto insert = [](const troop::BatchView&, std::span<const float>) -> troop::Outcome {
    throw troop::InvalidArgument("records", "these", "others");
  };
  const auto head = server(address, {.insert = insert, .leases = &leases});
  CHECK(troop::apex::run<CartPole>(easy(Role::actor, address), kNetwork) == 1);
}

TEST_CASE("actors whose environments fail end one by one, and what they have played arrives") {
  const std::string address = free_address();
  troop::net::ActorLeases leases({.planned = 8});
  std::atomic<std::size_t> items = 0;
  const auto insert = [&](const troop::BatchView& records, std::span<const float>) {
    items += records.size();
    return troop::Outcome::ok;
  };
  troop::net::ParameterServer parameters;
  const auto head = server(address, {.insert = insert, .parameters = &parameters, .leases = &leases});
  Options options = easy(Role::actor, address);
  options.num_actors = 2;
  const auto make = [](std::uint64_t index) {  // environment 5 is the second actor's
    return FailingCartPole(index == 2 ? 500 : index == 5 ? 100 : 1'000'000'000);
  };
  const StopSignal signal;
  try {
    troop::apex::act<FailingCartPole>(options, kBound, make, signal);
    FAIL("the actors went on");
  } catch (const troop::Error& error) {
    const std::string sentence = error.what();  // of whichever was last
    const bool is_of_one = sentence.starts_with("CartPole-v1, environment 2, step ") ||
                           sentence.starts_with("CartPole-v1, environment 5, step ");
    CHECK_MESSAGE(is_of_one, sentence);
    CHECK(sentence.ends_with(": the cart left the rails"));
  }
  CHECK(items <= 600 * 4);
  CHECK(items >= 600 * 4 - 2 * 4 * (options.actor.n_step.n - 1));  // all but the n-step windows
}

TEST_CASE("an evaluator ends with 0 when its time is over, though no learner was there") {
  Options options = easy(Role::evaluator, free_address());
  options.max_seconds = 0.2;
  CHECK(troop::apex::run<CartPole>(options, kNetwork) == 0);
}

TEST_CASE("a signal ends who waits for a learner that is not there") {
  for (const Role role : {Role::actor, Role::evaluator}) {
    const Options options = easy(role, free_address());
    const StopSignal signal;
    raise(SIGTERM);
    CHECK((role == Role::actor
               ? troop::apex::act<CartPole>(options, kBound, kMake, signal)
               : troop::apex::evaluate_newest<CartPole>(options, kBound, kMake, signal)) == 128 + SIGTERM);
  }
}

TEST_CASE("an outbox has room for eight batches of each actor, unless it is told its size") {
  Options options = easy(Role::actor, "head:7777");
  options.num_actors = 3;
  const auto batch_bytes = troop::net::InsertPayload::bytes(50, 44);
  auto made = troop::apex::detail::client_options(options, Console(), 44);
  CHECK(made.max_outbox_bytes >= 24 * batch_bytes);
  CHECK(made.max_outbox_bytes < 25 * batch_bytes);
  CHECK(made.when_full == troop::net::FullPolicy::block);
  made = troop::apex::detail::client_options(options, Console(), 44, 4);
  CHECK(made.max_outbox_bytes >= 6 * batch_bytes);
  CHECK(made.max_outbox_bytes < 7 * batch_bytes);
  made = troop::apex::detail::client_options(options, Console(), 44, 100);
  CHECK(made.max_outbox_bytes >= 3 * batch_bytes);
  options.cluster.outbox_bytes = 1 << 20;
  CHECK(troop::apex::detail::client_options(options, Console(), 44, 4).max_outbox_bytes == 1 << 18);
  options.cluster.drop_oldest = true;
  made = troop::apex::detail::client_options(options, Console(), 44);
  CHECK(made.max_outbox_bytes == 1 << 20);
  CHECK(made.when_full == troop::net::FullPolicy::drop_oldest);
}

TEST_CASE("the token comes from its file, else from the environment, else there is none") {
  troop::apex::ClusterOptions options;
  unsetenv("TROOP_TOKEN");
  CHECK(troop::apex::detail::token_of(options).is_empty());
  setenv("TROOP_TOKEN", "0123456789abcdef", 1);
  CHECK_FALSE(troop::apex::detail::token_of(options).is_empty());
  options.token_file = "no/such/file";
  CHECK_THROWS_AS(troop::apex::detail::token_of(options), troop::FileError);
  unsetenv("TROOP_TOKEN");
}
