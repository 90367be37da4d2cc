/// @file
/// A storage that keeps each frame of stacked observations once, compressed at choice.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/codec.hpp>
#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/fwd.hpp>
#include <troop/replay/detail/frame_hash.hpp>
#include <troop/replay/detail/frame_split.hpp>
#include <troop/replay/detail/frame_table.hpp>
#include <troop/replay/detail/scratch.hpp>
#include <troop/replay/storage.hpp>

namespace troop {

/// Stands in the place of a codec for frames that are kept as they are.
struct RawFrames {
  static constexpr std::string_view name = "raw";
};

/// Stands in the place of a codec for frames that lie elsewhere, such as in a GPU's memory: made by
/// `H(frame_bytes, most_frames, options)`; `put(number, frame)` keeps a copy of a frame under a number from 0,
/// `get(number, frame)` copies it back. Calls for different numbers may come from several threads at once.
template <class H>
concept FrameHome = std::constructible_from<H, std::size_t, std::size_t, const typename H::Options&> &&
    requires(const H& home, std::size_t number, const std::byte* from, std::byte* to) {
  home.put(number, from);
  home.get(number, to);
};

struct FrameOptions {
  /// The fields that are stacks of frames: their first dimension counts the frames, a frame is the rest. All
  /// frames have one size. Empty: every u8 field of three or more dimensions.
  std::vector<std::string> fields = {};

  /// Throws InvalidArgument for an empty or repeated name.
  void validate() const {
    for (const std::string& name : fields) {
      require(!name.empty(), "fields", "\"\"", "names that are not empty");
      require(std::count(fields.begin(), fields.end(), name) == 1, "fields", name, "each name once");
    }
  }
};

/// What a FrameStorage holds, in frames and bytes.
struct FrameStatistics {
  std::size_t frames = 0;       ///< different frames held
  std::size_t uses = 0;         ///< frames in all items together
  std::size_t frame_bytes = 0;  ///< taken by the frames, compressed where they are
  std::size_t table_bytes = 0;  ///< taken by all else: what items are made of, and how frames are found

  /// How many items share a frame in the mean; 0 when there is none.
  double sharing() const noexcept {
    return frames == 0 ? 0.0 : static_cast<double>(uses) / static_cast<double>(frames);
  }
};

/// Keeps records whose fields are stacks of frames (Mnih et al. 2015), and every different frame of them only
/// once.
///
/// An Atari transition with two stacks of four frames of 84 x 84 takes 56,460 bytes, and all but one of its
/// frames are in the transitions before it. Frames are recognised by what is in them, so nothing has to be
/// said about episodes, environments or n-step lengths, any of which may be mixed: an item is a list of
/// frames and what else the record holds, and is read back to the last byte. A frame goes when the last item
/// that has it goes.
///
/// `Codec` packs the frames (see troop/compression); RawFrames keeps them as they are. Mean sizes of Atari
/// frames of 7,056 bytes (a random policy, 84 x 84, grey):
///
///             Pong   Breakout   Seaquest   Space Invaders   Ms. Pac-Man
///     Lz4      267        408        775            1,528         2,012
///     Zstd     173        297        516            1,052         1,198
///
/// Equal frames are found by a 128-bit hash. For a random key, two different frames, whatever they hold,
/// share one with a probability of at most 2^-127: with 2^23 frames held and 2^33 inserted, a wrong frame was
/// given with one of 2^-71. The key is expanded from a seed of 64 bits that the system draws for each
/// storage. Raw frames are compared as well and are never wrong.
///
/// Thread-safe as ReplayStorage asks: calls for different slots may run at once, also when these share
/// frames. `gather` takes no lock. `write` hashes and packs outside of the one lock, under which it looks up
/// and counts.
///
/// Costs: `write` hashes all frames of a record and packs those that are new; `gather` unpacks each different
/// frame of a record once. Memory: each frame (packed: its size and about 12 bytes) and 28 bytes (packed: 36)
/// for finding it; for each item 4 bytes a frame and the rest of the record. It grows to what is needed and
/// is then used again; only that of packed frames is given back. Addresses, not memory, are reserved for the
/// case that no frame is shared: see Block::reserve.
///
///     PrioritizedReplay<AtariTransition, FrameStorage<Lz4>> replay({.capacity = 1'000'000});
template <class Codec, class Hash>
class FrameStorage {
  static constexpr bool kRaw = std::is_same_v<Codec, RawFrames>;
  static constexpr bool kElsewhere = FrameHome<Codec>;
  static constexpr bool kPacked = !kRaw && !kElsewhere;
  static_assert(
      !kPacked || troop::Codec<Codec>,
      "Codec must be RawFrames or have name, bound, compress and a noexcept decompress (troop::Codec)");

