/// @file
/// The items of a replay on disk, as they are inserted: nothing that was acknowledged is lost.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <troop/compression/lz4.hpp>
#include <troop/core/bytes.hpp>
#include <troop/core/clock.hpp>
#include <troop/core/commit_line.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/durability/checkpoint.hpp>
#include <troop/durability/detail/blocks.hpp>
#include <troop/durability/object_store.hpp>
#include <troop/durability/run_directory.hpp>
#include <troop/fwd.hpp>
#include <troop/replay/detail/snapshot_access.hpp>

namespace troop::durability {

/// What a log does when the disk is slower than the actors for long, or takes nothing any more. `wait`: inserts
/// wait, nothing that was acknowledged is ever lost. `give_up`: the log ends, with a sentence and an alarm, and the
/// training goes on with checkpoints alone.
enum class SlowDisk { wait, give_up };

struct ReplayLogOptions {
  std::size_t segment_bytes = std::size_t{64} << 20;  ///< of a file, about
  /// Of items that wait to be written; as much again is being written.
  std::size_t max_pending_bytes = std::size_t{64} << 20;
  SlowDisk slow_disk = SlowDisk::wait;
  /// With `give_up`: how long inserts wait before the log ends.
  Clock::duration patience = std::chrono::seconds(10);
  /// In a sequential store each commit is an object; so long it gathers first.
  Clock::duration sequential_interval = std::chrono::milliseconds(500);

  void validate() const {
    require(segment_bytes >= 4096, "segment_bytes", segment_bytes, "at least 4096");
    require(max_pending_bytes >= 4096 && max_pending_bytes <= (std::size_t{1} << 30), "max_pending_bytes",
            max_pending_bytes, "an integer from 4096 to 2^30");
  }
};

/// Since construction; pending bytes and segments are those of now.
struct ReplayLogStatistics {
  std::uint64_t items = 0, batches = 0;  ///< that are on the disk
  std::uint64_t commits = 0;
  std::uint64_t raw_bytes = 0, written_bytes = 0;  ///< before and after compression
  std::uint64_t pending_bytes = 0, segments = 0;
  std::uint64_t waits = 0;    ///< inserts that had to wait for the disk
  bool is_failing = false;    ///< the last write failed and is tried again: an alarm
  bool has_given_up = false;  ///< the log has ended: an alarm
};

/// What was found in a run directory.
struct RestoredReplay {
  std::uint64_t items = 0;            ///< read, those that were evicted again included
  std::uint64_t priorities = 0;       ///< that came from a table of priorities
  std::vector<ClientBatch> sessions;  ///< the longest away first
};

namespace detail {

inline constexpr FileKind kSegmentFile{"TROOPSEG", 1, "segment of a replay"};
inline constexpr FileKind kPrioritiesFile{"TROOPPRI", 1, "table of priorities"};
inline constexpr std::string_view kReplayFolder = "replay/", kSegmentPrefix = "segment-",
                                  kPrioritiesPrefix = "priorities-";

enum class SegmentBlock : std::uint32_t { head = 1, batches = 2 };

/// What a segment begins with.
struct SegmentHead {
  std::vector<std::byte> layout;  // as a ByteWriter writes it
  std::string codec;
  std::uint64_t first_key = 0;
  std::vector<ClientBatch> sessions;  // as they were before the first batch

  std::vector<std::byte> to_bytes() const {
    std::vector<std::byte> out;
    ByteWriter writer(out);
    writer.text({reinterpret_cast<const char*>(layout.data()), layout.size()});
    writer.text(codec);
    writer.number(first_key);
    writer.number(static_cast<std::uint32_t>(sessions.size()));
    writer.bytes(std::as_bytes(std::span(sessions)));
    return out;
  }

