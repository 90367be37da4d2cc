// Storages of Atari transitions: two stacks of four frames of 84 x 84, a reward, an action and a discount,
// 56,460 bytes.
//
// write      3-step transitions of one environment go into the slots one after the other, over and over
// gather512  512 slots drawn at random are read
//
// Names are verb/storage/entries:N. Counters: bytes_per_transition is what the process grew by (resident
// memory) for each transition, frame_bytes what one frame takes. The frames are a game's made up here (ball,
// bats, score), or, with TROOP_BENCH_FRAMES=file.npy, those of an array u8[n, 84, 84] that NumPy has
// saved, over and over; each is stamped with its number in four pixels, so that no two are alike.
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/random.hpp>
#include <troop/replay/array_storage.hpp>
#include <troop/replay/frame_storage.hpp>

#ifdef TROOP_WITH_COMPRESSION
#include <troop/compression/lz4.hpp>
#include <troop/compression/zstd.hpp>
#endif

#include "../support/available_memory.hpp"

namespace {

constexpr std::size_t kBatch = 512;
constexpr std::size_t kStack = 4, kSteps = 3;

using Frame = std::array<std::array<std::uint8_t, 84>, 84>;

struct AtariTransition {
  std::array<Frame, kStack> observation;
  std::array<Frame, kStack> next_observation;
  std::int32_t action;
  float reward;
  float discount;
};
static_assert(sizeof(AtariTransition) == 56'460);

/// Frame `t` of a game like those of Atari: few colours, large areas, a wall, and a little that moves.
Frame made_up_frame(std::size_t t) {
  Frame frame;
  for (std::size_t y = 0; y < 84; ++y)
    for (std::size_t x = 0; x < 84; ++x)
      frame[y][x] = y < 10 ? std::uint8_t{0}
                    : y < 24 && (x / 6 + y / 3 + t / 500) % 7 != 0
                        ? static_cast<std::uint8_t>(60 + 20 * (y / 3))
                        : std::uint8_t{87};
  const auto box = [&](double x, double y, std::size_t width, std::size_t height, std::uint8_t colour) {
    for (std::size_t dy = 0; dy < height; ++dy)
      for (std::size_t dx = 0; dx < width; ++dx)
        frame[std::min<std::size_t>(static_cast<std::size_t>(y) + dy, 83)]
             [std::min<std::size_t>(static_cast<std::size_t>(x) + dx, 83)] = colour;
  };
  const double time = static_cast<double>(t);
  box(41 + 40 * std::sin(time * 0.071), 52 + 26 * std::sin(time * 0.113), 2, 3, 236);
  box(38 + 36 * std::sin(time * 0.071), 79, 9, 2, 147);
  box(4 + 4 * std::cos(time * 0.05), 48 + 20 * std::sin(time * 0.031), 3, 9, 213);
  for (std::size_t digit = 0; digit < 4; ++digit)
    box(20.0 + 12.0 * static_cast<double>(digit), 2, 1 + t / 100 % (digit + 3), 6, 200);
  return frame;
}

/// The frames of a .npy file, version 1, of an array u8[n, 84, 84].
std::vector<Frame> read_frames(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.size() < 10 || std::memcmp(bytes.data(), "\x93NUMPY\x01", 7) != 0)
    throw std::runtime_error("TROOP_BENCH_FRAMES: " + path + " is not a .npy file of version 1");
  const std::size_t head = 10 + static_cast<unsigned char>(bytes[8]) +
                           256 * static_cast<std::size_t>(static_cast<unsigned char>(bytes[9]));
  const std::string text(bytes.data(), std::min(head, bytes.size()));
  if (text.find("'|u1'") == std::string::npos || text.find(", 84, 84)") == std::string::npos ||
      bytes.size() < head + 8 * sizeof(Frame))
    throw std::runtime_error("TROOP_BENCH_FRAMES: " + path +
                             " is not an array u8[n, 84, 84] of at least 8 frames");
  std::vector<Frame> frames((bytes.size() - head) / sizeof(Frame));
  std::memcpy(frames.data(), bytes.data() + head, frames.size() * sizeof(Frame));
  return frames;
}

const std::vector<Frame>& frames() {
  static const std::vector<Frame> all = [] {
    if (const char* path = std::getenv("TROOP_BENCH_FRAMES"); path != nullptr) return read_frames(path);
    std::vector<Frame> made(4096);
    for (std::size_t t = 0; t < made.size(); ++t) made[t] = made_up_frame(t);
    return made;
  }();
  return all;
}

/// An endless episode as 3-step transitions.
class Episode {
 public:
  Episode() {
    for (std::size_t i = 0; i < kStack + kSteps; ++i) add();
  }

  const AtariTransition& next() {
    add();
    for (std::size_t i = 0; i < kStack; ++i) {
      transition_.observation[i] = recent_[i];
      transition_.next_observation[i] = recent_[i + kSteps];
    }
    transition_.reward = static_cast<float>(number_ % 3);
    return transition_;
  }

