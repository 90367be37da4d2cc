#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/random.hpp>
#include <troop/net/shard_service.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/sharded_replay.hpp>

#include "net_records.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::testing;
using namespace std::chrono_literals;
using net::ShardOperation;
using net::ShardService;
using net::ShardTotals;

namespace {

using Replay = PrioritizedReplay<NumberedItem>;

template <class Service>
std::vector<std::byte> ask(Service& service, const std::vector<std::byte>& body) {
  std::vector<std::byte> reply(3);  // what is there stays
  service.call(body, reply);
  return {reply.begin() + 3, reply.end()};
}

template <class Service>
net::Id life_of(Service& service) {
  std::vector<std::byte> body;
  ByteWriter writer(body);
  net::ShardCallHead{ShardOperation::describe}.write(writer);
  const auto reply = ask(service, body);
  ByteReader reader(reply);
  return ShardTotals::read(reader).life;
}

/// The beginning of a call.
template <class Service>
std::vector<std::byte> head(Service& service, ShardOperation operation) {
  std::vector<std::byte> body;
  ByteWriter writer(body);
  net::ShardCallHead{operation, life_of(service)}.write(writer);
  return body;
}

template <class Service>
std::vector<std::byte> draw_call(Service& service, std::span<const double> parts) {
  auto body = head(service, ShardOperation::draw);
  ByteWriter writer(body);
  writer.number(std::uint64_t{7});
  writer.number(static_cast<std::uint64_t>(parts.size()));
  writer.numbers(parts);
  return body;
}

template <class Service>
std::vector<std::byte> update_call(Service& service, std::span<const Key> keys,
                                   std::span<const float> priorities) {
  auto body = head(service, ShardOperation::update);
  ByteWriter writer(body);
  writer.number(static_cast<std::uint64_t>(keys.size()));
  writer.numbers(keys);
  writer.numbers(priorities);
  return body;
}

template <class Service>
std::uint64_t allow(Service& service, std::uint64_t allowed) {
  auto body = head(service, ShardOperation::refresh);
  ByteWriter(body).number(allowed);
  const auto reply = ask(service, body);
  ByteReader reader(reply);
  return ShardTotals::read(reader).inserts;
}

template <class Service>
Outcome insert(Service& service, std::size_t count) {
  const auto items = numbered(0, 1, count);
  return service.insert(view(items), priorities_of(items));
}

}  // namespace