  static SegmentHead from_bytes(std::span<const std::byte> bytes) {
    ByteReader reader(bytes);
    SegmentHead head;
    const std::string layout = reader.text();
    const auto layout_bytes = std::as_bytes(std::span(layout));
    head.layout.assign(layout_bytes.begin(), layout_bytes.end());
    head.codec = reader.text();
    head.first_key = reader.number<std::uint64_t>();
    head.sessions.resize(reader.count(sizeof(ClientBatch)));
    values_from(reader.bytes(head.sessions.size() * sizeof(ClientBatch)), head.sessions);
    reader.finish();
    return head;
  }
};

/// In front of each batch within a block, at a multiple of 8; after it the priorities, filled up with zeros to a
/// multiple of 8, and the records, filled up likewise.
struct BatchHead {
  ClientBatch from;
  std::uint64_t first_key = 0;
  std::uint32_t count = 0, zero = 0;
};
static_assert(sizeof(BatchHead) == 40);

constexpr std::size_t round_up(std::size_t bytes) noexcept {
  return (bytes + 7) / 8 * 8;
}

/// Bytes that grow without being zeroed first.
class RawBytes {
 public:
  std::byte* extend(std::size_t bytes) {
    if (size_ + bytes > capacity_) {
      const std::size_t capacity = std::max(size_ + bytes, capacity_ + capacity_ / 2);
      auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
      if (size_ > 0) std::memcpy(larger.get(), data_.get(), size_);
      data_ = std::move(larger);
      capacity_ = capacity;
    }
    size_ += bytes;
    return data_.get() + size_ - bytes;
  }
  void append(const void* data, std::size_t bytes) {
    std::byte* const to = extend(round_up(bytes));
    std::memcpy(to, data, bytes);
    std::memset(to + bytes, 0, round_up(bytes) - bytes);
  }
  void clear() noexcept { size_ = 0; }
  std::size_t size() const noexcept { return size_; }
  std::span<const std::byte> bytes() const noexcept { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0, capacity_ = 0;
};

/// Goes through the batches of a block. Throws Error when it is none.
template <class F>
void for_batches(std::span<const std::byte> block, std::size_t record_bytes, F&& f) {
  ByteReader reader(block);
  while (reader.left() > 0) {
    BatchHead head;
    std::memcpy(&head, reader.bytes(sizeof head).data(), sizeof head);
    if (head.count == 0 || head.count > reader.left() / sizeof(float))
      throw Error("a batch of impossible size");
    const auto priorities = reader.bytes(round_up(head.count * sizeof(float)));
    const auto records = reader.bytes(round_up(head.count * record_bytes));
    f(head, priorities.first(head.count * sizeof(float)), records);
  }
}

/// Unpacks the content of a block of batches. Throws Error when it is none.
inline void unpack_block(std::span<const std::byte> content, std::vector<std::byte>& block) {
  ByteReader reader(content);
  const auto bytes = reader.number<std::uint64_t>();
  // A byte of LZ4 stands for no more than 255.
  if (bytes > (std::uint64_t{2} << 30) || bytes > 255 * static_cast<std::uint64_t>(reader.left()))
    throw Error("a block of " + std::to_string(bytes) + " bytes");
  block.resize(static_cast<std::size_t>(bytes));
  if (!Lz4::decompress(reader.bytes(reader.left()), block)) throw Error("a block that cannot be unpacked");
}

/// Sessions in the order in which they were last seen.
class SessionTable {
 public:
  void see(const ClientBatch& batch) {
    if (batch.client == std::array<std::byte, 16>{}) return;  // of this process
    if (sessions_.size() >= kMost && !sessions_.contains(batch.client)) {
      sessions_.erase(std::min_element(sessions_.begin(), sessions_.end(), [](const auto& a, const auto& b) {
        return a.second.seen < b.second.seen;
      }));
    }
    Known& known = sessions_[batch.client];
    known.number = std::max(known.number, batch.number);
    known.seen = ++seen_;
  }

  std::vector<ClientBatch> list() const {
    std::vector<std::pair<std::uint64_t, ClientBatch>> ordered;
    for (const auto& [client, known] : sessions_) ordered.push_back({known.seen, {client, known.number}});
    std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<ClientBatch> sessions;
    for (const auto& entry : ordered) sessions.push_back(entry.second);
    return sessions;
  }

