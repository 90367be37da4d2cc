#include <troop/version.hpp>

int main() {
  return TROOP_VERSION_MAJOR < 0;
}
