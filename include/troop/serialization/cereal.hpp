/// @file
/// Objects as bytes by what they say to Cereal, and back from bytes that nobody has checked.
#pragma once

// Without it Cereal's register of class versions must not be used by two threads at once.
#ifndef CEREAL_THREAD_SAFE
#define CEREAL_THREAD_SAFE 1
#endif
#if !CEREAL_THREAD_SAFE
#error "include <troop/serialization/cereal.hpp> before Cereal's headers, or define CEREAL_THREAD_SAFE=1"
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <cereal/cereal.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include <troop/core/bytes.hpp>
#include <troop/core/error.hpp>
#include <troop/fwd.hpp>

namespace troop {

/// What `from_bytes` takes from somebody that is not trusted.
struct DecodeLimits {
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();  ///< longer input is refused unread
};

namespace detail {

/// Objects in objects, the elements of containers included, that the archives go into: recursive types are
/// read by recursion, and what comes from others must not choose how deep the stack grows.
inline constexpr std::size_t kMaxArchiveDepth = 100;

/// Counts how deep an archive is in objects.
class BoundedArchive {
 public:
  void enter() {
    if (++depth_ > kMaxArchiveDepth)
      throw Error("more than " + std::to_string(kMaxArchiveDepth) + " objects inside each other");
  }
  void leave() noexcept { --depth_; }

 private:
  std::size_t depth_ = 0;
};

/// Numbers as they are in memory (little-endian, see bytes.hpp), sizes of containers as 64 bits.
class CerealWriter : public cereal::OutputArchive<CerealWriter, cereal::AllowEmptyClassElision>,
                     public BoundedArchive {
 public:
  explicit CerealWriter(std::vector<std::byte>& out)
      : OutputArchive(this), out_(out), begin_(out.size()), writer_(out) {}

  void bytes(const void* data, std::size_t size) {
    writer_.bytes({static_cast<const std::byte*>(data), size});
  }

  void size(std::uint64_t size) {
    writer_.number(size);
    elements_ += size;
    least_ = std::max<std::uint64_t>(least_, written() + size);
  }

  /// Throws Error for what the reader would refuse.
  void finish() const {
    if (std::max(least_, elements_) > written())
      throw Error("a container whose elements take no bytes cannot be written");
  }

 private:
  std::uint64_t written() const noexcept { return out_.size() - begin_; }

  std::vector<std::byte>& out_;
  std::size_t begin_;
  ByteWriter writer_;
  std::uint64_t elements_ = 0, least_ = 0;
};

/// Every element of every container takes at least a byte that is its own. So no container may have more
/// elements than bytes are left, nor all together more than the input has bytes; a size is refused before
/// memory is taken for it.
class CerealReader : public cereal::InputArchive<CerealReader, cereal::AllowEmptyClassElision>,
                     public BoundedArchive {
 public:
  explicit CerealReader(std::span<const std::byte> bytes)
      : InputArchive(this), reader_(bytes), elements_left_(bytes.size()) {}

  void bytes(void* data, std::size_t size) {
    const auto from = reader_.bytes(size);
    std::copy(from.begin(), from.end(), static_cast<std::byte*>(data));
  }

  std::uint64_t size() {
    const std::size_t size = reader_.count<std::uint64_t>(1);
    if (size > elements_left_) throw Error("more elements than bytes");
    elements_left_ -= size;
    return size;
  }

  void finish() const { reader_.finish(); }

 private:
  ByteReader reader_;
  std::size_t elements_left_;
};

template <class T>
concept CerealNumber = std::is_arithmetic_v<T>;

template <class T>
constexpr void check_portable() {
  static_assert(!std::is_same_v<T, long double> && !std::is_same_v<T, wchar_t>,
                "long double and wchar_t are not the same on all machines: use double or char32_t");
}

/// Throws Error for booleans that are neither false nor true, which must not even be looked at as such.
inline void require_booleans(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  if (std::any_of(bytes, bytes + size, [](unsigned char byte) { return byte > 1; }))
    throw Error("a boolean that is neither 0 nor 1");
}

template <class T>
using CerealScalar = std::remove_all_extents_t<std::remove_pointer_t<T>>;

// The functions that Cereal looks for.

template <CerealNumber T>
void save(CerealWriter& archive, const T& value) {
  check_portable<T>();
  archive.bytes(&value, sizeof(value));
}
template <CerealNumber T>
void load(CerealReader& archive, T& value) {
  check_portable<T>();
  archive.bytes(&value, sizeof(value));
  if constexpr (std::is_same_v<T, bool>) require_booleans(&value, sizeof(value));
}

template <class T>
void save(CerealWriter& archive, const cereal::BinaryData<T>& data) {
  check_portable<std::remove_cv_t<CerealScalar<T>>>();
  archive.bytes(data.data, static_cast<std::size_t>(data.size));
}
template <class T>
void load(CerealReader& archive, cereal::BinaryData<T>& data) {
  using Scalar = std::remove_cv_t<CerealScalar<T>>;
  check_portable<Scalar>();
  archive.bytes(data.data, static_cast<std::size_t>(data.size));
  if constexpr (std::is_same_v<Scalar, bool>)
    require_booleans(data.data, static_cast<std::size_t>(data.size));
}

template <class T>
void save(CerealWriter& archive, const cereal::SizeTag<T>& tag) {
  archive.size(static_cast<std::uint64_t>(tag.size));
}
template <class T>
void load(CerealReader& archive, cereal::SizeTag<T>& tag) {
  tag.size = static_cast<std::remove_reference_t<T>>(archive.size());
}

template <class T>
void save(CerealWriter& archive, const cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}
template <class T>
void load(CerealReader& archive, cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}

template <class T>
void prologue(CerealWriter& archive, const T&) {
  archive.enter();
}
template <class T>
void epilogue(CerealWriter& archive, const T&) {
  archive.leave();
}
template <class T>
void prologue(CerealReader& archive, const T&) {
  archive.enter();
}
template <class T>
void epilogue(CerealReader& archive, const T&) {
  archive.leave();
}

// Pointers: what they point to may be shared, circular, or chosen by the bytes among derived classes.

template <class T>
void refuse_pointer() {
  static_assert(sizeof(T*) == 0,
                "troop writes no pointers: let the object hold values, std::optional or std::vector");
}
template <class T>
void save(CerealWriter&, const std::shared_ptr<T>&) {
  refuse_pointer<T>();
}
template <class T>
void load(CerealReader&, std::shared_ptr<T>&) {
  refuse_pointer<T>();
}
template <class T>
void save(CerealWriter&, const std::weak_ptr<T>&) {
  refuse_pointer<T>();
}
template <class T>
void load(CerealReader&, std::weak_ptr<T>&) {
  refuse_pointer<T>();
}
template <class T, class Deleter>
void save(CerealWriter&, const std::unique_ptr<T, Deleter>&) {
  refuse_pointer<T>();
}
template <class T, class Deleter>
void load(CerealReader&, std::unique_ptr<T, Deleter>&) {
  refuse_pointer<T>();
}

}  // namespace detail
}  // namespace troop

