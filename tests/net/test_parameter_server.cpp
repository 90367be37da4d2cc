#include <troop/net/parameter_server.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/net/client.hpp>
#include <troop/net/server.hpp>

#include "net_clients.hpp"
#include "net_records.hpp"
#include "raw_client.hpp"
#include "testing.hpp"

using namespace troop;
using namespace troop::net;
using namespace std::chrono_literals;
using testing::client_to;
using testing::error_of;
using testing::eventually;
using testing::layout;
using testing::RawClient;

namespace {

std::vector<float> values(std::size_t count, float first) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i) * 0.001f;
  return values;
}

/// A server that has nothing but parameters.
struct Served {
  ParameterServer parameters;
  std::unique_ptr<Server> server = std::make_unique<Server>(testing::patient({.log = nullptr}), layout(),
                                                            Services{.parameters = &parameters});
};

}  // namespace

TEST_CASE("a fetch gives the newest version and only once") {
  ParameterServer server;
  std::uint64_t version = 0;
  std::vector<float> fetched;
  CHECK_FALSE(server.fetch(version, fetched));
  CHECK(server.publish(values(5, 1.0f)) == 1);
  CHECK(server.publish(values(5, 2.0f)) == 2);
  CHECK(server.fetch(version, fetched));
  CHECK(version == 2);
  CHECK(fetched == values(5, 2.0f));
  CHECK_FALSE(server.fetch(version, fetched));
  CHECK(ParameterServer(41).publish(values(1, 0.0f)) == 42);
}

TEST_CASE("parameters that cannot be are refused, and the last ones stay") {
  ParameterServer server;
  CHECK(error_of([&] { server.publish({}); }) ==
        "parameters: 0 is not allowed; expected from 1 to 268435452 numbers");
  server.publish(values(3, 1.0f));
  CHECK(error_of([&] { server.publish(values(4, 1.0f)); }) ==
        "parameters: 4 is not allowed; expected 3, as many as in the first version");
  std::uint64_t version = 0;
  std::vector<float> fetched;
  CHECK(server.fetch(version, fetched));
  CHECK(fetched == values(3, 1.0f));
}

TEST_CASE("a frame that somebody holds is not written to, one that nobody holds is used again") {
  ParameterServer server;
  server.publish(values(5, 1.0f));
  const auto [held, version] = server.frame(false);
  const std::vector<std::byte> copy = *held;
  server.publish(values(5, 2.0f));
  CHECK(*held == copy);
  CHECK(version == 1);
  const void* const second = server.frame(false).first->data();
  server.publish(values(5, 3.0f));
  CHECK(server.frame(false).first->data() == second);
}

TEST_CASE("frames are whole and say what they carry, in either format") {
  for (const bool half : {false, true}) {
    for (const std::size_t count : {1, 2, 3, 4, 5, 1001}) {
      ParameterServer server;
      server.publish(values(count, 1.0f));
      const auto [frame, version] = server.frame(half);
      REQUIRE(frame->size() % FrameHead::kAlignment == 0);
      FrameHead head;
      CHECK(parse_frame_head(std::span(*frame).first<FrameHead::kBytes>(), head) == FrameFault::none);
      CHECK(head.type == MessageType::parameters);
      CHECK(head.frame_bytes() == frame->size());
      const auto payload = std::span(*frame).subspan(FrameHead::kBytes, head.length);
      CHECK(matches(head, payload));
      const ParametersView view = read_parameters(payload);
      CHECK(view.version == 1);
      REQUIRE(view.count == count);
      std::vector<float> back(count);
      view.copy_to(back);
      for (std::size_t i = 0; i < count; ++i)
        CHECK(std::abs(back[i] - values(count, 1.0f)[i]) <= (half ? 0x1p-11f * 2.1f : 0.0f));
    }
  }
}

TEST_CASE("what is no parameters payload is refused with the reason") {
  std::vector<std::byte> payload(ParametersView::bytes(3, false));
  ParametersView::write_head(1, 3, false, payload.data());
  CHECK(read_parameters(payload).count == 3);
  CHECK(error_of([&] { read_parameters(std::span(payload).first(10)); }) == "ends 2 bytes too early");
  CHECK(error_of([&] { read_parameters(std::span(payload).first(24)); }) == "3 parameters in 24 bytes");
  payload[12] = std::byte{2};
  CHECK(error_of([&] { read_parameters(payload); }) == "parameters in format 2");
  payload[12] = std::byte{0};
  std::memset(payload.data() + 8, 0xff, 4);
  CHECK(error_of([&] { read_parameters(payload); }) == "4294967295 parameters in 28 bytes");
}

