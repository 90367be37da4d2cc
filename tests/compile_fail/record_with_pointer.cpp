// expect: a record's members must be numbers, enumerations, or std::array of these
#include <troop/core/record.hpp>

struct Transition {
  const float* observation;
  float reward;
};

const auto& layout = troop::RecordLayout::of<Transition>();
