#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include <troop/apex/device.hpp>
#include <troop/apex/options.hpp>
#include <troop/core/nearest_word.hpp>
#include <troop/net/address.hpp>
#include <troop/version.hpp>

namespace troop::apex {

const char* to_string(Role role) {
  constexpr const char* kNames[] = {"all", "learner", "replay", "actor", "evaluator"};
  return kNames[static_cast<std::size_t>(role)];
}

namespace {

std::string flag_of(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

/// One option: its name (`batch_size` is --batch-size, batch-size in a file, TROOP_BATCH_SIZE), where it goes
/// and what it means.
struct OptionEntry {
  std::string name, group, help, type, initial;
  std::function<void(const std::string&)> set;
};

template <class Number>
Number parse_number(const std::string& name, const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return value;
  const char* const real =
      error == std::errc::result_out_of_range ? "a number that double precision can hold" : "a number";
  throw InvalidArgument(flag_of(name), "\"" + text + "\"",
                        std::is_integral_v<Number> ? "a whole number from 0 to 2^64 - 1" : real);
}

[[noreturn]] void refuse_flag(const std::string& name, const std::string& text) {
  throw InvalidArgument(flag_of(name), "\"" + text + "\"", "true or false");
}

/// With commas between.
std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

/// Collects the entries of an Options object; this list is the one place where options get their names.
class OptionTable {
 public:
  explicit OptionTable(Options& o, const std::vector<ProgramOption>& program = {}) {
    const auto group = [this](const char* name) { group_ = name; };
    group("This program");
    for (const ProgramOption& option : program) add(option);
    group("Run");
    number("seed", o.seed, "seed of all random streams");
    number("num_actors", o.num_actors, "actor threads");
    number("environments_per_actor", o.environments_per_actor, "environments of each actor thread");
    flag("deterministic", o.deterministic, "one thread, repeatable bit for bit");
    number("max_seconds", o.max_seconds, "give up after so many seconds");
    number("target_return", o.target_return,
           "mean return that counts as solved (nan: the environment's own)");
    text("output", o.output, "file for the trained network, an earlier one is kept as NAME.1 (empty: none)");
    text("evaluate", o.evaluate, "play this saved network, checkpoint or run directory instead of training");
    flag("quiet", o.quiet, "print the result only");
    choice("log_format", o.log_format, {{"text", LogFormat::text}, {"json", LogFormat::json}},
           "lines for people, or an object a line for what collects logs");
    group("Evaluation");
    number("evaluation_interval", o.evaluation_interval, "learner steps between two evaluations");
    number("evaluation_episodes", o.evaluation_episodes, "episodes of an evaluation");
    number("evaluation_epsilon", o.evaluation_epsilon, "probability of a random action in them");
    group("Replay");
    number("capacity", o.replay.capacity, "most items held at once");
    number("soft_capacity", o.replay.soft_capacity, "items left by a trim (0: capacity)");
    number("alpha", o.replay.alpha, "exponent of the priorities");
    number("min_inserts", o.rate.min_inserts, "items inserted before the first sample");
    number("samples_per_insert", o.rate.samples_per_insert,
           "items drawn for each item inserted (0: no bound)");
    number("tolerance", o.rate.tolerance, "inserts by which actors or learner may be ahead of that ratio");
    group("Actor");
    number("n_step", o.actor.n_step.n, "longest horizon of a return");
    number("gamma", o.actor.n_step.gamma, "discount of one step");
    number("epsilon_base", o.actor.epsilon.base,
           "base of the exploration ladder, base^(1 + alpha i / (N - 1))");
    number("epsilon_alpha", o.actor.epsilon.alpha, "alpha of the exploration ladder");
    number("actor_batch_size", o.actor.batch_size, "items that an actor hands over at once");
    number("parameter_interval", o.actor.parameter_interval,
           "environment steps between two looks for new parameters");
    group("Cluster");
    choice("role", o.cluster.role,
           {{"all", Role::all},
            {"learner", Role::learner},
            {"replay", Role::replay},
            {"actor", Role::actor},
            {"evaluator", Role::evaluator}},
           "what this process is");
    text("listen", o.cluster.listen, "where a learner or shard is to be reached, HOST:PORT", "HOST:PORT");
    text("connect", o.cluster.connect, "where an actor or evaluator finds the learner", "HOST:PORT");
    list("shards", o.cluster.shards, "where the shards of a learner's replay are, with commas between",
         "HOST:PORT,...");
    text("token_file", o.cluster.token_file,
         "file with the shared token (none: TROOP_TOKEN in the environment)");
    flag("insecure", o.cluster.insecure, "let everybody in who can connect");
    number("planned_environments", o.cluster.planned_environments,
           "environments of all actors together (0: as if there were one process)");
    number("lease_seconds", o.cluster.lease_seconds, "how long a lost actor's place is kept for it");
    flag("float16_parameters", o.cluster.float16_parameters, "fetch parameters in half the bytes");
    choice("compression", o.cluster.compression,
           {{"none", net::PayloadCodec::none},
            {"lz4", net::PayloadCodec::lz4},
            {"zstd", net::PayloadCodec::zstd}},
           "of the batches that an actor sends");
    number("outbox_bytes", o.cluster.outbox_bytes,
           "of an actor process (0: eight batches of each of its threads)");
    choice("when_full", o.cluster.drop_oldest, {{"block", false}, {"drop-oldest", true}},
           "what an actor does whose outbox is full");
    flag("tls", o.cluster.tls, "connect by TLS, trusting what the system trusts");
    text("tls_certificate", o.cluster.tls_certificate, "this process's certificate, PEM");
    text("tls_key", o.cluster.tls_key, "its private key, PEM");
    text("tls_authority", o.cluster.tls_authority, "authority of the other side's certificate, PEM");
    text("tls_server_name", o.cluster.tls_server_name,
         "name in the learner's certificate (none: that of --connect)", "NAME");
    group("Durability");
    text("run_dir", o.keep.run_dir, "keep the run in this directory", "DIR");
    flag("resume", o.keep.resume, "go on with the run that is there, if there is one");
    choice("durability", o.keep.durability,
           {{"none", Durability::none}, {"checkpoint", Durability::checkpoint}, {"log", Durability::log}},
           "what a crash leaves: nothing, what was learned, or the replay as well");
    number("checkpoint_every", o.keep.checkpoint_every, "minutes between two checkpoints");
    number("keep_checkpoints", o.keep.keep_checkpoints, "newest checkpoints that stay, and the best one");
    choice("store", o.keep.store,
           {{"disk", durability::StoreKind::disk}, {"sequential", durability::StoreKind::sequential}},
           "what the directory lies on, sequential for a mounted object store");
    choice("slow_disk", o.keep.slow_disk,
           {{"wait", durability::SlowDisk::wait}, {"give-up", durability::SlowDisk::give_up}},
           "what becomes of the log when the disk takes no more: actors wait, or checkpoints alone go on");
    group("Monitor");
    text("http", o.monitor.http, "serve status page, metrics and probes there", "HOST:PORT");
    text("tensorboard", o.monitor.tensorboard, "write TensorBoard's event files there", "DIR");
    text("profile", o.monitor.profile, "write a trace of some seconds there, for Perfetto or Chrome", "FILE");
    number("profile_after", o.monitor.profile_after, "seconds from the start until the trace begins");
    number("profile_seconds", o.monitor.profile_seconds, "seconds that the trace covers");
    group("Learner");
    number("batch_size", o.learner.batch_size, "transitions of a learner step");
    number("beta_initial", o.learner.beta.initial, "first exponent of the importance weights");
    number("beta_final", o.learner.beta.final, "last exponent of the importance weights");
    number("beta_steps", o.learner.beta.steps, "learner steps from the first to the last");
    number("target_interval", o.learner.target_interval,
           "learner steps between two copies into the target network");
    number("trim_interval", o.learner.trim_interval, "learner steps between two trims of the replay");
    number("publish_interval", o.learner.publish_interval,
           "learner steps between two publications of the parameters");
    number("prefetch", o.learner.prefetch, "batches sampled ahead");
    number("max_skipped_steps", o.learner.max_skipped_steps,
           "steps in a row with a loss or gradient that is not finite, after which training stops");
    choice("optimizer", o.train.optimizer.kind,
           {{"adam", nn::OptimizerKind::adam}, {"rmsprop", nn::OptimizerKind::rmsprop}}, "kind of optimizer");
    number("learning_rate", o.train.optimizer.learning_rate, "step size of the optimizer");
    choice("loss", o.train.loss, {{"huber", nn::Loss::huber}, {"squared", nn::Loss::squared}},
           "loss of the TD error");
    number("huber_delta", o.train.huber_delta, "TD error beyond which the Huber loss is straight");
    number("max_gradient_norm", o.train.max_gradient_norm,
           "longer gradients are clipped to this norm (0: never)");
    number("num_threads", o.train.num_threads, "threads of a learner step on the CPU");
    text("device", o.device, "where the learner computes: auto, cpu, cuda (a GPU) or cuda:N", "WORD");
    choice(
        "precision", o.precision,
        {{"fp32", cuda::Precision::fp32}, {"tf32", cuda::Precision::tf32}, {"bf16", cuda::Precision::bf16}},
        "of products on a GPU");
    flag("frames_on_gpu", o.frames_on_gpu,
         "keep a replay's frames in the memory of the GPU that learns, as long as there is room");
  }

  const std::vector<OptionEntry>& entries() const noexcept { return entries_; }

 private:
  void add(const ProgramOption& option) {
    if (bool* const* const flag_value = std::get_if<bool*>(&option.value))
      flag(option.name, **flag_value, option.help);
    if (std::size_t* const* const integer = std::get_if<std::size_t*>(&option.value))
      number(option.name, **integer, option.help);
    if (double* const* const real = std::get_if<double*>(&option.value))
      number(option.name, **real, option.help);
    if (std::string* const* const words = std::get_if<std::string*>(&option.value))
      text(option.name, **words, option.help, option.type);
  }

  template <class Number>
  void number(const char* name, Number& value, const char* help) {
    std::ostringstream initial;
    initial << value;
    add(name, help, std::is_integral_v<Number> ? "INT" : "NUMBER", initial.str(),
        [name, &value](const std::string& text) { value = parse_number<Number>(name, text); });
  }

  void text(const char* name, std::string& value, const char* help, const char* type = "FILE") {
    add(name, help, type, value, [&value](const std::string& text) { value = text; });
  }

  /// With commas between.
  void list(const char* name, std::vector<std::string>& values, const char* help, const char* type) {
    add(name, help, type, joined(values), [&values](const std::string& text) {
      values.clear();
      if (text.empty()) return;
      for (std::size_t begin = 0, end = 0; end < text.size(); begin = end + 1) {
        end = std::min(text.find(',', begin), text.size());
        values.push_back(text.substr(begin, end - begin));
      }
    });
  }

  void flag(const char* name, bool& value, const char* help) {
    add(name, help, "", value ? "true" : "false", [name, &value](const std::string& text) {
      const bool on = text == "true" || text == "1" || text == "on";
      if (!on && text != "false" && text != "0" && text != "off") refuse_flag(name, text);
      value = on;
    });
  }

  template <class Enum>
  void choice(const char* name, Enum& value, std::vector<std::pair<std::string, Enum>> choices,
              const char* help) {
    std::string allowed, initial;
    for (const auto& [word, meaning] : choices) {
      allowed += (allowed.empty() ? "" : " or ") + word;
      if (meaning == value) initial = word;
    }
    add(name, std::string(help) + ": " + allowed, "WORD", initial,
        [name, &value, choices, allowed](const std::string& text) {
          for (const auto& [word, meaning] : choices) {
            if (word == text) {
              value = meaning;
              return;
            }
          }
          throw InvalidArgument(flag_of(name), "\"" + text + "\"", allowed);
        });
  }

  void add(const char* name, std::string help, std::string type, std::string initial,
           std::function<void(const std::string&)> set) {
    entries_.push_back({name, group_, std::move(help), std::move(type), std::move(initial), std::move(set)});
  }

  std::string group_;
  std::vector<OptionEntry> entries_;
};

/// Throws for a word that is no option, with the nearest name that there is. `where` begins the message.
[[noreturn]] void refuse_unknown(const std::string& word, const std::vector<OptionEntry>& entries,
                                 const std::string& where = "") {
  const std::string given = word.substr(0, word.find('='));
  std::vector<std::string> flags;
  for (const auto& entry : entries) flags.push_back(flag_of(entry.name));
  const std::string nearest = nearest_word(given, flags);
  throw Error(where + "unknown option " + (word.empty() ? "\"\"" : word) +
              (nearest.empty() ? "" : "; did you mean " + nearest + "?") + " (--help lists all)");
}

/// The entry whose flag is `flag`, or none.
const OptionEntry* find_entry(const std::string& flag, const std::vector<OptionEntry>& entries) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const OptionEntry& entry) { return flag_of(entry.name) == flag; });
  return found == entries.end() ? nullptr : &*found;
}

