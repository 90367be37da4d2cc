/// @file
/// Holds a change back until somebody else has read what was there before.
#pragma once

#include <functional>
#include <utility>

namespace troop::nn::detail {

/// Not thread-safe: all of it is called by the thread that makes the changes.
class ChangeGate {
 public:
  ChangeGate() = default;
  ChangeGate(ChangeGate&& other) noexcept : wait_(std::exchange(other.wait_, nullptr)) {}
  ChangeGate& operator=(ChangeGate&& other) {
    pass();
    wait_ = std::exchange(other.wait_, nullptr);
    return *this;
  }

  /// `wait` returns when the next change may be made; it is called after those that were given before.
  void close(std::function<void()> wait) {
    if (!wait_) {
      wait_ = std::move(wait);
    } else {
      wait_ = [first = std::move(wait_), second = std::move(wait)] {
        first();
        second();
      };
    }
  }

  /// To be called before every change.
  void pass() {
    if (wait_) std::exchange(wait_, nullptr)();
  }

 private:
  std::function<void()> wait_;
};

}  // namespace troop::nn::detail
