/// @file
/// A replay on disk: saved while it is in use, loaded whole or not at all.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/core/hash.hpp>
#include <troop/core/random.hpp>
#include <troop/replay/detail/snapshot_access.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>
#include <troop/replay/sharded_replay.hpp>

namespace troop {

struct SnapshotOptions {
  /// Ends the saving early, within milliseconds; an old file is then as it was.
  std::stop_token stop;
  /// Called now and then with the number of items that are done and how many there are.
  std::function<void(std::uint64_t done, std::uint64_t items)> progress;
};

/// What stands at the head of a snapshot.
struct SnapshotInfo {
  std::uint32_t version = 0;
  std::string storage, sampler, remover;  ///< kinds
  std::string layout;                     ///< fields of a record as text; empty for objects
  double alpha = 0.0;
  std::uint64_t items =
      0;  ///< held when the saving began; the file may have fewer, if some were evicted meanwhile
  std::uint32_t replays = 0;  ///< 1, or the number of shards; the rest is about the first
};

/// What is saved and loaded beside the replay itself; null for nothing.
struct SnapshotCompanions {
  RateLimiter* limiter = nullptr;  ///< its counters
  Random* random = nullptr;        ///< its state: the sampler's stream
};

namespace detail {

inline constexpr std::array<char, 8> kSnapshotMagic{'T', 'R', 'O', 'O', 'P', 'R', 'P', 'L'};
inline constexpr std::uint32_t kSnapshotVersion = 1;

enum class SnapshotBlock : std::uint32_t { head = 1, items = 2, limiter = 3, random = 4, end = 5 };

/// The file is a sequence of these, each followed by `bytes` bytes; the checksum is of both but for itself.
struct SnapshotBlockHead {
  std::uint32_t crc = 0;
  SnapshotBlock type{};
  std::uint64_t bytes = 0;
};
static_assert(sizeof(SnapshotBlockHead) == 16);

inline std::uint32_t checksum(const SnapshotBlockHead& head, std::span<const std::byte> content) {
  return crc32c(content, crc32c(std::as_bytes(std::span(&head, 1)).subspan(sizeof(head.crc))));
}

inline void write_block(TemporaryFile& file, SnapshotBlock type, std::span<const std::byte> content) {
  SnapshotBlockHead head{.type = type, .bytes = content.size()};
  head.crc = checksum(head, content);
  file.write(std::as_bytes(std::span(&head, 1)));
  file.write(content);
}

/// Reads blocks and checks their checksums; what is wrong is thrown with the file's name.
class SnapshotFile {
 public:
  explicit SnapshotFile(const std::string& path) : file_(path) { read_magic(); }

  const std::string& path() const noexcept { return file_.path(); }

  SnapshotBlock next() {
    SnapshotBlockHead head;
    if (file_.left() < sizeof(head)) damaged("it ends in the middle");
    file_.read(std::as_writable_bytes(std::span(&head, 1)));
    if (head.bytes > file_.left()) damaged("it ends in the middle");
    content_.resize(static_cast<std::size_t>(head.bytes));
    file_.read(content_);
    if (checksum(head, content_) != head.crc) damaged("a checksum does not match");
    return head.type;
  }

  std::span<const std::byte> content() const noexcept { return content_; }
  std::size_t left() const noexcept { return file_.left(); }
  /// Replays in the file.
  std::uint32_t replays() const noexcept { return replays_; }
  void rewind() {
    file_.rewind();
    read_magic();
  }

  [[noreturn]] void damaged(const std::string& reason) const {
    throw FileError(path(), "is damaged: " + reason);
  }
  [[noreturn]] void refuse(const std::string& reason) const { throw FileError(path(), reason); }

 private:
  void read_magic() {
    std::array<char, 8> magic{};
    std::uint32_t version = 0;
    if (file_.left() >= sizeof(magic) + sizeof(version) + sizeof(replays_)) {
      file_.read(std::as_writable_bytes(std::span(magic)));
      file_.read(std::as_writable_bytes(std::span(&version, 1)));
      file_.read(std::as_writable_bytes(std::span(&replays_, 1)));
    }
    if (magic != kSnapshotMagic) refuse("is not a troop replay (it does not begin with TROOPRPL)");
    if (version != kSnapshotVersion)
      refuse("is of format version " + std::to_string(version) + "; this program reads version " +
             std::to_string(kSnapshotVersion));
  }

  FileReader file_;
  std::uint32_t replays_ = 0;
  std::vector<std::byte> content_;
};

/// The head block: what a replay must agree with, and its state.
struct SnapshotHead {
  std::string storage, sampler, remover;
  std::vector<std::byte> layout;  // as a ByteWriter writes it; empty for objects
  double alpha = 0.0;
  SnapshotState state;

