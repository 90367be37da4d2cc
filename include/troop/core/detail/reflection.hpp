/// @file
/// Counts, names and locates the members of an aggregate at compile time, without macros.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace troop::detail {

/// Converts to any member type, in unevaluated code only.
struct AnyMember {
  template <class T>
  constexpr operator T() const noexcept;  // NOLINT(google-explicit-constructor)
};

template <std::size_t>
using AnyMemberAt = AnyMember;

template <class T, std::size_t... I>
constexpr bool initializable(std::index_sequence<I...>) {
  return requires {
    T{AnyMemberAt<I>{}...};
  };
}

/// T{any x Before, {any}, any x After}
template <class T, std::size_t... Before, std::size_t... After>
constexpr bool initializable_nested(std::index_sequence<Before...>, std::index_sequence<After...>) {
  return requires {
    T{AnyMemberAt<Before>{}..., {AnyMember{}}, AnyMemberAt<After>{}...};
  };
}

inline constexpr std::size_t kMaxInitializers = 256;

/// The most initialisers that T takes; a C array of n elements takes n of them.
template <class T, std::size_t N = 1>
constexpr std::size_t count_initializers() {
  static_assert(N <= kMaxInitializers,
                "a record has too many members, or C arrays that are too long: use std::array");
  if constexpr (initializable<T>(std::make_index_sequence<N>())) {
    return count_initializers<T, N + 1>();
  } else {
    return N - 1;
  }
}

/// How many initialisers the member that starts at initialiser `At` takes.
template <class T, std::size_t Total, std::size_t At, std::size_t After = Total - At - 1>
constexpr std::size_t initializers_of_member() {
  if constexpr (initializable_nested<T>(std::make_index_sequence<At>(), std::make_index_sequence<After>())) {
    return Total - At - After;
  } else if constexpr (After == 0) {
    return 1;
  } else {
    return initializers_of_member<T, Total, At, After - 1>();
  }
}

template <class T, std::size_t Total, std::size_t At = 0>
constexpr std::size_t count_members() {
  if constexpr (At >= Total) {
    return 0;
  } else {
    return 1 + count_members<T, Total, At + initializers_of_member<T, Total, At>()>();
  }
}

template <class T>
inline constexpr std::size_t kMemberCount = count_members<T, count_initializers<T>()>();

/// References to the members of `object`, as a tuple.
template <class T>
constexpr auto tie_members(T& object) noexcept {
  constexpr std::size_t count = kMemberCount<std::remove_const_t<T>>;
  static_assert(count >= 1 && count <= 16, "a record must have 1 to 16 members");
  if constexpr (count == 1) {
    auto& [m0] = object;
    return std::tie(m0);
  } else if constexpr (count == 2) {
    auto& [m0, m1] = object;
    return std::tie(m0, m1);
  } else if constexpr (count == 3) {
    auto& [m0, m1, m2] = object;
    return std::tie(m0, m1, m2);
  } else if constexpr (count == 4) {
    auto& [m0, m1, m2, m3] = object;
    return std::tie(m0, m1, m2, m3);
  } else if constexpr (count == 5) {
    auto& [m0, m1, m2, m3, m4] = object;
    return std::tie(m0, m1, m2, m3, m4);
  } else if constexpr (count == 6) {
    auto& [m0, m1, m2, m3, m4, m5] = object;
    return std::tie(m0, m1, m2, m3, m4, m5);
  } else if constexpr (count == 7) {
    auto& [m0, m1, m2, m3, m4, m5, m6] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6);
  } else if constexpr (count == 8) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7);
  } else if constexpr (count == 9) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8);
  } else if constexpr (count == 10) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9);
  } else if constexpr (count == 11) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10);
  } else if constexpr (count == 12) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11);
  } else if constexpr (count == 13) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12);
  } else if constexpr (count == 14) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13);
  } else if constexpr (count == 15) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14);
  } else if constexpr (count == 16) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15] = object;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15);
  }
}

template <class Tuple>
struct WithoutReferences;

template <class... Members>
struct WithoutReferences<std::tuple<Members...>> {
  using Type = std::tuple<std::remove_cvref_t<Members>...>;
};

template <class T>
using MemberTypes = typename WithoutReferences<decltype(tie_members(std::declval<T&>()))>::Type;

template <class T>
std::array<std::size_t, kMemberCount<T>> member_offsets() {
  static const T object{};
  std::array<std::size_t, kMemberCount<T>> offsets{};
  std::apply(
      [&](const auto&... members) {
        std::size_t i = 0;
        ((offsets[i++] = static_cast<std::size_t>(reinterpret_cast<const char*>(std::addressof(members)) -
                                                  reinterpret_cast<const char*>(std::addressof(object)))),
         ...);
      },
      tie_members(object));
  return offsets;
}

/// An object that is never defined: only the addresses of its members are named.
template <class T>
struct Named {
  T value;
};
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-internal"  // for a T of internal linkage
#endif
template <class T>
extern const Named<T> kNamedObject;
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

template <class Pointer>
struct PointerArgument {
  Pointer pointer;
};
template <class Pointer>
PointerArgument(Pointer) -> PointerArgument<Pointer>;

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#endif
template <PointerArgument Argument>
consteval std::string_view pretty_name() {
  return __PRETTY_FUNCTION__;
}

/// The member's name is the last identifier inside the braces of the template argument's pretty name: "...
/// {(& kNamedObject<T>.Named<T>::value.T::name)} ..." with GCC, "... {&kNamedObject.value.name} ..." with
/// Clang.
constexpr std::string_view last_identifier(std::string_view text) {
  text = text.substr(0, text.rfind('}'));
  const auto is_part = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           static_cast<unsigned char>(c) >= 0x80;  // letters beyond ASCII, in UTF-8
  };
  std::size_t end = text.size();
  while (end > 0 && !is_part(text[end - 1])) --end;
  std::size_t begin = end;
  while (begin > 0 && is_part(text[begin - 1])) --begin;
  return text.substr(begin, end - begin);
}

template <class T>
constexpr std::array<std::string_view, kMemberCount<T>> member_names() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<std::string_view, sizeof...(I)>{last_identifier(
        pretty_name<PointerArgument{std::addressof(std::get<I>(tie_members(kNamedObject<T>.value)))}>())...};
  }
  (std::make_index_sequence<kMemberCount<T>>());
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

}  // namespace troop::detail