 private:
  static constexpr std::size_t kMost = 65536;
  struct Known {
    std::uint64_t number = 0, seen = 0;
  };
  std::map<std::array<std::byte, 16>, Known> sessions_;
  std::uint64_t seen_ = 0;
};

}  // namespace detail

/// Keeps the items of a replay in segments of a run directory, so that a program which goes on with the run has
/// them again, each once. A thread of its own packs, writes and syncs whatever has gathered since it last did, and
/// then moves `commits()` on: what that has reached survives the machine. So a batch may be acknowledged when its
/// ticket is reached, and many batches share one sync.
///
/// Segments are removed when the capacity is full of newer items that are on the disk. Priorities as they are at a
/// moment lie in tables (4 bytes an item), the newest of which is applied when the run goes on; items that are newer
/// than it have those that they were inserted with. Each segment begins with the sessions of all clients, so that the
/// newest one tells them.
///
/// The replay must be one whose oldest item goes first. Its records are kept as they were given, whatever its
/// storage makes of them.
///
/// Thread-safe, after construction, which blocks until the replay is filled. Memory: twice `max_pending_bytes`, a
/// batch for each thread that inserts, and what compression takes.
///
///     ReplayLog log(directory, replay);                       // fills the replay
///     if (log.await_room(deadline) == Outcome::ok)
///       limiter.insert(n, deadline, [&] { log.add(from, records, priorities); });
template <class Replay>
class ReplayLog {
  using Access = troop::detail::SnapshotAccess<Replay>;
  static_assert(Access::kRing && Access::kFlat,
                "a log needs a replay of records whose oldest item goes first: give it no other Remover");

 public:
  /// Fills the replay, which must be new, with what the directory holds. What is damaged is said and passed over,
  /// with everything older if items are missing then. Throws LayoutMismatch when the records are of another layout,
  /// FileError when the directory cannot be read or written.
  ReplayLog(RunDirectory& directory, Replay& replay, const ReplayLogOptions& options = {})
      : options_((options.validate(), options)),
        directory_(directory),
        replay_(replay),
        record_bytes_(replay.layout().size()) {
    ByteWriter(layout_).layout(replay.layout());
    restore();
    thread_ = std::thread([this] { work(); });
  }

  ReplayLog(const ReplayLog&) = delete;
  ReplayLog& operator=(const ReplayLog&) = delete;

  /// Writes what waits, if the disk takes it, and ends.
  ~ReplayLog() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    condition_.notify_all();
    thread_.join();
  }

  const RestoredReplay& restored() const noexcept { return restored_; }

  /// What is on the disk.
  CommitLine& commits() noexcept { return commits_; }

  /// Waits until there is room for a batch. Another one of each thread may come in between: the bound is that of
  /// the options and a batch a thread.
  Outcome await_room(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto has_room = [&] {
      return pending_.size() < options_.max_pending_bytes || has_given_up_ || is_closed_;
    };
    if (!has_room()) {
      ++statistics_.waits;
      if (!deadline.wait(room_, lock, has_room)) return Outcome::timeout;
    }
    return is_closed_ ? Outcome::closed : Outcome::ok;
  }

  /// Ends all waiting for room; what was added before is still written.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    room_.notify_all();
  }

  /// Adds a batch to the replay and to what is to be written; returns its ticket. `from`: the client and its number
  /// of the batch; zeros for an actor of this process. Throws what the replay throws; then nothing was added.
  std::uint64_t add(const ClientBatch& from, const BatchView& records, std::span<const float> priorities) {
    const std::lock_guard lock(mutex_);
    const Key first = replay_.add(records, priorities);  // under the lock: the order is that of the keys
    const std::uint64_t ticket = commits_.issue();
    if (has_given_up_) return ticket;
    const detail::BatchHead head{
        .from = from, .first_key = first, .count = static_cast<std::uint32_t>(records.size())};
    pending_.append(&head, sizeof head);
    pending_.append(priorities.data(), priorities.size_bytes());
    if (records.stride() == record_bytes_) {
      pending_.append(records.data(), records.size() * record_bytes_);
    } else {
      const std::size_t bytes = detail::round_up(records.size() * record_bytes_);
      std::byte* to = pending_.extend(bytes);
      std::memset(to + bytes - std::min<std::size_t>(bytes, 8), 0, std::min<std::size_t>(bytes, 8));
      for (std::size_t i = 0; i < records.size(); ++i, to += record_bytes_)
        std::memcpy(to, records.record(i), record_bytes_);
    }
    condition_.notify_all();
    return ticket;
  }

