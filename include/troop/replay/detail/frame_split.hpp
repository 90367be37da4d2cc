/// @file
/// Which bytes of a record are frames, and which are the rest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/hash.hpp>
#include <troop/core/record.hpp>

namespace troop::detail {

/// Splits records into the frames of their stacks, in the order of their places, and all other bytes, packed.
/// The first dimension of a stack counts its frames.
class FrameSplit {
 public:
  /// Without names: every u8 field of three or more dimensions is a stack. Throws InvalidArgument when a name
  /// is not that of a field of two or more dimensions, there is no stack, or frames differ in size.
  FrameSplit(const RecordLayout& layout, const std::vector<std::string>& names) {
    std::vector<const Field*> stacks;
    for (const Field& field : layout.fields()) {
      const bool named = std::find(names.begin(), names.end(), field.name) != names.end();
      const bool is_stack = names.empty() ? field.dtype == DType::u8 && field.shape.size() >= 3 : named;
      if (is_stack) stacks.push_back(&field);
    }
    for (const std::string& name : names) {
      if (!layout.has(name))
        throw InvalidArgument("fields", "\"" + name + "\"", "some of: " + layout.describe());
    }
    if (stacks.empty()) {
      throw InvalidArgument(
          "fields", "none",
          "the names of stacks of frames, or a u8 field of three or more dimensions among: " +
              layout.describe());
    }
    for (const Field* stack : stacks) {
      if (stack->shape.size() < 2) {
        throw InvalidArgument(
            "fields", to_string(*stack),
            "stacks of frames: two or more dimensions, the first of which counts the frames");
      }
    }
    frame_bytes_ = stacks.front()->bytes() / stacks.front()->shape.front();
    for (const Field* stack : stacks) {
      if (stack->bytes() / stack->shape.front() != frame_bytes_) {
        throw InvalidArgument("fields", to_string(*stack),
                              "frames of " + std::to_string(frame_bytes_) + " bytes, like those of " +
                                  to_string(*stacks.front()));
      }
    }

    std::sort(stacks.begin(), stacks.end(),
              [](const Field* a, const Field* b) { return a->offset < b->offset; });
    fingerprint_ = fnv1a(std::to_string(layout.fingerprint()));
    std::size_t end = 0;
    for (const Field* stack : stacks) {
      add_rest(end, stack->offset);
      for (std::size_t i = 0; i < stack->shape.front(); ++i)
        frames_.push_back(stack->offset + i * frame_bytes_);
      end = stack->offset + stack->bytes();
      fingerprint_ = fnv1a("," + std::to_string(stack->offset), fingerprint_);
    }
    add_rest(end, layout.size());
  }

  std::size_t frame_bytes() const noexcept { return frame_bytes_; }
  /// Where the frames lie in a record.
  std::span<const std::size_t> frames() const noexcept { return frames_; }
  std::size_t rest_bytes() const noexcept { return rest_bytes_; }
  /// Of the layout and of which fields are stacks.
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }

  void pack_rest(const std::byte* record, std::byte* rest) const noexcept {
    for (const Part& part : rest_) {
      std::memcpy(rest, record + part.offset, part.bytes);
      rest += part.bytes;
    }
  }
  void unpack_rest(const std::byte* rest, std::byte* record) const noexcept {
    for (const Part& part : rest_) {
      std::memcpy(record + part.offset, rest, part.bytes);
      rest += part.bytes;
    }
  }

 private:
  struct Part {
    std::size_t offset, bytes;
  };

  void add_rest(std::size_t begin, std::size_t end) {
    if (begin == end) return;
    rest_.push_back({begin, end - begin});
    rest_bytes_ += end - begin;
  }

  std::size_t frame_bytes_ = 0, rest_bytes_ = 0;
  std::vector<std::size_t> frames_;
  std::vector<Part> rest_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace troop::detail
