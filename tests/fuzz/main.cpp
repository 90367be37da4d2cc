// What libFuzzer calls, for the target that it is linked with.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "fuzz.hpp"

namespace troop::fuzz {

MemoryFile::MemoryFile(std::span<const std::byte> content)
    : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  check(descriptor_ >= 0, "a file in memory can be made");
  const auto written = ::write(descriptor_, content.data(), content.size());
  check(written == static_cast<ssize_t>(content.size()), "a file in memory can be written");
}

MemoryFile::~MemoryFile() {
  ::close(descriptor_);
}

}  // namespace troop::fuzz

/// `TARGET --write-seeds FOLDER` writes the seed corpus and ends.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string_view((*argv)[1]) != "--write-seeds") return 0;
  const std::filesystem::path folder((*argv)[2]);
  std::filesystem::create_directories(folder);
  std::size_t number = 0;
  for (const auto& seed : troop::fuzz::seeds()) {
    std::ofstream file(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write to %s\n", folder.c_str());
      std::exit(1);
    }
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  troop::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
