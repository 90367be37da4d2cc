#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <troop/apex/options.hpp>

#include "temporary_directory.hpp"

namespace {

using troop::apex::Options;

Options parse(std::vector<const char*> words, const Options& defaults = {}) {
  words.insert(words.begin(), "/usr/bin/cart_pole");
  return troop::apex::parse_options_or_throw(static_cast<int>(words.size()), words.data(), defaults);
}

std::string error_of(std::vector<const char*> words) {
  try {
    parse(std::move(words));
  } catch (const troop::Error& error) {
    return error.what();
  }
  return "no error";
}

/// An environment variable for the life of the object.
struct Variable {
  Variable(const char* variable, const char* value) : name(variable) { setenv(variable, value, 1); }
  ~Variable() { unsetenv(name); }
  const char* name;
};

}  // namespace

TEST_CASE("without words the defaults stand") {
  const Options options = parse({});
  CHECK(options.seed == 1);
  CHECK(options.replay.capacity == 100'000);
  CHECK_FALSE(options.deterministic);
  CHECK(parse({}, {.seed = 5}).seed == 5);
}

TEST_CASE("every option can be given on the command line") {
  const Options options = parse({"--seed", "7", "--batch-size=64", "--alpha", "0.7", "--deterministic",
                                 "--optimizer", "rmsprop", "--loss", "squared", "--output", "a b.troop",
                                 "--target-return", "nan", "--learning-rate", "1e-4", "--n-step", "5"});
  CHECK(options.seed == 7);
  CHECK(options.learner.batch_size == 64);
  CHECK(options.replay.alpha == 0.7);
  CHECK(options.deterministic);
  CHECK(options.train.optimizer.kind == troop::nn::OptimizerKind::rmsprop);
  CHECK(options.train.loss == troop::nn::Loss::squared);
  CHECK(options.output == "a b.troop");
  CHECK(options.train.optimizer.learning_rate == 1e-4);
  CHECK(options.actor.n_step.n == 5);
}

TEST_CASE("the command line goes before the file, the file before the environment") {
  const troop::testing::TemporaryDirectory directory;
  const std::string path = directory.file("run.toml");
  std::ofstream(path) << "# a comment\nbatch-size = 32\nalpha = 0.5\ndeterministic = true\n";
  const Variable batch_size("TROOP_BATCH_SIZE", "16"), alpha("TROOP_ALPHA", "0.1"),
      gamma("TROOP_GAMMA", "0.9");
  const Options options = parse({"--config", path.c_str(), "--batch-size", "8"});
  CHECK(options.learner.batch_size == 8);
  CHECK(options.replay.alpha == 0.5);
  CHECK(options.actor.n_step.gamma == 0.9);
  CHECK(options.deterministic);
}

TEST_CASE("a value that is not allowed is named with what is") {
  CHECK(error_of({"--batch-size", "0"}) ==
        "--batch-size: 0 is not allowed; expected an integer from 1 to 65536");
  CHECK(error_of({"--alpha", "-1"}) == "--alpha: -1 is not allowed; expected a number from 0 to 10");
  CHECK(error_of({"--capacity", "0"}) == "--capacity: 0 is not allowed; expected an integer from 1 to 2^40");
  CHECK(error_of({"--capacity", "99999999999999999999999"}) ==
        "--capacity: \"99999999999999999999999\" is not allowed; expected a whole number from 0 to 2^64 - 1");
  CHECK(error_of({"--batch-size", "many"}) ==
        "--batch-size: \"many\" is not allowed; expected a whole number from 0 to 2^64 - 1");
  CHECK(error_of({"--batch-size", "8.5"}) ==
        "--batch-size: \"8.5\" is not allowed; expected a whole number from 0 to 2^64 - 1");
  CHECK(error_of({"--gamma", "nan"}) == "--gamma: nan is not allowed; expected a number from 0 to 1");
  CHECK(error_of({"--gamma", "0,9"}) == "--gamma: \"0,9\" is not allowed; expected a number");
  CHECK(error_of({"--gamma", "1e400"}) ==
        "--gamma: \"1e400\" is not allowed; expected a number that double precision can hold");
  CHECK(error_of({"--optimizer", "sgd"}) == "--optimizer: \"sgd\" is not allowed; expected adam or rmsprop");
  CHECK(error_of({"--deterministic=perhaps"}) ==
        "--deterministic: \"perhaps\" is not allowed; expected true or false");
  CHECK(error_of({"--min-inserts", "5000", "--capacity", "1000"}) ==
        "--min-inserts: 5000 is not allowed; expected at most capacity, 1000");
  CHECK(error_of({"--max-seconds", "0"}) == "--max-seconds: 0 is not allowed; expected a positive number");
  CHECK(error_of({"--learning-rate", "0"}).starts_with("--learning-rate: 0 is not allowed"));
}

TEST_CASE("a value from a file or the environment is checked alike") {
  const troop::testing::TemporaryDirectory directory;
  const std::string path = directory.file("run.toml");
  std::ofstream(path) << "batch-size = 0\n";
  CHECK(error_of({"--config", path.c_str()}) ==
        path + ": line 1: batch-size: 0 is not allowed; expected an integer from 1 to 65536");
  CHECK(error_of({"--config", path.c_str(), "--batch-size", "-1"}) ==
        "--batch-size: \"-1\" is not allowed; expected a whole number from 0 to 2^64 - 1");
  CHECK(error_of({"--config", path.c_str(), "--batch-size=70000"}).starts_with("--batch-size: 70000 is not"));
  const Variable variable("TROOP_ALPHA", "steep");
  CHECK(error_of({}) == "TROOP_ALPHA: \"steep\" is not allowed; expected a number");
  std::ofstream(path) << "seed = 1\n\n# steep as well\nalpha = very\n";
  CHECK(error_of({"--config", path.c_str()}) ==
        path + ": line 4: alpha: \"very\" is not allowed; expected a number");
  const std::string other = directory.file("other.toml");
  std::ofstream(other) << "alpha = 0.5\n";
  CHECK(parse({"--config", path.c_str(), "--config", other.c_str()}).replay.alpha == 0.5);
}

TEST_CASE("unknown words are refused, near ones with the name that was meant") {
  CHECK(error_of({"--learnig-rate", "1"}) ==
        "unknown option --learnig-rate; did you mean --learning-rate? (--help lists all)");
  CHECK(error_of({"--bananas"}) == "unknown option --bananas (--help lists all)");
  CHECK(error_of({"run"}) == "unknown option run (--help lists all)");
  CHECK(error_of({"--seed"}).starts_with("--seed"));
}

TEST_CASE("a configuration file that cannot be read or understood is refused") {
  CHECK(error_of({"--config", "/no/such/file"}) ==
        "--config: /no/such/file is not allowed; expected a file that can be read");
  const troop::testing::TemporaryDirectory directory;
  CHECK(error_of({"--config", directory.path().c_str()}) ==
        "--config: " + directory.path().string() + " is not allowed; expected a file that can be read");
  const std::string path = directory.file("run.toml");
  std::ofstream(path) << "batch-sise = 3\n";
  CHECK(error_of({"--config", path.c_str()}) ==
        path + ": line 1: unknown option --batch-sise; did you mean --batch-size? (--help lists all)");
  for (const char* line : {"[run]", "seed", "seed: 9", "{}", "[[", "output = \"a", "output = 'a' b"}) {
    CAPTURE(line);
    std::ofstream(path) << "seed = 1\n\n" << line << "\n";
    CHECK(error_of({"--config", path.c_str()}) ==
          path + ": line 3: " + std::string(line) + " is not like batch-size = 128");
  }
  for (const char* line : {"=", "= 9", "batch_size = 3", "config = a", "help = true"}) {
    CAPTURE(line);
    std::ofstream(path) << line << "\n";
    CHECK(error_of({"--config", path.c_str()}).starts_with(path + ": line 1: unknown option --"));
  }
}

TEST_CASE("a value in a configuration file goes to the end of the line, or stands in quotes") {
  const troop::testing::TemporaryDirectory directory;
  const std::string path = directory.file("run.toml");
  const auto output_of = [&](const char* line) {
    std::ofstream(path) << line << "\r\n";
    return parse({"--config", path.c_str()}).output;
  };
  CHECK(output_of("output = my network.troop") == "my network.troop");
  CHECK(output_of("  output=a#1 # the first") == "a#1");
  CHECK(output_of("output = \"a # b\" # c") == "a # b");
  CHECK(output_of("output = ' a '") == " a ");
  CHECK(output_of("output =") == "");
  CHECK(output_of("output = # none") == "");
  CHECK(output_of("output = --seed") == "--seed");
  const auto error_in = [&](const char* line) {
    std::ofstream(path) << line << "\n";
    return error_of({"--config", path.c_str()});
  };
  CHECK(error_in("seed = 9 10") ==
        path + ": line 1: seed: \"9 10\" is not allowed; expected a whole number from 0 to 2^64 - 1");
  CHECK(error_in("seed = 9\nalpha = 1\nseed = 9") == path + ": line 3: seed is given a second time");
  CHECK(error_in("seed = [9]").starts_with(path + ": line 1: seed: \"[9]\" is not allowed"));
  CHECK(error_in("deterministic =") ==
        path + ": line 1: deterministic: \"\" is not allowed; expected true or false");
  CHECK(error_in("deterministic = yes") ==
        path + ": line 1: deterministic: \"yes\" is not allowed; expected true or false");
}

TEST_CASE("an empty value does not swallow the next word") {
  const Options options = parse({"--output=", "--quiet", "--seed", "2"});
  CHECK(options.output.empty());
  CHECK(options.quiet);
  CHECK(parse({"--output", "", "--quiet"}).quiet);
  CHECK(parse({"--output="}).output.empty());
  CHECK(parse({"--output=a=", "--quiet"}).output == "a=");
  CHECK(error_of({"--quiet="}) == "--quiet: \"\" is not allowed; expected true or false");
  CHECK(error_of({"--batch-size="}).starts_with("--batch-size: \"\" is not allowed"));
  CHECK(error_of({""}) == "unknown option \"\" (--help lists all)");
}

TEST_CASE("a program adds options of its own, which are read, refused and listed as all others are") {
  std::string game = "pong";
  std::size_t noops = 30;
  double sticky = 0.0;
  bool clip = true;
  const auto read = [&](std::vector<const char*> words) {
    words.insert(words.begin(), "atari");
    return troop::apex::parse_options_or_throw(static_cast<int>(words.size()), words.data(), {},
                                               {{"game", &game, "the game", "NAME"},
                                                {"max_noops", &noops, "at the start"},
                                                {"sticky", &sticky, "a probability"},
                                                {"clip_rewards", &clip, "to [-1, 1]"}});
  };
  const Options options = read(
      {"--game", "breakout", "--max-noops=7", "--sticky", "0.25", "--clip-rewards=false", "--seed", "3"});
  CHECK(options.seed == 3);
  CHECK(game == "breakout");
  CHECK(noops == 7);
  CHECK(sticky == 0.25);
  CHECK_FALSE(clip);
  const Variable variable("TROOP_GAME", "qbert");
  read({});
  CHECK(game == "qbert");
  CHECK_THROWS_WITH_AS(read({"--gome", "x"}),
                       "unknown option --gome; did you mean --game? (--help lists all)", troop::Error);
  CHECK_THROWS_WITH_AS(read({"--max-noops", "-1"}),
                       "--max-noops: \"-1\" is not allowed; expected a whole number from 0 to 2^64 - 1",
                       troop::InvalidArgument);
}

TEST_CASE("help lists every option with its default") {
  try {
    parse({"--help"});
    FAIL("no help");
  } catch (const troop::apex::detail::HelpRequested& help) {
    const std::string text = help.what();
    for (const char* word : {"cart_pole", "--seed", "--batch-size", "[128]", "TROOP_BATCH_SIZE", "--config",
                             "adam or rmsprop"}) {
      CAPTURE(word);
      CHECK(text.find(word) != std::string::npos);
    }
  }
}

TEST_CASE("a role has the options that it needs and no others") {
  const auto error = [](std::vector<const char*> words) { return error_of(std::move(words)); };
  CHECK(error({"--role", "learner", "--listen", "127.0.0.1:0"}) == "no error");
  CHECK(error({"--role", "actor", "--connect", "head:7777", "--compression", "lz4"}) == "no error");
  CHECK(error({"--role", "evaluator", "--connect", "head:7777", "--tls"}) == "no error");
  CHECK(error({"--role", "king"}) ==
        "--role: \"king\" is not allowed; expected all or learner or replay or actor or evaluator");
  CHECK(error({"--role", "actor"}) ==
        "--connect: \"\" is not allowed; expected HOST:PORT of the learner with --role actor");
  CHECK(error({"--role", "learner"}) ==
        "--listen: \"\" is not allowed; expected HOST:PORT with --role learner");
  CHECK(error({"--listen", "a:1"}) == "--listen: \"a:1\" is not allowed; expected nothing with --role all");
  CHECK(error({"--role", "learner", "--listen", "a:1", "--connect", "b:1"}) ==
        "--connect: \"b:1\" is not allowed; expected nothing with --role learner");
  CHECK(error({"--role", "actor", "--connect", "b:1", "--insecure"}) ==
        "--insecure: true is not allowed; expected false with --role actor");
  CHECK(error({"--role", "actor", "--connect", "b:1", "--deterministic"}) ==
        "--deterministic: true is not allowed; expected false with any role but all");
  CHECK(error({"--token-file", "t"}) ==
        "--token-file: \"t\" is not allowed; expected nothing with --role all");
  CHECK(error({"--role", "actor", "--connect", "b:1", "--tls-key", "k"}) ==
        "--tls-certificate: \"\" is not allowed; expected a file, for certificate and key go together");
  CHECK(error({"--role", "actor", "--connect", "b"}).find("--connect: ") == 0);
  CHECK(error({"--role", "actor", "--connect", "b:1", "--outbox-bytes", "100"}) ==
        "--outbox-bytes: 100 is not allowed; expected 0, or an integer from 4096 to 2^46");
  CHECK(error({"--outbox-bytes", "8192"}) ==
        "--outbox-bytes: 8192 is not allowed; expected 0 with --role all");
  CHECK(error({"--when-full", "drop-oldest"}) ==
        "--when-full: \"drop-oldest\" is not allowed; expected block with --role all");
  CHECK(error({"--role", "actor", "--connect", "b:1", "--when-full", "panic"}) ==
        "--when-full: \"panic\" is not allowed; expected block or drop-oldest");
  CHECK(parse({"--role", "actor", "--connect", "b:1", "--when-full", "drop-oldest"}).cluster.drop_oldest);
}

TEST_CASE("a run is kept by who has something to keep") {
  const Options options =
      parse({"--run-dir", "run", "--resume", "--durability", "checkpoint", "--checkpoint-every", "0.5",
             "--store", "sequential", "--slow-disk", "give-up"});
  CHECK(options.keep.run_dir == "run");
  CHECK(options.keep.resume);
  CHECK(options.keep.durability == troop::apex::Durability::checkpoint);
  CHECK(options.keep.checkpoint_every == 0.5);
  CHECK(options.keep.store == troop::durability::StoreKind::sequential);
  CHECK(options.keep.slow_disk == troop::durability::SlowDisk::give_up);
  CHECK(error_of({"--resume"}) == "--resume: true is not allowed; expected false without --run-dir");
  CHECK(error_of({"--role", "actor", "--connect", "b:1", "--run-dir", "r"}) ==
        "--run-dir: \"r\" is not allowed; expected nothing with --role actor");
  CHECK(error_of({"--role", "replay", "--listen", "b:1", "--run-dir", "r", "--durability", "checkpoint"}) ==
        "--durability: checkpoint is not allowed; expected log with --role replay");
  CHECK(error_of({"--checkpoint-every", "0"}).starts_with("--checkpoint-every: 0 is not allowed"));
  CHECK(error_of({"--keep-checkpoints", "0"}).starts_with("--keep-checkpoints: 0 is not allowed"));
  CHECK(error_of({"--run-dir", "r", "--evaluate", "r"}) ==
        "--run-dir: \"r\" is not allowed; expected nothing with --evaluate");
}

TEST_CASE("pages and event files are options of those roles that have something to show") {
  const char* const nothing = " is not allowed; expected nothing with --role ";
  CHECK(error_of({"--http", "127.0.0.1:0", "--tensorboard", "runs"}) == "no error");
  CHECK(error_of({"--role", "actor", "--connect", "b:1", "--http", "127.0.0.1:0"}) == "no error");
  CHECK(error_of({"--http", "nowhere"}) ==
        "--http: \"nowhere\" is not allowed; expected HOST:PORT or [IPV6]:PORT");
  CHECK(error_of({"--role", "evaluator", "--connect", "b:1", "--http", "a:1"}) ==
        std::string("--http: \"a:1\"") + nothing + "evaluator");
  CHECK(error_of({"--role", "replay", "--listen", "b:1", "--http", "a:1"}) == "no error");
  CHECK(error_of({"--role", "actor", "--connect", "b:1", "--tensorboard", "runs"}) ==
        std::string("--tensorboard: \"runs\"") + nothing + "actor");
  CHECK(error_of({"--role", "actor", "--connect", "b:1", "--profile", "t.json"}) ==
        std::string("--profile: \"t.json\"") + nothing + "actor");
  CHECK(error_of({"--profile", "t.json", "--profile-seconds", "0"}) ==
        "--profile-seconds: 0 is not allowed; expected a positive number of at most 3600");
  CHECK(error_of({"--profile", "t.json", "--profile-after", "-1"}) ==
        "--profile-after: -1 is not allowed; expected a number that is not negative");
  CHECK(parse({"--http", "0.0.0.0:1", "--token-file", "t"}).cluster.token_file == "t");
  CHECK(parse({"--http", "0.0.0.0:1", "--insecure"}).cluster.insecure);
}

TEST_CASE("the shards of a replay are told to the learner alone") {
  const auto error = [](const char* shards) {
    return error_of({"--role", "learner", "--listen", "a:1", "--shards", shards});
  };
  const auto learner = parse({"--role", "learner", "--listen", "a:1", "--shards", "b:7778,[::1]:7779"});
  CHECK(learner.cluster.shards == std::vector<std::string>{"b:7778", "[::1]:7779"});
  CHECK(parse({"--role", "learner", "--listen", "a:1", "--shards", ""}, learner).cluster.shards.empty());
  CHECK(parse({"--role", "replay", "--listen", "a:1", "--insecure", "--capacity", "50"}).cluster.insecure);
  CHECK(error_of({"--role", "replay"}) ==
        "--listen: \"\" is not allowed; expected HOST:PORT with --role replay");
  CHECK(error_of({"--role", "replay", "--listen", "a:1", "--connect", "b:1"}) ==
        "--connect: \"b:1\" is not allowed; expected nothing with --role replay");
  CHECK(error_of({"--role", "replay", "--listen", "a:1", "--shards", "b:1"}) ==
        "--shards: \"b:1\" is not allowed; expected nothing with --role replay");
  CHECK(error_of({"--shards", "b:1,c:1"}) ==
        "--shards: \"b:1,c:1\" is not allowed; expected nothing with --role all");
  CHECK(error("b:1,") == "--shards: \"\" is not allowed; expected HOST:PORT or [IPV6]:PORT");
  CHECK(error("b:1, c:1") == "--shards: \" c:1\" is not allowed; expected HOST:PORT or [IPV6]:PORT");
  CHECK(error("b:1,c:0") == "--shards: \"c:0\" is not allowed; expected the port that the shard listens on");
  CHECK(error("b:1,c:1,b:1") == "--shards: \"b:1\" is not allowed; expected each shard once");
  std::string many = "a:1";
  for (int port = 2; port <= 1025; ++port) many += ",a:" + std::to_string(port);
  CHECK(error(many.c_str()) == "--shards: 1025 is not allowed; expected at most 1024");
  CHECK(error_of({"--role", "learner", "--listen", "a:1", "--shards", "b:1,c:1", "--tolerance", "1"}) ==
        "--tolerance: 1 is not allowed; expected at least the number of shards, 2");
  // The capacity is that of the shards.
  CHECK(error_of({"--role", "learner", "--listen", "a:1", "--shards", "b:1", "--min-inserts", "200000"}) ==
        "no error");
}
