#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/record.hpp>

using troop::DType;
using troop::Field;
using troop::InvalidArgument;
using troop::RecordLayout;

namespace records {

struct Transition {
  std::array<float, 4> observation;
  std::int32_t action;
  float reward;
  float discount;
  std::array<float, 4> next_observation;
};

struct One {
  double only;
};

struct OneArray {
  std::array<std::uint8_t, 7> pixels;
};

enum class Move : std::int16_t { left, right };
enum Old : std::uint32_t { kOld };

struct Mixed {
  bool done;
  double value;
  std::uint8_t tiny;
  Move move;
  Old old;
  std::array<std::array<std::array<std::uint16_t, 2>, 3>, 4> stack;
  std::int64_t last;
  char tail;
};

struct CArrays {
  float scalar;
  float line[3];
  std::uint8_t grid[2][5];
  std::array<std::int32_t, 2> pairs[2];
  bool flag[1];
};

struct Sixteen {
  std::uint8_t m0;
  std::uint16_t m1;
  std::uint32_t m2;
  std::uint64_t m3;
  std::int8_t m4;
  std::int16_t m5;
  std::int32_t m6;
  std::int64_t m7;
  float m8;
  double m9;
  bool m10;
  std::array<float, 2> m11;
  float m12[2];
  Move m13;
  std::uint8_t m14;
  double m15;
};

struct Named_with_digits_2 {
  float _leading;
  float camelCase9;
  float trailing_;
  float x;
  float größe;
};

struct alignas(32) Aligned {
  float value;
};

template <class T>
struct Generic {
  T first;
  std::array<T, 2> second;
};

}  // namespace records