TEST_CASE("every operation answers, byte by byte as the protocol says, with the totals in front") {
  ShardedReplay<Replay> replay({.capacity = 100, .soft_capacity = 4, .alpha = 1.0}, 2);
  ShardService service(replay);
  CHECK(insert(service, 8) == Outcome::ok);  // a batch goes to one of the two
  const auto totals_of = [&](const std::vector<std::byte>& reply) {
    ByteReader reader(reply);
    return ShardTotals::read(reader);
  };
  const auto rest = [&](const std::vector<std::byte>& reply) {
    return std::span(reply).subspan(ShardTotals::kBytes);
  };

  auto reply = ask(service, head(service, ShardOperation::describe));
  CHECK(totals_of(reply).total_priority == 36.0);
  CHECK(totals_of(reply).size == 8);
  CHECK(totals_of(reply).next_key == 16);
  CHECK(totals_of(reply).inserts == 8);
  CHECK(totals_of(reply).max_priority == 8.0f);
  ByteReader described(rest(reply));
  const ReplayOptions options = net::detail::read_options(described);
  CHECK(options.capacity == 100);
  CHECK(options.soft_capacity == 4);
  CHECK(options.alpha == 1.0);
  CHECK(described.layout() == replay.layout());
  CHECK(described.left() == 0);

  reply = ask(service, draw_call(service, std::array{0.0, 0.5, 0.9999}));
  REQUIRE(rest(reply).size() == 16 + 3 * (8 + 8 + 8));
  ByteReader drawn(rest(reply));
  CHECK(drawn.number<double>() == 1.0 / 36.0);
  CHECK(drawn.number<std::uint64_t>() == 3);
  std::array<Key, 3> keys;
  std::array<double, 3> probabilities;
  drawn.numbers(std::span(keys));
  drawn.numbers(std::span(probabilities));
  for (std::size_t i = 0; i < 3; ++i) {
    NumberedItem item;
    std::memcpy(&item, drawn.bytes(sizeof item).data(), sizeof item);
    CHECK(probabilities[i] == item.number / 36.0);
    CHECK(keys[i] / 2 == item.number - 1);
  }

  reply = ask(service, update_call(service, std::array{keys[0], keys[0]}, std::array{5.0f, 9.0f}));
  CHECK(totals_of(reply).total_priority == 36.0 - 1.0 + 9.0);
  CHECK(totals_of(reply).max_priority == 9.0f);
  CHECK(ByteReader(rest(reply)).number<std::uint64_t>() == 0);

  reply = ask(service, head(service, ShardOperation::trim));
  CHECK(ByteReader(rest(reply)).number<std::uint64_t>() == 6);
  CHECK(totals_of(reply).size == 2);
  reply = ask(service, update_call(service, std::array{keys[0]}, std::array{5.0f}));
  CHECK(ByteReader(rest(reply)).number<std::uint64_t>() == 1);

  reply = ask(service, head(service, ShardOperation::statistics));
  ByteReader statistics(rest(reply));
  CHECK(net::detail::read_statistics(statistics).trimmed == 6);
  CHECK(statistics.left() == 0);
  reply = ask(service, head(service, ShardOperation::histogram));
  ByteReader histogram(rest(reply));
  CHECK(net::detail::read_histogram(histogram).bins.size() == 2);
  CHECK(histogram.left() == 0);

  reply = ask(service, head(service, ShardOperation::clear));
  CHECK(totals_of(reply).size == 0);
  CHECK(totals_of(reply).next_key == 16);
  reply = ask(service, draw_call(service, std::array{0.5}));
  REQUIRE(rest(reply).size() == 16);  // nothing can be drawn
  CHECK(ByteReader(rest(reply)).number<double>() == 0.0);
}

TEST_CASE("a call for another life changes nothing and is told whose totals these are") {
  Replay replay({.capacity = 10, .alpha = 1.0});
  ShardService before(replay), service(replay);
  CHECK(life_of(before) != life_of(service));
  insert(service, 4);
  for (const auto operation :
       {ShardOperation::refresh, ShardOperation::draw, ShardOperation::update, ShardOperation::trim,
        ShardOperation::clear, ShardOperation::statistics, ShardOperation::histogram}) {
    const auto reply = ask(service, head(before, operation));
    REQUIRE(reply.size() == ShardTotals::kBytes);
    ByteReader reader(reply);
    CHECK(ShardTotals::read(reader).life == life_of(service));
  }
  CHECK(replay.size() == 4);
}

TEST_CASE("what is no call is an error and changes nothing") {
  Replay replay({.capacity = 10, .alpha = 1.0});
  ShardService service(replay);
  insert(service, 4);
  const auto error = [&](const std::vector<std::byte>& body) {
    return error_of([&] { ask(service, body); });
  };
  CHECK(error({}) == "ends 4 bytes too early");
  auto body = head(service, ShardOperation::trim);
  body[4] = std::byte{1};
  CHECK(error(body) == "a call with reserved bytes in use");
  CHECK(error(head(service, static_cast<ShardOperation>(9))) == "a call for operation 9");
  body = head(service, ShardOperation::clear);
  body.push_back(std::byte{0});
  CHECK(error(body) == "1 bytes too many");
  for (const double part : {-0.1, 1.0, 1e300, std::numeric_limits<double>::quiet_NaN()})
    CHECK(error(draw_call(service, std::array{0.5, part})) == "a part that is not in [0, 1)");
  body = head(service, ShardOperation::draw);
  ByteWriter(body).number(std::uint64_t{1});
  ByteWriter(body).number(std::numeric_limits<std::uint64_t>::max());
  CHECK(error(body) == "18446744073709551615 elements in 0 bytes");
  body = head(service, ShardOperation::update);
  ByteWriter(body).number(std::uint64_t{1} << 60);
  CHECK(error(body) == "1152921504606846976 elements in 0 bytes");
  CHECK(error(update_call(service, std::array{Key{4}}, std::array{1.0f})) ==
        "key: 4 is not allowed; expected the key of an item that was added");
  CHECK(error(update_call(service, std::array{Key{0}, Key{1}}, std::array{1.0f, -1.0f})) ==
        "priorities[1]: -1 is not allowed; expected a finite number that is not negative");
  CHECK(replay.size() == 4);
  CHECK(replay.total_priority() == 10.0);
}

