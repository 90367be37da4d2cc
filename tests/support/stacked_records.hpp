/// @file
/// Transitions with stacks of frames that many of them share, as an environment's are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>

namespace troop::testing {

/// u8 [3, 8, 7] with a field between that no learner reads.
inline RecordLayout stacked_layout() {
  return RecordLayout({{"observation", DType::u8, {3, 8, 7}},
                       {"action", DType::i32, {}},
                       {"reward", DType::f32, {}},
                       {"note", DType::u8, {3}},
                       {"discount", DType::f32, {}},
                       {"next_observation", DType::u8, {3, 8, 7}}});
}

/// Makes such records of `num_actions` actions, out of a pool of frames; the first frame is black.
class StackedRecords {
 public:
  StackedRecords(std::size_t num_actions, Random& random) : num_actions_(num_actions), random_(random) {
    for (auto& frame : pool_)
      for (auto& pixel : frame) pixel = static_cast<std::uint8_t>(random_());
    pool_[0] = {};
  }

  RecordArray make(std::size_t count) {
    RecordArray records(stacked_layout(), count);
    const auto& layout = records.layout();
    const auto put = [&](std::size_t i, const char* field, const auto& value) {
      std::memcpy(records.record(i) + layout.field(field).offset, &value, sizeof value);
    };
    for (std::size_t i = 0; i < count; ++i) {
      std::array<Frame, 3> observation, next;
      for (auto& frame : observation) frame = pool_[random_.below(pool_.size())];
      for (auto& frame : next) frame = pool_[random_.below(pool_.size())];
      put(i, "observation", observation);
      put(i, "next_observation", next);
      put(i, "action", static_cast<std::int32_t>(random_.below(num_actions_)));
      put(i, "reward", static_cast<float>(random_.normal()));
      put(i, "discount", random_.below(5) == 0 ? 0.0f : 0.97f);
      put(i, "note", static_cast<std::uint8_t>(random_()));
      pool_[1 + random_.below(pool_.size() - 1)][random_.below(56)] = static_cast<std::uint8_t>(random_());
    }
    return records;
  }

 private:
  using Frame = std::array<std::uint8_t, 56>;

  std::size_t num_actions_;
  Random& random_;
  std::array<Frame, 40> pool_{};
};

}  // namespace troop::testing
