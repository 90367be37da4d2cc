// Containers in containers from any bytes. What is read, written and read again is the same, in memory that
// the bytes justify (the fuzzer's -malloc_limit_mb).
//
// Input: which type (a byte), then the bytes of an object.
#include <troop/serialization/cereal.hpp>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <cereal/types/array.hpp>
#include <cereal/types/deque.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/set.hpp>
#include <cereal/types/tuple.hpp>
#include <cereal/types/unordered_map.hpp>
#include <cereal/types/utility.hpp>
#include <cereal/types/variant.hpp>

#include "fuzz.hpp"

namespace troop::fuzz {
namespace {

struct Tree {
  std::uint8_t value = 0;
  std::vector<Tree> children;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value, children);
  }
};

struct Empty {
  template <class Archive>
  void serialize(Archive&) {}
};

struct Everything {
  bool flag = false;
  std::array<std::uint16_t, 3> numbers{};
  std::optional<std::string> note;
  std::variant<std::uint8_t, std::string, std::vector<double>> value;
  std::deque<std::pair<std::int32_t, bool>> queue;
  std::set<std::string> names;
  std::vector<bool> bits;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(flag, numbers, note, value, queue, names, bits);
  }
};

using Types =
    std::tuple<std::vector<std::string>, std::map<std::string, std::vector<std::uint32_t>>,
               std::vector<std::vector<std::uint64_t>>, std::vector<std::vector<std::vector<std::uint8_t>>>,
               std::unordered_map<std::uint32_t, std::string>, Tree, Everything, std::vector<Empty>,
               std::vector<std::array<std::uint64_t, 64>>>;

template <class T>
void decode(std::span<const std::byte> bytes) {
  std::optional<T> object;
  try {
    object = from_bytes<T>(bytes);
  } catch (const Error&) {
    return;
  }
  const Bytes again = to_bytes(*object);
  // Equal keys come once and a hash table has no order, so the second encoding is the one that is kept.
  if constexpr (!std::is_same_v<T, std::unordered_map<std::uint32_t, std::string>>)
    check(equal(again, to_bytes(from_bytes<T>(again))), "decode, encode, decode gives the same");
  check(again.size() <= bytes.size(), "an object is not larger than what it was read from");
}

template <std::size_t... I>
void decode(std::size_t which, std::span<const std::byte> bytes, std::index_sequence<I...>) {
  static constexpr std::array kDecoders{&decode<std::tuple_element_t<I, Types>>...};
  kDecoders[which % sizeof...(I)](bytes);
}

template <class T>
Bytes seed(int which, const T& object) {
  return ScriptWriter().number(static_cast<std::uint8_t>(which)).bytes(to_bytes(object));
}

}  // namespace

void run(std::span<const std::byte> input) {
  Script script(input);
  const auto which = script.number<std::uint8_t>();
  decode(which, Exactly(script.rest()), std::make_index_sequence<std::tuple_size_v<Types>>{});
}

std::vector<Bytes> seeds() {
  const Tree leaf{3, {}};
  Everything everything;
  everything.note = "note";
  everything.value = std::vector<double>{1.0, 2.0};
  everything.queue = {{1, true}, {2, false}};
  everything.names = {"a", "b"};
  everything.bits = {true, false, true};
  return {seed(0, std::tuple_element_t<0, Types>{"one", "", "three"}),
          seed(1, std::tuple_element_t<1, Types>{{"a", {1, 2}}, {"b", {}}}),
          seed(2, std::tuple_element_t<2, Types>{{1, 2}, {}, {3}}),
          seed(3, std::tuple_element_t<3, Types>{{{1}, {}}, {}}),
          seed(4, std::tuple_element_t<4, Types>{{1, "x"}, {2, "y"}}),
          seed(5, Tree{1, {leaf, Tree{2, {leaf}}}}),
          seed(6, everything),
          seed(7, std::vector<Empty>{}),
          seed(8, std::tuple_element_t<8, Types>(2))};
}

}  // namespace troop::fuzz