  std::vector<std::byte> to_bytes() const {
    std::vector<std::byte> out;
    ByteWriter writer(out);
    writer.text(storage);
    writer.text(sampler);
    writer.text(remover);
    writer.text({reinterpret_cast<const char*>(layout.data()), layout.size()});
    writer.number(alpha);
    writer.number(state.next_key);
    writer.number(state.size);
    writer.number(state.max_priority);
    for (const std::uint64_t count :
         {state.trimmed, state.samples, state.redraws, state.updates, state.stale_updates})
      writer.number(count);
    writer.numbers(std::span(state.random));
    return out;
  }

  static SnapshotHead from_bytes(std::span<const std::byte> bytes) {
    ByteReader reader(bytes);
    SnapshotHead head;
    head.storage = reader.text();
    head.sampler = reader.text();
    head.remover = reader.text();
    const std::string layout = reader.text();
    const auto layout_bytes = std::as_bytes(std::span(layout));
    head.layout.assign(layout_bytes.begin(), layout_bytes.end());
    head.alpha = reader.number<double>();
    head.state.next_key = reader.number<Key>();
    head.state.size = reader.number<std::uint64_t>();
    head.state.max_priority = reader.number<float>();
    for (std::uint64_t* count : {&head.state.trimmed, &head.state.samples, &head.state.redraws,
                                 &head.state.updates, &head.state.stale_updates})
      *count = reader.number<std::uint64_t>();
    reader.numbers(std::span(head.state.random));
    reader.finish();
    if (!(head.state.max_priority >= 0.0f && std::isfinite(head.state.max_priority)))
      throw Error("a greatest priority of " + to_text(head.state.max_priority));
    Random().set_state(head.state.random);
    return head;
  }
};

template <class Replay>
class SnapshotCodec;

/// What the file of one kind of replay looks like.
template <class Record, class Storage, class Sampler, class Remover>
class SnapshotCodec<PrioritizedReplay<Record, Storage, Sampler, Remover>> {
 public:
  using Replay = PrioritizedReplay<Record, Storage, Sampler, Remover>;
  using Access = SnapshotAccess<Replay>;

  static SnapshotHead head(const Replay& replay) {
    SnapshotHead head{.storage = Storage::format(),
                      .sampler = std::string(Sampler::kName),
                      .remover = std::string(Remover::kName),
                      .layout = {},
                      .alpha = Sampler::kTakesPowers ? replay.options().alpha : 1.0,
                      .state = Access::state(replay)};
    if constexpr (Access::kFlat) ByteWriter(head.layout).layout(replay.layout());
    return head;
  }

  /// Throws FileError, or LayoutMismatch, unless what the head says fits the replay.
  static void require_fit(const SnapshotFile& file, const SnapshotHead& theirs, const Replay& replay) {
    const SnapshotHead ours = head(replay);
    const auto same = [&](const char* what, const std::string& a, const std::string& b) {
      if (a != b) file.refuse("holds a replay with " + (what + (" \"" + a)) + "\", expected \"" + b + "\"");
    };
    same("storage", theirs.storage, ours.storage);
    same("sampler", theirs.sampler, ours.sampler);
    same("remover", theirs.remover, ours.remover);
    if (theirs.alpha != ours.alpha)
      file.refuse("holds priorities to the power of " + to_text(theirs.alpha) + ", expected " +
                  to_text(ours.alpha) + " (alpha)");
    if constexpr (Access::kFlat) {
      if (theirs.layout == ours.layout) return;
      const RecordLayout layout = ByteReader(theirs.layout).layout();
      throw LayoutMismatch(file.path() + ": record layouts differ: " + layout.difference(replay.layout()));
    }
  }

  static std::vector<std::byte> to_bytes(const SnapshotItems& items) {
    std::vector<std::byte> out;
    out.reserve(items.keys.size() * 20 + items.records.size() + 16);
    ByteWriter writer(out);
    writer.number(static_cast<std::uint32_t>(items.keys.size()));
    writer.numbers(std::span<const Key>(items.keys));
    writer.numbers(std::span<const float>(items.values));
    writer.numbers(std::span<const float>(items.priorities));
    writer.bytes(items.records);
    return out;
  }