  /// Waits until everything that was added before is on the disk. False when the deadline passed before.
  bool flush(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const std::uint64_t ticket = commits_.issued();
    is_urgent_ = true;
    condition_.notify_all();
    return deadline.wait(room_, lock, [&] { return commits_.reached() >= ticket || has_given_up_; }) &&
           !has_given_up_;
  }

  /// Has the present priorities written soon, by the log's thread.
  void write_priorities() {
    const std::lock_guard lock(mutex_);
    wants_priorities_ = true;
    condition_.notify_all();
  }

  ReplayLogStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    ReplayLogStatistics statistics = statistics_;
    statistics.pending_bytes = pending_.size();
    statistics.has_given_up = has_given_up_;
    return statistics;
  }

 private:
  struct Segment {
    std::string name;
    Key end = 0;  // after its last item
  };

  // Reading what there is.

  struct Found {
    std::string name;
    std::uint64_t generation;
    detail::SegmentHead head;
    Key limit = std::numeric_limits<Key>::max();  // from which on a newer generation has its own
  };

  void restore() {
    const ObjectStore& store = directory_.store();
    std::vector<Found> found;
    for (const std::string& name : store.names(detail::kReplayFolder, detail::kSegmentPrefix)) {
      try {
        detail::BlockReader reader(store.path(name), detail::kSegmentFile);
        found.push_back({name, detail::generation_of(name), read_head(reader)});
      } catch (const FileError& error) {
        directory_.say(std::string(error.what()) + "; its items are passed over");
        segments_.push_back({name, 0});
      }
    }
    Key limit = std::numeric_limits<Key>::max(), next_limit = limit;
    for (std::size_t i = found.size(); i-- > 0;) {
      if (i + 1 < found.size() && found[i].generation != found[i + 1].generation) limit = next_limit;
      found[i].limit = limit;
      next_limit = std::min(limit, found[i].head.first_key);
    }
    for (const Found& segment : found) load(segment);
    restored_.sessions = sessions_.list();
    load_priorities(found);
    statistics_.segments = segments_.size();
    written_end_ = replay_.next_key();
  }

  /// The head of a segment of this replay.
  detail::SegmentHead read_head(detail::BlockReader& reader) const {
    if (reader.next() != static_cast<std::uint32_t>(detail::SegmentBlock::head))
      reader.damaged("it does not begin with a head");
    detail::SegmentHead head =
        checked(reader, [&] { return detail::SegmentHead::from_bytes(reader.content()); });
    if (head.layout != layout_) {
      const RecordLayout theirs = checked(reader, [&] { return ByteReader(head.layout).layout(); });
      throw LayoutMismatch(reader.path() + ": record layouts differ: " + theirs.difference(replay_.layout()));
    }
    if (head.codec != Lz4::name)
      throw FileError(reader.path(), "is packed by \"" + head.codec + "\", which this program does not know");
    return head;
  }

  template <class F>
  static auto checked(const detail::BlockReader& reader, F&& f) {
    try {
      return f();
    } catch (const Error& error) {
      reader.damaged(error.what());
    }
  }

  /// Adds the items of a segment, as far as it is whole.
  void load(const Found& segment) {
    const std::string path = directory_.store().path(segment.name);
    for (const ClientBatch& session : segment.head.sessions) sessions_.see(session);
    if (restored_.items == 0) Access::continue_at(replay_, segment.head.first_key);
    Key end = segment.head.first_key;
    try {
      detail::BlockReader reader(path, detail::kSegmentFile);
      reader.next();
      std::vector<std::byte> block;
      while (reader.left() > 0 && reader.next() != detail::kEnd) {
        checked(reader, [&] {
          detail::unpack_block(reader.content(), block);
          detail::for_batches(block, record_bytes_,
                              [&](const detail::BatchHead& head, std::span<const std::byte> priorities,
                                  std::span<const std::byte> records) {
                                if (head.first_key + head.count > segment.limit) return;
                                add_again(path, head, priorities, records);
                                end = head.first_key + head.count;
                              });
          return true;
        });
      }
    } catch (const FileError& error) {
      directory_.say(std::string(error.what()) + "; " + std::to_string(end - segment.head.first_key) +
                     " items of it are used");
    }
    segments_.push_back({segment.name, end});
  }

  void add_again(const std::string& path, const detail::BatchHead& head,
                 std::span<const std::byte> priorities, std::span<const std::byte> records) {
    const Key next = replay_.next_key();
    if (head.first_key < next) return;  // there already
    if (head.first_key > next) {
      directory_.say(path + ": items " + std::to_string(next) + " to " + std::to_string(head.first_key - 1) +
                     " are missing before it; they and older ones are lost");
      Access::continue_at(replay_, head.first_key);
    }
    std::vector<float> values;
    detail::values_from(priorities, values);
    replay_.add(BatchView(replay_.layout(), records.data(), head.count), values);
    restored_.items += head.count;
    sessions_.see(head.from);
  }

  /// Applies the newest table of priorities that is whole.
  void load_priorities(std::span<const Found> found) {
    const ObjectStore& store = directory_.store();
    const auto names = store.names(detail::kReplayFolder, detail::kPrioritiesPrefix);
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      try {
        detail::BlockReader reader(store.path(*name), detail::kPrioritiesFile);
        if (reader.next() != 1) reader.damaged("it does not begin with its items");
        checked(reader, [&] {
          ByteReader values(reader.content());
          const auto first = values.template number<std::uint64_t>();
          const auto alpha = values.template number<double>();
          std::vector<float> table;
          detail::values_from(values.bytes(values.left()), table);
          if (alpha != replay_.options().alpha) throw Error("it is of another alpha");
          for (const float value : table)
            if (!(value >= 0.0f && std::isfinite(value))) throw Error("a priority that is not allowed");
          // A newer program has given the keys from there on to other items.
          const std::uint64_t generation = detail::generation_of(*name);
          Key end = first + table.size();
          for (const Found& segment : found)
            if (segment.generation > generation) end = std::min(end, std::max(first, segment.head.first_key));
          Access::write_values(replay_, first, std::span(table).first(static_cast<std::size_t>(end - first)));
          restored_.priorities = end - first;
          return true;
        });
        return;
      } catch (const FileError& error) {
        directory_.say(std::string(error.what()) + "; looking for the one before");
      }
    }
  }

  // Writing.

  void work() {
    detail::RawBytes writing;
    std::unique_lock lock(mutex_);
    while (true) {
      condition_.wait_for(lock, std::chrono::seconds(1),
                          [&] { return pending_.size() > 0 || is_ending_ || wants_priorities_; });
      if (is_sequential() && !is_ending_ && !is_urgent_ && pending_.size() > 0)
        condition_.wait_for(lock, options_.sequential_interval, [&] {
          return is_ending_ || is_urgent_ || pending_.size() >= options_.max_pending_bytes;
        });
      if (has_given_up_) {
        writing.clear();
        pending_.clear();
      } else if (writing.size() == 0) {
        std::swap(writing, pending_);
        writing_ticket_ = commits_.issued();
      }
      is_urgent_ = false;
      const bool is_last = is_ending_;
      const bool with_priorities = std::exchange(wants_priorities_, false) && !has_given_up_;
      const std::uint64_t ticket = has_given_up_ ? commits_.issued() : writing_ticket_;
      lock.unlock();
      room_.notify_all();
      const bool is_written = has_given_up_ || writing.size() == 0 || write(writing.bytes());
      if (is_written) {
        writing.clear();
        if (ticket > commits_.reached()) commits_.reach(ticket);
        failing_since_.reset();
      }
      if (with_priorities) write_table();
      remove_evicted();
      lock.lock();
      statistics_.is_failing = !is_written;
      statistics_.segments = segments_.size() + (file_ ? 1 : 0);
      room_.notify_all();  // of `flush`
      if (is_last && (pending_.size() == 0 || !is_written)) break;
      if (!is_written) wait_for_the_disk(lock);
    }
    lock.unlock();
    close_segment();
  }

  /// After a write that failed.
  void wait_for_the_disk(std::unique_lock<std::mutex>& lock) {
    if (!failing_since_) failing_since_ = Clock::now();
    if (options_.slow_disk == SlowDisk::give_up && Clock::now() - *failing_since_ >= options_.patience) {
      has_given_up_ = true;
      directory_.say(
          "the log of the replay is given up: from now on there are checkpoints alone, and a restart begins "
          "with an empty replay");
      drop_everything();
      return;
    }
    condition_.wait_for(lock, std::chrono::milliseconds(500), [&] { return is_ending_; });
  }

  bool is_sequential() const noexcept { return directory_.store().kind() == StoreKind::sequential; }

  /// Writes a block and syncs it. Says the first failure of a row.
  bool write(std::span<const std::byte> block) {
    try {
      directory_.require_held();
      std::vector<std::byte>& packed = packed_;
      packed.resize(sizeof(std::uint64_t) + Lz4::bound(block.size()));
      const std::uint64_t raw = block.size();
      std::memcpy(packed.data(), &raw, sizeof raw);
      const std::size_t bytes = sizeof raw + Lz4::compress(block, std::span(packed).subspan(sizeof raw));
      const auto content = std::span<const std::byte>(packed).first(bytes);
      Key first = std::numeric_limits<Key>::max();
      std::uint64_t items = 0, batches = 0;
      detail::for_batches(block, record_bytes_, [&](const detail::BatchHead& head, auto, auto) {
        first = std::min<Key>(first, head.first_key);
        items += head.count;
        ++batches;
      });
      if (!file_) open_segment(first);
      const std::size_t before = file_->size();
      try {
        detail::write_block(*file_, static_cast<std::uint32_t>(detail::SegmentBlock::batches), content);
        if (is_sequential()) detail::write_block(*file_, detail::kEnd);
        file_->sync();
        if (is_sequential()) file_->close();
      } catch (...) {
        give_back(before);
        throw;
      }
      detail::for_batches(block, record_bytes_, [&](const detail::BatchHead& head, auto, auto) {
        sessions_.see(head.from);
        written_end_ = head.first_key + head.count;
      });
      current_.end = written_end_;
      {
        const std::lock_guard lock(mutex_);
        statistics_.items += items;
        statistics_.batches += batches;
        ++statistics_.commits;
        statistics_.raw_bytes += raw;
        statistics_.written_bytes += bytes;
      }
      if (is_sequential()) {
        segments_.push_back(current_);
        file_.reset();
      } else if (file_->size() >= options_.segment_bytes) {
        close_segment();
      }
      return true;
    } catch (const std::exception& error) {
      if (!failing_since_)
        directory_.say(std::string("the log of the replay cannot be written: ") + error.what());
      return false;
    }
  }

  /// After a write that failed: the segment ends where it was, or is of no use.
  void give_back(std::size_t before) {
    try {
      if (is_sequential()) throw Error("it cannot be cut off");
      file_->truncate(before);
    } catch (const Error&) {  // the readers see where it ends
      if (current_.end > 0) segments_.push_back(current_);
      file_.reset();
    }
  }

  void open_segment(Key first) {
    const std::string name = std::string(detail::kReplayFolder) +
                             detail::object_name(detail::kSegmentPrefix, directory_.generation(), ++number_);
    file_.emplace(directory_.store().path(name));
    current_ = {name, first};
    try {
      const detail::SegmentHead head{.layout = layout_,
                                     .codec = std::string(Lz4::name),
                                     .first_key = first,
                                     .sessions = sessions_.list()};
      file_->write(detail::file_head(detail::kSegmentFile));
      detail::write_block(*file_, static_cast<std::uint32_t>(detail::SegmentBlock::head), head.to_bytes());
      sync_folder();
    } catch (...) {
      file_.reset();
      directory_.store().remove(name);
      throw;
    }
  }

  /// A new name must survive the machine, too.
  void sync_folder() const {
    const std::string folder = directory_.store().path(detail::kReplayFolder);
    const troop::detail::FileHandle handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (handle.is_open() && ::fsync(handle.get()) != 0 && !detail::has_no_sync(errno))
      troop::detail::throw_file_error(folder, "cannot write to the disk", errno);
  }

  /// Ends the segment that is being written.
  void close_segment() {
    if (!file_) return;
    try {
      detail::write_block(*file_, detail::kEnd);
      file_->sync();
      file_->close();
    } catch (const Error&) {  // all that counts is on the disk
    }
    segments_.push_back(current_);
    file_.reset();
  }

  /// The priorities of what is on the disk.
  void write_table() {
    try {
      directory_.require_held();
      const Key end = written_end_;
      const auto statistics = replay_.statistics();
      const Key first = std::min<Key>(statistics.evictions, end);
      std::vector<float> values(static_cast<std::size_t>(end - first));
      constexpr std::size_t kPiece = 4096;
      for (std::size_t i = 0; i < values.size(); i += kPiece)
        Access::read_values(replay_, first + i,
                            std::span(values).subspan(i, std::min(kPiece, values.size() - i)));
      std::vector<std::byte> content;
      content.reserve(16 + values.size() * sizeof(float));
      ByteWriter writer(content);
      writer.number(static_cast<std::uint64_t>(first));
      writer.number(replay_.options().alpha);
      writer.numbers(std::span<const float>(values));
      const std::string name =
          std::string(detail::kReplayFolder) +
          detail::object_name(detail::kPrioritiesPrefix, directory_.generation(), ++tables_);
      const detail::BlockHead head = detail::block_head(1, content), last = detail::block_head(detail::kEnd);
      directory_.store().write(name, detail::file_head(detail::kPrioritiesFile),
                               std::as_bytes(std::span(&head, 1)), content,
                               std::as_bytes(std::span(&last, 1)));
      auto names = directory_.store().names(detail::kReplayFolder, detail::kPrioritiesPrefix);
      for (std::size_t i = 0; i + 2 < names.size(); ++i) directory_.store().remove(names[i]);
    } catch (const std::exception& error) {
      directory_.say(std::string("no priorities were written: ") + error.what());
    }
  }

  /// Removes segments of which no item is left.
  void remove_evicted() {
    if (segments_.empty() || directory_.is_lost()) return;
    // Not what was evicted in memory: of that, items that are not on the disk yet may have taken the place.
    const Key kept = written_end_ - std::min<Key>(written_end_, replay_.capacity());
    while (!segments_.empty() && segments_.front().end <= kept) {
      try {
        directory_.store().remove(segments_.front().name);
      } catch (const FileError&) {
        return;  // later
      }
      segments_.pop_front();
    }
  }

  /// What would be there again after a restart has lost its meaning.
  void drop_everything() {
    if (file_) segments_.push_back(current_);
    file_.reset();
    for (const Segment& segment : segments_) {
      try {
        directory_.store().remove(segment.name);
      } catch (const FileError& error) {
        directory_.say(error.what());
      }
    }
    segments_.clear();
  }

  const ReplayLogOptions options_;
  RunDirectory& directory_;
  Replay& replay_;
  const std::size_t record_bytes_;
  std::vector<std::byte> layout_;
  RestoredReplay restored_;
  CommitLine commits_;

  mutable std::mutex mutex_;  // guards the following; taken before any lock of the replay
  std::condition_variable condition_, room_;
  detail::RawBytes pending_;
  bool is_ending_ = false, is_closed_ = false, is_urgent_ = false, wants_priorities_ = false;
  std::atomic<bool> has_given_up_{false};
  ReplayLogStatistics statistics_;

  // Only the log's thread uses these, and the constructor.
  std::deque<Segment> segments_;  // that are finished, the oldest first
  std::optional<detail::NewFile> file_;
  Segment current_;
  detail::SessionTable sessions_;  // of what is on the disk
  std::vector<std::byte> packed_;
  std::uint64_t number_ = 0, tables_ = 0, writing_ticket_ = 0;
  Key written_end_ = 0;
  std::optional<Clock::time_point> failing_since_;
  std::thread thread_;
};

}  // namespace troop::durability
