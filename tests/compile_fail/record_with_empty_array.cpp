// expect: a record's arrays must have at least one element
#include <array>
#include <troop/core/record.hpp>

struct Transition {
  float reward;
  std::array<float, 0> observation;
};

const auto& layout = troop::RecordLayout::of<Transition>();