TEST_CASE("calls of any bytes throw Error or are answered") {
  const std::uint64_t seed = testing::seed();
  CAPTURE(seed);
  Random random(seed, "garbage");
  Replay replay({.capacity = 50, .alpha = 1.0});
  ShardService service(replay);
  insert(service, 40);
  const std::vector<std::vector<std::byte>> good = {
      draw_call(service, std::array{0.1, 0.9}),
      update_call(service, std::array{Key{1}, Key{2}}, std::array{1.0f, 2.0f}),
      head(service, ShardOperation::describe), head(service, ShardOperation::statistics),
      head(service, ShardOperation::trim)};
  std::size_t refused = 0, answered = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto body = good[random.below(good.size())];
    for (std::uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
      // Never in the life, which would make it a call for another.
      std::size_t at = random.below(body.size());
      if (at >= 8 && at < 24) at = random.below(8);
      body[at] = static_cast<std::byte>(random.below(256));
    }
    if (random.below(4) == 0) body.resize(random.below(body.size() + 8));
    try {
      ask(service, body);
      ++answered;
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 1000);
  CHECK(answered > 300);
  const auto reply = ask(service, head(service, ShardOperation::describe));
  ByteReader reader(reply);
  CHECK(ShardTotals::read(reader).next_key == 40);
}

TEST_CASE("batches are let in until the allowance is used up, the last as a whole") {
  Replay replay({.capacity = 1000});
  ShardService service(replay, {.inserts_without_learner = 100, .learner_deadline = 1h});
  CHECK(insert(service, 60) == Outcome::ok);
  CHECK(insert(service, 60) == Outcome::ok);
  CHECK(insert(service, 1) == Outcome::timeout);
  CHECK(allow(service, 120) == 120);
  CHECK(insert(service, 1) == Outcome::timeout);
  CHECK(allow(service, 121) == 120);
  CHECK(insert(service, 10) == Outcome::ok);
  CHECK(insert(service, 10) == Outcome::timeout);
  CHECK(allow(service, 0) == 130);  // less than what is there holds everything back
  CHECK(insert(service, 1) == Outcome::timeout);
  CHECK(allow(service, std::numeric_limits<std::uint64_t>::max()) == 130);
  CHECK(insert(service, 500) == Outcome::ok);
  CHECK(service.inserts() == 630);
  CHECK(replay.size() == 630);
}

TEST_CASE("without a learner as many items are let in as the options say, counted from when it was heard") {
  Replay replay({.capacity = 1000});
  ShardService service(replay, {.inserts_without_learner = 20, .learner_deadline = 1ms});
  CHECK(insert(service, 20) == Outcome::ok);
  CHECK(insert(service, 1) == Outcome::timeout);
  allow(service, std::numeric_limits<std::uint64_t>::max());
  CHECK(eventually([&] {  // until it is away
    return insert(service, 1) == Outcome::timeout || service.inserts() > 900;
  }));
  const auto heard = service.inserts();
  CHECK(heard >= 40);
  allow(service, 0);
  std::this_thread::sleep_for(5ms);
  CHECK(insert(service, 19) == Outcome::ok);
  CHECK(insert(service, 2) == Outcome::ok);
  CHECK(insert(service, 1) == Outcome::timeout);
}

TEST_CASE("options that are not allowed are refused by name") {
  Replay replay({.capacity = 10});
  using Service = ShardService<Replay>;
  CHECK(error_of([&] { Service service(replay, {.learner_deadline = 0ms}); }) ==
        "learner_deadline: 0 is not allowed; expected from 0.001 to 3600 seconds");
  CHECK(error_of([&] { Service service(replay, {.inserts_without_learner = UINT64_MAX}); }) ==
        "inserts_without_learner: 18446744073709551615 is not allowed; expected an integer from 0 to 2^53");
}
