#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>

#include <troop/apex/cluster.hpp>

namespace troop::apex {

namespace detail {

std::string human_text(double human_normalised) {
  if (std::isnan(human_normalised)) return "";
  char text[64];
  std::snprintf(text, sizeof text, " human_normalised=%.1f%%", 100.0 * human_normalised);
  return text;
}

net::Token token_of(const ClusterOptions& options) {
  if (!options.token_file.empty()) return net::Token::from_file(options.token_file);
  return std::getenv("TROOP_TOKEN") != nullptr ? net::Token::from_environment("TROOP_TOKEN") : net::Token();
}

std::optional<net::TlsOptions> tls_of(const ClusterOptions& o) {
  if (!o.tls && o.tls_certificate.empty() && o.tls_authority.empty()) return std::nullopt;
  return net::TlsOptions{.certificate = o.tls_certificate,
                         .key = o.tls_key,
                         .authority = o.tls_authority,
                         .server_name = o.tls_server_name};
}

Console console_of(const Options& options) {
  return Console(options.log_format, to_string(options.cluster.role), options.quiet);
}

std::size_t environments_of(const Options& options) {
  return options.num_actors * options.environments_per_actor;
}

std::size_t planned_of(const Options& options) {
  const std::size_t planned = options.cluster.planned_environments;
  return planned == 0 ? environments_of(options) : planned;
}

net::ServerOptions server_options(const Options& options, const Console& console) {
  return {.listen = options.cluster.listen,
          .token = token_of(options.cluster),
          .tls = tls_of(options.cluster),
          .insecure = options.cluster.insecure,
          .log = console.warnings()};
}

net::LeaseOptions lease_options(const Options& options) {
  const std::chrono::duration<double> seconds(options.cluster.lease_seconds);
  return {.planned = planned_of(options),
          .duration = std::chrono::duration_cast<Clock::duration>(seconds),
          .replays = options.cluster.shards};
}

net::ClientOptions client_options(const Options& options, const Console& console, std::size_t record_bytes,
                                  std::size_t num_servers) {
  const std::size_t batch_bytes = net::InsertPayload::bytes(options.actor.batch_size, record_bytes) + 64;
  const std::size_t batches = std::max<std::size_t>(3, 8 * options.num_actors / num_servers);
  const std::size_t outbox_bytes =
      options.cluster.outbox_bytes != 0 ? options.cluster.outbox_bytes / num_servers : batches * batch_bytes;
  char host[64] = "";
  ::gethostname(host, sizeof host - 1);
  return {.connect = options.cluster.connect,
          .token = token_of(options.cluster),
          .tls = tls_of(options.cluster),
          .role = options.cluster.role == Role::actor ? net::Role::actor : net::Role::evaluator,
          .name = std::string(host) + ":" + std::to_string(::getpid()),
          .float16_parameters = options.cluster.float16_parameters,
          .compression = options.cluster.compression,
          .max_outbox_bytes = std::max<std::size_t>(4096, outbox_bytes),
          .when_full = options.cluster.drop_oldest ? net::FullPolicy::drop_oldest : net::FullPolicy::block,
          .log = console.warnings()};
}

net::RemoteReplayOptions remote_replay_options(const Options& options, const Console& console) {
  return {.shards = options.cluster.shards,
          .shard = {.client = client_options(options, console, 0)},
          .replay = options.replay};
}

ShardsReport shards_report(const net::RemoteReplay& replay) {
  ShardsReport report{.num_there = replay.num_there(), .count = replay.shards().size()};
  for (const auto& shard : replay.shards()) report.losses += shard->shard_statistics().losses;
  return report;
}

Outcome Destination::insert(const BatchView& records, std::span<const float> priorities, Deadline deadline) {
  return shards ? shards->insert(records, priorities, deadline)
                : learner.insert(records, priorities, deadline);
}

Outcome Destination::stop(Deadline deadline) {
  const Outcome outcome = shards ? shards->stop(deadline) : Outcome::ok;
  const Outcome goodbye = learner.stop(deadline);
  return outcome == Outcome::ok ? goodbye : outcome;
}

std::uint64_t Destination::dropped_items() const {
  std::uint64_t items = learner.statistics().dropped_items;
  for (std::size_t i = 0; shards && i < shards->num_clients(); ++i)
    items += shards->statistics(i).dropped_items;
  return items;
}

int end_of(const net::RefusedError& error, bool was_working, const Console& console) {
  if (error.code() == net::RefusalCode::finished) {
    console.info("the run is finished");
    return 0;
  }
  if (!was_working) throw NotAdmitted(error.what());
  throw net::RefusedError(error);
}

int exit_code(const StopSignal& signal) {
  return signal.received() == 0 ? 0 : 128 + signal.received();
}

}  // namespace detail

}  // namespace troop::apex
