#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <http_client.hpp>
#include <temporary_directory.hpp>
#include <testing.hpp>

#include <troop/apex/monitoring.hpp>
#include <troop/core/trace.hpp>
#include <troop/nn/eigen_network.hpp>

using troop::Clock;
using troop::apex::ActorMonitor;
using troop::apex::CannotBegin;
using troop::apex::Options;
using troop::apex::RunMonitor;
using troop::monitor::ActorReport;
using troop::monitor::RunSample;
using troop::testing::get;
using troop::testing::HttpClient;
using troop::testing::TemporaryDirectory;

namespace {

const troop::apex::Console kConsole(troop::apex::LogFormat::text, "all", true);

Options with_http(const std::string& place = "127.0.0.1:0") {
  Options options;
  options.quiet = true;
  options.monitor.http = place;
  return options;
}

std::uint16_t port_of(const std::string& address) {
  return troop::net::parse_address(address).port;
}

bool has(const std::string& answer, const std::string& part) {
  return answer.find(part) != std::string::npos;
}

/// Statistics as an actor in this process would have them.
struct FakeActor {
  std::size_t num_environments() const { return 4; }
  std::vector<double> epsilons() const { return {0.4, 0.1}; }
  troop::agent::ActorStatistics statistics() const {
    return {
        .steps = 100, .episodes = 2, .mean_return = 20.0, .last_return = 30.0, .parameter_version = version};
  }
  std::uint64_t version = 3;
};

using Actors = std::vector<std::unique_ptr<FakeActor>>;

/// All files of a folder, those of folders in it not.
std::string content_of(const std::string& folder) {
  std::string content;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path(), std::ios::binary);
    if (file.is_regular_file()) content.append(std::istreambuf_iterator<char>(in), {});
  }
  return content;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void observe(RunMonitor& monitor, double seconds, const Actors& actors = {}) {
  monitor.observe(
      seconds, actors,
      [&](RunSample& sample) {
        sample.learner_steps = static_cast<std::uint64_t>(100.0 * seconds);
        sample.parameter_version = 5;
      },
      [] {
        return troop::PriorityHistogram{.bins = {{-1, 7}}};
      });
}

}  // namespace

TEST_CASE("a run's pages show it from its first sample on, and it is ready then") {
  RunMonitor monitor(with_http(), {}, {.environment = "Catch"}, kConsole);
  const auto port = port_of(monitor.address());
  CHECK(has(get(port, "/readyz"), "503 Service Unavailable"));
  Actors actors;
  actors.push_back(std::make_unique<FakeActor>());
  actors.push_back(std::make_unique<FakeActor>(FakeActor{.version = 1}));
  observe(monitor, 0.0, actors);
  CHECK(has(get(port, "/readyz"), "200 OK"));
  observe(monitor, 2.0, actors);
  const std::string status = get(port, "/api/status");
  CHECK(has(status, R"("environment":"Catch")"));
  CHECK(has(status, R"("learner":{"steps":200,"steps_per_second":100,)"));
  CHECK(has(status, R"("policy_lag":3,)"));  // of versions 3 and 1 behind 5
  CHECK(has(status, R"("priorities":[[-1,7]])"));
  CHECK(has(status, R"([4,4,"thread 1",0.1,0.4,30,20,)"));
  CHECK(has(get(port, "/metrics"), "troop_actor_mean_return{actor=\"4\",process=\"thread 1\"} 20\n"));
  CHECK(has(get(port, "/status.txt"), "Catch, "));
}

TEST_CASE("what a program measures of its own is in the metrics of its run") {
  troop::apex::metrics().gauge("lives", "Lives left.").Set(3.0);
  const RunMonitor monitor(with_http(), {}, {}, kConsole);
  CHECK(has(get(port_of(monitor.address()), "/metrics"), "lives 3\n"));
}

