/// @file
/// A replay's storage whose frames lie in the GPU's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/cuda/frame_memory.hpp>
#include <troop/replay/frame_storage.hpp>
#include <troop/replay/storage.hpp>

namespace troop::cuda {

/// Keeps transitions of stacked frames, each different frame once as FrameStorage does, in the memory of the
/// GPU that learns from them. The host keeps which frames an item has, its other fields, and the priorities.
/// A batch goes to the GPU as the numbers of its frames, 48 bytes a transition of Atari instead of 56,460.
///
/// Records are added as to any replay, with the fields `observation` and `next_observation` (u8, a stack of
/// frames each), `action`, `reward` and `discount`. A sample holds records of `sample_layout()`, which
/// `transitions` turns into what cuda::Network trains on; agent::Learner does so by itself. A sampled item
/// that is overwritten before its step has begun has no part in that step: its weight is 0, and an update of
/// its priority is stale as always. `get` of single frames aside, nothing comes back from the GPU.
///
/// Memory: of the GPU, each different frame, in pieces of `chunk_bytes`: 7.1 GB for a million transitions of
/// Atari. When all but `spare_bytes` is taken, `report` is told, and further frames lie in pinned memory of
/// the host. Of the host, 4 bytes a frame of an item, 28 bytes a different frame, and the rest of the record.
///
/// Snapshots are those of FrameStorage<RawFrames>, in both directions, and read the frames back one by one.
/// Thread-safe as ReplayStorage asks. Throws Error as cuda::Network does.
///
///     PrioritizedReplay<DynamicRecord, cuda::DeviceFrameStorage> replay({.capacity = 1'000'000}, layout);
///     auto batch = replay.sample(512, {.beta = 0.4}, random);
///     network.train_step(replay.storage().transitions(batch.view()), batch.weights, priorities);
class DeviceFrameStorage {
  struct Home {
    struct Options : FrameOptions {
      FrameMemoryOptions memory = {};
      std::size_t slots = 0;
    };
    Home(std::size_t frame_bytes, std::size_t most_frames, const Options& options)
        : memory(detail::make_frame_memory(frame_bytes, most_frames, options.slots, options.memory)) {}
    void put(std::size_t number, const std::byte* frame) const { memory->put(number, frame); }
    void get(std::size_t number, std::byte* frame) const { memory->get(number, frame); }

    std::shared_ptr<detail::FrameMemory> memory;
  };
  using Frames = FrameStorage<Home>;

 public:
  using Options = FrameMemoryOptions;

  /// Throws InvalidArgument for a capacity of 0 or an absurd one and for a layout without the fields above.
  DeviceFrameStorage(std::size_t capacity, RecordLayout layout, const Options& options = {})
      : frames_(make_frames(capacity, std::move(layout), options)),
        sample_layout_(make_sample_layout(frames_.layout())) {
    std::size_t stacks = 0;
    for (const Field& field : frames_.layout().fields()) {
      if (is_stack(field)) {
        stacks += field.bytes();
      } else {
        rest_.push_back({field.offset - stacks, sample_layout_.field(field.name).offset, field.bytes()});
      }
    }
  }

  const RecordLayout& layout() const noexcept { return frames_.layout(); }
  std::size_t capacity() const noexcept { return frames_.capacity(); }
  /// `frames` (numbers of the observation's and the next one's frames), `slot`, `version`, and the fields of
  /// `layout()` that are no frames.
  const RecordLayout& sample_layout() const noexcept { return sample_layout_; }

  void write(std::size_t slot, const BatchView& batch) {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      memory().overwrite(slot + i);
      frames_.write(slot + i, batch.records(i, 1));
    }
  }

  /// Records of `sample_layout()`.
  void gather(std::span<const std::size_t> slots, std::byte* records) const noexcept {
    for (const std::size_t slot : slots) {
      const std::span<const std::uint32_t> numbers = frames_.frames(slot);
      const auto place = static_cast<std::uint32_t>(slot);
      const std::uint32_t version = memory().version(slot);
      std::memcpy(records, numbers.data(), numbers.size_bytes());
      std::memcpy(records + numbers.size_bytes(), &place, sizeof place);
      std::memcpy(records + numbers.size_bytes() + sizeof place, &version, sizeof version);
      for (const Part& part : rest_)
        std::memcpy(records + part.to, frames_.rest_of(slot).data() + part.from, part.bytes);
      records += sample_layout_.size();
    }
  }

  void prefetch(std::size_t slot) const noexcept { frames_.prefetch(slot); }

  /// Of a sample's records.
  FrameBatch transitions(const BatchView& sample) const { return {frames_.home().memory, sample}; }

  static std::string format() { return Frames::format(); }
  void save(std::span<const std::size_t> slots, std::vector<std::byte>& out) const {
    frames_.save(slots, out);
  }
  void validate(std::size_t count, std::span<const std::byte> bytes) const { frames_.validate(count, bytes); }
  void load(std::span<const std::size_t> slots, std::span<const std::byte> bytes) {
    for (const std::size_t slot : slots) memory().overwrite(slot);
    frames_.load(slots, bytes);
  }

  FrameStatistics statistics() const { return frames_.statistics(); }
  FrameMemoryStatistics memory_statistics() const { return memory().statistics(); }

 private:
  // From where in the packed rest of a record to where in a sample's.
  struct Part {
    std::size_t from, to, bytes;
  };

  static bool is_stack(const Field& field) {
    return field.name == "observation" || field.name == "next_observation";
  }

  static void require_stacks(const RecordLayout& layout) {
    const Field &now = layout.field("observation"), &next = layout.field("next_observation");
    if (now.dtype != DType::u8 || now.shape.size() < 2 || now.shape != next.shape ||
        next.dtype != now.dtype || now.offset > next.offset)
      throw InvalidArgument("layout", layout.describe(),
                            "observation and then next_observation, stacks of u8 frames of the same shape");
  }

  static Frames make_frames(std::size_t capacity, RecordLayout layout, const Options& options) {
    options.validate();
    require_stacks(layout);
    Home::Options of_home;
    of_home.fields = {"observation", "next_observation"};
    of_home.memory = options;
    of_home.slots = capacity;
    return Frames(capacity, std::move(layout), of_home);
  }

  static RecordLayout make_sample_layout(const RecordLayout& layout) {
    std::vector<Field> fields = {{"frames", DType::u32, {2 * layout.field("observation").shape.front()}},
                                 {"slot", DType::u32, {}},
                                 {"version", DType::u32, {}}};
    for (const Field& field : layout.fields())
      if (!is_stack(field)) fields.push_back(field);
    return RecordLayout(std::move(fields));
  }

  detail::FrameMemory& memory() const noexcept { return *frames_.home().memory; }

  Frames frames_;
  RecordLayout sample_layout_;
  std::vector<Part> rest_;
};

static_assert(ReplayStorage<DeviceFrameStorage>);

}  // namespace troop::cuda