TEST_CASE("a client gets what was published before and after it came") {
  Served served;
  served.parameters.publish(values(1000, 1.0f));
  for (const auto policy : {FetchPolicy::on_demand, FetchPolicy::always}) {
    CAPTURE(policy == FetchPolicy::always);
    ClientOptions options = client_to(served.server->address().port);
    options.role = Role::evaluator;
    options.fetch = policy;
    Client client(options);
    std::uint64_t version = 0;
    std::vector<float> fetched;
    const auto follow = [&](float first) {
      const std::uint64_t expected = served.parameters.version();
      while (version < expected) {
        REQUIRE(client.await_parameters(version, Deadline::after(30s)) == Outcome::ok);
        CHECK(client.fetch(version, fetched));
      }
      CHECK(version == expected);
      CHECK(fetched == values(1000, first));
      CHECK_FALSE(client.fetch(version, fetched));
    };
    follow(1.0f);
    served.parameters.publish(values(1000, 2.0f));
    follow(2.0f);
    served.parameters.publish(values(1000, 1.0f));
    follow(1.0f);
    CHECK(client.statistics().parameter_version == version);
  }
}

TEST_CASE("a client that nobody asks for parameters fetches none, and unchanged ones are not sent") {
  Served served;
  served.parameters.publish(values(1000, 1.0f));
  Client client(client_to(served.server->address().port));
  REQUIRE(eventually([&] { return client.statistics().is_connected; }));
  CHECK(client.await_parameters(0, Deadline::after(30s)) == Outcome::ok);
  std::uint64_t version = 0;
  std::vector<float> fetched;
  CHECK(client.fetch(version, fetched));
  for (int i = 0; i < 100; ++i) CHECK_FALSE(client.fetch(version, fetched));
  for (int i = 0; i < 10; ++i) served.parameters.publish(values(1000, 1.0f));
  REQUIRE(client.await_parameters(version, Deadline::after(30s)) == Outcome::ok);
  CHECK(client.statistics().fetched == 2);  // the second one was asked for by the looks before; no third
  CHECK(served.server->statistics().parameters == 2);
}