/// The words of the command line in the order that CLI11 wants, from the last to the first. `--output=`
/// becomes the option and an empty value, where CLI11 would take the next word for the value.
std::vector<std::string> command_line(int argc, const char* const* argv,
                                      const std::vector<OptionEntry>& entries) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const bool has_empty_value = word.starts_with("--") && word.find('=') == word.size() - 1;
    if (has_empty_value) {
      word.pop_back();
      const OptionEntry* const entry = find_entry(word, entries);
      if (entry != nullptr && entry->type.empty()) refuse_flag(entry->name, "");
    }
    words.push_back(std::move(word));
    if (has_empty_value) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());
  return words;
}

/// Reads the configuration file that `option` names: lines `batch-size = 128`, blank ones, and comments from
/// # on. A value goes to the end of the line, or stands in quotes. Anything else is refused with file and
/// line; CLI11's own reader skips some of it, and takes only the last word of `output = my network.troop`.
class ConfigFile : public CLI::Config {
 public:
  ConfigFile(const std::vector<OptionEntry>& entries, const CLI::Option* option)
      : entries_(entries), option_(option) {}

  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> lines;
    std::string line;
    for (std::size_t number = 1; std::getline(input, line); ++number) {
      const std::string where = place(number);
      const std::string text = trim(line);
      if (text.empty() || text[0] == '#') continue;
      const std::size_t equals = text.find('=');
      const auto value = equals == std::string::npos ? std::nullopt : unquote(trim(text.substr(equals + 1)));
      if (!value) throw Error(where + text + " is not like batch-size = 128");
      CLI::ConfigItem item;
      item.name = trim(text.substr(0, equals));
      const OptionEntry* const entry = find_entry("--" + item.name, entries_);
      if (entry == nullptr) refuse_unknown("--" + item.name, entries_, where);
      if (entry->type.empty() && value->empty())
        throw InvalidArgument(where + item.name, "\"\"", "true or false");
      for (const CLI::ConfigItem& earlier : lines)
        if (earlier.name == item.name) throw Error(where + item.name + " is given a second time");
      item.inputs = {*value};
      numbers_[item.name] = number;
      lines.push_back(std::move(item));
    }
    return lines;
  }

  /// Where the file gives the option `name`, "run.toml: line 3: "; empty when it does not.
  std::string place_of(const std::string& name) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? std::string() : place(found->second);
  }

 private:
  std::string place(std::size_t line) const {
    return option_->as<std::string>() + ": line " + std::to_string(line) + ": ";
  }

  static std::string trim(const std::string& text) {
    constexpr const char* kBlank = " \t\r";
    const std::size_t first = text.find_first_not_of(kBlank);
    if (first == std::string::npos) return {};
    return text.substr(first, text.find_last_not_of(kBlank) + 1 - first);
  }

  /// A value without its quotes and the comment after it; none when something else follows the quotes.
  static std::optional<std::string> unquote(const std::string& text) {
    if (text.empty() || text[0] == '#') return std::string();
    if (text[0] != '"' && text[0] != '\'')
      return trim(text.substr(0, std::min(text.find(" #"), text.find("\t#"))));
    const std::size_t end = text.find(text[0], 1);
    if (end == std::string::npos) return std::nullopt;
    const std::string rest = trim(text.substr(end + 1));
    if (!rest.empty() && rest[0] != '#') return std::nullopt;
    return text.substr(1, end - 1);
  }

  const std::vector<OptionEntry>& entries_;
  const CLI::Option* option_;
  mutable std::map<std::string, std::size_t> numbers_;  // CLI11 calls from_config as a const function
};

