#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <troop/agent/parameter_store.hpp>

using troop::agent::ParameterStore;

TEST_CASE("nothing is fetched before the first version, or when there is nothing newer") {
  ParameterStore store;
  std::uint64_t version = 0;
  std::vector<float> parameters;
  CHECK_FALSE(store.fetch(version, parameters));
  CHECK(store.publish(std::vector<float>{1.0f, 2.0f}) == 1);
  CHECK(store.fetch(version, parameters));
  CHECK(version == 1);
  CHECK(parameters == std::vector<float>{1.0f, 2.0f});
  CHECK_FALSE(store.fetch(version, parameters));
  CHECK(store.publish(std::vector<float>{3.0f, 4.0f}) == 2);
  CHECK(store.version() == 2);
  CHECK(store.fetch(version, parameters));
  CHECK(parameters == std::vector<float>{3.0f, 4.0f});
}

TEST_CASE("a version of another size is refused and changes nothing") {
  ParameterStore store;
  store.publish(std::vector<float>{1.0f, 2.0f});
  CHECK_THROWS_AS(store.publish(std::vector<float>{1.0f}), troop::InvalidArgument);
  CHECK(store.version() == 1);
}

TEST_CASE("parameters and version belong together while others publish") {
  ParameterStore store;
  constexpr std::uint64_t kVersions = 2000;
  std::atomic<int> mixed{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      std::uint64_t version = 0, before = 0;
      std::vector<float> parameters;
      while (version < kVersions) {
        if (!store.fetch(version, parameters)) continue;
        if (version <= before) ++mixed;
        before = version;
        for (const float value : parameters) mixed += value != static_cast<float>(version);
      }
    });
  }
  for (std::uint64_t v = 1; v <= kVersions; ++v) store.publish(std::vector<float>(64, static_cast<float>(v)));
  for (auto& reader : readers) reader.join();
  CHECK(mixed == 0);
}
