#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include <temporary_directory.hpp>
#include <testing.hpp>

#include <troop/core/random.hpp>
#include <troop/durability/checkpoint.hpp>
#include <troop/durability/inspect.hpp>
#include <troop/durability/replay_log.hpp>
#include <troop/durability/run_directory.hpp>
#include <troop/replay/prioritized_replay.hpp>

using namespace troop;
using durability::inspect_run;
using durability::RunInspection;
using testing::error_of;

namespace {

struct Item {
  std::array<float, 16> values;
};

/// A run with two checkpoints, segments of some items each, and priorities.
void make_run(const std::string& path) {
  durability::RunDirectory run({.path = path});
  durability::Manifest manifest;
  manifest.environment = "CartPole-v1";
  run.write_manifest(manifest);
  PrioritizedReplay<Item> replay({.capacity = 1000});
  durability::ReplayLog log(run, replay, {.segment_bytes = 4096});
  std::vector<Item> items(100);
  Random random(1);
  for (Item& item : items)
    for (float& value : item.values)
      value = static_cast<float>(random.uniform());  // so that it cannot be packed
  for (int i = 0; i < 30; ++i) {
    std::vector<float> priorities(items.size(), 1.0f + static_cast<float>(i));
    log.add({}, BatchView(std::span<const Item>(items)), priorities);
    REQUIRE(log.flush(Deadline::never()));
  }
  log.write_priorities();
  durability::CheckpointWriter writer(run);
  for (const std::uint64_t steps : {100u, 200u}) {
    REQUIRE(writer.take([&](durability::Checkpoint& checkpoint) {
      checkpoint.info.learner_steps = steps;
      checkpoint.info.parameters = 500;
      checkpoint.online.assign(500, 1.0f);
      checkpoint.target.assign(500, 2.0f);
    }));
    REQUIRE(writer.flush(Deadline::never()));
  }
}

std::vector<std::string> faulty(const RunInspection& run) {
  std::vector<std::string> found;
  for (const auto& file : run.files)
    if (!file.fault.empty()) found.push_back(file.name + ": " + file.fault);
  return found;
}

void cut(const std::string& file) {
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 3);
}

}  // namespace

TEST_CASE("a run that is whole is told as it is, and nothing in it is changed") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  make_run(path);
  for (const bool verify : {false, true}) {
    const RunInspection run = inspect_run(path, verify);
    CHECK(faulty(run).empty());
    REQUIRE(run.manifest);
    CHECK(run.manifest->environment == "CartPole-v1");
    REQUIRE(run.newest);
    CHECK(run.newest->learner_steps == 200);
    CHECK(run.end_key == 3000);
    CHECK(run.first_key <= 2000);
    REQUIRE(run.holder);
    CHECK(run.holder->is_released);
    const std::string text = to_string(run);
    CHECK(text.find("\nenvironment  CartPole-v1\n") != std::string::npos);
    CHECK(text.find("\ncheckpoint   learner step 200, 0 environment steps, 0 s\n") != std::string::npos);
    CHECK(text.find(" to 2999, ") != std::string::npos);
  }
}

TEST_CASE("each faulty file is named with its fault, by --verify wherever the fault is") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  make_run(path);
  const durability::ObjectStore store(path, durability::StoreKind::disk);
  const std::string checkpoint = store.names("checkpoints/", "").back(),
                    segment = store.names("replay/", "segment-").front();
  cut(store.path(checkpoint));
  cut(store.path(segment));
  const std::string fault = ": is damaged: it ends in the middle";
  const RunInspection run = inspect_run(path, true);
  CHECK(faulty(run) == std::vector<std::string>{checkpoint + fault, segment + fault});
  CHECK(run.faults() == 2);
  REQUIRE(run.newest);
  CHECK(run.newest->learner_steps == 100);
  CHECK(to_string(run).find("FAULTY") != std::string::npos);
  CHECK(inspect_run(path, false).faults() == 0);  // their heads are whole
}

TEST_CASE("batches that were lost or applied twice are counted") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("run");
  const std::vector<Item> items(10);
  const std::vector<float> priorities(items.size(), 1.0f);
  durability::RunDirectory run({.path = path});
  PrioritizedReplay<Item> replay({.capacity = 1000});
  {
    durability::ReplayLog log(run, replay);
    for (const std::uint64_t number : {1u, 2u, 2u, 3u, 6u})
      log.add({.client = {std::byte{1}}, .number = number}, BatchView(std::span<const Item>(items)),
              priorities);
    log.add({.client = {std::byte{2}}, .number = 9}, BatchView(std::span<const Item>(items)), priorities);
    log.add({}, BatchView(std::span<const Item>(items)), priorities);
  }
  const RunInspection inspected = inspect_run(path, true);
  REQUIRE(inspected.batches);
  CHECK(inspected.batches->batches == 6);
  CHECK(inspected.batches->clients == 2);
  CHECK(inspected.batches->repeated == 1);
  CHECK(inspected.batches->missing == 2);
  CHECK(inspected.batches->reused_keys == 0);
  CHECK(to_string(inspected).find("6 of 2 clients, 1 repeated, 2 missing, 0 keys used again") !=
        std::string::npos);
  CHECK_FALSE(inspect_run(path, false).batches);
}

TEST_CASE("a directory that is not there is not made, and an empty one holds nothing") {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("none");
  CHECK(error_of([&] { inspect_run(path, false); }) == path + ": is no directory");
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK(inspect_run(directory.path().string(), true).files.empty());
}
