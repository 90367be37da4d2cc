#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cereal/types/array.hpp>
#include <cereal/types/bitset.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/set.hpp>
#include <cereal/types/tuple.hpp>
#include <cereal/types/variant.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <variant>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/serialization/cereal.hpp>

#include "testing.hpp"

using troop::append_bytes;
using troop::CerealSerializer;
using troop::from_bytes;
using troop::Random;
using troop::to_bytes;
using troop::testing::Failures;

namespace {

// What is taken from the heap in all, by this thread.
thread_local std::size_t taken = 0;

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  taken += bytes;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace {

enum class Kind : std::uint8_t { train = 1, evaluate = 2 };

struct Step {
  std::vector<float> observation;
  std::int32_t action = 0;
  bool terminated = false;
  std::string note;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(observation, action, cereal::make_nvp("terminated", terminated), note);
  }
  friend bool operator==(const Step&, const Step&) = default;
};

/// Something of everything.
struct Episode {
  std::vector<Step> steps;
  std::map<std::string, std::vector<double>> returns;
  std::set<std::int16_t> actions;
  std::optional<std::string> name;
  std::variant<std::monostate, std::int64_t, std::string> seed;
  std::vector<bool> mask;
  std::array<bool, 3> flags{};
  std::array<std::uint16_t, 2> shape{};
  std::tuple<char, double> pair{};
  std::bitset<70> bits;
  float matrix[2][2] = {};
  Kind kind = Kind::train;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(steps, returns, actions, name, seed, mask, flags, shape, pair, bits, matrix, kind);
  }
  friend bool operator==(const Episode&, const Episode&) = default;
};

/// A type that contains itself.
struct Tree {
  std::vector<Tree> children;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(children);
  }
};

struct Empty {
  template <class Archive>
  void serialize(Archive&) {}
  friend bool operator<(Empty, Empty) { return false; }
};

struct Versioned {
  std::uint32_t number = 0, version_read = 0;
  template <class Archive>
  void serialize(Archive& archive, std::uint32_t version) {
    archive(number);
    version_read = version;
  }
};

struct Picky {
  std::int32_t number = 0;
  template <class Archive>
  void save(Archive& archive) const {
    archive(number);
  }
  template <class Archive>
  void load(Archive& archive) {
    archive(number);
    if (number < 0) throw std::domain_error("a number below 0");
  }
};

struct Deferred {
  std::uint8_t first = 0, last = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(cereal::defer(last), first);
  }
};

Episode episode(Random& random) {
  const auto number = [&](std::uint64_t below) { return static_cast<std::int32_t>(random.below(below)); };
  const auto text = [&] { return std::string(random.below(20), static_cast<char>('a' + number(26))); };
  Episode episode;
  episode.steps.resize(random.below(6));
  for (Step& step : episode.steps) {
    step.observation.resize(random.below(9));
    for (float& x : step.observation) x = static_cast<float>(random.uniform(-1.0, 1.0));
    step.action = number(100) - 50;
    step.terminated = number(2) == 1;
    step.note = text();
  }
  for (int i = number(4); i > 0; --i) episode.returns[text()] = {random.uniform(), 1e300};
  for (int i = number(4); i > 0; --i) episode.actions.insert(static_cast<std::int16_t>(number(1000)));
  if (number(2) == 1) episode.name = text();
  if (number(3) == 1) episode.seed = std::int64_t{-5};
  if (number(3) == 1) episode.seed = text();
  for (int i = number(20); i > 0; --i) episode.mask.push_back(number(2) == 1);
  episode.flags = {number(2) == 1, false, true};
  episode.shape = {84, static_cast<std::uint16_t>(number(65536))};
  episode.pair = {'x', random.uniform()};
  episode.bits.set(static_cast<std::size_t>(number(70)));
  episode.matrix[1][0] = 2.5f;
  episode.kind = Kind::evaluate;
  return episode;
}

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

/// A size as containers have it, then `more` bytes.
std::vector<std::byte> sized(std::uint64_t size, std::size_t more = 0) {
  std::vector<std::byte> bytes(8 + more);
  std::memcpy(bytes.data(), &size, 8);
  return bytes;
}

