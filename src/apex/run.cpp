#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include <troop/apex/run.hpp>

namespace troop::apex {

std::string to_string(const RunResult& result) {
  const char* const unsolved = std::isnan(result.target_return) ? "finished" : "not solved";
  char text[256];
  std::snprintf(text, sizeof text,
                "%s: mean_return=%s episodes=%zu seconds=%.1f environment_steps=%llu "
                "learner_steps=%llu seed=%llu%s",
                result.solved ? "solved" : unsolved, return_text(result.mean_return).c_str(), result.episodes,
                result.seconds, static_cast<unsigned long long>(result.environment_steps),
                static_cast<unsigned long long>(result.learner_steps),
                static_cast<unsigned long long>(result.seed),
                detail::human_text(result.human_normalised).c_str());
  return text;
}

namespace detail {

double target_of(const Options& options, const env::Spec& spec) {
  return std::isnan(options.target_return) ? spec.return_to_solve : options.target_return;
}

std::size_t useful_threads(std::size_t num_threads) {
  return std::min<std::size_t>(num_threads, std::max(1u, std::thread::hardware_concurrency()));
}

bool has_replay(const Options& options) {
  const Role role = options.cluster.role;
  return role != Role::actor && role != Role::evaluator && options.cluster.shards.empty();
}

std::size_t usable_memory() {
  return physical_memory() / 10 * 9;
}

void require_writable(const std::string& output) {
  try {
    check_writable(output);
  } catch (const FileError& error) {
    throw InvalidArgument("--output", output,
                          "a file that can be written (" + std::string(error.what()) + ")");
  }
}

monitor::RunFacts facts_of(const Options& options, const env::Spec& spec, const KeptRun& kept) {
  const std::size_t planned = planned_of(options);
  std::optional<monitor::RunBefore> before;
  if (kept.is_resumed())
    before = {.learner_steps = kept.info().learner_steps,
              .environment_steps = kept.info().environment_steps,
              .evaluations = kept.info().evaluations};
  return {.environment = spec.name,
          .role = options.cluster.role == Role::learner ? "learner" : "one process",
          .seed = options.seed,
          .target_return = target_of(options, spec),
          .least_epsilon = options.actor.epsilon(planned - 1, planned),
          .greatest_epsilon = options.actor.epsilon(0, planned),
          .min_inserts = options.rate.min_inserts,
          .batch_size = options.learner.batch_size,
          .planned_environments = planned,
          .before = before};
}

RunResult result_of(const KeptRun& kept, const Options& options, double target) {
  const durability::CheckpointInfo& info = kept.info();
  RunResult result{.solved = kept.finished()->starts_with("solved"),
                   .target_return = target,
                   .mean_return = info.mean_return,
                   .seconds = info.seconds,
                   .environment_steps = info.environment_steps,
                   .learner_steps = info.learner_steps,
                   .seed = options.seed,
                   .parameters = {},
                   .finished_before = *kept.finished()};
  if (kept.checkpoint()) result.parameters = kept.checkpoint()->online;
  return result;
}

}  // namespace detail

}  // namespace troop::apex
