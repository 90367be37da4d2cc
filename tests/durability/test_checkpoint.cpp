#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <killed_process.hpp>
#include <temporary_directory.hpp>
#include <testing.hpp>

#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/core/random.hpp>
#include <troop/durability/checkpoint.hpp>
#include <troop/durability/run_directory.hpp>
#include <troop/nn/eigen_network.hpp>
#include <troop/nn/network.hpp>

using namespace troop;
using troop::durability::Checkpoint;
using troop::durability::CheckpointWriter;
using troop::durability::ClientBatch;
using troop::durability::ObjectStore;
using troop::durability::read_checkpoint;
using troop::durability::read_newest_checkpoint;
using troop::durability::RunDirectory;
using troop::durability::StoreKind;
using troop::testing::error_of;

namespace {

ClientBatch client(int number) {
  ClientBatch batch{.number = static_cast<std::uint64_t>(number)};
  batch.client.fill(static_cast<std::byte>(number));
  return batch;
}

/// All of it tells `steps`.
Checkpoint checkpoint_of(std::uint64_t steps, std::size_t parameters = 1000) {
  Checkpoint c;
  c.info.network = "input(4) output(2)";
  c.info.parameters = parameters;
  c.info.learner_steps = steps;
  c.info.optimizer_steps = steps;
  c.info.environment_steps = 10 * steps;
  c.info.parameter_version = steps / 10;
  c.info.next_key = 7 * steps;
  c.info.seconds = 0.5 * static_cast<double>(steps);
  c.info.limiter = {.inserts = steps, .samples = 2 * steps};
  c.info.sampler = {steps + 1, 2, 3, 4};
  c.info.mean_return = 1.5;
  c.info.evaluations = 3;
  c.online.assign(parameters, static_cast<float>(steps));
  c.target.assign(parameters, static_cast<float>(steps) + 0.5f);
  c.optimizer.assign(2 * parameters, -static_cast<float>(steps));
  c.sessions = {client(1), client(static_cast<int>(steps % 100))};
  return c;
}

void check_equal(const Checkpoint& a, const Checkpoint& b) {
  CHECK(a.info == b.info);
  CHECK(a.online == b.online);
  CHECK(a.target == b.target);
  CHECK(a.optimizer == b.optimizer);
  CHECK(a.sessions == b.sessions);
}

bool write(CheckpointWriter& writer, const Checkpoint& checkpoint) {
  CHECK(writer.take([&](Checkpoint& c) { c = checkpoint; }));
  return writer.flush(Deadline::never());
}

std::size_t num_checkpoints(const ObjectStore& store) {
  return store.names("checkpoints/", "checkpoint-").size();
}

}  // namespace

TEST_CASE("a checkpoint comes back as it was written, from a disk and from a sequential store") {
  for (const StoreKind kind : {StoreKind::disk, StoreKind::sequential}) {
    const testing::TemporaryDirectory directory;
    RunDirectory run({.path = directory.file("run"), .store = kind});
    CHECK_FALSE(read_newest_checkpoint(run.store(), [](const std::string& s) { FAIL(s); }));
    CheckpointWriter writer(run);
    CHECK(write(writer, checkpoint_of(5)));
    CHECK(write(writer, checkpoint_of(6)));
    const auto found = read_newest_checkpoint(run.store(), [](const std::string& s) { FAIL(s); });
    REQUIRE(found);
    CHECK(found->name == "checkpoints/checkpoint-000001-000000000002");
    check_equal(found->checkpoint, checkpoint_of(6));
    const auto info = durability::read_checkpoint_info(run.store().path(found->name));
    CHECK(info == checkpoint_of(6).info);
    const auto statistics = writer.statistics();
    CHECK(statistics.bytes == std::filesystem::file_size(run.store().path(found->name)));
    CHECK(statistics.age_seconds >= 0.0);
    CHECK(statistics.written == 2);
    CHECK(statistics.failures == 0);
    CHECK(statistics.learner_steps == 6);
    CHECK_FALSE(statistics.is_failing);
  }
}

