// expect: Storage must have Options, layout(), capacity(), write, noexcept gather and prefetch
#include <cstddef>
#include <troop/replay/prioritized_replay.hpp>

struct Transition {
  float reward;
};

class ForgetfulStorage {
 public:
  ForgetfulStorage(std::size_t, troop::RecordLayout layout) : layout_(layout) {}
  const troop::RecordLayout& layout() const { return layout_; }
  std::size_t capacity() const { return 1; }

 private:
  troop::RecordLayout layout_;
};

troop::PrioritizedReplay<Transition, ForgetfulStorage> replay({.capacity = 1});
