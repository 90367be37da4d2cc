/// @file
/// Transitions with stacks of small pictures, as games make them, and codecs that a test can steer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <new>
#include <span>
#include <string_view>
#include <vector>

#include <troop/core/random.hpp>

namespace troop::testing {

using Picture = std::array<std::array<std::uint8_t, 12>, 11>;  // 132 bytes: no multiple of a vector

/// Two stacks that lie apart, with padding between the members and at the end.
struct FrameItem {
  std::int16_t action;
  std::array<Picture, 4> observation;
  float reward;
  double discount;
  std::array<Picture, 4> next_observation;
  std::uint8_t flag;
};

/// An environment's episodes as n-step items: pictures in which little moves, that stand still at times, and
/// that begin black; stacks that begin with copies of the first picture; items up to the episode's end.
class FrameGame {
 public:
  FrameGame(std::uint64_t seed, std::size_t index, std::size_t n)
      : random_(seed, "frame game", index), n_(n) {
    begin();
  }

  FrameItem next() {
    while (items_.empty()) step();
    const FrameItem item = items_.front();
    items_.pop_front();
    return item;
  }

 private:
  using Stack = std::array<Picture, 4>;

  void begin() {
    picture_ = {};
    stacks_.assign(1, Stack{});
  }

  void step() {
    if (random_.below(4) > 0) {
      picture_[random_.below(11)][random_.below(12)] = static_cast<std::uint8_t>(random_());
    }
    Stack stack = stacks_.back();
    std::rotate(stack.begin(), stack.begin() + 1, stack.end());
    stack.back() = picture_;
    stacks_.push_back(stack);
    const bool ended = random_.below(15) == 0;
    for (std::size_t first = ended ? (stacks_.size() > n_ ? stacks_.size() - n_ : 1) : stacks_.size() - 1;
         first < stacks_.size(); ++first) {
      const std::size_t back = ended ? first - 1 : (first >= n_ ? first - n_ : stacks_.size());
      if (back >= stacks_.size()) continue;
      FrameItem item;
      std::memset(static_cast<void*>(&item), static_cast<int>(random_.below(256)),
                  sizeof(item));  // padding too
      item.action = 0;
      item.observation = stacks_[back];
      item.reward = static_cast<float>(random_.normal());
      item.discount = ended ? 0.0 : 0.97;
      item.next_observation = stacks_.back();
      items_.push_back(item);
    }
    if (ended) begin();
  }

  Random random_;
  std::size_t n_;
  Picture picture_{};
  std::vector<Stack> stacks_;
  std::deque<FrameItem> items_;
};

/// Packs nothing; its functions fail when told so.
struct SteeredCodec {
  static constexpr std::string_view name = "steered";
  static inline thread_local std::size_t fail_after = static_cast<std::size_t>(-1);

  static std::size_t bound(std::size_t bytes) { return bytes; }
  static std::size_t compress(std::span<const std::byte> in, std::span<std::byte> out) {
    if (fail_after == 0) throw std::bad_alloc();
    --fail_after;
    std::copy(in.begin(), in.end(), out.begin());
    return in.size();
  }
  static bool decompress(std::span<const std::byte>, std::span<std::byte>) noexcept { return false; }
};

}  // namespace troop::testing
