// What probe.cmake runs in processes of their own: Python starts once a process, and some cases end the process.
//
//   probe make ID          makes an environment, prints "made" or the error
//   probe atari GAME       the same for a game
//   probe exit             returns from main() while threads play and static environments live
//   probe quit             calls std::exit() while threads play
//   probe own              has an interpreter of its own, and ends it while environments live
//   probe race             four threads start Python at once
//   probe signal           whether Python leaves SIGINT and SIGPIPE to the program
//   probe memory COUNT     plays COUNT games and prints the most memory used, in MB
#include <troop/gymnasium/atari.hpp>
#include <troop/gymnasium/gymnasium.hpp>

#include <sys/resource.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/env/vector_environment.hpp>

using namespace troop;
using env::AtariVector;
using env::Gymnasium;

namespace {

using CartPoles = env::VectorEnvironment<Gymnasium<float>>;

CartPoles cart_poles() {
  return CartPoles({.count = 2}, [](std::uint64_t) { return Gymnasium<float>({.id = "CartPole-v1"}); });
}

void play_for_ever() {
  std::thread([] {
    auto environments = cart_poles();
    for (;;) environments.step(std::array{0, 1});
  }).detach();
  std::thread([] {
    AtariVector environments({.count = 2}, {.game = "pong", .num_threads = 1});
    for (;;) environments.step(std::array{0, 1});
  }).detach();
}

int run(const std::string& what, const std::string& argument) {
  if (what == "make") {
    Gymnasium<float> game({.id = argument});
    std::puts("made");
  } else if (what == "atari") {
    AtariVector games({.count = 1}, {.game = argument});
    std::puts("made");
  } else if (what == "exit" || what == "quit") {
    static auto environments = cart_poles();
    static AtariVector games({.count = 2}, {.game = "pong"});
    play_for_ever();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    std::puts("leaving");
    if (what == "quit") std::exit(0);
  } else if (what == "own") {
    env::detail::start_python();
    const PyGILState_STATE state = PyGILState_Ensure();
    PyRun_SimpleString("mine = 7");
    auto environments = std::make_unique<CartPoles>(cart_poles());
    auto games =
        std::make_unique<AtariVector>(env::VectorOptions{.count = 2}, env::AtariOptions{.game = "pong"});
    environments->step(std::array{0, 1});  // with the lock held, as by a program that is at home in Python
    games->step(std::array{0, 1});
    Py_BEGIN_ALLOW_THREADS;
    std::thread([&] { environments->step(std::array{0, 1}); }).join();
    std::thread([&] { games->step(std::array{0, 1}); }).join();
    Py_END_ALLOW_THREADS;
    PyRun_SimpleString("print('mine', mine)");
    PyGILState_Release(state);
    PyGILState_Ensure();
    Py_FinalizeEx();
    environments.reset();  // after the interpreter
    games.reset();
    std::puts("\nended");
  } else if (what == "race") {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([] { cart_poles().step(std::array{0, 1}); });
    threads.clear();
    std::puts("raced");
  } else if (what == "signal") {
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGPIPE, SIG_DFL);
    auto environments = cart_poles();
    std::puts(std::signal(SIGINT, SIG_DFL) == SIG_DFL && std::signal(SIGPIPE, SIG_DFL) == SIG_DFL
                  ? "as before"
                  : "changed");
  } else if (what == "memory") {
    const std::size_t count = std::stoul(argument);
    AtariVector games({.count = count}, {.game = "seaquest"});
    std::vector<std::int32_t> actions(count);
    for (std::int32_t t = 0; t < 200; ++t) {
      std::fill(actions.begin(), actions.end(), t % 18);
      games.step(actions);
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::printf("memory %ld MB\n", usage.ru_maxrss / 1024);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
  } catch (const Error& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
}
