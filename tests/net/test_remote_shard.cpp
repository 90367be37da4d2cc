#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/remote_shard.hpp>
#include <troop/net/server.hpp>
#include <troop/net/shard_service.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sharded_replay.hpp>

#include "net_shards.hpp"
#include "proxy.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::testing;
using namespace std::chrono_literals;
using net::RemoteShard;

static_assert(RemoteReplayShard<RemoteShard>);
static_assert(!RemoteReplayShard<PrioritizedReplay<DynamicRecord>>);

namespace {

constexpr ReplayOptions kProportional{.capacity = 1000, .alpha = 1.0};
const RecordLayout kLayout = RecordLayout::of<NumberedItem>();

std::vector<std::unique_ptr<ShardHost>> make_hosts(std::size_t count,
                                                   const ReplayOptions& options = kProportional) {
  std::vector<std::unique_ptr<ShardHost>> hosts;
  for (std::size_t s = 0; s < count; ++s) hosts.push_back(std::make_unique<ShardHost>(options));
  return hosts;
}

/// Shards at `hosts`, of which all is known.
std::vector<std::shared_ptr<RemoteShard>> connect(const std::vector<std::unique_ptr<ShardHost>>& hosts,
                                                  const ReplayOptions& options = kProportional) {
  std::vector<std::shared_ptr<RemoteShard>> shards;
  for (const auto& host : hosts)
    shards.push_back(std::make_shared<RemoteShard>(to_shard(host->address()), options, kLayout));
  for (std::size_t s = 0; s < hosts.size(); ++s)
    REQUIRE(eventually([&] { return is_fresh(*shards[s], *hosts[s]); }));
  return shards;
}

NumberedItem item(const BatchView& records, std::size_t i) {
  NumberedItem item;
  std::memcpy(&item, records.record(i), sizeof item);
  return item;
}

/// Draws from one shard.
Batch<DynamicRecord> sample(const std::shared_ptr<RemoteShard>& shard, std::size_t count, Random& random) {
  ShardedReplay<RemoteShard> replay(std::vector{shard});
  return replay.sample(count, {}, random);
}

}  // namespace

TEST_CASE("frequencies, probabilities and weights over several shards are those of one replay") {
  const std::uint64_t seed = testing::seed();
  CAPTURE(seed);
  for (const WeightNormalizer normalizer : {WeightNormalizer::batch, WeightNormalizer::replay}) {
    const ReplayOptions options{.capacity = 1000, .alpha = 1.0, .normalizer = normalizer};
    const auto hosts = make_hosts(4, options);
    // Priorities 1 to 60, an unlike number of them in each shard; the last shard has none.
    hosts[0]->add(0, 1, 30);
    hosts[1]->add(1, 31, 5);
    hosts[2]->add(2, 36, 25);
    ShardedReplay<RemoteShard> remote(connect(hosts, options));
    ShardedReplay<PrioritizedReplay<DynamicRecord>> local(options, 3, kLayout);
    {
      const auto items = numbered(0, 1, 60);
      local.add(view(items), priorities_of(items));
    }
    CHECK(remote.size() == 60);
    CHECK(remote.total_priority() == 1830.0);
    CHECK(remote.max_priority() == 60.0f);
    Random random(seed, "remote"), local_random(seed, "local");
    for (const Draws draws : {Draws::independent, Draws::stratified}) {
      std::vector<std::uint64_t> counts(60);
      std::vector<double> expected;
      Failures failures;
      Batch<DynamicRecord> batch, local_batch;
      constexpr std::size_t kRounds = 100, kBatch = 300;
      for (std::size_t round = 0; round < kRounds; ++round) {
        remote.sample(kBatch, {.beta = 0.7, .draws = draws}, random, batch);
        for (std::size_t i = 0; i < kBatch; ++i) {
          const NumberedItem drawn = item(batch.view(), i);
          ++counts[drawn.number - 1];
          const std::array<std::uint32_t, 3> firsts{1, 31, 36};
          if (batch.keys[i] != (drawn.number - firsts[drawn.client]) * 4 + drawn.client)
            failures.add("the key of another item");
          if (std::abs(batch.probabilities[i] - drawn.number / 1830.0) > 1e-6)
            failures.add("a wrong probability");
        }
        if (round > 0) continue;
        local.sample(kBatch, {.beta = 0.7, .draws = draws}, local_random, local_batch);
        for (const auto* drawn : {&batch, &local_batch}) {
          const auto& probabilities = drawn->probabilities;
          const double least = normalizer == WeightNormalizer::replay
                                   ? 1.0 / 1830.0
                                   : *std::min_element(probabilities.begin(), probabilities.end());
          for (std::size_t i = 0; i < kBatch; ++i) {
            const double expected_weight = std::pow(probabilities[i] / least, -0.7);
            if (std::abs(expected_weight - static_cast<double>(drawn->weights[i])) > 1e-5)
              failures.add("a wrong weight");
          }
        }
      }
      TROOP_CHECK_NONE(failures);
      for (int number = 1; number <= 60; ++number) expected.push_back(kRounds * kBatch * number / 1830.0);
      CHECK(chi_square(std::span<const std::uint64_t>(counts), std::span<const double>(expected)) <
            chi_square_bound(59));
    }
  }
}

