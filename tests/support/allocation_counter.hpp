/// @file
/// Counts heap allocations of the whole process, by taking the place of glibc's malloc. Include it in exactly
/// one file of a test executable. Under a sanitizer, which has its own malloc, nothing is counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define TROOP_TEST_HAS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TROOP_TEST_HAS_SANITIZER 1
#endif

namespace troop::test {

inline std::atomic<std::size_t> num_allocations{0};

#if defined(__GLIBC__) && !defined(TROOP_TEST_HAS_SANITIZER)
inline constexpr bool kCountsAllocations = true;
#else
inline constexpr bool kCountsAllocations = false;
#endif

/// Allocations, from any thread, while `f` runs.
template <class F>
std::size_t allocations_in(F f) {
  const std::size_t before = num_allocations.load();
  f();
  return num_allocations.load() - before;
}

}  // namespace troop::test

#if defined(__GLIBC__) && !defined(TROOP_TEST_HAS_SANITIZER)
// NOLINTBEGIN(bugprone-reserved-identifier): these are glibc's names
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* block, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  troop::test::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  troop::test::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* block, std::size_t size) {
  troop::test::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(block, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  troop::test::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
}
// NOLINTEND(bugprone-reserved-identifier)
#endif