namespace {

struct Hidden {  // internal linkage
  float in_the_dark;
  std::int32_t too;
};

std::string thrown_by(std::vector<Field> fields) {
  try {
    const RecordLayout layout(std::move(fields));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void check_same(const RecordLayout& reflected, const RecordLayout& written) {
  CHECK(reflected.difference(written) == "");
  CHECK(written.difference(reflected) == "");
  CHECK(reflected.fields() == written.fields());
  CHECK(reflected.size() == written.size());
  CHECK(reflected.alignment() == written.alignment());
  CHECK(reflected.fingerprint() == written.fingerprint());
  CHECK(reflected == written);
}

}  // namespace

TEST_CASE("the layout of an aggregate is the one that its fields describe") {
  check_same(RecordLayout::of<records::Transition>(), RecordLayout({{"observation", DType::f32, {4}},
                                                                    {"action", DType::i32, {}},
                                                                    {"reward", DType::f32, {}},
                                                                    {"discount", DType::f32, {}},
                                                                    {"next_observation", DType::f32, {4}}}));
  check_same(RecordLayout::of<records::One>(), RecordLayout({{"only", DType::f64, {}}}));
  check_same(RecordLayout::of<records::OneArray>(), RecordLayout({{"pixels", DType::u8, {7}}}));
  check_same(RecordLayout::of<records::Mixed>(), RecordLayout({{"done", DType::boolean, {}},
                                                               {"value", DType::f64, {}},
                                                               {"tiny", DType::u8, {}},
                                                               {"move", DType::i16, {}},
                                                               {"old", DType::u32, {}},
                                                               {"stack", DType::u16, {4, 3, 2}},
                                                               {"last", DType::i64, {}},
                                                               {"tail", troop::dtype_of<char>(), {}}}));
  check_same(RecordLayout::of<records::CArrays>(), RecordLayout({{"scalar", DType::f32, {}},
                                                                 {"line", DType::f32, {3}},
                                                                 {"grid", DType::u8, {2, 5}},
                                                                 {"pairs", DType::i32, {2, 2}},
                                                                 {"flag", DType::boolean, {1}}}));
  check_same(RecordLayout::of<records::Sixteen>(), RecordLayout({{"m0", DType::u8, {}},
                                                                 {"m1", DType::u16, {}},
                                                                 {"m2", DType::u32, {}},
                                                                 {"m3", DType::u64, {}},
                                                                 {"m4", DType::i8, {}},
                                                                 {"m5", DType::i16, {}},
                                                                 {"m6", DType::i32, {}},
                                                                 {"m7", DType::i64, {}},
                                                                 {"m8", DType::f32, {}},
                                                                 {"m9", DType::f64, {}},
                                                                 {"m10", DType::boolean, {}},
                                                                 {"m11", DType::f32, {2}},
                                                                 {"m12", DType::f32, {2}},
                                                                 {"m13", DType::i16, {}},
                                                                 {"m14", DType::u8, {}},
                                                                 {"m15", DType::f64, {}}}));
  check_same(RecordLayout::of<records::Generic<std::int8_t>>(),
             RecordLayout({{"first", DType::i8, {}}, {"second", DType::i8, {2}}}));
  check_same(RecordLayout::of<Hidden>(),
             RecordLayout({{"in_the_dark", DType::f32, {}}, {"too", DType::i32, {}}}));
}

TEST_CASE("the layout of an aggregate has the compiler's own offsets and size") {
  const auto& mixed = RecordLayout::of<records::Mixed>();
  CHECK(mixed.size() == sizeof(records::Mixed));
  CHECK(mixed.alignment() == alignof(records::Mixed));
  CHECK(mixed.field("done").offset == offsetof(records::Mixed, done));
  CHECK(mixed.field("value").offset == offsetof(records::Mixed, value));
  CHECK(mixed.field("tiny").offset == offsetof(records::Mixed, tiny));
  CHECK(mixed.field("move").offset == offsetof(records::Mixed, move));
  CHECK(mixed.field("old").offset == offsetof(records::Mixed, old));
  CHECK(mixed.field("stack").offset == offsetof(records::Mixed, stack));
  CHECK(mixed.field("last").offset == offsetof(records::Mixed, last));
  CHECK(mixed.field("tail").offset == offsetof(records::Mixed, tail));
  const auto& arrays = RecordLayout::of<records::CArrays>();
  CHECK(arrays.field("grid").offset == offsetof(records::CArrays, grid));
  CHECK(arrays.field("pairs").offset == offsetof(records::CArrays, pairs));
  CHECK(arrays.field("flag").offset == offsetof(records::CArrays, flag));
  CHECK(arrays.size() == sizeof(records::CArrays));
}

TEST_CASE("member names are found whatever they look like") {
  const auto& fields = RecordLayout::of<records::Named_with_digits_2>().fields();
  REQUIRE(fields.size() == 5);
  CHECK(fields[0].name == "_leading");
  CHECK(fields[1].name == "camelCase9");
  CHECK(fields[2].name == "trailing_");
  CHECK(fields[3].name == "x");
  CHECK(fields[4].name == "größe");
}

TEST_CASE("names and types are known inside a function, too") {
  struct Local {
    std::uint8_t here;
    const float constant;
  };
  const auto& layout = RecordLayout::of<Local>();
  CHECK(layout.describe() == "here u8, constant f32");
  CHECK(&layout == &RecordLayout::of<Local>());
}

TEST_CASE("an aggregate with a larger alignment than its members differs in size from its fields alone") {
  const auto& aligned = RecordLayout::of<records::Aligned>();
  CHECK(aligned.size() == 32);
  CHECK(aligned.alignment() == 32);
  const RecordLayout plain({{"value", DType::f32, {}}});
  CHECK(aligned != plain);
  CHECK(aligned.difference(plain) == "record of 32 bytes, expected 4");
}

TEST_CASE("fields are laid out as in a struct, whatever offsets were given") {
  const RecordLayout layout({{"a", DType::u8, {3}, 77}, {"b", DType::f64, {}, 1}, {"c", DType::u16, {}, 0}});
  CHECK(layout.field("a").offset == 0);
  CHECK(layout.field("b").offset == 8);
  CHECK(layout.field("c").offset == 16);
  CHECK(layout.size() == 24);
  CHECK(layout.alignment() == 8);
  CHECK(layout.field("a").count() == 3);
  CHECK(layout.field("b").bytes() == 8);
  CHECK(RecordLayout({{"a", DType::u8, {3}}}).size() == 3);
}

TEST_CASE("fields are described with dtype and shape") {
  CHECK(to_string(Field{"action", DType::i32, {}, 0}) == "action i32");
  CHECK(to_string(Field{"frames", DType::u8, {4, 84, 84}, 0}) == "frames u8[4,84,84]");
  CHECK(RecordLayout::of<records::Transition>().describe() ==
        "observation f32[4], action i32, reward f32, discount f32, next_observation f32[4]");
}

TEST_CASE("an unknown field is refused with the names that there are") {
  const RecordLayout layout({{"reward", DType::f32, {}}});
  CHECK(layout.has("reward"));
  CHECK_FALSE(layout.has("rewards"));
  CHECK_FALSE(layout.has(""));
  CHECK_THROWS_WITH_AS(layout.field("rewards"),
                       "field: \"rewards\" is not allowed; expected one of: reward f32", InvalidArgument);
}

TEST_CASE("the difference of two layouts is a sentence on the first field that differs") {
  const RecordLayout base({{"observation", DType::f32, {4}}, {"action", DType::i32, {}}});
  const auto difference = [&](std::vector<Field> fields) {
    const RecordLayout other(std::move(fields));
    CHECK(other != base);
    CHECK(other.fingerprint() != base.fingerprint());
    return other.difference(base);
  };
  CHECK(difference({{"observation", DType::f32, {8}}, {"action", DType::i32, {}}}) ==
        "field 0: observation f32[8], expected observation f32[4]");
  CHECK(difference({{"observation", DType::f32, {4}}, {"action", DType::f32, {}}}) ==
        "field 1: action f32, expected action i32");
  CHECK(difference({{"observation", DType::f32, {4}}, {"act", DType::i32, {}}}) ==
        "field 1: act i32, expected action i32");
  CHECK(difference({{"observation", DType::f32, {4}}}) == "field 1: missing, expected action i32");
  CHECK(difference({{"observation", DType::f32, {4}}, {"action", DType::i32, {}}, {"x", DType::u8, {}}}) ==
        "field 2: x u8 is one too many");
  CHECK(difference({{"observation", DType::f32, {2, 2}}, {"action", DType::i32, {}}}) ==
        "field 0: observation f32[2,2], expected observation f32[4]");
  CHECK(difference({{"action", DType::i32, {}}, {"observation", DType::f32, {4}}}) ==
        "field 0: action i32, expected observation f32[4]");
  CHECK(base.difference(base) == "");
}

TEST_CASE("a field that lies elsewhere is a difference, too") {
  struct Moved {
    alignas(16) std::array<float, 4> observation;
    alignas(16) std::int32_t action;
  };
  struct Further {
    alignas(16) std::array<float, 4> observation;
    alignas(32) std::int32_t action;
  };
  const auto &moved = RecordLayout::of<Moved>(), &further = RecordLayout::of<Further>();
  CHECK(further.difference(moved) == "field 1: action at byte 32, expected at byte 16");
  CHECK(moved.fingerprint() != further.fingerprint());
  CHECK_THROWS_WITH_AS(further.require_equal(moved),
                       "record layouts differ: field 1: action at byte 32, expected at byte 16",
                       troop::LayoutMismatch);
  CHECK_NOTHROW(moved.require_equal(moved));
}

TEST_CASE("layouts without a field, with a bad name, shape, dtype or size are refused") {
  CHECK(thrown_by({}) == "fields: 0 is not allowed; expected at least one field");
  CHECK(thrown_by({{"", DType::f32, {}}}) ==
        "field name: \"\" is not allowed; expected a name that is not empty");
  CHECK(thrown_by({{"a", DType::f32, {}}, {"b", DType::f32, {}}, {"a", DType::u8, {}}}) ==
        "field name: a is not allowed; expected each name once");
  CHECK(thrown_by({{"a", DType::f32, {4, 0, 2}}}) ==
        "a.shape: 0 is not allowed; expected positive dimensions and at most 1 GiB");
  CHECK(thrown_by({{"a", static_cast<DType>(0), {}}}) == "a.dtype: 0 is not allowed; expected a dtype");
  CHECK(thrown_by({{"a", static_cast<DType>(200), {}}}) == "a.dtype: 200 is not allowed; expected a dtype");
  CHECK(thrown_by({{"a", DType::f32, {std::size_t{1} << 28}}, {"b", DType::u8, {}}}) ==
        "record size: 1073741825 is not allowed; expected at most 1 GiB");
}

TEST_CASE("shapes whose product overflows are refused, a record of just 1 GiB is not") {
  const std::size_t half = std::size_t{1} << 32;
  CHECK(thrown_by({{"a", DType::f32, {half, half}}}) ==
        "a.shape: 4294967296 is not allowed; expected positive dimensions and at most 1 GiB");
  CHECK(thrown_by({{"a", DType::u8, {std::size_t{1} << 30, 2}}}) ==
        "a.shape: 2 is not allowed; expected positive dimensions and at most 1 GiB");
  CHECK(thrown_by({{"a", DType::u8, {~std::size_t{0}}}}) ==
        "a.shape: 18446744073709551615 is not allowed; expected positive dimensions and at most 1 GiB");
  CHECK(RecordLayout({{"a", DType::u8, {std::size_t{1} << 15, std::size_t{1} << 15}}}).size() ==
        RecordLayout::kMaxRecordBytes);
}

TEST_CASE("the size after padding is bounded, too") {
  CHECK(thrown_by({{"a", DType::f64, {(std::size_t{1} << 27) - 1}}, {"b", DType::u8, {}}}) ==
        "nothing was thrown");
  CHECK(RecordLayout({{"a", DType::f64, {(std::size_t{1} << 27) - 1}}, {"b", DType::u8, {}}}).size() ==
        RecordLayout::kMaxRecordBytes);
}

TEST_CASE("fingerprints are part of files: they do not change") {
  // FNV-1a of "44;11:observation f32[4]@0;6:action i32@16;..." and of "8;4:only f64@0;", by another program.
  CHECK(RecordLayout::of<records::Transition>().fingerprint() == 0xf0d4e2d438e441f7u);
  CHECK(RecordLayout({{"only", DType::f64, {}}}).fingerprint() == 0xae726c0c5a9c5091u);
}

TEST_CASE("names cannot pretend to be other fields in the fingerprint") {
  const RecordLayout two({{"a", DType::u8, {}}, {"b", DType::u8, {}}});
  const RecordLayout one({{"a u8@0;b", DType::u8, {2}}});
  CHECK(two != one);
  CHECK(two.fingerprint() != one.fingerprint());
  CHECK(RecordLayout({{"4a", DType::u8, {4}}}).fingerprint() !=
        RecordLayout({{"a", DType::u8, {44}}}).fingerprint());
}

TEST_CASE("types that are no records are told apart") {
  struct WithConstructor {
    WithConstructor() : x(0) {}
    float x;
  };
  struct WithString {
    std::string text;
  };
  static_assert(troop::Record<records::Transition> && troop::Record<records::CArrays>);
  static_assert(!troop::Record<WithConstructor>);
  static_assert(!troop::Record<WithString>);
  static_assert(!troop::Record<float>);
  static_assert(!troop::Record<float[3]>);
  CHECK(troop::Record<records::One>);
}