TEST_CASE("updates, trims, clears, statistics and histograms reach all shards") {
  const ReplayOptions options{.capacity = 100, .soft_capacity = 5, .alpha = 1.0};
  const auto hosts = make_hosts(2, options);
  for (std::uint32_t s = 0; s < 2; ++s) hosts[s]->add(s, 1, 8);
  ShardedReplay<RemoteShard> remote(connect(hosts, options));
  CHECK(remote.next_key() == 16);
  CHECK(remote.update(std::array<Key, 3>{0, 1, 14}, std::array{10.0f, 20.0f, 30.0f}) == 0);
  CHECK(hosts[0]->replay().total_priority() == 36.0 + 9.0 + 22.0);
  CHECK(hosts[1]->replay().total_priority() == 36.0 + 19.0);
  CHECK(remote.total_priority() == 36.0 + 36.0 + 9.0 + 22.0 + 19.0);  // replies have told it
  CHECK(remote.max_priority() == 30.0f);
  CHECK(error_of([&] { remote.update(std::array<Key, 1>{16}, std::array{1.0f}); }) ==
        "key: 16 is not allowed; expected the key of an item that was added");
  CHECK(error_of([&] { remote.update(std::array<Key, 1>{0}, std::array{-1.0f}); }) ==
        "priorities[0]: -1 is not allowed; expected a finite number that is not negative");
  CHECK(remote.trim() == 6);
  CHECK(remote.size() == 10);
  CHECK(remote.update(std::array<Key, 2>{0, 14}, std::array{1.0f, 1.0f}) == 1);  // 0 is gone
  const ReplayStatistics statistics = remote.statistics();
  CHECK(statistics.inserts == 16);
  CHECK(statistics.trimmed == 6);
  CHECK(statistics.updates == 4);
  CHECK(statistics.stale_updates == 1);
  CHECK(statistics.capacity == 200);
  CHECK(statistics.total_priority == remote.total_priority());
  const PriorityHistogram histogram = remote.priority_histogram();
  REQUIRE(histogram.bins.size() == 4);
  CHECK(histogram.bins[0].exponent == 0);
  CHECK(histogram.bins[0].count == 1);
  remote.clear();
  CHECK(remote.size() == 0);
  CHECK(remote.priority_histogram().bins.empty());
  Random random(1);
  CHECK(error_of([&] { remote.sample(1, {}, random); }) == "sample from an empty replay");
  CHECK(remote.shards()[0]->shard_statistics().losses == 0);
  const auto items = numbered(0, 0, 2);
  CHECK(error_of([&] { remote.add(view(items), priorities_of(items)); }) ==
        "the 2 records were not added: items go to shards elsewhere by net::ShardedSink");
}

TEST_CASE("a shard that is lost is left out, its updates are dropped and counted, and it is taken back") {
  const auto hosts = make_hosts(2);
  hosts[0]->add(0, 1, 10);
  hosts[1]->add(1, 1, 10);
  const auto shards = connect(hosts);
  ShardedReplay<RemoteShard> remote(shards);
  Random random(testing::seed(), "lost");
  hosts[1]->stop();
  // The head may not have noticed: then its places are drawn again.
  for (int round = 0; round < 20; ++round) {
    const auto batch = remote.sample(50, {}, random);
    REQUIRE(batch.size() == 50);
    for (std::size_t i = 0; i < 50; ++i) CHECK(item(batch.view(), i).client == 0);
  }
  CHECK(eventually([&] { return !shards[1]->is_there(); }));
  CHECK(remote.total_priority() == 55.0);
  CHECK(remote.size() == 10);
  CHECK(remote.statistics().size == 10);
  CHECK(remote.update(std::array<Key, 3>{0, 1, 3}, std::array{2.0f, 2.0f, 2.0f}) == 2);
  CHECK(shards[1]->shard_statistics().dropped_updates == 2);
  CHECK(shards[1]->shard_statistics().losses == 1);
  CHECK(remote.trim() == 0);
  CHECK(remote.priority_histogram().zeros == 0);

  hosts[1]->start();  // the same service: a connection was lost
  CHECK(eventually([&] { return shards[1]->is_there(); }));
  CHECK(shards[1]->shard_statistics().lives == 1);
  CHECK(remote.total_priority() == 56.0 + 55.0);
  CHECK(remote.update(std::array<Key, 1>{1}, std::array{100.0f}) == 0);
  CHECK(hosts[1]->replay().total_priority() == 154.0);
  std::set<std::uint32_t> clients;
  const auto batch = remote.sample(50, {}, random);
  for (std::size_t i = 0; i < 50; ++i) clients.insert(item(batch.view(), i).client);
  CHECK(clients.size() == 2);
}

