/// troop: looks at runs, from a terminal.
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include <troop/core/error.hpp>
#include <troop/version.hpp>

#include "commands.hpp"

namespace {

struct Command {
  std::string_view name, what;
  int (*run)(int argc, const char* const* argv);
};

constexpr Command kCommands[] = {
    {"status", "how a run goes, by its --http address", troop::tools::status},
    {"top", "the actors of a run, by its --http address", troop::tools::top},
    {"password", "what opens a status page beyond loopback", troop::tools::password},
};

void print_help(std::ostream& out) {
  out << "usage: troop COMMAND ...\n\n";
  for (const Command& command : kCommands)
    out << "  " << command.name << std::string(12 - command.name.size(), ' ') << command.what << "\n";
  out << "\ntroop COMMAND --help tells more; troop --version says which this is.\n";
}

int run(const Command& command, int argc, const char* const* argv) {
  try {
    return command.run(argc, argv);
  } catch (const troop::InvalidArgument& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  for (const Command& command : kCommands) {
    if (word == command.name) return run(command, argc - 1, argv + 1);
  }
  if (word == "--version") {
    const troop::Version& v = troop::kVersion;
    std::cout << v.major << "." << v.minor << "." << v.patch << "\n";
    return 0;
  }
  const bool is_asked = word == "--help" || word == "-h";
  print_help(is_asked ? std::cout : std::cerr);
  return is_asked ? 0 : 2;
}