CEREAL_SETUP_ARCHIVE_TRAITS(troop::detail::CerealReader, troop::detail::CerealWriter)

namespace troop {

/// Appends `object` to `out`. The encoding is Cereal's, little-endian, without a head; sizes of containers
/// take 64 bits. Use integers of a stated width. Say to Cereal what a type consists of as its manual shows,
/// and include Cereal's headers for the containers in it, those of strings and vectors excepted:
///
///     struct Episode {
///       std::vector<float> observations;
///       std::string note;
///       template <class Archive> void serialize(Archive& archive) { archive(observations, note); }
///     };
///
/// Throws Error, and `out` is as it was, for a container whose elements take no bytes and for more than 100
/// objects inside each other. Pointers do not compile. Thread-safe.
template <class T>
void append_bytes(const T& object, std::vector<std::byte>& out) {
  const std::size_t before = out.size();
  try {
    detail::CerealWriter writer(out);
    writer(object);
    writer.serializeDeferments();
    writer.finish();
  } catch (...) {
    out.resize(before);
    throw;
  }
}

template <class T>
std::vector<std::byte> to_bytes(const T& object) {
  std::vector<std::byte> out;
  append_bytes(object, out);
  return out;
}

/// The object that `to_bytes` wrote; `T` is made without arguments first. The bytes may be anything: Error
/// with the reason is thrown unless they are one object from the first to the last, and also for whatever the
/// object's own functions throw. Never reads outside; has no more elements in memory than there are bytes;
/// the stack grows by a bounded depth. An enumeration may get a value that has no name. Thread-safe.
///
///     const auto hello = from_bytes<Hello>(body, {.max_bytes = 4096});
template <class T>
T from_bytes(std::span<const std::byte> bytes, const DecodeLimits& limits = {}) {
  if (bytes.size() > limits.max_bytes)
    throw Error(std::to_string(bytes.size()) + " bytes, more than the " + std::to_string(limits.max_bytes) +
                " allowed");
  try {
    T object{};
    detail::CerealReader reader(bytes);
    reader(object);
    reader.serializeDeferments();
    reader.finish();
    return object;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(error.what());
  }
}

/// What a HeapStorage saves its objects with.
template <class T>
struct CerealSerializer {
  static std::string format() { return "cereal"; }
  static void save(const T& object, std::vector<std::byte>& out) { append_bytes(object, out); }
  static T load(std::span<const std::byte> bytes) { return from_bytes<T>(bytes); }
};

}  // namespace troop
