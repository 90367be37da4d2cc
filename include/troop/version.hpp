/// @file
/// The version of troop, stated once: CMake reads the three numbers from this file.
#pragma once

#define TROOP_VERSION_MAJOR 0
#define TROOP_VERSION_MINOR 1
#define TROOP_VERSION_PATCH 0

namespace troop {

/// The version as text, "major.minor.patch".
inline constexpr const char* kVersion = "0.1.0";

}  // namespace troop