std::string environment_name(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return "TROOP_" + name;
}

void validate_shards(const std::vector<std::string>& shards) {
  require(shards.size() <= 1024, "shards", shards.size(), "at most 1024");
  for (const std::string& shard : shards) {
    const std::uint16_t port = net::parse_address(shard, "shards").port;
    require(port != 0, "shards", "\"" + shard + "\"", "the port that the shard listens on");
    const auto times = std::count(shards.begin(), shards.end(), shard);
    require(times == 1, "shards", "\"" + shard + "\"", "each shard once");
  }
}

/// `has_http`: token and insecure are then also those of its server.
void validate(const ClusterOptions& o, bool has_http) {
  const std::string role = std::string("--role ") + to_string(o.role);
  const bool is_server = o.role == Role::learner || o.role == Role::replay,
             is_client = o.role == Role::actor || o.role == Role::evaluator;
  const auto quoted = [](const std::string& text) { return "\"" + text + "\""; };
  require(o.listen.empty() != is_server, "listen", quoted(o.listen),
          (is_server ? "HOST:PORT with " : "nothing with ") + role);
  require(o.connect.empty() != is_client, "connect", quoted(o.connect),
          is_client ? "HOST:PORT of the learner with " + role : "nothing with " + role);
  if (is_server) net::parse_address(o.listen, "listen");
  if (is_client) net::parse_address(o.connect, "connect");
  require(o.token_file.empty() || o.role != Role::all || has_http, "token_file", quoted(o.token_file),
          "nothing with " + role);
  require(o.shards.empty() || o.role == Role::learner, "shards", quoted(joined(o.shards)),
          "nothing with " + role);
  validate_shards(o.shards);
  require(!o.insecure || is_server || has_http, "insecure", "true", "false with " + role);
  require(!o.tls || is_client, "tls", "true", "false with " + role);
  require(o.planned_environments <= (std::size_t{1} << 30), "planned_environments", o.planned_environments,
          "an integer from 0 to 2^30");
  require_between("lease_seconds", o.lease_seconds, 0.0, 86400.0);
  require(o.outbox_bytes == 0 || o.role == Role::actor, "outbox_bytes", o.outbox_bytes, "0 with " + role);
  require(o.outbox_bytes == 0 || (o.outbox_bytes >= 4096 && o.outbox_bytes <= (std::size_t{1} << 46)),
          "outbox_bytes", o.outbox_bytes, "0, or an integer from 4096 to 2^46");
  require(!o.drop_oldest || o.role == Role::actor, "when_full", quoted("drop-oldest"), "block with " + role);
  require(o.tls_certificate.empty() == o.tls_key.empty(), o.tls_key.empty() ? "tls_key" : "tls_certificate",
          quoted(""), "a file, for certificate and key go together");
  require(o.tls_authority.empty() || o.role != Role::all, "tls_authority", quoted(o.tls_authority),
          "nothing with " + role);
  require(o.tls_certificate.empty() || o.role != Role::all, "tls_certificate", quoted(o.tls_certificate),
          "nothing with " + role);
  require(o.tls_server_name.empty() || is_client, "tls_server_name", quoted(o.tls_server_name),
          "nothing with " + role);
}

