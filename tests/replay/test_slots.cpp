#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/detail/slot_set.hpp>
#include <troop/replay/detail/slots.hpp>

#include "testing.hpp"

using troop::Key;
using troop::Random;
using troop::detail::RingSlots;
using troop::detail::SlotList;
using troop::detail::SlotSet;
using troop::detail::TableSlots;
using troop::testing::Failures;

namespace {

/// A table of slots beside a map from keys to slots, and one back.
struct Twins {
  explicit Twins(std::size_t capacity) : table(capacity), key_in(capacity), full(capacity) {}

  Key put() {
    const std::size_t slot = table.free_slot();
    if (full[slot]) failures.add("slot " + std::to_string(slot) + " is not free");
    const Key key = table.put();
    note(slot, key);
    return key;
  }
  void replace(std::size_t slot) {
    slot_of.erase(key_in[slot]);
    note(slot, table.replace(slot));
  }
  void erase(std::size_t slot) {
    table.erase(slot);
    slot_of.erase(key_in[slot]);
    full[slot] = false;
  }
  void note(std::size_t slot, Key key) {
    if (key != next++) failures.add("key " + std::to_string(key));
    slot_of[key] = slot;
    key_in[slot] = key;
    full[slot] = true;
  }
  void find(Key key) {
    const auto at = slot_of.find(key);
    const std::size_t expected = at == slot_of.end() ? TableSlots::kNone : at->second;
    if (table.find(key) != expected) failures.add("find " + std::to_string(key));
  }
  void compare() {
    if (table.size() != slot_of.size() || table.next_key() != next) failures.add("size or next key");
    for (const auto& [key, slot] : slot_of)
      if (table.find(key) != slot || table.key_of(slot) != key) failures.add("key " + std::to_string(key));
    for (std::size_t slot = 0; slot < full.size(); ++slot)
      if (table.holds(slot) != full[slot]) failures.add("holds " + std::to_string(slot));
  }

  TableSlots table;
  std::map<Key, std::size_t> slot_of;
  std::vector<Key> key_in;
  std::vector<bool> full;
  Key next = 0;
  Failures failures;
};

}  // namespace

TEST_CASE("a table of slots does what a map does, over millions of changes") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t capacity : {1u, 2u, 3u, 10u, 97u, 1000u}) {
    CAPTURE(capacity);
    Random random(seed, "table", capacity);
    Twins twins(capacity);
    double fill = 0.5;  // how full it tends to be
    for (int i = 0; i < 400'000; ++i) {
      if (i % 5000 == 0) fill = random.uniform();
      const std::size_t slot = random.below(capacity);
      if (twins.full[slot] && random.below(2) == 0) {
        twins.replace(slot);
      } else if (twins.full[slot] && random.uniform() > fill) {
        twins.erase(slot);
      } else if (!twins.table.is_full() && random.uniform() < fill) {
        twins.put();
      }
      twins.find(random.below(twins.next + 2));
      if (twins.next > 0) twins.find(twins.next - 1 - random.below(std::min<Key>(twins.next, 2 * capacity)));
      if (i % 20'000 == 0) twins.compare();
      if (i % 150'001 == 150'000) {
        for (std::size_t s = 0; s < capacity; ++s)
          if (twins.full[s]) twins.erase(s);
        twins.compare();
      }
    }
    twins.compare();
    TROOP_CHECK_NONE(twins.failures);
  }
}

