// write_events DIRECTORY: a run as TensorBoard is to see it, half of it by a process that went on where another
// one had stopped.
#include <cmath>
#include <string>
#include <vector>

#include <troop/monitor/event_file.hpp>

int main(int argc, char** argv) {
  using namespace troop::monitor;
  if (argc != 2) return 2;
  for (const bool is_second : {false, true}) {
    EventFileOptions options{.directory = argv[1], .max_bytes = 4096};
    if (is_second) options.resumed_at = 60;
    EventFile events(options);
    for (std::uint64_t step = is_second ? 60 : 0; step < (is_second ? 100u : 80u); ++step)
      events.scalar("learner/loss", is_second ? 2.0 : 1.0, step);
    if (is_second) continue;
    const std::vector<float> priorities{0.5f, 1.0f, 1.5f, 4.0f};
    events.histogram("replay/priorities", EventHistogram::of(priorities), 10);
    events.text("options", "seed = 7");
    const std::vector<HyperParameter> parameters{{"alpha", 0.6}, {"optimizer", std::string("adam")}};
    const std::vector<std::string> metrics{"learner/loss"};
    events.hyper_parameters(parameters, metrics);
  }
  return 0;
}