  /// Checks everything about the items but how they go with others.
  static void from_bytes(const Replay& replay, std::span<const std::byte> bytes, SnapshotItems& items) {
    ByteReader reader(bytes);
    const std::size_t count = reader.count(sizeof(Key) + sizeof(float));
    if (count == 0) throw Error("a piece without items");
    items.keys.resize(count);
    items.values.resize(count);
    items.priorities.resize(Access::kRing ? 0 : count);
    reader.numbers(std::span(items.keys));
    reader.numbers(std::span(items.values));
    reader.numbers(std::span(items.priorities));
    for (const float value : items.values)
      if (!(value >= 0.0f && std::isfinite(value))) throw Error("a priority of " + to_text(value));
    for (const float priority : items.priorities)
      if (!(priority >= 0.0f && std::isfinite(priority))) throw Error("a priority of " + to_text(priority));
    if constexpr (Access::kRing)
      for (std::size_t i = 1; i < count; ++i)
        if (items.keys[i] != items.keys[0] + i) throw Error("keys that do not follow each other");
    const auto records = reader.bytes(reader.left());
    if constexpr (Access::kFlat) {
      replay.storage().validate(count, records);
    } else {
      Storage::load(count, records);
    }
    items.records.assign(records.begin(), records.end());
  }
};

/// Keys as they come in a file: all below the next key, none twice, no more than there is room for.
class SnapshotKeys {
 public:
  SnapshotKeys(Key next_key, std::size_t capacity, bool ordered)
      : next_key_(next_key), capacity_(capacity), ordered_(ordered) {}

  void add(std::span<const Key> keys) {
    for (const Key key : keys)
      if (key >= next_key_)
        throw Error("key " + std::to_string(key) + " of items up to " + std::to_string(next_key_));
    if (!ordered_) {
      seen_.insert(seen_.end(), keys.begin(), keys.end());
      count_ += keys.size();
    } else {
      if (keys.front() < after_) throw Error("keys that do not rise");
      if (keys.front() != after_) count_ = 0;  // what stood before a gap had gone
      count_ += keys.size();
      after_ = keys.back() + 1;
    }
    if (count_ > capacity_) too_many_ = true;
  }

  /// Number of items; throws Error when a key came twice.
  std::uint64_t finish() {
    std::sort(seen_.begin(), seen_.end());
    if (std::adjacent_find(seen_.begin(), seen_.end()) != seen_.end()) throw Error("a key comes twice");
    return count_;
  }
  bool too_many() const noexcept { return too_many_; }

