// Every component, with the headers of the libraries that troop brings along.
#include <CLI/CLI.hpp>
#include <Eigen/Core>

#include <troop/version.hpp>

int main() {
  CLI::App app;
  return static_cast<int>(Eigen::Vector2f::Zero().sum()) + TROOP_VERSION_MAJOR;
}
