// main() of the tests that need Python's packages. Without them it says so and returns 77, which counts as skipped.
#include <troop/gymnasium/detail/python.hpp>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include <troop/core/error.hpp>

int main(int argc, char** argv) {
  using namespace troop::env::detail;
  try {
    ensure_python();
    with_python([] {
      import_package("gymnasium", kGymnasiumPackage);
      import_package("ale_py", kAlePackage);
      pybind11::module_::import("sys").attr("path").attr("insert")(0, TROOP_PYTHON_TASKS);
    });
  } catch (const troop::Error& error) {
    std::printf("skipped: %s; `make atari-deps` makes one\n", error.what());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
