/// @file
/// Fibers: functions with a stack of their own, between which one thread switches by hand. AddressSanitizer
/// and ThreadSanitizer are told of every switch.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace simt::detail {

#if defined(__x86_64__)
// Saves the registers that a call must keep on this stack, its top in `*from`, and goes on where `to` was
// left. (By hand because swapcontext makes a system call each time.)
__attribute__((naked, noinline)) inline void switch_stack(void** /*from*/, void* /*to*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}
#endif

/// A function on a stack of its own. `resume()` runs it until it calls `suspend()`; it must never return.
class Fiber {
 public:
  static constexpr std::size_t kStackBytes = std::size_t{256} << 10;

  explicit Fiber(std::function<void()> body) : body_(std::move(body)), stack_(new std::byte[kStackBytes]) {
#if defined(__x86_64__)
    // As a call would have left it: the stack is at a multiple of 16, less 8, when the entry begins.
    auto** top = reinterpret_cast<void**>(stack_.get() + kStackBytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&Fiber::enter);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    inside_ = top;
#else
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = stack_.get();
    inside_.uc_stack.ss_size = kStackBytes;
    inside_.uc_link = nullptr;
    makecontext(&inside_, &Fiber::enter, 0);
#endif
#if defined(__SANITIZE_THREAD__)
    tsan_inside_ = __tsan_create_fiber(0);
#endif
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan_inside_);
#endif
  }

  void resume() {
    current_ = this;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack_.get(), kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
    tsan_outside_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_inside_, 0);
#endif
#if defined(__x86_64__)
    switch_stack(&outside_, inside_);
#else
    swapcontext(&outside_, &inside_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  /// Called inside the fiber.
  void suspend() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, outside_bottom_, outside_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(tsan_outside_, 0);
#endif
#if defined(__x86_64__)
    switch_stack(&inside_, outside_);
#else
    swapcontext(&inside_, &outside_);
#endif
    finish_switch();
  }

 private:
  static void enter() {
    Fiber* const self = current_;
    self->finish_switch();
    self->body_();
    std::abort();
  }

  void finish_switch() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack_, &outside_bottom_, &outside_bytes_);
#endif
  }

  static inline thread_local Fiber* current_ = nullptr;

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
#if defined(__x86_64__)
  void *inside_ = nullptr, *outside_ = nullptr;
#else
  ucontext_t inside_{}, outside_{};
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack_ = nullptr;
  const void* outside_bottom_ = nullptr;
  std::size_t outside_bytes_ = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void *tsan_inside_ = nullptr, *tsan_outside_ = nullptr;
#endif
};

}  // namespace simt::detail
