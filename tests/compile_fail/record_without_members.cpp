// expect: a record must have 1 to 16 members
#include <troop/core/record.hpp>

struct Transition {};

const auto& layout = troop::RecordLayout::of<Transition>();
