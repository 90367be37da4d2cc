// main() of the tests that need a GPU. Without one it says so and returns 77, which counts as skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include <troop/core/error.hpp>
#include <troop/cuda/network.hpp>

int main(int argc, char** argv) {
  try {
    troop::cuda::devices();
  } catch (const troop::Error& error) {
    std::printf("skipped: %s\n", error.what());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