 private:
  void add() {
    std::rotate(recent_.begin(), recent_.begin() + 1, recent_.end());
    Frame& frame = recent_.back();
    frame = frames()[number_ % frames().size()];
    const auto stamp = static_cast<std::uint32_t>(number_++);
    std::memcpy(&frame[83][80], &stamp, sizeof(stamp));
  }

  std::array<Frame, kStack + kSteps> recent_{};
  std::size_t number_ = 0;
  AtariTransition transition_{};
};

std::size_t resident_memory() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// A full storage, made once and shared by its verbs.
struct Workload {
  Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;
  virtual ~Workload() = default;
};

template <class Storage>
class FullStorage : public Workload {
 public:
  explicit FullStorage(std::size_t entries)
      : before_(resident_memory()), storage_(entries, troop::RecordLayout::of<AtariTransition>()) {
    for (std::size_t i = 0; i < entries; ++i) write(episode_.next());
    bytes_ = resident_memory() - before_;
  }

  Storage& storage() noexcept { return storage_; }
  const AtariTransition& next() { return episode_.next(); }

  void write(const AtariTransition& transition) {
    storage_.write(slot_, troop::BatchView(std::span(&transition, 1)));
    slot_ = slot_ + 1 == storage_.capacity() ? 0 : slot_ + 1;
  }

  void count(benchmark::State& state) const {
    state.counters["bytes_per_transition"] =
        static_cast<double>(bytes_) / static_cast<double>(storage_.capacity());
    if constexpr (requires { storage_.statistics(); }) {
      const auto statistics = storage_.statistics();
      state.counters["frame_bytes"] =
          static_cast<double>(statistics.frame_bytes) / static_cast<double>(statistics.frames);
      state.counters["sharing"] = statistics.sharing();
    }
  }

 private:
  std::size_t before_, bytes_ = 0;
  Storage storage_;
  Episode episode_;
  std::size_t slot_ = 0;
};

std::unique_ptr<Workload> current;

/// The full storage of this size, or null, with the benchmark told to stop, when it does not fit into memory.
template <class Storage>
FullStorage<Storage>* full_storage(benchmark::State& state, std::size_t bytes_a_record) {
  const auto entries = static_cast<std::size_t>(state.range(0));
  if (auto* full = dynamic_cast<FullStorage<Storage>*>(current.get());
      full != nullptr && full->storage().capacity() == entries)
    return full;
  current.reset();
  malloc_trim(0);
  const std::size_t needed = entries * bytes_a_record, available = troop::bench::available_memory();
  if (needed > available - available / 10) {
    const std::string reason = "needs " + std::to_string(needed >> 20) + " MiB of memory, " +
                               std::to_string(available >> 20) + " MiB are available";
    state.SkipWithError(reason.c_str());
    return nullptr;
  }
  auto made = std::make_unique<FullStorage<Storage>>(entries);
  auto* full = made.get();
  current = std::move(made);
  return full;
}

template <class Storage>
void write(benchmark::State& state, std::size_t bytes_a_record) {
  auto* full = full_storage<Storage>(state, bytes_a_record);
  if (full == nullptr) return;
  std::vector<AtariTransition> transitions;
  for (auto _ : state) {
    if (transitions.empty()) {
      state.PauseTiming();
      for (int i = 0; i < 64; ++i) transitions.push_back(full->next());
      std::reverse(transitions.begin(), transitions.end());
      state.ResumeTiming();
    }
    full->write(transitions.back());
    transitions.pop_back();
  }
  full->count(state);
  state.SetItemsProcessed(state.iterations());
}

template <class Storage>
void gather512(benchmark::State& state, std::size_t bytes_a_record) {
  auto* full = full_storage<Storage>(state, bytes_a_record);
  if (full == nullptr) return;
  troop::Random random(1, "bench frames");
  std::vector<std::size_t> slots(kBatch);
  std::vector<AtariTransition> records(kBatch);
  for (auto _ : state) {
    for (auto& slot : slots) slot = random.below(full->storage().capacity());
    full->storage().gather(slots, reinterpret_cast<std::byte*>(records.data()));
    benchmark::DoNotOptimize(records.data());
    benchmark::ClobberMemory();
  }
  full->count(state);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

template <class Storage>
void register_all(const std::string& name, std::size_t bytes_a_record) {
  for (const std::int64_t entries : {std::int64_t{1} << 14, std::int64_t{1} << 17, std::int64_t{1'000'000}}) {
    const std::pair<const char*, void (*)(benchmark::State&, std::size_t)> verbs[] = {
        {"gather512", gather512<Storage>}, {"write", write<Storage>}};
    for (const auto& [verb, function] : verbs) {
      benchmark::RegisterBenchmark((std::string(verb) + "/" + name).c_str(), function, bytes_a_record)
          ->ArgName("entries")
          ->Arg(entries)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

[[maybe_unused]] const bool registered = [] {
  register_all<troop::ArrayStorage>("array", sizeof(AtariTransition));
  register_all<troop::FrameStorage<>>("frames_raw", 7500);
#ifdef TROOP_WITH_COMPRESSION
  register_all<troop::FrameStorage<troop::Lz4>>("frames_lz4", 1500);
  register_all<troop::FrameStorage<troop::Zstd>>("frames_zstd", 1500);
#endif
  return true;
}();

}  // namespace