template <class T>
std::string refusal(std::span<const std::byte> bytes, const troop::DecodeLimits& limits = {}) {
  try {
    from_bytes<T>(bytes, limits);
  } catch (const troop::Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

CEREAL_CLASS_VERSION(Versioned, 7)

TEST_CASE("what was written is read back") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "cereal");
  Failures failures;
  for (int i = 0; i < 500; ++i) {
    const Episode written = episode(random);
    if (from_bytes<Episode>(to_bytes(written)) != written) failures.add("round " + std::to_string(i));
  }
  TROOP_CHECK_NONE(failures);
  CHECK(from_bytes<std::string>(to_bytes(std::string("banana"))) == "banana");
  CHECK(from_bytes<std::vector<std::string>>(to_bytes(std::vector<std::string>{"", "a"})).size() == 2);
  const auto versioned = from_bytes<Versioned>(to_bytes(Versioned{.number = 3}));
  CHECK(versioned.number == 3);
  CHECK(versioned.version_read == 7);
  CHECK(from_bytes<Deferred>(to_bytes(Deferred{1, 2})).last == 2);
}

TEST_CASE("the bytes are little-endian, sizes take 64 bits, and nothing is in front") {
  CHECK(to_bytes(std::uint32_t{0x01020304}) == bytes_of({4, 3, 2, 1}));
  CHECK(to_bytes(true) == bytes_of({1}));
  CHECK(to_bytes(1.0f) == bytes_of({0, 0, 0x80, 0x3f}));
  CHECK(to_bytes(Kind::evaluate) == bytes_of({2}));
  CHECK(to_bytes(std::string("ab")) == bytes_of({2, 0, 0, 0, 0, 0, 0, 0, 'a', 'b'}));
  CHECK(to_bytes(std::vector<std::int16_t>{-2}) == bytes_of({1, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff}));
  CHECK(to_bytes(std::optional<std::uint8_t>(9)) == bytes_of({0, 9}));
  CHECK(to_bytes(Deferred{1, 2}) == bytes_of({1, 2}));
  CHECK(to_bytes(Empty{}).empty());

  std::vector<std::byte> out = bytes_of({7});
  append_bytes(std::uint8_t{8}, out);
  CerealSerializer<std::uint8_t>::save(9, out);
  CHECK(out == bytes_of({7, 8, 9}));
  CHECK(CerealSerializer<std::uint8_t>::load(bytes_of({9})) == 9);
  CHECK(CerealSerializer<std::uint8_t>::format() == "cereal");
}

TEST_CASE("bytes that are cut off anywhere, or have more behind them, are refused with the reason") {
  Random random(1, "cut");
  const auto bytes = to_bytes(episode(random));
  Failures failures;
  for (std::size_t length = 0; length < bytes.size(); ++length)
    if (refusal<Episode>(std::span(bytes).first(length)) == "nothing was thrown")
      failures.add(std::to_string(length) + " of " + std::to_string(bytes.size()));
  TROOP_CHECK_NONE(failures);
  CHECK(refusal<std::uint32_t>(bytes_of({1, 2, 3})) == "ends 1 bytes too early");
  CHECK(refusal<std::uint32_t>({}) == "ends 4 bytes too early");
  CHECK(refusal<std::uint32_t>(bytes_of({1, 2, 3, 4, 5, 6})) == "2 bytes too many");
  CHECK(refusal<std::string>(sized(3, 2)) == "3 elements in 2 bytes");
  CHECK(refusal<std::uint32_t>(bytes_of({1, 2, 3, 4}), {.max_bytes = 3}) ==
        "4 bytes, more than the 3 allowed");
  CHECK(from_bytes<std::uint32_t>(bytes_of({1, 0, 0, 0}), {.max_bytes = 4}) == 1);
}

TEST_CASE("a size is refused before memory is taken or a loop is begun for it") {
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  const auto check = [&]<class T>(T) {
    for (const std::uint64_t size :
         {kHuge, kHuge / 2 + 1, kHuge / sizeof(T), std::uint64_t{1} << 40, std::uint64_t{101}}) {
      const auto bytes = sized(size, 100);
      taken = 0;
      std::string reason;
      try {
        from_bytes<T>(bytes);
      } catch (const troop::Error& error) {
        reason = error.what();
      }
      CHECK(reason == std::to_string(size) + " elements in 100 bytes");
      CHECK(taken < 2000);
    }
  };
  check(std::string());
  check(std::vector<double>());
  check(std::vector<std::string>());
  check(std::vector<bool>());
  check(std::set<Empty>());
  check(std::map<std::string, int>());
  check(std::vector<Empty>());
}

TEST_CASE("containers inside each other do not multiply what the input can claim") {
  // Each of a hundred inner vectors claims as many strings as there are bytes behind it.
  std::vector<std::byte> bytes = sized(100);
  std::vector<std::vector<std::vector<std::uint8_t>>> nested(100);
  for (auto& inner : nested) inner.resize(1);
  CHECK(from_bytes<decltype(nested)>(to_bytes(nested)) == nested);
  for (int i = 0; i < 100; ++i) {
    const auto inner = sized(800 - 8 * static_cast<std::uint64_t>(i) - 8);
    bytes.insert(bytes.end(), inner.begin(), inner.end());
  }
  taken = 0;
  CHECK(refusal<decltype(nested)>(bytes) == "more elements than bytes");
  CHECK(taken < 40 * bytes.size());
}

