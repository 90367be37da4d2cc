/// @file
/// Records: what one transition looks like in memory, known at compile time (an aggregate) or at run time (a
/// RecordLayout).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <troop/core/detail/reflection.hpp>
#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/hash.hpp>

namespace troop {

/// A named array inside a record. An empty shape is a scalar.
struct Field {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::size_t> shape;
  std::size_t offset = 0;  ///< bytes from the record's start

  /// Elements of the field: the product of its shape.
  std::size_t count() const noexcept {
    return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
  }
  std::size_t bytes() const noexcept { return count() * size_of(dtype); }

  friend bool operator==(const Field&, const Field&) = default;
};

/// "observation f32[4]"
inline std::string to_string(const Field& field) {
  std::string text = field.name;
  text.append(" ").append(name_of(field.dtype));
  for (std::size_t i = 0; i < field.shape.size(); ++i)
    text.append(i == 0 ? "[" : ",").append(std::to_string(field.shape[i]));
  if (!field.shape.empty()) text.append("]");
  return text;
}

/// The fields of a record with their places in it, and the record's size.
///
/// Two layouts are equal when names, dtypes, shapes, offsets and size are; then blocks of such records can be
/// copied, sent and stored as they are. `fingerprint()` is a 64-bit digest of all of it. An immutable value;
/// safe to read from many threads.
///
///     RecordLayout layout({{"observation", DType::f32, {4}}, {"action", DType::i32}, {"reward",
///     DType::f32}}); RecordLayout same = RecordLayout::of<Transition>();          // from an aggregate
class RecordLayout {
 public:
  static constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 30;
  static constexpr std::size_t kMaxAlignment = 64;  ///< of the memory that troop keeps records in

  /// Lays the fields out in the given order, each at the next multiple of its element size, as a C++ struct
  /// would be; the given offsets are ignored. Throws InvalidArgument for no field, an empty or repeated name,
  /// a dimension of 0, or a record larger than 1 GiB.
  explicit RecordLayout(std::vector<Field> fields) : fields_(std::move(fields)) {
    for (auto& field : fields_) {
      check(field);
      field.offset = round_up(size_, size_of(field.dtype));
      size_ = field.offset + field.bytes();
      alignment_ = std::max(alignment_, size_of(field.dtype));
      require(size_ <= kMaxRecordBytes, "record size", size_, "at most 1 GiB");
    }
    size_ = round_up(size_, alignment_);
    finish();
  }

  /// The layout of an aggregate, its field names included; made once a type.
  template <class Record>
  static const RecordLayout& of() {
    static const RecordLayout layout = reflect<Record>();
    return layout;
  }

  /// Bytes of a record, a multiple of its alignment.
  std::size_t size() const noexcept { return size_; }
  std::size_t alignment() const noexcept { return alignment_; }
  const std::vector<Field>& fields() const noexcept { return fields_; }
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }

  bool has(std::string_view name) const noexcept { return find(name) != fields_.end(); }

  /// The field of that name. Throws InvalidArgument naming the fields that there are.
  const Field& field(std::string_view name) const {
    const auto found = find(name);
    if (found == fields_.end())
      throw InvalidArgument("field", "\"" + std::string(name) + "\"", "one of: " + describe());
    return *found;
  }

  /// "observation f32[4], action i32, reward f32"
  std::string describe() const {
    std::string text;
    for (const auto& field : fields_) text += (text.empty() ? "" : ", ") + to_string(field);
    return text;
  }

  /// What differs first between two layouts, in a sentence; empty when they are equal.
  std::string difference(const RecordLayout& other) const {
    for (std::size_t i = 0; i < std::max(fields_.size(), other.fields_.size()); ++i) {
      const std::string place = "field " + std::to_string(i) + ": ";
      if (i >= fields_.size()) return place + "missing, expected " + to_string(other.fields_[i]);
      if (i >= other.fields_.size()) return place + to_string(fields_[i]) + " is one too many";
      const Field &mine = fields_[i], &theirs = other.fields_[i];
      if (mine == theirs) continue;
      if (to_string(mine) != to_string(theirs))
        return place + to_string(mine) + ", expected " + to_string(theirs);
      return place + mine.name + " at byte " + std::to_string(mine.offset) + ", expected at byte " +
             std::to_string(theirs.offset);
    }
    if (size_ != other.size_)
      return "record of " + std::to_string(size_) + " bytes, expected " + std::to_string(other.size_);
    return {};
  }

  /// Throws LayoutMismatch, naming what differs, unless this layout equals `expected`.
  void require_equal(const RecordLayout& expected) const {
    if (*this != expected) throw LayoutMismatch("record layouts differ: " + difference(expected));
  }

