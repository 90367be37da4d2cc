// How much memory a benchmark may take without pushing anything else out.
#pragma once

#include <cstddef>
#include <fstream>
#include <limits>
#include <string>

#include <troop/core/memory.hpp>

namespace troop::bench {

/// Linux's own estimate of what can be had without swapping; elsewhere the physical memory. In bytes.
inline std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::size_t kibibytes = 0;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return physical_memory();
}

}  // namespace troop::bench
