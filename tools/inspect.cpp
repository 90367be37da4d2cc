/// troop inspect: what is in a run directory, and whether its files are whole.
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include <troop/core/error.hpp>
#include <troop/durability/checkpoint.hpp>
#include <troop/durability/inspect.hpp>
#include <troop/durability/npz.hpp>
#include <troop/nn/network.hpp>
#include <troop/replay/rate_limiter.hpp>

#include "commands.hpp"

namespace {

/// Writes the weights of the newest checkpoint that is whole.
void export_weights(const std::string& run, const std::string& file) {
  const troop::durability::ObjectStore store(run, troop::durability::StoreKind::disk);
  const auto found = troop::durability::read_newest_checkpoint(store, troop::detail::print_to_stderr);
  if (!found) throw troop::FileError(run, "holds no checkpoint");
  troop::durability::save_npz(file, troop::nn::parse_network(found->checkpoint.info.network),
                              found->checkpoint.online);
  std::printf("wrote the weights of %s to %s\n", found->name.c_str(), file.c_str());
}

}  // namespace

namespace troop::tools {

int inspect(int argc, const char* const* argv) {
  CLI::App app("says what is in a run directory, which may be in use");
  app.name("troop inspect");
  std::string path, weights;
  bool verify = false;
  app.add_option("RUN_DIR", path, "the directory that --run-dir named")->required();
  app.add_flag("--verify", verify, "read and check every byte");
  app.add_option("--npz", weights, "write the newest checkpoint's weights for NumPy and PyTorch")
      ->type_name("FILE");
  app.footer("ends with 0 when nothing is wrong, 1 when a file is faulty, 2 when there is no run to look at");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    const durability::RunInspection run = durability::inspect_run(path, verify);
    std::fputs(to_string(run).c_str(), stdout);
    if (run.files.empty()) throw FileError(path, "holds no run");
    if (!weights.empty()) export_weights(path, weights);
    return run.faults() == 0 ? 0 : 1;
  } catch (const Error& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}

}  // namespace troop::tools