TEST_CASE("a full table finds every key and ends the search for those that are gone") {
  Twins twins(5000);
  while (!twins.table.is_full()) twins.put();
  for (std::size_t slot = 0; slot < 5000; ++slot) twins.replace((slot * 1237) % 5000);
  for (Key key = 0; key < 10'001; ++key) twins.find(key);
  twins.compare();
  TROOP_CHECK_NONE(twins.failures);
}

TEST_CASE("a table is emptied, filled with old keys in any order, and goes on") {
  TableSlots table(4);
  for (int i = 0; i < 4; ++i) table.put();
  table.erase(2);
  table.clear(7);
  CHECK(table.size() == 0);
  CHECK(table.next_key() == 7);
  for (Key key = 0; key < 5; ++key) CHECK(table.find(key) == TableSlots::kNone);
  for (std::size_t slot = 0; slot < 4; ++slot) CHECK_FALSE(table.holds(slot));
  CHECK(table.restore(1'000'000'000'000) == 0);
  CHECK(table.restore(3) == 1);
  table.restore_next(1'000'000'000'005);
  CHECK(table.find(1'000'000'000'000) == 0);
  CHECK(table.find(3) == 1);
  CHECK(table.free_slot() == 2);
  CHECK(table.put() == 1'000'000'000'005);
  CHECK(table.size() == 3);
}

TEST_CASE("a table of 2^32 slots is refused") {
  CHECK_THROWS_WITH_AS(TableSlots(std::size_t{1} << 32),
                       "capacity: 4294967296 is not allowed; expected at most 2^32 - 2",
                       troop::InvalidArgument);
}

TEST_CASE("a ring gives each key the slot of its remainder, and knows the live ones without dividing") {
  for (const std::size_t capacity : {1u, 2u, 7u, 16u}) {
    CAPTURE(capacity);
    RingSlots ring(capacity);
    Failures failures;
    for (Key key = 0; key < 5 * capacity; ++key) {
      CHECK(ring.take(1) == key);
      const RingSlots::Newest newest(ring);
      for (Key live = ring.oldest_key(); live < ring.next_key(); ++live) {
        if (newest.slot_of(live) != live % capacity) failures.add("slot of " + std::to_string(live));
        if (newest.key_of(live % capacity) != live) failures.add("key of " + std::to_string(live));
      }
      if (key % 3 == 2) ring.drop(1);
    }
    TROOP_CHECK_NONE(failures);
    CHECK(ring.take(3 * capacity) == 5 * capacity);
    CHECK(ring.size() == capacity);
    std::vector<std::size_t> seen;
    ring.for_runs(ring.oldest_key(), capacity, [&](std::size_t slot, std::size_t first, std::size_t count) {
      CHECK(first == seen.size());
      for (std::size_t i = 0; i < count; ++i) seen.push_back(slot + i);
    });
    CHECK(std::set<std::size_t>(seen.begin(), seen.end()).size() == capacity);
  }
}

TEST_CASE("a set of slots holds what a std::set holds, side by side") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t capacity : {1u, 2u, 50u, 1000u}) {
    CAPTURE(capacity);
    Random random(seed, "set", capacity);
    SlotSet set(capacity);
    std::set<std::size_t> expected;
    Failures failures;
    for (int i = 0; i < 200'000; ++i) {
      const std::size_t slot = random.below(capacity);
      if (random.below(2) == 0) {
        set.insert(slot);
        expected.insert(slot);
      } else {
        set.erase(slot);
        expected.erase(slot);
      }
      if (set.size() != expected.size() || set.contains(slot) != expected.contains(slot))
        failures.add("step " + std::to_string(i));
      if (i % 10'000 != 0) continue;
      std::set<std::size_t> members;
      for (std::size_t m = 0; m < set.size(); ++m) members.insert(set[m]);
      if (members != expected) failures.add("members at " + std::to_string(i));
      if (i % 50'000 == 0) {
        set.clear();
        expected.clear();
      }
    }
    TROOP_CHECK_NONE(failures);
  }
}

TEST_CASE("a list of slots keeps the order of joining") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  for (const std::size_t capacity : {1u, 2u, 3u, 40u}) {
    CAPTURE(capacity);
    Random random(seed, "list", capacity);
    SlotList list(capacity);
    std::vector<std::size_t> expected;  // newest last
    Failures failures;
    for (int i = 0; i < 100'000; ++i) {
      const std::size_t slot = random.below(capacity);
      const auto at = std::find(expected.begin(), expected.end(), slot);
      if (list.contains(slot) != (at != expected.end())) failures.add("contains " + std::to_string(slot));
      if (random.below(2) == 0) {
        list.insert(slot);
        if (at == expected.end()) expected.push_back(slot);
      } else {
        list.erase(slot);
        if (at != expected.end()) expected.erase(at);
      }
      if (list.size() != expected.size()) failures.add("size");
      if (expected.empty() || i % 10 != 0) continue;
      std::size_t member = list.newest();
      for (std::size_t back = 0; back < 2 * expected.size(); ++back, member = list.older(member))
        if (member != expected[expected.size() - 1 - back % expected.size()]) failures.add("order");
    }
    TROOP_CHECK_NONE(failures);
  }
}

TEST_CASE("sets of 2^32 slots are refused") {
  const std::string text = "capacity: 4294967296 is not allowed; expected at most 2^32 - 2";
  CHECK_THROWS_WITH_AS(SlotSet(std::size_t{1} << 32), text.c_str(), troop::InvalidArgument);
  CHECK_THROWS_WITH_AS(SlotList(std::size_t{1} << 32), text.c_str(), troop::InvalidArgument);
}
