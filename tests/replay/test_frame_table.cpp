#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include <troop/core/random.hpp>
#include <troop/replay/detail/frame_table.hpp>

#include "testing.hpp"

using troop::Random;
using troop::detail::FrameDigest;
using troop::detail::FrameId;
using troop::detail::FrameTable;
using troop::detail::kNoFrame;
using troop::testing::Failures;

namespace {

/// Few different low words, so that chains get long.
FrameDigest digest_of(std::uint64_t number) {
  return {number % 97, number};
}

}  // namespace

TEST_CASE("a frame is found from its linking until its last use is taken back") {
  FrameTable table(4);
  CHECK(table.find(digest_of(5)) == kNoFrame);
  const FrameId id = table.take(digest_of(5), 2);
  CHECK(id == 1);
  CHECK(table.find(digest_of(5)) == kNoFrame);
  table.link(id);
  CHECK(table.find(digest_of(5)) == id);
  CHECK(table.find(digest_of(5 + 97)) == kNoFrame);  // of the same chain
  table.hold(id, 3);
  CHECK(table.uses() == 5);
  CHECK_FALSE(table.drop(id, 4));
  CHECK(table.find(digest_of(5)) == id);
  CHECK(table.drop(id, 1));
  CHECK(table.find(digest_of(5)) == kNoFrame);
  CHECK(table.frames() == 0);
  CHECK(table.uses() == 0);
}

TEST_CASE("numbers of frames that are gone are given again before new ones") {
  FrameTable table(3);
  const FrameId a = table.take(digest_of(1), 1), b = table.take(digest_of(2), 1),
                c = table.take(digest_of(3), 1);
  CHECK(table.drop(b, 1));  // was never linked
  CHECK(table.take(digest_of(4), 1) == b);
  CHECK(table.drop(a, 1));
  CHECK(table.drop(c, 1));
  CHECK(table.take(digest_of(5), 1) + table.take(digest_of(6), 1) == a + c);
  CHECK(table.taken() == 3);
}

TEST_CASE("the table does what a map does") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "frame table");
  constexpr std::size_t kMost = 500;
  FrameTable table(kMost);
  struct Held {
    FrameId id;
    std::uint32_t uses;
  };
  std::map<std::uint64_t, Held> model;
  std::size_t most = 0;
  Failures failures;
  for (int step = 0; step < 200'000; ++step) {
    const std::uint64_t number = random.below(1000);
    const auto held = model.find(number);
    const FrameId found = table.find(digest_of(number));
    if (found != (held == model.end() ? kNoFrame : held->second.id))
      failures.add("step " + std::to_string(step));
    const auto uses = static_cast<std::uint32_t>(1 + random.below(3));
    if (step / 20'000 % 2 == 1 && held != model.end()) {  // rounds in which it gets emptier
      const std::uint32_t some = std::min(uses, held->second.uses);
      if (table.drop(found, some) != (some == held->second.uses))
        failures.add("drop at step " + std::to_string(step));
      if ((held->second.uses -= some) == 0) model.erase(held);
    } else if (held != model.end()) {
      table.hold(found, uses);
      held->second.uses += uses;
    } else if (model.size() < kMost && step / 20'000 % 2 == 0) {
      const FrameId id = table.take(digest_of(number), uses);
      table.link(id);
      model[number] = {id, uses};
    }
    most = std::max(most, model.size());
    if (table.frames() != model.size()) failures.add("number of frames at step " + std::to_string(step));
  }
  TROOP_CHECK_NONE(failures);
  CHECK(most == kMost);
  CHECK(table.taken() == kMost);
  std::size_t uses = 0;
  for (const auto& [number, held] : model) uses += held.uses;
  CHECK(table.uses() == uses);
}