  template <class>
  struct OptionsOf : std::type_identity<FrameOptions> {};
  template <FrameHome Home>
  struct OptionsOf<Home> : std::type_identity<typename Home::Options> {};
  struct Here {};

 public:
  using Options = typename OptionsOf<Codec>::type;

  /// Throws InvalidArgument for a capacity of 0 or an absurd one and for options that do not go with
  /// `layout`, Error when the addresses are not to be had.
  FrameStorage(std::size_t capacity, RecordLayout layout, const Options& options = {})
      : layout_(std::move(layout)),
        split_((options.validate(), layout_), options.fields),
        capacity_(checked_capacity(capacity)),
        slot_bytes_((split_.frames().size() * sizeof(Id) + split_.rest_bytes() + kAlign - 1) / kAlign *
                    kAlign),
        hash_(split_.frame_bytes(), random_seed()),
        slots_(Block::reserve(checked_bytes("capacity", capacity, slot_bytes_))),
        frames_(Block::reserve(checked_bytes("capacity", capacity, split_.frames().size() * kept_bytes()))),
        index_(std::make_unique<Index>(most_frames())),
        home_(make_home(options)) {}

  /// Movable while no other thread uses it.
  FrameStorage(FrameStorage&&) noexcept = default;
  FrameStorage& operator=(FrameStorage&&) = delete;
  ~FrameStorage() {
    if constexpr (kPacked) {
      if (index_ == nullptr) return;  // moved from
      for (std::size_t i = 0; i < index_->table.taken(); ++i) std::free(frames_.as<Packed*>()[i]);
    }
  }

  const RecordLayout& layout() const noexcept { return layout_; }
  std::size_t capacity() const noexcept { return capacity_; }

  /// Stores `batch` into the slots [slot, slot + batch.size()). Throws std::bad_alloc when there is no memory
  /// for a packed frame; then the slots from the one that failed on hold frames of zeros or what they held
  /// before.
  void write(std::size_t slot, const BatchView& batch) {
    for (std::size_t i = 0; i < batch.size(); ++i) write_record(slot + i, batch.record(i));
  }

  /// Copies the records of `slots` out, one after the other. A slot into which nothing was written holds
  /// zeros.
  void gather(std::span<const std::size_t> slots, std::byte* records) const noexcept {
    if (!slots.empty()) prefetch_frames(slots.front());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (i + 1 < slots.size()) prefetch_frames(slots[i + 1]);
      read_record(slots[i], records + i * layout_.size());
    }
  }

  /// Hints that `slot` is about to be read.
  void prefetch(std::size_t slot) const noexcept { __builtin_prefetch(slot_data(slot)); }

  /// What the bytes of `save` are: "frames lz4".
  static std::string format() {
    if constexpr (kElsewhere) {
      return FrameStorage<RawFrames>::format();
    } else {
      return "frames " + std::string(Codec::name);
    }
  }

