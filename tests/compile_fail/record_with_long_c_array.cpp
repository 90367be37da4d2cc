// expect: a record has too many members, or C arrays that are too long: use std::array
#include <troop/core/record.hpp>

struct Transition {
  float observation[7056];
};

const auto& layout = troop::RecordLayout::of<Transition>();