TEST_CASE("reports of actors elsewhere are in the table until they say that they end; others are refused") {
  RunMonitor monitor(with_http(), {}, {}, kConsole);
  ActorReport report{.ticket = 9, .first = 16, .count = 8, .name = "host:1"};
  monitor.take_report(troop::to_bytes(report));
  observe(monitor, 0.0);
  const auto port = port_of(monitor.address());
  CHECK(has(get(port, "/actors.txt"), "host:1"));
  report.is_last = true;
  monitor.take_report(troop::to_bytes(report));
  observe(monitor, 1.0);
  CHECK_FALSE(has(get(port, "/actors.txt"), "host:1"));
  const std::vector<std::byte> nonsense(10, std::byte{0xff});
  CHECK_THROWS_AS(monitor.take_report(nonsense), const troop::Error&);
}

TEST_CASE("a stream begins with the newest of what changes") {
  RunMonitor monitor(with_http(), {}, {.environment = "Catch"}, kConsole);
  observe(monitor, 0.0);
  HttpClient client(port_of(monitor.address()));
  client.send("GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(has(client.read_until("event: actors\ndata: {"), "text/event-stream"));
  CHECK(has(client.read_until("\"alarms\":"), "event: status\ndata: {\"version\":1,"));
}

TEST_CASE("event files are written as the run goes on") {
  const TemporaryDirectory directory;
  Options options;
  options.monitor.tensorboard = (directory.path() / "run").string();
  {
    RunMonitor monitor(options, {}, {}, kConsole);
    observe(monitor, 0.0);
    observe(monitor, 6.0);
    monitor.evaluated({.returns = {1.0, 2.0}}, 7.0, 700, 5000);
  }
  CHECK(content_of(options.monitor.tensorboard).size() > 1000);
  CHECK(count_of(content_of(options.monitor.tensorboard + "/by_environment_steps"),
                 "evaluation/mean_return") == 1);
}

TEST_CASE("the network that learns is looked at by layer, in the steps of the learner") {
  const TemporaryDirectory directory;
  Options options;
  options.monitor.tensorboard = (directory.path() / "run").string();
  troop::nn::EigenNetwork network(troop::nn::dueling_mlp({8, 8}).bind({4}, 2), 1);
  {
    RunMonitor monitor(options, {}, {}, kConsole);
    monitor.copy_network(network, 1);  // nobody wants it yet
    observe(monitor, 0.0);
    monitor.copy_network(network, 7);
    monitor.copy_network(network, 8);
    observe(monitor, 1.0);
  }
  const std::string written = content_of(options.monitor.tensorboard);
  CHECK(count_of(written, "weights/0.dense.weight") == 1);
  CHECK(count_of(written, "gradient_norm/0.dense.weight") == 1);
  CHECK(count_of(written, "gradient_norm/2.dueling.advantage.bias") == 1);
}

TEST_CASE(
    "a run that goes on says from which step on, in learner steps here and in environment steps there") {
  const TemporaryDirectory directory;
  Options options;
  options.monitor.tensorboard = (directory.path() / "run").string();
  const auto size = [&](const std::string& folder) {
    return content_of(options.monitor.tensorboard + folder).size();
  };
  { const RunMonitor monitor(options, {}, {}, kConsole); }
  const std::size_t without = size("/by_environment_steps");
  const troop::monitor::RunFacts facts{.before = troop::monitor::RunBefore{500, 4000, 3}};
  { const RunMonitor monitor(options, {}, facts, kConsole); }
  CHECK(size("/by_environment_steps") > 2 * without);  // one event more than the first file has
}

TEST_CASE("a trace covers the seconds that were asked for, and is written once") {
  const TemporaryDirectory directory;
  Options options;
  options.monitor.profile = directory.file("trace.json");
  options.monitor.profile_after = 1.0;
  options.monitor.profile_seconds = 2.0;
  RunMonitor monitor(options, {}, {}, kConsole);
  const auto at = [&](double seconds, const char* name) {
    observe(monitor, seconds);
    const troop::TraceSpan span(name);
  };
  at(3600.0, "too early");  // of a run that goes on
  at(3601.5, "first");
  at(3602.5, "last");
  CHECK_FALSE(std::filesystem::exists(options.monitor.profile));
  at(3604.0, "too late");
  monitor.finish();
  const std::string trace = content_of(directory.path().string());
  CHECK(count_of(trace, "\"first\"") == 1);
  CHECK(count_of(trace, "\"last\"") == 1);
  CHECK(count_of(trace, "too ") == 0);
}

TEST_CASE(
    "a run that ends within its trace leaves what there is, and a file that cannot be written stops nobody") {
  const TemporaryDirectory directory;
  Options options;
  options.monitor.profile_after = 0.0;
  for (const char* const name : {"trace.json", "no/such/folder/trace.json"}) {
    options.monitor.profile = directory.file(name);
    RunMonitor monitor(options, {}, {}, kConsole);
    observe(monitor, 0.0);
    { const troop::TraceSpan span("short"); }
    monitor.finish();
  }
  CHECK(count_of(content_of(directory.path().string()), "\"short\"") == 1);
}

TEST_CASE("a shard is ready when it listens, and its metrics are those of its replay and its server") {
  troop::apex::ShardMonitor monitor(with_http(), {}, kConsole);
  const auto port = port_of(monitor.address());
  CHECK(has(get(port, "/readyz"), "the replay is being filled"));
  monitor.observe({.size = 7, .capacity = 10, .inserts = 9}, {.connections = 2, .batches = 3});
  CHECK(has(get(port, "/readyz"), "200 OK"));
  const std::string metrics = get(port, "/metrics");
  CHECK(has(metrics, "troop_replay_size 7\n"));
  CHECK(has(metrics, "troop_replay_inserts_total 9\n"));
  CHECK(has(metrics, "troop_cluster_clients 2\n"));
  CHECK(has(metrics, "troop_cluster_batches_total 3\n"));
}

TEST_CASE(
    "a port that is taken, an open address without a token and a folder that cannot be are said at once") {
  const RunMonitor first(with_http(), {}, {}, kConsole);
  const auto error = [](const Options& options) -> std::string {
    try {
      const RunMonitor monitor(options, {}, {}, kConsole);
    } catch (const CannotBegin& e) {
      return e.what();
    }
    return "no error";
  };
  CHECK(error(with_http(first.address())) ==
        "--http: cannot listen on " + first.address() + ": Address already in use");
  CHECK(error(with_http("0.0.0.0:0"))
            .starts_with("--http: 0.0.0.0:0 is not allowed; expected a loopback address"));
  Options options;
  options.monitor.tensorboard = "/proc/nowhere";
  CHECK(error(options).starts_with("--tensorboard: /proc/nowhere"));
}

TEST_CASE("an actor process is ready while it acts, and reports once a second and at its end") {
  ActorMonitor monitor(with_http(), {}, kConsole);
  const auto port = port_of(monitor.address());
  ActorReport report{.ticket = 1, .name = "host:1", .steps = 100, .dropped = 2, .mean_return = 5.0};
  CHECK(has(get(port, "/readyz"), "503"));
  CHECK_FALSE(monitor.observe(0.0, report, true).empty());
  CHECK(has(get(port, "/readyz"), "200 OK"));
  CHECK(monitor.observe(0.9, report, true).empty());
  CHECK_FALSE(monitor.observe(1.1, report, true).empty());
  report.is_last = true;
  CHECK_FALSE(monitor.observe(1.2, report, false).empty());
  CHECK(has(get(port, "/readyz"), "503"));
  const std::string metrics = get(port, "/metrics");
  CHECK(has(metrics, "troop_process_steps_total 100\n"));
  CHECK(has(metrics, "troop_process_dropped_items_total 2\n"));
  CHECK(has(metrics, "troop_process_connected 0\n"));
  CHECK(has(get(port, "/"), "404 Not Found"));
}
