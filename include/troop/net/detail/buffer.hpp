/// @file
/// Memory for bytes that nobody has written yet.
#pragma once

#include <cstddef>
#include <memory>

namespace troop::net::detail {

/// Owns `size` bytes, which are not set to anything: what a frame is put into need not be cleared before.
struct Buffer {
  Buffer() = default;
  explicit Buffer(std::size_t bytes)
      : data(std::make_unique_for_overwrite<std::byte[]>(bytes)), size(bytes) {}

  std::unique_ptr<std::byte[]> data;
  std::size_t size = 0;
};

}  // namespace troop::net::detail
