#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <testing.hpp>

#include <troop/monitor/actor_table.hpp>
#include <troop/serialization/cereal.hpp>

using std::chrono::milliseconds;
using std::chrono::seconds;
using troop::Clock;
using troop::monitor::ActorReport;
using troop::monitor::ActorRow;
using troop::monitor::ActorTable;
using troop::testing::error_of;

namespace {

const Clock::time_point kStart = Clock::now();

ActorReport report(std::uint64_t ticket, std::uint64_t first = 0, std::uint64_t steps = 0) {
  return {
      .ticket = ticket, .first = first, .count = 4, .name = "host:" + std::to_string(ticket), .steps = steps};
}

std::vector<std::string> names(const std::vector<ActorRow>& rows) {
  std::vector<std::string> names;
  for (const ActorRow& row : rows) names.push_back(row.report.name);
  return names;
}

}  // namespace

TEST_CASE("rows are in the order of the ladder, with rate, lag and time since the last report") {
  ActorTable table;
  ActorReport late = report(1, 8, 1000);
  late.parameter_version = 7;
  table.report(late, kStart);
  table.report(report(2, 0), kStart);
  late.steps = 1500;
  table.report(late, kStart + seconds(2));
  const auto rows = table.rows(10, kStart + seconds(3));
  CHECK(names(rows) == std::vector<std::string>{"host:2", "host:1"});
  CHECK(rows[0].steps_per_second == 0.0);  // one report says nothing of a rate
  CHECK(rows[1].steps_per_second == 250.0);
  CHECK(rows[1].seen == 1.0);
  CHECK(rows[1].lag == 3);
  CHECK(table.rows(5, kStart + seconds(3))[1].lag == 0);  // a version that is not known here yet
}

TEST_CASE("an actor whose reports must wait is there as long as something is heard of it") {
  ActorTable table({.lost_after = seconds(5), .forget_after = seconds(60)});
  ActorReport odd = report(1, 0, 1000);
  odd.name = "h\x01st";
  table.report(odd, kStart);
  table.report(report(2, 4), kStart);
  table.heard("h\x01st", kStart + seconds(50));
  table.heard("nobody", kStart + seconds(50));
  auto rows = table.rows(0, kStart + seconds(54));
  CHECK_FALSE(rows[0].is_lost);
  CHECK(rows[0].seen == 4.0);
  CHECK(rows[1].is_lost);
  rows = table.rows(0, kStart + seconds(100));
  CHECK(names(rows) == std::vector<std::string>{"h?st"});  // the other is forgotten
  odd.steps = 2000;
  table.report(odd, kStart + seconds(100));
  CHECK(table.rows(0, kStart + seconds(100))[0].steps_per_second == 10.0);  // since the report before
}

TEST_CASE("an actor that falls silent is lost, then forgotten; one that ends is forgotten at once") {
  ActorTable table({.lost_after = seconds(5), .forget_after = seconds(60)});
  table.report(report(1), kStart);
  table.report(report(2), kStart);
  ActorReport last = report(2);
  last.is_last = true;
  table.report(last, kStart + seconds(1));
  CHECK(names(table.rows(0, kStart + seconds(1))) == std::vector<std::string>{"host:1"});
  CHECK_FALSE(table.rows(0, kStart + seconds(5))[0].is_lost);
  CHECK(table.rows(0, kStart + milliseconds(5001))[0].is_lost);
  table.report(report(1), kStart + seconds(30));
  CHECK_FALSE(table.rows(0, kStart + seconds(31))[0].is_lost);
  CHECK(table.rows(0, kStart + seconds(91)).empty());
}

TEST_CASE("the table does not grow with the number of actors ever seen") {
  ActorTable table({.max_rows = 3});
  for (std::uint64_t ticket = 1; ticket <= 100; ++ticket)
    table.report(report(ticket), kStart + milliseconds(ticket));
  CHECK(names(table.rows(0, kStart + seconds(1))) ==
        std::vector<std::string>{"host:98", "host:99", "host:100"});
}

TEST_CASE("a hostile name is cut and has nothing but printable ASCII") {
  ActorTable table;
  ActorReport hostile = report(1);
  hostile.name = std::string("<b>\x1b[31m\xff\n\0", 11) + std::string(10'000, 'x');
  table.report(hostile, kStart);
  const std::string name = table.rows(0, kStart)[0].report.name;
  CHECK(name == "<b>?[31m???" + std::string(117, 'x'));
}

TEST_CASE("a clock that is ahead is seen, one that is not told is not") {
  ActorTable table;
  ActorReport ahead = report(1, 0);
  ahead.time = ActorTable::unix_time() + 100.0;
  table.report(ahead);
  table.report(report(2, 4));
  const auto rows = table.rows(0);
  CHECK(rows[0].clock_skew == doctest::Approx(100.0).epsilon(0.05));
  CHECK(rows[1].clock_skew == 0.0);
}

TEST_CASE("metrics are of the actors that are there, lost ones have none") {
  ActorTable table;
  table.report(report(1, 0), kStart);
  table.report(report(2, 4), kStart + seconds(8));
  const auto families = actor_metrics(table.rows(0, kStart + seconds(9)));
  REQUIRE(families.size() == 4);
  for (const auto& family : families) {
    CHECK(family.name.starts_with("troop_actor_"));
    REQUIRE(family.metric.size() == 1);
    CHECK(family.metric[0].label[0].name == "actor");
    CHECK(family.metric[0].label[0].value == "4");
  }
}

TEST_CASE("a report survives the wire") {
  ActorReport sent = report(7, 12, 345);
  sent.last_return = 1.5;
  sent.is_last = true;
  const auto bytes = troop::to_bytes(sent);
  const auto got = troop::from_bytes<ActorReport>(bytes, {.max_bytes = 4096});
  CHECK(got.ticket == 7);
  CHECK(got.name == "host:7");
  CHECK(got.steps == 345);
  CHECK(got.last_return == 1.5);
  CHECK(got.is_last);
}

TEST_CASE("bad options of the table are refused by name") {
  CHECK(error_of([] { ActorTable({.lost_after = seconds(0)}); }).find("lost_after") != std::string::npos);
  CHECK(error_of([] {
          ActorTable({.lost_after = seconds(5), .forget_after = seconds(4)});
        }).find("forget_after") != std::string::npos);
  CHECK(error_of([] { ActorTable({.max_rows = 0}); }).find("max_rows") != std::string::npos);
}
