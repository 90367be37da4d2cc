// expect: a record must be trivially copyable: no std::string, std::vector or pointer owner among its members
#include <string>
#include <troop/core/record.hpp>

struct Transition {
  float reward;
  std::string note;
};

const auto& layout = troop::RecordLayout::of<Transition>();