TEST_CASE("priorities for items of an earlier life of a shard never reach those of a later one") {
  const auto hosts = make_hosts(1);
  hosts[0]->add(0, 1, 10);
  const auto shard = connect(hosts).front();
  Random random(testing::seed(), "lives");
  const auto before = sample(shard, 20, random);
  for (const Key key : before.keys) CHECK(key < 10);

  hosts[0]->renew();
  hosts[0]->add(7, 1, 10);  // the keys 0 to 9 again
  const double total = hosts[0]->replay().total_priority();
  hosts[0]->start();
  REQUIRE(eventually([&] { return shard->shard_statistics().lives == 2 && shard->is_there(); }));
  const std::vector<float> zeros(20, 0.0f);
  CHECK(shard->update(before.keys, zeros) == 20);
  CHECK(hosts[0]->replay().total_priority() == total);
  CHECK(shard->shard_statistics().dropped_updates == 20);
  const auto after = sample(shard, 20, random);
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(after.keys[i] >= 10);
    CHECK(after.keys[i] < 20);
    CHECK(item(after.view(), i).client == 7);
  }
  CHECK(shard->next_key() == 20);

  // A mixed update: the old part is dropped, the new one applied.
  std::vector<Key> mixed = before.keys;
  mixed.push_back(10);
  CHECK(shard->update(mixed, std::vector<float>(21, 5.0f)) == 20);
  CHECK(hosts[0]->replay().total_priority() == total + 4.0);

  // From a snapshot: the same keys mean the same items, but another process is another life.
  hosts[0]->renew_service();
  hosts[0]->start();
  REQUIRE(eventually([&] { return shard->shard_statistics().lives == 3 && shard->is_there(); }));
  CHECK(shard->update(after.keys, zeros) == 20);
  CHECK(hosts[0]->replay().total_priority() == total + 4.0);
  for (const Key key : sample(shard, 20, random).keys) CHECK(key >= 20);
}

TEST_CASE("a call on its way while its shard becomes another one does nothing there") {
  const auto hosts = make_hosts(1);
  hosts[0]->add(0, 1, 10);
  // Straight to the service, as if the call had been on the way: for the life before this one.
  std::vector<std::byte> body;
  ByteWriter writer(body);
  net::ShardCallHead{net::ShardOperation::update, net::Id{std::byte{1}}}.write(writer);
  writer.number(std::uint64_t{1});
  writer.number(Key{0});
  writer.number(0.0f);
  std::vector<std::byte> reply;
  const double total = hosts[0]->replay().total_priority();
  hosts[0]->service().call(body, reply);
  CHECK(hosts[0]->replay().total_priority() == total);
  CHECK(reply.size() == net::ShardTotals::kBytes);
}