void validate(const KeepOptions& o, Role role) {
  const bool is_client = role == Role::actor || role == Role::evaluator;
  require(o.run_dir.empty() || !is_client, "run_dir", "\"" + o.run_dir + "\"",
          std::string("nothing with --role ") + to_string(role));
  require(!o.resume || !o.run_dir.empty(), "resume", "true", "false without --run-dir");
  require(role != Role::replay || o.durability == Durability::log, "durability",
          o.durability == Durability::none ? "none" : "checkpoint", "log with --role replay");
  require(o.checkpoint_every > 0.0 && o.checkpoint_every <= 1e6, "checkpoint_every", o.checkpoint_every,
          "minutes, from more than 0 to 10^6");
  require(o.keep_checkpoints >= 1 && o.keep_checkpoints <= 1000, "keep_checkpoints", o.keep_checkpoints,
          "an integer from 1 to 1000");
}

}  // namespace

std::vector<detail::OptionValue> detail::values_of(const Options& options) {
  Options copy(options);
  const OptionTable table(copy);
  std::vector<OptionValue> values;
  for (const OptionEntry& entry : table.entries()) values.push_back({entry.name, entry.type, entry.initial});
  return values;
}

void Options::validate() const {
  try {
    require(num_actors >= 1 && num_actors <= 1024, "num_actors", num_actors, "an integer from 1 to 1024");
    require(environments_per_actor >= 1 && environments_per_actor <= 65536, "environments_per_actor",
            environments_per_actor, "an integer from 1 to 65536");
    require(!(max_seconds <= 0.0) && !std::isnan(max_seconds), "max_seconds", max_seconds,
            "a positive number");
    require(!std::isinf(target_return), "target_return", target_return, "a number, or nan");
    require(evaluation_interval >= 1, "evaluation_interval", evaluation_interval, "a positive integer");
    require(evaluation_episodes >= 1 && evaluation_episodes <= 10'000, "evaluation_episodes",
            evaluation_episodes, "an integer from 1 to 10000");
    require_between("evaluation_epsilon", evaluation_epsilon, 0.0, 1.0);
    troop::apex::validate(cluster, !monitor.http.empty());
    if (!monitor.http.empty()) net::parse_address(monitor.http, "http");
    require(monitor.http.empty() || cluster.role != Role::evaluator, "http", "\"" + monitor.http + "\"",
            std::string("nothing with --role ") + to_string(cluster.role));
    require(monitor.profile.empty() || cluster.role == Role::all || cluster.role == Role::learner, "profile",
            "\"" + monitor.profile + "\"", std::string("nothing with --role ") + to_string(cluster.role));
    require(monitor.profile_after >= 0.0 && std::isfinite(monitor.profile_after), "profile_after",
            monitor.profile_after, "a number that is not negative");
    require(monitor.profile_seconds > 0.0 && monitor.profile_seconds <= 3600.0, "profile_seconds",
            monitor.profile_seconds, "a positive number of at most 3600");
    require(monitor.tensorboard.empty() || cluster.role == Role::all || cluster.role == Role::learner,
            "tensorboard", "\"" + monitor.tensorboard + "\"",
            std::string("nothing with --role ") + to_string(cluster.role));
    troop::apex::validate(keep, cluster.role);
    require(keep.run_dir.empty() || evaluate.empty(), "run_dir", "\"" + keep.run_dir + "\"",
            "nothing with --evaluate");
    require(cluster.role == Role::all || !deterministic, "deterministic", "true",
            "false with any role but all");
    require(cluster.role == Role::all || evaluate.empty(), "evaluate", "\"" + evaluate + "\"",
            "nothing with any role but all");
    const bool is_client = cluster.role == Role::actor || cluster.role == Role::evaluator;
    require(parse_device(device).cpu || !is_client, "device", "\"" + device + "\"",
            std::string("auto or cpu with --role ") + to_string(cluster.role));
    replay.validate();
    rate.validate();
    const std::size_t num_shards = cluster.shards.size();
    const bool has_shards = num_shards > 0 || cluster.role == Role::replay;
    require(rate.min_inserts <= replay.capacity || has_shards, "min_inserts", rate.min_inserts,
            "at most capacity, " + std::to_string(replay.capacity));
    require(rate.samples_per_insert == 0.0 || rate.tolerance >= static_cast<double>(num_shards), "tolerance",
            rate.tolerance, "at least the number of shards, " + std::to_string(num_shards));
    actor.validate();
    learner.validate();
    train.validate();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(flag_of(error.field()), error.value(), error.expected());
  }
}

