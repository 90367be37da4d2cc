// expect: a record must be an aggregate: a struct without constructors, private or virtual members
#include <troop/core/record.hpp>

struct Transition {
  Transition() : reward(0) {}
  float reward;
};

const auto& layout = troop::RecordLayout::of<Transition>();