  friend bool operator==(const RecordLayout& a, const RecordLayout& b) noexcept {
    return a.fingerprint_ == b.fingerprint_ && a.size_ == b.size_ && a.fields_ == b.fields_;
  }

 private:
  RecordLayout() = default;

  template <class Record>
  static RecordLayout reflect();

  static constexpr std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
    return (value + multiple - 1) / multiple * multiple;
  }

  std::vector<Field>::const_iterator find(std::string_view name) const noexcept {
    return std::find_if(fields_.begin(), fields_.end(),
                        [&](const Field& field) { return field.name == name; });
  }

  void check(const Field& field) const {
    require(!field.name.empty(), "field name", "\"\"", "a name that is not empty");
    require(is_valid(field.dtype), field.name + ".dtype", static_cast<int>(field.dtype), "a dtype");
    require(std::count_if(fields_.begin(), fields_.end(),
                          [&](const Field& f) { return f.name == field.name; }) == 1,
            "field name", field.name, "each name once");
    std::size_t count = 1;
    for (const auto dimension : field.shape) {
      require(dimension > 0 && dimension <= kMaxRecordBytes / count, field.name + ".shape", dimension,
              "positive dimensions and at most 1 GiB");
      count *= dimension;
    }
  }

  void finish() {
    require(!fields_.empty(), "fields", 0, "at least one field");
    // Lengths stand before names, so that no two layouts give the same text.
    fingerprint_ = fnv1a(std::to_string(size_) + ";");
    for (const auto& field : fields_) {
      fingerprint_ = fnv1a(std::to_string(field.name.size()) + ":" + to_string(field) + "@" +
                               std::to_string(field.offset) + ";",
                           fingerprint_);
    }
  }

  std::vector<Field> fields_;
  std::size_t size_ = 0, alignment_ = 1;
  std::uint64_t fingerprint_ = 0;
};

namespace detail {

/// Element type and shape of a record's member: an element, or a (nested) std::array or C array of elements.
template <class T>
struct MemberType {
  using Scalar = T;
  static constexpr bool kHasElements = true;
  static void append_shape(std::vector<std::size_t>&) {}
};

template <class T, std::size_t N>
struct MemberType<std::array<T, N>> {
  using Scalar = typename MemberType<T>::Scalar;
  static constexpr bool kHasElements = N > 0 && MemberType<T>::kHasElements;
  static void append_shape(std::vector<std::size_t>& shape) {
    shape.push_back(N);
    MemberType<T>::append_shape(shape);
  }
};

template <class T, std::size_t N>
struct MemberType<T[N]> : MemberType<std::array<T, N>> {};

template <class Tuple>
struct AllElements;

template <class... Members>
struct AllElements<std::tuple<Members...>>
    : std::bool_constant<(Element<typename MemberType<Members>::Scalar> && ...)> {};

template <class Tuple>
struct NoneEmpty;

template <class... Members>
struct NoneEmpty<std::tuple<Members...>> : std::bool_constant<(MemberType<Members>::kHasElements && ...)> {};

}  // namespace detail

/// A trivially copyable aggregate of at most 16 members, each an arithmetic type, an enumeration, or a
/// (nested) array of these: something that can be stored, sent and mapped as one block.
template <class T>
concept Record = std::is_aggregate_v<T> && !std::is_array_v<T> && std::is_trivially_copyable_v<T>;

template <class T>
RecordLayout RecordLayout::reflect() {
  static_assert(std::is_aggregate_v<T>,
                "a record must be an aggregate: a struct without constructors, private or virtual members");
  static_assert(
      std::is_trivially_copyable_v<T>,
      "a record must be trivially copyable: no std::string, std::vector or pointer owner among its members");
  using Members = detail::MemberTypes<T>;
  static_assert(detail::AllElements<Members>::value,
                "a record's members must be numbers, enumerations, or std::array of these; nested structs "
                "are not supported");
  static_assert(detail::NoneEmpty<Members>::value, "a record's arrays must have at least one element");
  static_assert(sizeof(T) <= kMaxRecordBytes, "a record must not be larger than 1 GiB");
  static_assert(alignof(T) <= kMaxAlignment, "a record's alignment must be at most a cache line, 64 bytes");
  RecordLayout layout;
  const auto names = detail::member_names<T>();
  const auto offsets = detail::member_offsets<T>();
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (
        [&] {
          using Member = detail::MemberType<std::tuple_element_t<I, Members>>;
          Field field{std::string(names[I]), dtype_of<typename Member::Scalar>(), {}, offsets[I]};
          Member::append_shape(field.shape);
          layout.fields_.push_back(std::move(field));
        }(),
        ...);
  }
  (std::make_index_sequence<std::tuple_size_v<Members>>());
  layout.size_ = sizeof(T);
  layout.alignment_ = alignof(T);
  layout.finish();
  return layout;
}

}  // namespace troop