TEST_CASE("a boolean that is neither 0 nor 1 is refused") {
  const std::string expected = "a boolean that is neither 0 nor 1";
  CHECK(refusal<bool>(bytes_of({2})) == expected);
  CHECK(refusal<std::array<bool, 3>>(bytes_of({0, 1, 255})) == expected);
  CHECK(refusal<std::vector<bool>>(bytes_of({2, 0, 0, 0, 0, 0, 0, 0, 1, 3})) == expected);
  CHECK(refusal<std::optional<int>>(bytes_of({7})) == expected);
  CHECK(from_bytes<std::array<bool, 2>>(bytes_of({1, 0})) == std::array<bool, 2>{true, false});
}

TEST_CASE("what an object's own functions throw is told as a troop::Error") {
  CHECK(refusal<Picky>(bytes_of({0, 0, 0, 0x80})) == "a number below 0");
  CHECK(refusal<std::variant<int, bool>>(bytes_of({9, 0, 0, 0, 1})).find("variant") != std::string::npos);
}

TEST_CASE("objects inside each other are refused beyond a depth, in both directions") {
  const auto chain = [](std::size_t depth) {
    Tree tree;
    for (std::size_t i = 1; i < depth; ++i) {
      Tree outer;
      outer.children.push_back(std::move(tree));
      tree = std::move(outer);
    }
    return tree;
  };
  const auto bytes = to_bytes(chain(33));
  CHECK(to_bytes(from_bytes<Tree>(bytes)) == bytes);
  std::vector<std::byte> out = bytes_of({1});
  CHECK_THROWS_WITH_AS(append_bytes(chain(60), out), "more than 100 objects inside each other", troop::Error);
  CHECK(out == bytes_of({1}));

  std::vector<std::byte> deep;
  for (int i = 0; i < 100'000; ++i) {
    const auto one = sized(1);
    deep.insert(deep.end(), one.begin(), one.end());
  }
  CHECK(refusal<Tree>(deep) == "more than 100 objects inside each other");
}

TEST_CASE("elements that take no bytes are refused when they are written, as they would be when read") {
  CHECK_THROWS_WITH_AS(to_bytes(std::vector<Empty>(3)),
                       "a container whose elements take no bytes cannot be written", troop::Error);
  CHECK(from_bytes<std::vector<Empty>>(to_bytes(std::vector<Empty>())).empty());
}

TEST_CASE("bytes changed at random are read or refused, with no more memory than they justify") {
  const std::uint64_t seed = troop::testing::seed();
  CAPTURE(seed);
  Random random(seed, "mutations");
  Failures failures;
  int refused = 0, read = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto bytes = to_bytes(episode(random));
    for (auto changes = 1 + random.below(4); changes > 0 && !bytes.empty(); --changes) {
      const std::size_t at = random.below(bytes.size());
      switch (random.below(5)) {
        case 0:
          bytes[at] = static_cast<std::byte>(random.below(256));
          break;
        case 1:
          bytes[at] ^= static_cast<std::byte>(1u << random.below(8));
          break;
        case 2: {  // a size out of proportion
          const std::uint64_t size = random() >> random.below(64);
          std::memcpy(bytes.data() + at, &size, std::min<std::size_t>(8, bytes.size() - at));
          break;
        }
        case 3:
          bytes.resize(at);
          break;
        default: {  // a piece of itself
          const std::size_t from = random.below(bytes.size());
          const std::vector<std::byte> piece(bytes.begin() + static_cast<std::ptrdiff_t>(from), bytes.end());
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
        }
      }
    }
    const std::size_t limit = 200 * bytes.size() + 4000;
    taken = 0;
    try {
      const auto result = from_bytes<Episode>(bytes);
      ++read;
      if (taken > limit) failures.add(std::to_string(taken) + " for " + std::to_string(bytes.size()));
    } catch (const troop::Error&) {
      ++refused;
      if (taken > limit) failures.add(std::to_string(taken) + " for " + std::to_string(bytes.size()));
    }
  }
  TROOP_CHECK_NONE(failures);
  CHECK(read > 1000);
  CHECK(refused > 1000);
}

TEST_CASE("threads may write and read at once, types with versions too") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&wrong, i] {
      Random random(i, "threads");
      for (int round = 0; round < 200; ++round) {
        const Episode written = episode(random);
        if (from_bytes<Episode>(to_bytes(written)) != written) ++wrong;
        if (from_bytes<Versioned>(to_bytes(Versioned{.number = 5})).version_read != 7) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
