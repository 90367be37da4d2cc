// expect: troop writes no pointers: let the object hold values, std::optional or std::vector
#include <memory>
#include <troop/serialization/cereal.hpp>

struct Node {
  std::unique_ptr<Node> next;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(next);
  }
};

const auto bytes = troop::to_bytes(Node{});