TEST_CASE("float16 on the wire loses what it says and half of the bytes") {
  Served served;
  Random random(testing::seed(), "parameters");
  std::vector<float> original(10'001);
  for (float& value : original) value = static_cast<float>(random.uniform() * 2.0 - 1.0);
  served.parameters.publish(original);
  ClientOptions options = client_to(served.server->address().port);
  options.float16_parameters = true;
  Client client(options);
  REQUIRE(client.await_parameters(0, Deadline::after(30s)) == Outcome::ok);
  std::uint64_t version = 0;
  std::vector<float> fetched;
  REQUIRE(client.fetch(version, fetched));
  REQUIRE(fetched.size() == original.size());
  testing::Failures failures;
  for (std::size_t i = 0; i < original.size(); ++i) {
    if (std::abs(fetched[i] - original[i]) > std::max(std::abs(original[i]) * 0x1p-11f, 0x1p-25f))
      failures.add(std::to_string(original[i]));
  }
  TROOP_CHECK_NONE(failures);
  CHECK(client.statistics().bytes_received < 10'001 * 2 + 1000);
}

TEST_CASE("versions grow for the callers when another server counts from 1 again") {
  auto first = std::make_unique<Served>();
  for (int i = 0; i < 5; ++i) first->parameters.publish(values(10, 1.0f));
  Client client(client_to(first->server->address().port));
  std::uint64_t version = 0;
  std::vector<float> fetched;
  REQUIRE(client.await_parameters(version, Deadline::after(30s)) == Outcome::ok);
  REQUIRE(client.fetch(version, fetched));
  CHECK(version == 5);
  ServerOptions options{.log = nullptr};
  options.listen = to_string(first->server->address());
  first.reset();
  ParameterServer parameters;
  parameters.publish(values(10, 2.0f));
  Server second(options, layout(), {.parameters = &parameters});
  REQUIRE(client.await_parameters(version, Deadline::after(30s)) == Outcome::ok);
  REQUIRE(client.fetch(version, fetched));
  CHECK(version == 6);
  CHECK(fetched == values(10, 2.0f));
}

TEST_CASE("the policy lag of inserted batches is that of the parameters fetched before") {
  testing::RecordingSink sink;
  ParameterServer parameters;
  Server server({.log = nullptr}, layout(), {.insert = sink.callable(), .parameters = &parameters});
  for (int i = 0; i < 3; ++i) parameters.publish(values(10, 1.0f));
  Client client(client_to(server.address().port), layout());
  const auto insert = [&](std::uint32_t number) {
    const auto items = testing::numbered(0, number, 1);
    REQUIRE(client.insert(view(items), priorities_of(items)) == Outcome::ok);
    REQUIRE(client.flush(Deadline::after(30s)) == Outcome::ok);
  };
  insert(0);  // nothing fetched yet: not known, not counted
  std::uint64_t version = 0;
  std::vector<float> fetched;
  REQUIRE(client.await_parameters(version, Deadline::after(30s)) == Outcome::ok);
  REQUIRE(client.fetch(version, fetched));
  REQUIRE(version == 3);
  insert(1);
  CHECK(server.statistics().mean_policy_lag == 0.0);
  for (int i = 0; i < 4; ++i) parameters.publish(values(10, 1.0f));
  insert(2);
  CHECK(server.statistics().mean_policy_lag == 2.0);  // of 0 and 4
  CHECK(server.statistics().max_policy_lag == 4);
}

TEST_CASE("many slow subscribers share one copy, and who asks without reading makes nothing grow") {
  Served served;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (std::uint8_t i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<RawClient>(served.server->address().port));
    clients.back()->connect(testing::hello_of(layout(), i));
    clients.back()->send(MessageType::fetch, to_bytes(Fetch{}));
  }
  served.parameters.publish(values(3'000'000, 1.0f));  // more than sockets hold
  REQUIRE(eventually([&] { return served.server->statistics().parameters >= 20; }));
  CHECK(served.parameters.frame(false).first.use_count() <= 2 + 20 * 2);
  // Further answers wait until the first one was read.
  for (auto& client : clients)
    for (int k = 0; k < 50; ++k) client->send(MessageType::fetch, to_bytes(Fetch{}));
  served.parameters.publish(values(3'000'000, 2.0f));
  std::this_thread::sleep_for(50ms);
  CHECK(served.server->statistics().parameters == 20);
  for (auto& client : clients) {
    const auto frame = client->receive();
    REQUIRE(frame.has_value());
    CHECK(read_parameters(frame->payload).version == 1);
  }
  REQUIRE(eventually([&] { return served.server->statistics().parameters >= 40; }));
}

TEST_CASE("a poll is answered at once, with a few bytes when nothing is new") {
  Served served;
  served.parameters.publish(values(10, 1.0f));
  RawClient raw(served.server->address().port);
  raw.connect(testing::hello_of(layout(), 1));
  raw.send(MessageType::fetch, to_bytes(Fetch{.version = 1, .wait = false}));
  const auto unchanged = raw.receive();
  REQUIRE(unchanged.has_value());
  CHECK(read_parameters(unchanged->payload).count == 0);
  CHECK(read_parameters(unchanged->payload).version == 1);
  raw.send(MessageType::fetch, to_bytes(Fetch{.version = 0, .wait = false}));
  const auto newest = raw.receive();
  REQUIRE(newest.has_value());
  CHECK(read_parameters(newest->payload).count == 10);
}

TEST_CASE("publishers, subscribers and a server that ends do not disturb each other") {
  ParameterServer parameters;
  std::atomic<bool> is_over = false;
  std::thread publisher([&] {
    for (float i = 1; !is_over; ++i) parameters.publish(values(1000, i));
  });
  for (int round = 0; round < 5; ++round) {
    Server server({.log = nullptr}, layout(), {.parameters = &parameters});
    ClientOptions options = client_to(server.address().port);
    options.fetch = FetchPolicy::always;
    Client one(options), two(options);
    for (Client* client : {&one, &two}) {
      std::uint64_t version = 0;
      std::vector<float> fetched;
      for (int i = 0; i < 20; ++i) {
        REQUIRE(client->await_parameters(version, Deadline::after(30s)) == Outcome::ok);
        REQUIRE(client->fetch(version, fetched));
        CHECK(fetched == values(1000, fetched[0]));
      }
    }
  }
  is_over = true;
  publisher.join();
}
