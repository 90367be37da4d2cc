// expect: a record's alignment must be at most a cache line, 64 bytes
#include <troop/core/record.hpp>

struct alignas(128) Transition {
  float reward;
};

const auto& layout = troop::RecordLayout::of<Transition>();