TEST_CASE("a network goes on from a checkpoint exactly where it was") {
  const nn::Network network = nn::dueling_mlp({16, 16}).bind({4}, 2);
  nn::EigenNetwork first(network, 1), second(network, 2);
  Checkpoint checkpoint;
  checkpoint.copy_from(first);
  checkpoint.copy_to(second);
  CHECK(std::ranges::equal(first.parameters(), second.parameters()));
  CHECK(std::ranges::equal(first.target_parameters(), second.target_parameters()));
  CHECK(std::ranges::equal(first.optimizer_state(), second.optimizer_state()));
  CHECK(first.optimizer_steps() == second.optimizer_steps());
  nn::EigenNetwork other(nn::dueling_mlp({8}).bind({4}, 2), 1);
  CHECK(error_of([&] { checkpoint.copy_to(other); }) ==
        "the checkpoint is of the network input(4) dense(16) relu dueling(16,2), expected input(4) "
        "dueling(8,2)");
  nn::EigenNetwork uncentred(network, 1,
                             {.optimizer = {.kind = nn::OptimizerKind::rmsprop, .centred = false}});
  CHECK(error_of([&] { checkpoint.copy_to(uncentred); }).starts_with("optimizer state: "));
}

TEST_CASE("a network whose copy was put off waits before it changes, and only then") {
  const testing::TemporaryDirectory directory;
  RunDirectory run({.path = directory.file("run")});
  const nn::Network network = nn::dueling_mlp({256, 256}).bind({4}, 2);
  const std::vector<float> other(network.num_parameters(), 0.25f);
  using Change = std::function<void(nn::EigenNetwork&)>;
  for (const Change& change :
       {Change([&](auto& n) { n.set_parameters(other); }), Change([](auto& n) { n.sync_target(); }),
        Change([&](auto& n) { n.set_optimizer_state(7, std::vector<float>(2 * other.size(), 1.0f)); }),
        Change([&](auto& n) { n = nn::EigenNetwork(n.network(), 3); }),
        Change([](auto& n) { const nn::EigenNetwork ends = std::move(n); })}) {
    nn::EigenNetwork online(network, 1);
    online.sync_target();
    online.set_parameters(nn::EigenNetwork(network, 2).parameters());
    Checkpoint before, later;
    before.info.mean_return = later.info.mean_return = 1.0;  // NaN equals nothing
    before.copy_from(online);
    later.copy_later(online);
    CHECK(later.online.empty());
    std::atomic<bool> is_changed = false;
    std::thread learner([&] {
      change(online);
      is_changed = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(is_changed);
    later.finish_copy();
    learner.join();
    check_equal(later, before);
  }
  // Who gives a copy up lets the network go on as well.
  nn::EigenNetwork online(network, 1);
  {
    Checkpoint given_up;
    given_up.copy_later(online);
    given_up.copy_later(online);
    Checkpoint as_well;
    as_well.copy_later(online);
  }
  online.set_parameters(other);

  // A writer's thread copies, whatever the network does in the meantime.
  CheckpointWriter writer(run);
  for (int i = 0; i < 20; ++i) {
    Checkpoint before;
    before.info.mean_return = i;
    before.copy_from(online);
    const auto fill = [&](Checkpoint& c) {
      c.copy_later(online);
      c.info.mean_return = i;
    };
    while (!writer.take(fill)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    online.set_parameters(std::vector<float>(other.size(), static_cast<float>(i)));
    online.sync_target();
    CHECK(writer.flush(Deadline::never()));
    const auto found = read_newest_checkpoint(run.store(), [](const std::string& s) { FAIL(s); });
    REQUIRE(found);
    check_equal(found->checkpoint, before);
  }
}

TEST_CASE("the last few checkpoints stay, and the best one besides") {
  const testing::TemporaryDirectory directory;
  RunDirectory run({.path = directory.file("run")});
  const auto steps_kept = [&] {
    std::vector<std::uint64_t> steps;
    for (const std::string& name : run.store().names("checkpoints/", ""))
      steps.push_back(durability::read_checkpoint_info(run.store().path(name)).learner_steps);
    return steps;
  };
  const auto with_return = [](std::uint64_t steps, double mean_return) {
    Checkpoint checkpoint = checkpoint_of(steps);
    checkpoint.info.mean_return = mean_return;
    return checkpoint;
  };
  {
    CheckpointWriter writer(run, {.keep = 2});
    write(writer, with_return(1, NAN));
    write(writer, with_return(2, 10.0));
    CHECK(steps_kept() == std::vector<std::uint64_t>{1, 2});
    write(writer, with_return(3, 5.0));
    CHECK(steps_kept() == std::vector<std::uint64_t>{2, 3});
    write(writer, with_return(4, 6.0));
    CHECK(steps_kept() == std::vector<std::uint64_t>{2, 3, 4});
    write(writer, with_return(5, 10.0));
    CHECK(steps_kept() == std::vector<std::uint64_t>{4, 5});
    write(writer, with_return(6, 1.0));
    write(writer, with_return(7, 1.0));
  }
  CHECK(steps_kept() == std::vector<std::uint64_t>{5, 6, 7});
  CheckpointWriter writer(run, {.keep = 2});  // knows those of the one before
  write(writer, with_return(8, 1.0));
  CHECK(error_of([&] { CheckpointWriter(run, {.keep = 0}); }) ==
        "keep: 0 is not allowed; expected an integer from 1 to 1000");
}

TEST_CASE("every cut and every flipped bit of a checkpoint is found, and the one before is taken") {
  const testing::TemporaryDirectory directory;
  RunDirectory run({.path = directory.file("run")});
  CheckpointWriter writer(run);
  write(writer, checkpoint_of(1, 8));
  write(writer, checkpoint_of(2, 8));
  const std::string path = run.store().path("checkpoints/checkpoint-000001-000000000002");
  const std::vector<std::byte> whole = read_file(path, 1 << 20);
  const auto replace = [&](std::span<const std::byte> bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  const auto check_falls_back = [&] {
    std::vector<std::string> said;
    const auto found = read_newest_checkpoint(run.store(), [&](const std::string& s) { said.push_back(s); });
    if (said.size() != 1 || !said[0].starts_with(path + ": ") ||
        !said[0].ends_with("; looking for the one before"))
      return false;
    return found && found->checkpoint.info.learner_steps == 1;
  };
  testing::Failures failures;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    replace(std::span(whole).first(length));
    if (!check_falls_back()) failures.add("cut off after " + std::to_string(length));
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (i >= 12 && i < 16) continue;  // zeros that mean nothing yet
    std::vector<std::byte> flipped = whole;
    flipped[i] ^= std::byte{1} << (i % 8);
    replace(flipped);
    if (!check_falls_back()) failures.add("flipped at " + std::to_string(i));
  }
  TROOP_CHECK_NONE(failures);
  std::vector<std::byte> longer = whole;
  longer.push_back({});
  replace(longer);
  CHECK(error_of([&] { read_checkpoint(path); }) == path + ": is damaged: 1 bytes after its end");
}

TEST_CASE("a file that is no checkpoint, or of a newer version, or not finite, is refused with the reason") {
  const testing::TemporaryDirectory directory;
  RunDirectory run({.path = directory.file("run")});
  const std::string path = run.store().path("checkpoints/checkpoint-000001-000000000001");
  std::ofstream(path) << "weights of another program";
  CHECK(error_of([&] { read_checkpoint(path); }) ==
        path + ": is not a troop checkpoint (it does not begin with TROOPCKP)");
  CHECK(error_of([&] { read_newest_checkpoint(run.store(), [](const std::string&) {}); }) ==
        run.store().path("checkpoints") + ": none of its 1 checkpoints is whole");
  std::ofstream(path, std::ios::binary) << std::string("TROOPCKP\x02\0\0\0\0\0\0\0", 16);
  CHECK(error_of([&] { read_checkpoint(path); }) ==
        path + ": is of format version 2; this program reads version 1");
  std::filesystem::remove(path);
  Checkpoint wrong = checkpoint_of(1);
  wrong.online[3] = INFINITY;
  durability::write_checkpoint(run.store(), "wrong", wrong);
  CHECK(error_of([&] { read_checkpoint(run.store().path("wrong")); }) ==
        run.store().path("wrong") + ": is damaged: a parameter that is not finite");
  wrong = checkpoint_of(1);
  wrong.target.pop_back();
  durability::write_checkpoint(run.store(), "short", wrong);
  CHECK(error_of([&] { read_checkpoint(run.store().path("short")); }) ==
        run.store().path("short") + ": is damaged: 999 parameters, expected 1000");
}

TEST_CASE("a disk that takes no more keeps the checkpoints that are there and is told of in a sentence") {
  const testing::TemporaryDirectory directory;
  std::vector<std::string> said;
  durability::RunDirectoryOptions options{.path = directory.file("run")};
  options.lease.log = [&](const std::string& sentence) { said.push_back(sentence); };
  RunDirectory run(options);
  CheckpointWriter writer(run);
  CHECK(write(writer, checkpoint_of(1)));
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 4096, before.rlim_max };
  ::setrlimit(RLIMIT_FSIZE, &small);
  CHECK_FALSE(write(writer, checkpoint_of(2)));
  ::setrlimit(RLIMIT_FSIZE, &before);
  CHECK(said ==
        std::vector<std::string>{
            "no checkpoint was written: " +
            run.store().path("checkpoints/checkpoint-000001-000000000002: cannot write: File too large")});
  CHECK(writer.statistics().is_failing);
  CHECK(writer.statistics().failures == 1);
  CHECK(num_checkpoints(run.store()) == 1);
  CHECK(write(writer, checkpoint_of(3)));
  CHECK_FALSE(writer.statistics().is_failing);
  CHECK(num_checkpoints(run.store()) == 2);
  run.store().remove_temporary("checkpoints/");
  CHECK(run.store().names("checkpoints/", "").size() == 2);
}

TEST_CASE("while a checkpoint is being written no other one is taken") {
  const testing::TemporaryDirectory directory;
  RunDirectory run({.path = directory.file("run")});
  CheckpointWriter writer(run);
  int taken = 0, asked = 0;
  while (taken < 5) {
    ++asked;
    if (writer.take([&](Checkpoint& c) { c = checkpoint_of(static_cast<std::uint64_t>(taken), 200'000); }))
      ++taken;
  }
  CHECK(asked > taken);
  CHECK(writer.flush(Deadline::never()));
  CHECK(read_newest_checkpoint(run.store(), [](const std::string& s) {
          FAIL(s);
        })->checkpoint.online.front() == 4.0f);
}

TEST_CASE("a writer of checkpoints that is killed at any moment leaves the one before or the new one" *
          doctest::skip(!testing::kMayForkAndThread)) {
  const testing::TemporaryDirectory directory;
  Random random(testing::seed(), "kills");
  CAPTURE(testing::seed());
  std::uint64_t least = 0;
  for (int round = 0; round < 50; ++round) {
    const StoreKind kind = round % 2 == 0 ? StoreKind::disk : StoreKind::sequential;
    const std::string path = directory.file("run");
    testing::work_until_killed(std::chrono::microseconds(random.below(10'000)), [&](auto begun) {
      RunDirectory run({.path = path, .store = kind});
      CheckpointWriter writer(run);
      for (std::uint64_t steps = least + 1;; ++steps) {
        writer.take([&](Checkpoint& c) { c = checkpoint_of(steps, 50'000); });
        writer.flush(Deadline::never());
        if (steps == least + 1) begun();
      }
    });
    const auto found = read_newest_checkpoint(ObjectStore(path, kind), [](const std::string&) {});
    REQUIRE(found);
    const std::uint64_t steps = found->checkpoint.info.learner_steps;
    CHECK(steps > least);
    least = steps;
    const Checkpoint expected = checkpoint_of(steps, 50'000);
    CHECK(found->checkpoint.info == expected.info);
    CHECK(found->checkpoint.online == expected.online);
  }
}
