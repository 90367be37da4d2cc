/// @file
/// The options of a run: one description for command line, configuration file and environment variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include <troop/agent/actor.hpp>
#include <troop/agent/learner.hpp>
#include <troop/apex/console.hpp>
#include <troop/core/error.hpp>
#include <troop/cuda/network.hpp>
#include <troop/durability/object_store.hpp>
#include <troop/durability/replay_log.hpp>
#include <troop/net/frame.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>

namespace troop::apex {

/// What a process is: everything in one, or a part of a cluster. The learner is its head, with the replay
/// unless that is in shards, processes of the role replay; actors and evaluators come and go.
enum class Role { all, learner, replay, actor, evaluator };

const char* to_string(Role role);

/// How the processes of a cluster find and trust each other.
struct ClusterOptions {
  Role role = Role::all;
  std::string listen = {};   ///< HOST:PORT of a learner or shard; port 0 takes any free one and says which
  std::string connect = {};  ///< HOST:PORT of the learner, for actors and evaluators
  /// HOST:PORT of each shard, as learner and actors find it; empty: the learner itself holds the replay. The
  /// learner passes these on to the actors.
  std::vector<std::string> shards = {};
  std::string token_file =
      {};                 ///< with the shared token; empty: TROOP_TOKEN of the environment, if it is set
  bool insecure = false;  ///< listen beyond loopback without token or TLS
  /// Environments that the ladder of exploration rates is made for, in all actor processes together; 0: as
  /// many as one process with these options has.
  std::size_t planned_environments = 0;
  double lease_seconds = 30.0;      ///< how long a crashed actor's place is kept for it
  bool float16_parameters = false;  ///< actors and evaluators fetch parameters in half the bytes
  net::PayloadCodec compression = net::PayloadCodec::none;  ///< of the batches that an actor sends
  /// Of an actor process, in bytes, to all shards together; 0: room for eight batches of each of its threads.
  /// What lies in an outbox while the learner holds the actors back grows old, and old experience harms the
  /// learning.
  std::size_t outbox_bytes = 0;
  bool drop_oldest = false;  ///< an actor whose outbox is full drops its oldest batches instead of waiting
  bool tls = false;          ///< actors and evaluators: TLS, with the authorities that the system trusts
  std::string tls_certificate = {}, tls_key = {}, tls_authority = {},
              tls_server_name = {};  ///< PEM files; a name
};

/// What a crash may cost a run that is kept in a directory; a stop by a signal always writes a last checkpoint.
enum class Durability {
  none,        ///< everything
  checkpoint,  ///< what was learned since the last checkpoint, and the items of the replay
  log          ///< what was learned since the last checkpoint; no item that was acknowledged
};

/// How a run is kept.
struct KeepOptions {
  std::string run_dir = {};  ///< directory of a learner or shard; empty: nothing is kept
  bool resume = false;       ///< go on with the run that is in it, if there is one
  Durability durability = Durability::log;
  double checkpoint_every = 5.0;  ///< minutes between two checkpoints
  std::size_t keep_checkpoints = 3;
  durability::StoreKind store = durability::StoreKind::disk;
  durability::SlowDisk slow_disk = durability::SlowDisk::wait;
};

/// What a process shows of itself besides its terminal.
struct MonitorOptions {
  std::string http = {};         ///< HOST:PORT of status page, metrics and probes; empty: none
  std::string tensorboard = {};  ///< directory of event files; empty: none
  std::string profile = {};      ///< file of a trace; empty: none
  double profile_after = 5.0;    ///< seconds from the start of the process to that of the trace
  double profile_seconds = 5.0;  ///< that the trace covers
};

/// Everything that a run can be told. The defaults suit small problems on one machine; those of the pieces
/// (ReplayOptions, ActorOptions, LearnerOptions, ...) are the paper's, where it gives one; only beta rises to
/// 1, and the optimizer is Adam.
struct Options {
  std::uint64_t seed = 1;
  std::size_t num_actors = 1;  ///< actor threads
  std::size_t environments_per_actor = 16;
  bool deterministic = false;  ///< everything in one thread, repeatable bit for bit

  ReplayOptions replay{.capacity = 100'000};
  RateLimiterOptions rate{.min_inserts = 1'000, .samples_per_insert = 16.0, .tolerance = 500.0};
  agent::ActorOptions actor = {};
  ClusterOptions cluster = {};
  KeepOptions keep = {};
  MonitorOptions monitor = {};
  agent::LearnerOptions learner{.batch_size = 128, .beta = {.steps = 20'000}, .target_interval = 200};
  nn::TrainOptions train{.optimizer = {.learning_rate = 1e-3}};
  /// Of the learner; see Device. Actors and evaluations compute on the CPU.
  std::string device = cuda::is_built() ? "auto" : "cpu";
  cuda::Precision precision = cuda::Precision::tf32;  ///< of products on a GPU
  bool frames_on_gpu = false;  ///< a replay of frames keeps them in the memory of the learner's GPU

  std::uint64_t evaluation_interval = 200;  ///< learner steps between two evaluations
  std::size_t evaluation_episodes = 100;
  double evaluation_epsilon = 0.0;  ///< probability of a random action in an evaluation
  double target_return = std::numeric_limits<
      double>::quiet_NaN();    ///< mean return that counts as solved; NaN: what the environment says
  double max_seconds = 600.0;  ///< the run gives up after these

  /// Where the solved or last network is written; empty: nowhere. A file that is there already is kept under
  /// another name: network.1.troop, or the next number that is free.
  std::string output = "network.troop";
  /// A saved network, a checkpoint or a run directory, to play instead of training.
  std::string evaluate = {};
  bool quiet = false;  ///< no progress, only the result
  LogFormat log_format = LogFormat::text;

  /// Throws InvalidArgument naming the option as it is written on the command line.
  void validate() const;
};

/// An option of the program itself, read as all others are: from the command line, a file or the environment.
struct ProgramOption {
  const char* name;  ///< as a C++ name: `full_action_set` is --full-action-set
  std::variant<bool*, std::size_t*, double*, std::string*> value;  ///< where it goes, and its default
  const char* help;
  const char* type = "TEXT";  ///< what the help calls a text: FILE
};

namespace detail {

/// The help page was asked for; `what()` is its text.
class HelpRequested : public Error {
 public:
  using Error::Error;
};

/// An option as it is written. `type`: INT, NUMBER, WORD or the like; empty for a switch.
struct OptionValue {
  std::string name, type, value;
};

/// All options of a run.
std::vector<OptionValue> values_of(const Options& options);

}  // namespace detail

/// Reads options from, in order of precedence, command line, configuration file (`--config FILE`, lines
/// `batch-size = 128`), and environment variables (`TROOP_BATCH_SIZE`; an empty one counts as not set), on
/// top of `defaults`; `program_options` are further ones of the program itself. Of an option that is given twice on the command line the last one counts. Throws
/// InvalidArgument or another Error for anything that is not right; it names the option as it was given:
/// `--batch-size`, `run.toml: line 3: batch-size` or `TROOP_BATCH_SIZE`.
Options parse_options_or_throw(int argc, const char* const* argv, const Options& defaults = {},
                               const std::vector<ProgramOption>& program_options = {});

/// `parse_options_or_throw` for a main function: prints help and exits with 0, or prints what is wrong in one
/// line and exits with 2.
Options parse_options(int argc, const char* const* argv, const Options& defaults = {},
                      const std::vector<ProgramOption>& program_options = {});

}  // namespace troop::apex