TEST_CASE("samples and updates go on while shards come and go, and each item is what its key says") {
  const std::uint64_t seed = testing::seed();
  CAPTURE(seed);
  const auto hosts = make_hosts(3);
  for (std::uint32_t s = 0; s < 3; ++s) hosts[s]->add(s, 1, 50);
  const auto shards = connect(hosts);
  ShardedReplay<RemoteShard> remote(shards);
  Failures failures;
  std::atomic<bool> done{false};
  std::atomic<std::size_t> batches{0}, empty{0};
  std::vector<std::thread> learners;
  for (std::uint64_t t = 0; t < 2; ++t) {
    learners.emplace_back([&, t] {
      Random random(seed, "learner", t);
      Batch<DynamicRecord> batch;
      std::map<Key, std::uint32_t> numbers;
      while (!done) {
        try {
          remote.sample(64, {}, random, batch);
        } catch (const EmptyReplay&) {
          ++empty;
          continue;
        }
        for (std::size_t i = 0; i < 64; ++i) {
          const NumberedItem drawn = item(batch.view(), i);
          if (drawn.client % 3 != batch.keys[i] % 3) failures.add("an item of another shard");
          const auto known = numbers.emplace(batch.keys[i], drawn.client * 1000 + drawn.number).first;
          if (known->second != drawn.client * 1000 + drawn.number) failures.add("two items with one key");
          if (!(batch.probabilities[i] > 0.0) || !(batch.weights[i] <= 1.0f))
            failures.add("a probability or weight that cannot be");
        }
        // Items of priority 0 would be seen at the end: none of a later life must get one.
        std::vector<float> priorities(64);
        for (std::size_t i = 0; i < 64; ++i) priorities[i] = item(batch.view(), i).client < 3 ? 0.5f : 1.0f;
        remote.update(batch.keys, priorities);
        ++batches;
      }
    });
  }
  Random random(seed, "chaos");
  for (std::uint32_t round = 1; round <= 15; ++round) {
    const std::size_t before = batches;
    const auto s = static_cast<std::uint32_t>(random.below(3));
    if (random.below(2) == 0) {
      hosts[s]->stop();
    } else {
      hosts[s]->renew();
      hosts[s]->add(s + 3 * round, 1, 50);
    }
    hosts[s]->start();
    CHECK(eventually([&] { return batches >= before + 5; }));
  }
  done = true;
  for (auto& thread : learners) thread.join();
  TROOP_CHECK_NONE(failures);
  for (std::uint32_t s = 0; s < 3; ++s) {
    // Later lives were given 1 only, or what they began with.
    if (shards[s]->shard_statistics().lives < 2) continue;
    for (const auto& bin : hosts[s]->replay().priority_histogram().bins) CHECK(bin.exponent >= 0);
  }
}

TEST_CASE("a shard that does not answer in time is lost until it does") {
  const auto hosts = make_hosts(2);
  for (std::uint32_t s = 0; s < 2; ++s) hosts[s]->add(s, 1, 10);
  std::atomic<bool> stalls{true};
  // The first connection stalls when the shard is there, those after it at once: it cannot be lost a second time.
  Proxy proxy(hosts[1]->server().address().port, [&](std::size_t number) {
    return stalls ? Proxy::Plan{.cut_to_client = number == 0 ? 3000u : 1u, .stall = true} : Proxy::Plan{};
  });
  auto options = to_shard("127.0.0.1:" + std::to_string(proxy.port()));
  options.deadline = 500ms;
  const auto slow = std::make_shared<RemoteShard>(options, kProportional, kLayout);
  const auto good = std::make_shared<RemoteShard>(to_shard(hosts[0]->address()), kProportional, kLayout);
  REQUIRE(eventually([&] { return good->is_there() && slow->shard_statistics().losses == 1; }));
  CHECK(slow->shard_statistics().last_error == "no answer within 0.5 s");
  ShardedReplay<RemoteShard> remote({good, slow});
  Random random(1);
  const auto batch = remote.sample(20, {}, random);
  for (std::size_t i = 0; i < 20; ++i) CHECK(item(batch.view(), i).client == 0);
  stalls = false;
  proxy.cut();
  CHECK(eventually([&] { return slow->is_there(); }));
}

TEST_CASE("all shards lost is an empty replay, until one is back") {
  const auto hosts = make_hosts(2);
  for (std::uint32_t s = 0; s < 2; ++s) hosts[s]->add(s, 1, 10);
  ShardedReplay<RemoteShard> remote(connect(hosts));
  for (const auto& host : hosts) host->stop();
  Random random(1);
  CHECK(error_of([&] { remote.sample(20, {}, random); }) == "sample from an empty replay");
  CHECK(remote.update(std::array<Key, 2>{0, 1}, std::array{1.0f, 1.0f}) == 2);
  hosts[0]->start();
  CHECK(eventually([&] { return remote.total_priority() > 0.0; }));
  CHECK(remote.sample(20, {}, random).size() == 20);
}