  /// Appends the items of `slots` to `out`, which `load` of a storage of the same layout and fields takes
  /// back: each frame once, as it is kept. The same items give the same bytes, and so do those that were
  /// loaded from them into an empty storage.
  ///
  /// The bytes, all numbers little-endian, for records of n frames of b bytes and a rest of r bytes:
  ///
  ///     bytes       content
  ///     8           digest of layout and fields
  ///     4           F, number of frames
  ///     4 F         bytes of each frame; b means that it is not packed
  ///     their sum   the frames, in the order in which the items name them first
  ///     4 n + r     of each item: its frames, counted from 1 (0: zeros), then the rest of the record, packed
  ///
  /// Takes no lock; like `gather` it must not overlap with a write to one of `slots`.
  void save(std::span<const std::size_t> slots, std::vector<std::byte>& out) const {
    std::unordered_map<Id, std::uint32_t> numbers;
    std::vector<Id> order;
    std::size_t bytes = 0;
    for (const std::size_t slot : slots) {
      for (const Id id : ids(slot)) {
        if (id == detail::kNoFrame ||
            !numbers.emplace(id, static_cast<std::uint32_t>(order.size() + 1)).second)
          continue;
        order.push_back(id);
        bytes += kept_size(id);
      }
    }
    out.reserve(out.size() + kHeadBytes + order.size() * 4 + bytes + slots.size() * item_bytes());
    ByteWriter writer(out);
    writer.number(split_.fingerprint());
    writer.number(static_cast<std::uint32_t>(order.size()));
    for (const Id id : order) writer.number(static_cast<std::uint32_t>(kept_size(id)));
    for (const Id id : order) writer.bytes(kept(id));
    for (const std::size_t slot : slots) {
      for (const Id id : ids(slot))
        writer.number(id == detail::kNoFrame ? std::uint32_t{0} : numbers.find(id)->second);
      writer.bytes({rest(slot), split_.rest_bytes()});
    }
  }

  /// Throws Error, with the reason, unless `bytes` are what `save` makes of `count` items: every size and
  /// number is checked and every frame unpacked. For bytes from anywhere.
  void validate(std::size_t count, std::span<const std::byte> bytes) const {
    const Encoding encoding = parse(count, bytes);
    std::vector<std::byte> frame(split_.frame_bytes());
    for (const auto& body : encoding.frames) unpack_foreign(body, frame.data());
  }

