#include <troop/version.hpp>

int main() {
  return troop::kVersion[0] == '\0';
}
