/// @file Counts heap allocations of the whole process, whether by `new` or by malloc: by taking the place of
/// glibc's malloc or, where a sanitizer has done so, by its hook. Include it in exactly one file of a test
/// executable.
#pragma once

#include <atomic>
#include <cerrno>
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

namespace troop::testing {

inline std::atomic<std::size_t> num_allocations{0};

/// Allocations, from any thread, while `f` runs.
template <class F>
std::size_t allocations_in(F f) {
  const std::size_t before = num_allocations.load();
  f();
  return num_allocations.load() - before;
}

}  // namespace troop::testing

// NOLINTBEGIN(bugprone-reserved-identifier): these are the names of glibc and of the sanitizers
#if defined(TROOP_TEST_HAS_SANITIZER)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*,
                                                                             std::size_t),
                                                         void (*free_hook)(const volatile void*));

namespace troop::testing {
inline const int kAllocationHook = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t) { num_allocations.fetch_add(1, std::memory_order_relaxed); },
    [](const volatile void*) {});
}  // namespace troop::testing
#else
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* block, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  troop::testing::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  troop::testing::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* block, std::size_t size) {
  troop::testing::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(block, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  troop::testing::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  troop::testing::num_allocations.fetch_add(1, std::memory_order_relaxed);
  *block = __libc_memalign(alignment, size);
  return *block != nullptr ? 0 : ENOMEM;
}
}
#endif
// NOLINTEND(bugprone-reserved-identifier)