  /// Stores the items that `save` made `bytes` of into as many different slots. Their frames are kept as they
  /// come, unless the same frames are here already.
  ///
  /// Throws Error as `validate` does, std::bad_alloc; then the slots hold what they held before or frames of
  /// zeros.
  void load(std::span<const std::size_t> slots, std::span<const std::byte> bytes) {
    const std::size_t count = slots.size();
    const Encoding encoding = parse(count, bytes);
    std::vector<Wanted> wanted(encoding.frames.size());
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < split_.frames().size(); ++k) {
        if (const std::uint32_t number = encoding.number(*this, i, k); number > 0) ++wanted[number - 1].uses;
      }
    }
    for (const std::size_t slot : slots) intern({}, ids(slot));
    constexpr std::size_t kGroup = 16;
    std::vector<std::byte> unpacked(kGroup * split_.frame_bytes());
    std::size_t done = 0;
    try {
      while (done < wanted.size()) {
        const auto group = std::span(wanted).subspan(done, std::min(kGroup, wanted.size() - done));
        for (std::size_t i = 0; i < group.size(); ++i) {
          group[i].packed = encoding.frames[done + i];
          group[i].frame = unpacked.data() + i * split_.frame_bytes();
          unpack_foreign(group[i].packed, unpacked.data() + i * split_.frame_bytes());
          group[i].digest = hash_(group[i].frame);
        }
        intern(group, {});
        done += group.size();
      }
    } catch (...) {
      give_back(std::span(wanted).first(done));
      throw;
    }
    for (std::size_t i = 0; i < count; ++i) {
      note_written(slots[i] + 1);
      const auto to = ids(slots[i]);
      for (std::size_t k = 0; k < to.size(); ++k) {
        const std::uint32_t number = encoding.number(*this, i, k);
        to[k] = number == 0 ? detail::kNoFrame : wanted[number - 1].id;
      }
      if (split_.rest_bytes() > 0) std::memcpy(rest(slots[i]), encoding.rest(*this, i), split_.rest_bytes());
    }
  }

  /// The numbers of a slot's frames, from 1, in the order of their places in a record; 0: a frame of zeros.
  std::span<const std::uint32_t> frames(std::size_t slot) const noexcept { return ids(slot); }
  /// All other bytes of its record, packed.
  std::span<const std::byte> rest_of(std::size_t slot) const noexcept {
    return {rest(slot), split_.rest_bytes()};
  }
  /// Where the frames are, if elsewhere.
  const Codec& home() const noexcept requires(kElsewhere) { return home_; }

  FrameStatistics statistics() const {
    const std::lock_guard lock(index_->mutex);
    FrameStatistics result;
    result.frames = index_->table.frames();
    result.uses = index_->table.uses();
    result.frame_bytes = kPacked ? index_->packed_bytes : index_->table.frames() * split_.frame_bytes();
    result.table_bytes = index_->table.bytes() + index_->slots_written.load() * slot_bytes_ +
                         (kPacked ? index_->table.taken() * kept_bytes() : 0);
    return result;
  }

 private:
  using Id = detail::FrameId;

  static constexpr std::size_t kAlign = alignof(Id);
  static constexpr std::size_t kHeadBytes = 12;

  /// A packed frame as it lies on the heap, or one that does not get smaller and is kept as it is: that has
  /// all its bytes.
  struct Packed {
    std::uint32_t bytes;

    const std::byte* data() const noexcept { return reinterpret_cast<const std::byte*>(this + 1); }
    std::byte* data() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
  };

  /// A frame that is about to be used by an item.
  struct Wanted {
    detail::FrameDigest digest;
    const std::byte* frame = nullptr;
    std::span<const std::byte> packed = {};  // where it is known
    std::uint32_t uses = 0;
    Id id = detail::kNoFrame;
    bool is_new = false;
  };

  /// Which frames there are.
  struct Index {
    explicit Index(std::size_t most) : table(most) {}

    std::mutex mutex;  // guards the table and packed_bytes
    detail::FrameTable table;
    std::size_t packed_bytes = 0;
    std::atomic<std::size_t> slots_written{0};  // one more than the last
  };

  struct Scratch {
    std::vector<Wanted> wanted;
    std::vector<std::size_t> which;  // of `wanted`, for each frame of a record
    std::vector<Packed*> gone;
    std::vector<std::byte> packed;  // or a frame from elsewhere
  };
  static Scratch& scratch() { return detail::of_this_thread<Scratch>(); }

  /// An encoding, taken apart.
  struct Encoding {
    std::vector<std::span<const std::byte>> frames;
    const std::byte* items = nullptr;

    std::uint32_t number(const FrameStorage& storage, std::size_t item, std::size_t k) const noexcept {
      return get32(items + item * storage.item_bytes() + k * 4);
    }
    const std::byte* rest(const FrameStorage& storage, std::size_t item) const noexcept {
      return items + item * storage.item_bytes() + storage.split_.frames().size() * 4;
    }
  };

  static std::uint64_t random_seed() {
    std::random_device device;
    return static_cast<std::uint64_t>(device()) << 32 | device();
  }

  auto make_home(const Options& options) const {
    if constexpr (kElsewhere) {
      return Codec(split_.frame_bytes(), most_frames(), options);
    } else {
      return Here{};
    }
  }

  std::size_t checked_capacity(std::size_t capacity) const {
    require(capacity >= 1, "capacity", capacity, "a positive integer");
    const std::size_t most = (std::numeric_limits<Id>::max() - 1) / split_.frames().size();
    require(capacity <= most, "capacity", capacity,
            "at most " + std::to_string(most) + ", for records of " + std::to_string(split_.frames().size()) +
                " frames");
    return capacity;
  }
  /// What a frame takes in `frames_`.
  std::size_t kept_bytes() const noexcept {
    return kRaw ? split_.frame_bytes() : (kElsewhere ? std::size_t{1} : sizeof(Packed*));
  }
  std::size_t most_frames() const noexcept { return capacity_ * split_.frames().size(); }
  std::size_t item_bytes() const noexcept { return split_.frames().size() * 4 + split_.rest_bytes(); }

  // A slot: the frames' ids, then the rest of the record.
  std::byte* slot_data(std::size_t slot) const noexcept { return slots_.data() + slot * slot_bytes_; }
  std::span<Id> ids(std::size_t slot) const noexcept {
    return {reinterpret_cast<Id*>(slot_data(slot)), split_.frames().size()};
  }
  std::byte* rest(std::size_t slot) const noexcept {
    return slot_data(slot) + split_.frames().size() * sizeof(Id);
  }

  std::byte* raw(Id id) const noexcept {
    return frames_.data() + (id - std::size_t{1}) * split_.frame_bytes();
  }
  Packed*& packed(Id id) const noexcept { return frames_.as<Packed*>()[id - std::size_t{1}]; }

  /// The bytes of a frame as they are kept; from elsewhere, valid until the next call.
  std::span<const std::byte> kept(Id id) const noexcept(!kElsewhere) {
    if constexpr (kRaw) {
      return {raw(id), split_.frame_bytes()};
    } else if constexpr (kElsewhere) {
      auto& frame = scratch().packed;
      frame.resize(split_.frame_bytes());
      home_.get(id - std::size_t{1}, frame.data());
      return frame;
    } else {
      return {packed(id)->data(), packed(id)->bytes};
    }
  }

  std::size_t kept_size(Id id) const noexcept {
    if constexpr (kPacked) {
      return packed(id)->bytes;
    } else {
      return split_.frame_bytes();
    }
  }

  void write_record(std::size_t slot, const std::byte* record) {
    auto& wanted = scratch().wanted;
    auto& which = scratch().which;
    wanted.clear();
    which.clear();
    for (const std::size_t offset : split_.frames()) {
      const Wanted next{.digest = hash_(record + offset), .frame = record + offset};
      std::size_t i = 0;
      while (i < wanted.size() && !(wanted[i].digest == next.digest && equal(wanted[i].frame, next.frame)))
        ++i;
      if (i == wanted.size()) wanted.push_back(next);
      ++wanted[i].uses;
      which.push_back(i);
    }
    intern(wanted, ids(slot));
    const auto to = ids(slot);
    for (std::size_t k = 0; k < to.size(); ++k) to[k] = wanted[which[k]].id;
    split_.pack_rest(record, rest(slot));
    note_written(slot + 1);
  }

  /// Whether frames of the same digest are equal.
  bool equal(const std::byte* a, const std::byte* b) const noexcept {
    return !kRaw || std::memcmp(a, b, split_.frame_bytes()) == 0;
  }

  /// Takes the uses of `old` back and sets it to zeros; gives each of `wanted` an id and its uses.
  ///
  /// Frames get their ids under the lock, are copied or packed outside, and can be found from then on. Who
  /// meets another thread with the same new frame takes the one that was there first. As `old` goes first,
  /// there are never more frames than all slots have places, those that are just being made included.
  void intern(std::span<Wanted> wanted, std::span<Id> old) {
    auto& gone = scratch().gone;
    gone.reserve(wanted.size() + old.size());
    {
      const std::lock_guard lock(index_->mutex);
      for (const Wanted& frame : wanted) index_->table.prefetch(frame.digest);
      for (Wanted& frame : wanted) {
        frame.id = index_->table.find(frame.digest);
        frame.is_new = frame.id == detail::kNoFrame;
        if (!frame.is_new) index_->table.hold(frame.id, frame.uses);
      }
      for (Id& id : old) gone.push_back(drop(std::exchange(id, detail::kNoFrame), 1));
      for (Wanted& frame : wanted) {
        if (frame.is_new) frame.id = index_->table.take(frame.digest, frame.uses);
      }
    }
    free_all(gone);
    std::size_t added = 0;
    try {
      for (Wanted& frame : wanted) {
        if constexpr (kRaw) {
          if (!frame.is_new && !equal(raw(frame.id), frame.frame)) replace(frame);
        }
        if (frame.is_new) added += keep(frame);
      }
    } catch (...) {
      {
        const std::lock_guard lock(index_->mutex);
        index_->packed_bytes += added;
      }
      give_back(wanted);
      throw;
    }
    if (std::none_of(wanted.begin(), wanted.end(), [](const Wanted& frame) { return frame.is_new; })) return;
    {
      const std::lock_guard lock(index_->mutex);
      index_->packed_bytes += added;
      for (Wanted& frame : wanted) {
        if (!frame.is_new) continue;
        const Id other = index_->table.find(frame.digest);
        if (other == detail::kNoFrame) {
          index_->table.link(frame.id);
        } else if (!kRaw || equal(raw(other), frame.frame)) {
          index_->table.hold(other, frame.uses);
          gone.push_back(drop(std::exchange(frame.id, other), frame.uses));
        }  // else another frame of the same digest is there: this one stays unshared
      }
    }
    free_all(gone);
  }

  /// Gives a frame that was mistaken for another of the same digest an id of its own.
  void replace(Wanted& frame) {
    const std::lock_guard lock(index_->mutex);
    drop(frame.id, frame.uses);
    frame.id = index_->table.take(frame.digest, frame.uses);
    frame.is_new = true;
  }

  /// Takes the uses of frames back that no slot has yet.
  void give_back(std::span<const Wanted> frames) noexcept {
    const std::lock_guard lock(index_->mutex);
    for (const Wanted& frame : frames) std::free(drop(frame.id, frame.uses));
  }

  /// Takes uses back, under the lock. Returns what has to be freed, or null.
  Packed* drop(Id id, std::uint32_t uses) noexcept {
    if (id == detail::kNoFrame || !index_->table.drop(id, uses)) return nullptr;
    if constexpr (!kPacked) {
      return nullptr;
    } else {
      Packed* const frame = std::exchange(packed(id), nullptr);
      if (frame != nullptr) index_->packed_bytes -= sizeof(Packed) + frame->bytes;
      return frame;
    }
  }

  static void free_all(std::vector<Packed*>& gone) noexcept {
    for (Packed* frame : gone) std::free(frame);
    gone.clear();
  }

  /// Puts a new frame in its place; returns the bytes that it takes on the heap.
  std::size_t keep(const Wanted& frame) {
    if constexpr (kRaw) {
      std::memcpy(raw(frame.id), frame.frame, split_.frame_bytes());
      return 0;
    } else if constexpr (kElsewhere) {
      home_.put(frame.id - std::size_t{1}, frame.frame);
      return 0;
    } else {
      auto from = frame.packed;
      if (from.empty()) from = pack(frame.frame);
      auto* to = static_cast<Packed*>(std::malloc(sizeof(Packed) + from.size()));
      if (to == nullptr) throw std::bad_alloc();
      to->bytes = static_cast<std::uint32_t>(from.size());
      std::memcpy(to->data(), from.data(), from.size());
      packed(frame.id) = to;
      return sizeof(Packed) + from.size();
    }
  }

  std::span<const std::byte> pack(const std::byte* frame) const {
    const std::span<const std::byte> whole(frame, split_.frame_bytes());
    auto& packed = scratch().packed;
    packed.resize(std::max(packed.size(), Codec::bound(whole.size())));
    const std::size_t bytes = Codec::compress(whole, packed);
    return bytes < whole.size() ? std::span<const std::byte>(packed).first(bytes) : whole;
  }

  [[nodiscard]] bool unpack(std::span<const std::byte> kept, std::byte* frame) const noexcept {
    if constexpr (kPacked) {
      if (kept.size() < split_.frame_bytes()) return Codec::decompress(kept, {frame, split_.frame_bytes()});
    }
    std::memcpy(frame, kept.data(), split_.frame_bytes());
    return true;
  }

  [[gnu::noinline]] void read_record(std::size_t slot, std::byte* record) const noexcept {
    const auto from = ids(slot);
    const auto places = split_.frames();
    for (std::size_t k = 0; k < from.size(); ++k) {
      std::byte* const frame = record + places[k];
      const auto earlier =
          static_cast<std::size_t>(std::find(from.begin(), from.end(), from[k]) - from.begin());
      if (earlier < k) {
        std::memcpy(frame, record + places[earlier], split_.frame_bytes());
      } else if (from[k] == detail::kNoFrame) {
        std::memset(frame, 0, split_.frame_bytes());
      } else if (!unpack(kept(from[k]), frame)) {
        std::terminate();  // memory was overwritten, or a codec has no memory for its state
      }
    }
    split_.unpack_rest(rest(slot), record);
  }

  /// Hints that the frames of `slot` are about to be read.
  void prefetch_frames(std::size_t slot) const noexcept {
    if constexpr (!kElsewhere) {
      for (const Id id : ids(slot)) {
        if (id != detail::kNoFrame)
          __builtin_prefetch(kRaw ? raw(id) : reinterpret_cast<std::byte*>(packed(id)));
      }
    }
  }

  void note_written(std::size_t end) noexcept {
    std::size_t before = index_->slots_written.load(std::memory_order_relaxed);
    while (before < end &&
           !index_->slots_written.compare_exchange_weak(before, end, std::memory_order_relaxed)) {
    }
  }

  static std::uint32_t get32(const std::byte* from) noexcept {
    std::uint32_t value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }

  [[noreturn]] static void refuse(const std::string& reason) { throw Error(format() + ": " + reason); }

  /// Checks all but the content of the frames.
  Encoding parse(std::size_t count, std::span<const std::byte> bytes) const {
    if (bytes.size() < kHeadBytes) refuse("only " + std::to_string(bytes.size()) + " bytes");
    std::uint64_t fingerprint;
    std::memcpy(&fingerprint, bytes.data(), sizeof(fingerprint));
    if (fingerprint != split_.fingerprint()) refuse("items of another layout, or other fields were stacks");
    const std::size_t frames = get32(bytes.data() + 8);
    bytes = bytes.subspan(kHeadBytes);
    if (frames > bytes.size() / 4) refuse(std::to_string(frames) + " frames in too few bytes");
    const std::byte* const sizes = bytes.data();
    bytes = bytes.subspan(frames * 4);

    Encoding encoding;
    encoding.frames.reserve(frames);
    for (std::size_t i = 0; i < frames; ++i) {
      const std::size_t size = get32(sizes + i * 4);
      if (size < (kPacked ? 1 : split_.frame_bytes()) || size > std::min(split_.frame_bytes(), bytes.size()))
        refuse("frame " + std::to_string(i + 1) + " has an impossible size, " + std::to_string(size));
      encoding.frames.push_back(bytes.first(size));
      bytes = bytes.subspan(size);
    }
    if (bytes.size() % item_bytes() != 0 || bytes.size() / item_bytes() != count) {
      refuse(std::to_string(bytes.size()) + " bytes are not those of " + std::to_string(count) +
             " items of " + std::to_string(item_bytes()));
    }
    encoding.items = bytes.data();

    std::uint32_t named = 0;
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < split_.frames().size(); ++k) {
        const std::uint32_t number = encoding.number(*this, i, k);
        if (number > frames || number > named + 1)
          refuse("item " + std::to_string(i) + " names frame " + std::to_string(number) + " out of order");
        named = std::max(named, number);
      }
    }
    if (named != frames) refuse("frame " + std::to_string(named + 1) + " belongs to no item");
    return encoding;
  }

  void unpack_foreign(std::span<const std::byte> body, std::byte* frame) const {
    if (!unpack(body, frame)) refuse("a frame cannot be unpacked");
  }

  RecordLayout layout_;
  detail::FrameSplit split_;
  std::size_t capacity_, slot_bytes_;
  Hash hash_;
  Block slots_;
  // The frames themselves, or pointers to packed ones; of use between `take` and `drop` of their id.
  Block frames_;

  std::unique_ptr<Index> index_;
  [[no_unique_address]] std::conditional_t<kElsewhere, Codec, Here> home_;
};

}  // namespace troop