TEST_CASE("a shard with other records or options is of no use, and says so") {
  ShardHost host({.capacity = 10, .alpha = 0.5});
  {
    RemoteShard shard(to_shard(host.address()), {.capacity = 10, .alpha = 0.6}, kLayout);
    const std::string expected =
        "alpha of the shard at " + host.address() + ": 0.5 is not allowed; expected that of the learner, 0.6";
    CHECK(eventually([&] { return error_of([&] { shard.check(); }) == expected; }));
    CHECK(error_of([&] { shard.total_priority(); }) == expected);
    CHECK(!shard.is_there());
  }
  {
    const RecordLayout other({{"client", DType::u32, {}}, {"count", DType::u32, {}}});
    RemoteShard shard(to_shard(host.address()), {.capacity = 10, .alpha = 0.5}, other);
    CHECK(eventually([&] { return error_of([&] { shard.check(); }) != "no error"; }));
    const std::string error = error_of([&] { shard.check(); });
    CHECK(error.find("the shard at " + host.address() + ": ") == 0);
    CHECK(error.find("count") != std::string::npos);
  }
  {
    auto options = to_shard(host.address());
    options.client.token = net::Token("0123456789abcdef");
    RemoteShard shard(options, {.capacity = 10, .alpha = 0.5}, kLayout);
    CHECK(eventually([&] { return error_of([&] { shard.check(); }) != "no error"; }));
    CHECK_THROWS_AS(shard.check(), net::RefusedError);
  }
}

TEST_CASE("answers that cannot be make a shard lost, not the learner fail") {
  ShardHost host(kProportional);
  host.add(0, 1, 10);
  std::atomic<int> damage{0};
  const net::Services honest = host.service().services();
  net::Server liar({.log = nullptr}, kLayout,
                   net::Services{.call = [&](std::span<const std::byte> body, std::vector<std::byte>& reply) {
                     const std::size_t start = reply.size();
                     honest.call(body, reply);
                     const bool is_draw = body[0] == std::byte{3};
                     const std::size_t at = start + net::ShardTotals::kBytes;
                     if (!is_draw || damage == 0) return;
                     if (damage == 1) throw Error("no");
                     if (damage == 2) reply.pop_back();
                     if (damage == 3) reply.push_back(std::byte{0});
                     if (damage == 4) reply[at + 8] = std::byte{3};                  // count
                     if (damage == 5) reply[at + 7] = std::byte{0xff};               // smallest probability
                     if (damage == 6) reply[at + 16 + 3] = std::byte{0x40};          // a key
                     if (damage == 7) reply[at + 16 + 8 * 5 + 7] = std::byte{0xbf};  // a probability
                     if (damage == 8) reply[start + 23] = std::byte{0xff};           // total
                     if (damage == 9) reply.resize(start + 10);
                   }});
  const auto shard =
      std::make_shared<RemoteShard>(to_shard(to_string(liar.address())), kProportional, kLayout);
  ShardedReplay<RemoteShard> remote({shard});
  Random random(1);
  for (int kind = 1; kind <= 9; ++kind) {
    CAPTURE(kind);
    damage = 0;
    REQUIRE(eventually([&] { return shard->is_there(); }));
    CHECK(remote.sample(5, {}, random).size() == 5);
    damage = kind;
    std::array<double, 5> parts{}, probabilities{};
    std::array<Key, 5> keys{};
    std::array<NumberedItem, 5> items{};
    const DrawTarget<std::byte> target{keys, probabilities, reinterpret_cast<std::byte*>(items.data())};
    CHECK_THROWS_AS(shard->draw(parts, random, target), EmptyReplay);
  }
  CHECK(shard->shard_statistics().losses >= 8);
}

TEST_CASE("a draw that would not fit into a reply is refused before anything is sent") {
  ShardHost host(kProportional);
  auto options = to_shard(host.address());
  options.client.max_receive_bytes = 65536;
  RemoteShard shard(options, kProportional, kLayout);
  std::vector<double> parts(10'000);
  Random random(1);
  CHECK(error_of([&] { shard.draw(parts, random, {}); }) ==
        "count: 10000 is not allowed; expected at most 2688, which fit into max_receive_bytes");
}

TEST_CASE("options that are not allowed are refused by name") {
  auto options = to_shard();
  options.deadline = 0ms;
  CHECK(error_of([&] { RemoteShard shard(options, {}, kLayout); }) ==
        "deadline: 0 is not allowed; expected from 0.001 to 3600 seconds");
  options = to_shard();
  options.refresh = -1ms;
  CHECK(error_of([&] { RemoteShard shard(options, {}, kLayout); }) ==
        "refresh: -0.001 is not allowed; expected from 0.001 to 3600 seconds");
  options = to_shard();
  options.client.connect = "nowhere";
  CHECK(error_of([&] { RemoteShard shard(options, {}, kLayout); }) != "no error");
}
