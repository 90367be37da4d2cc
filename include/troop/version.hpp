/// @file
/// The version of troop, stated once: CMake reads the three numbers from this file.
#pragma once

#define TROOP_VERSION_MAJOR 0
#define TROOP_VERSION_MINOR 1
#define TROOP_VERSION_PATCH 0

namespace troop {

/// The version as three numbers, e.g. `troop::kVersion.minor`.
struct Version {
  int major;
  int minor;
  int patch;
};

inline constexpr Version kVersion{TROOP_VERSION_MAJOR, TROOP_VERSION_MINOR, TROOP_VERSION_PATCH};

}  // namespace troop