Options parse_options_or_throw(int argc, const char* const* argv, const Options& defaults,
                               const std::vector<ProgramOption>& program_options) {
  Options options(defaults);
  const OptionTable table(options, program_options);
  CLI::App app("Ape-X: distributed prioritized experience replay");
  std::string program = argc > 0 ? argv[0] : "troop";
  app.name(program.substr(program.find_last_of('/') + 1));
  const CLI::Option* const config =
      app.set_config("--config", "", "read options from this file (lines: batch-size = 128)")
          ->type_name("FILE")
          ->take_last();
  const auto file = std::make_shared<ConfigFile>(table.entries(), config);
  app.config_formatter(file);
  app.set_version_flag("--version", std::to_string(kVersion.major) + "." + std::to_string(kVersion.minor) +
                                        "." + std::to_string(kVersion.patch));
  std::vector<std::string> values(table.entries().size());
  std::vector<CLI::Option*> given(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& entry = table.entries()[i];
    const std::string flag = flag_of(entry.name);
    if (entry.type.empty()) {
      given[i] = app.add_flag(flag, values[i], entry.help);
    } else {
      given[i] = app.add_option(flag, values[i],
                                entry.help + (entry.initial.empty() ? "" : " [" + entry.initial + "]"))
                     ->type_name(entry.type);
    }
    given[i]->group(entry.group)->envname(environment_name(entry.name))->take_last();
  }
  const std::vector<std::string> words = command_line(argc, argv, table.entries());
  const auto origin_of = [&](const std::string& name) {
    std::string flag = flag_of(name);
    for (const std::string& word : words)
      if (word == flag || word.starts_with(flag + "=")) return flag;
    const std::string key = flag.substr(2), place = file->place_of(key);
    return place.empty() ? environment_name(name) : place + key;
  };
  try {
    app.parse(std::vector<std::string>(words));
  } catch (const CLI::CallForHelp&) {
    throw detail::HelpRequested(app.help());
  } catch (const CLI::CallForVersion& version) {
    throw detail::HelpRequested(std::string(version.what()) + "\n");
  } catch (const CLI::FileError&) {
    throw InvalidArgument("--config", app.get_config_ptr()->as<std::string>(), "a file that can be read");
  } catch (const CLI::ExtrasError&) {
    const auto extras = app.remaining();
    refuse_unknown(extras.empty() ? std::string() : extras.front(), table.entries());
  } catch (const CLI::ParseError& error) {
    throw Error(std::string(error.what()) + " (--help lists all options)");
  }
  try {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (given[i]->count() > 0) table.entries()[i].set(values[i]);
    }
    options.validate();
  } catch (const InvalidArgument& error) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string& name = table.entries()[i].name;
      if (given[i]->count() > 0 && flag_of(name) == error.field())
        throw InvalidArgument(origin_of(name), error.value(), error.expected());
    }
    throw;
  }
  return options;
}

Options parse_options(int argc, const char* const* argv, const Options& defaults,
                      const std::vector<ProgramOption>& program_options) {
  try {
    return parse_options_or_throw(argc, argv, defaults, program_options);
  } catch (const detail::HelpRequested& help) {
    std::cout << help.what();
    std::exit(0);
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    std::exit(2);
  }
}

}  // namespace troop::apex
