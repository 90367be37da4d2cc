// expect: a record must have 1 to 16 members
#include <troop/core/record.hpp>

struct Transition {
  float a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q;
};

const auto& layout = troop::RecordLayout::of<Transition>();
