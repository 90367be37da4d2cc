// Puts into every benchmark's JSON what was measured: version, compiler and the instructions it was compiled for.
#include <benchmark/benchmark.h>

#include <string>

#include <troop/version.hpp>

namespace {

std::string compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#elif defined(__GNUC__)
  return "GCC " __VERSION__;
#else
  return "unknown";
#endif
}

std::string instructions() {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "portable";
#endif
}

std::string assertions() {
#if defined(NDEBUG)
  return "off";
#else
  return "on";
#endif
}

std::string version() {
  return std::to_string(troop::kVersion.major) + "." + std::to_string(troop::kVersion.minor) + "." +
         std::to_string(troop::kVersion.patch);
}

[[maybe_unused]] const bool registered = [] {
  benchmark::AddCustomContext("troop_version", version());
  benchmark::AddCustomContext("troop_compiler", compiler());
  benchmark::AddCustomContext("troop_instructions", instructions());
  benchmark::AddCustomContext("troop_assertions", assertions());
  return true;
}();

}  // namespace