 private:
  Key next_key_, after_ = 0;
  std::uint64_t capacity_, count_ = 0;
  bool ordered_, too_many_ = false;
  std::vector<Key> seen_;
};

/// Writes the items of one replay; false when it was told to stop.
template <class Replay, class Progress>
bool write_items(TemporaryFile& file, const Replay& replay, const SnapshotState& state,
                 const std::stop_token& stop, Progress&& progress) {
  typename SnapshotAccess<Replay>::Reader reader(replay, state.next_key);
  SnapshotItems items;
  while (!stop.stop_requested() && reader.next(items)) {
    write_block(file, SnapshotBlock::items, SnapshotCodec<Replay>::to_bytes(items));
    progress(items.keys.size());
  }
  return !stop.stop_requested();
}

template <class Replay>
Outcome save_replays(const std::string& path, std::span<const Replay* const> replays,
                     const SnapshotCompanions& companions, const SnapshotOptions& options) {
  TemporaryFile file(path);
  const auto count = static_cast<std::uint32_t>(replays.size());
  file.write(std::as_bytes(std::span(kSnapshotMagic)));
  file.write(std::as_bytes(std::span(&kSnapshotVersion, 1)));
  file.write(std::as_bytes(std::span(&count, 1)));
  std::uint64_t done = 0, all = 0;
  for (const Replay* replay : replays) all += replay->size();
  for (const Replay* replay : replays) {
    const SnapshotHead head = SnapshotCodec<Replay>::head(*replay);
    write_block(file, SnapshotBlock::head, head.to_bytes());
    const bool finished = write_items(file, *replay, head.state, options.stop, [&](std::size_t items) {
      done += items;
      if (options.progress) options.progress(std::min(done, all), all);
    });
    if (!finished) return Outcome::cancelled;
  }
  std::vector<std::byte> content;
  if (companions.limiter != nullptr) {
    const RateLimiter::State state = companions.limiter->state();
    ByteWriter(content).number(state.inserts);
    ByteWriter(content).number(state.samples);
    write_block(file, SnapshotBlock::limiter, content);
  }
  content.clear();
  if (companions.random != nullptr) {
    ByteWriter(content).numbers(std::span(companions.random->state()));
    write_block(file, SnapshotBlock::random, content);
  }
  write_block(file, SnapshotBlock::end, {});
  file.finish();
  return Outcome::ok;
}

/// Goes through a whole file. Calls `on_head(i, head)` and `on_items(i, items)` for each replay, `on_end(i,
/// items)` at its end; collects what the companions get. Everything that can be wrong is thrown with the
/// file's name.
template <class Replay, class OnHead, class OnItems, class OnEnd>
void read_snapshot(SnapshotFile& file, std::span<Replay* const> replays,
                   std::optional<RateLimiter::State>& limiter, std::optional<Random::State>& random,
                   OnHead on_head, OnItems on_items, OnEnd on_end) {
  std::size_t seen = 0;  // heads
  SnapshotItems items;
  const auto end_replay = [&] {
    if (seen > 0) on_end(seen - 1);
  };
  while (true) {
    const SnapshotBlock type = file.next();
    ByteReader reader(file.content());
    switch (type) {
      case SnapshotBlock::head:
        end_replay();
        if (seen == replays.size() || limiter || random) file.damaged("a head out of place");
        on_head(seen++, SnapshotHead::from_bytes(file.content()));
        break;
      case SnapshotBlock::items:
        if (seen == 0 || limiter || random) file.damaged("items out of place");
        SnapshotCodec<Replay>::from_bytes(*replays[seen - 1], file.content(), items);
        on_items(seen - 1, items);
        break;
      case SnapshotBlock::limiter:
        limiter.emplace();
        limiter->inserts = reader.number<std::uint64_t>();
        limiter->samples = reader.number<std::uint64_t>();
        reader.finish();
        RateLimiter({}).restore(*limiter);
        break;
      case SnapshotBlock::random:
        reader.numbers(std::span(random.emplace()));
        reader.finish();
        Random().set_state(*random);
        break;
      case SnapshotBlock::end:
        end_replay();
        if (seen != replays.size()) file.damaged("it ends before all replays are there");
        if (file.left() != 0) file.damaged(std::to_string(file.left()) + " bytes after its end");
        return;
      default:
        file.damaged("an unknown block, " + std::to_string(static_cast<std::uint32_t>(type)));
    }
  }
}

template <class Replay>
void load_replays(const std::string& path, std::span<Replay* const> replays,
                  const SnapshotCompanions& companions, const SnapshotOptions& options) {
  SnapshotFile file(path);
  if (file.replays() != replays.size())
    file.refuse("holds " + std::to_string(file.replays()) + " replays, expected " +
                std::to_string(replays.size()));
  std::optional<RateLimiter::State> limiter;
  std::optional<Random::State> random;
  std::uint64_t all = 0, done = 0;

  // First everything is checked, so that a file that is refused changes nothing.
  try {
    std::optional<SnapshotKeys> keys;
    read_snapshot(
        file, replays, limiter, random,
        [&](std::size_t i, const SnapshotHead& head) {
          SnapshotCodec<Replay>::require_fit(file, head, *replays[i]);
          keys.emplace(head.state.next_key, replays[i]->capacity(), SnapshotAccess<Replay>::kRing);
        },
        [&](std::size_t, const SnapshotItems& items) { keys->add(items.keys); },
        [&](std::size_t i) {
          all += keys->finish();
          if (keys->too_many())
            file.refuse("holds more items than the capacity of the replay, " +
                        std::to_string(replays[i]->capacity()));
        });
    if (companions.limiter != nullptr && !limiter) file.refuse("holds no counters of a rate limiter");
    if (companions.random != nullptr && !random) file.refuse("holds no state of a random generator");
  } catch (const FileError&) {
    throw;
  } catch (const LayoutMismatch&) {
    throw;
  } catch (const Error& error) {
    file.damaged(error.what());
  }

  limiter.reset();
  random.reset();
  file.rewind();
  std::vector<SnapshotState> states(replays.size());
  read_snapshot(
      file, replays, limiter, random,
      [&](std::size_t i, const SnapshotHead& head) {
        states[i] = head.state;
        SnapshotAccess<Replay>::begin(*replays[i]);
      },
      [&](std::size_t i, SnapshotItems& items) {
        SnapshotAccess<Replay>::append(*replays[i], items);
        done += items.keys.size();
        if (options.progress) options.progress(std::min(done, all), all);
      },
      [&](std::size_t i) { SnapshotAccess<Replay>::finish(*replays[i], states[i]); });
  if (companions.limiter != nullptr) companions.limiter->restore(*limiter);
  if (companions.random != nullptr) companions.random->set_state(*random);
}

}  // namespace detail

/// Saves the replay as the file `path`, which a reader sees whole or not at all (see
/// `write_file_atomically`): keys, records, priorities, counters, the remover's random state, and the
/// companions. A file that is there is replaced only when the new one is complete and on the disk.
///
/// The replay may be used meanwhile: it is copied in pieces of at most some megabytes, each under the lock
/// or, records of 1 KiB or more, under those of a part of the slots; no more memory is needed than for one
/// piece. Of a replay in use, the file holds the items that had been added when the saving began, each as it
/// is at the moment in which it is copied, without those that were evicted until then, the oldest of what is
/// left being the oldest of the file. An item whose `add` has not returned yet is saved with priority 0. Of a
/// replay at rest it holds just its state: saved, loaded and saved again, the two files are equal to the last
/// byte.
///
/// Returns Outcome::ok, or Outcome::cancelled when `options.stop` asked for it. Throws FileError when the
/// file cannot be written, a full disk included.
///
///     save_snapshot("run/replay", replay, {.limiter = &limiter, .random = &random});
///     load_snapshot("run/replay", replay, {.limiter = &limiter, .random = &random});
template <class Record, class Storage, class Sampler, class Remover>
Outcome save_snapshot(const std::string& path,
                      const PrioritizedReplay<Record, Storage, Sampler, Remover>& replay,
                      const SnapshotCompanions& companions = {}, const SnapshotOptions& options = {}) {
  using Replay = PrioritizedReplay<Record, Storage, Sampler, Remover>;
  const Replay* const one = &replay;
  return detail::save_replays<Replay>(path, std::span(&one, 1), companions, options);
}

/// Replaces what the replay holds by what `save_snapshot` wrote. The layout, storage, sampler, remover and
/// alpha must be the same; the capacity may be another if the items fit in. The file is read twice, first
/// only to be checked, so that one that is refused leaves the replay as it is. Nobody may use the replay
/// meanwhile.
///
/// Throws FileError with the file's name and the reason for one that cannot be read, is foreign, of a newer
/// version, cut off, changed in any bit, or of another kind of replay, LayoutMismatch for records of another
/// layout. Should the file change between the two readings, the replay is left empty or in part loaded.
/// `options.stop` is not asked.
template <class Record, class Storage, class Sampler, class Remover>
void load_snapshot(const std::string& path, PrioritizedReplay<Record, Storage, Sampler, Remover>& replay,
                   const SnapshotCompanions& companions = {}, const SnapshotOptions& options = {}) {
  using Replay = PrioritizedReplay<Record, Storage, Sampler, Remover>;
  Replay* const one = &replay;
  detail::load_replays<Replay>(path, std::span(&one, 1), companions, options);
}

/// The same for a sharded replay whose shards are all of this process: one file, shard after shard. Of a
/// replay in use, each shard is saved as it was when its own turn came. To be loaded into as many shards, in
/// the same order: a key says which shard it belongs to.
template <class Record, class Storage, class Sampler, class Remover>
Outcome save_snapshot(const std::string& path,
                      const ShardedReplay<PrioritizedReplay<Record, Storage, Sampler, Remover>>& replay,
                      const SnapshotCompanions& companions = {}, const SnapshotOptions& options = {}) {
  using Replay = PrioritizedReplay<Record, Storage, Sampler, Remover>;
  std::vector<const Replay*> shards;
  for (const auto& shard : replay.shards()) shards.push_back(shard.get());
  return detail::save_replays<Replay>(path, shards, companions, options);
}

template <class Record, class Storage, class Sampler, class Remover>
void load_snapshot(const std::string& path,
                   ShardedReplay<PrioritizedReplay<Record, Storage, Sampler, Remover>>& replay,
                   const SnapshotCompanions& companions = {}, const SnapshotOptions& options = {}) {
  using Replay = PrioritizedReplay<Record, Storage, Sampler, Remover>;
  std::vector<Replay*> shards;
  for (const auto& shard : replay.shards()) shards.push_back(shard.get());
  detail::load_replays<Replay>(path, shards, companions, options);
}

/// What the file says about itself, without its items. Throws FileError as `load_snapshot` does.
inline SnapshotInfo read_snapshot_info(const std::string& path) {
  detail::SnapshotFile file(path);
  if (file.next() != detail::SnapshotBlock::head) file.damaged("it does not begin with a head");
  try {
    const auto head = detail::SnapshotHead::from_bytes(file.content());
    return {.version = detail::kSnapshotVersion,
            .storage = head.storage,
            .sampler = head.sampler,
            .remover = head.remover,
            .layout = head.layout.empty() ? std::string() : ByteReader(head.layout).layout().describe(),
            .alpha = head.alpha,
            .items = head.state.size,
            .replays = file.replays()};
  } catch (const FileError&) {
    throw;
  } catch (const Error& error) {
    file.damaged(error.what());
  }
}

}  // namespace troop
