// expect: troop writes no pointers: let the object hold values, std::optional or std::vector
#include <memory>
#include <troop/serialization/cereal.hpp>

#include <cereal/types/memory.hpp>

struct Node {
  std::shared_ptr<Node> next;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(next);
  }
};

const auto node = troop::from_bytes<Node>({});
