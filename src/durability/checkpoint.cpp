#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <troop/durability/checkpoint.hpp>

namespace troop::durability {

namespace detail {

std::vector<std::byte> info_bytes(const CheckpointInfo& info) {
  std::vector<std::byte> out;
  ByteWriter writer(out);
  writer.text(info.network);
  for (const std::uint64_t number :
       {info.parameters, info.learner_steps, info.skipped_steps, info.optimizer_steps, info.environment_steps,
        info.parameter_version, info.next_key, info.limiter.inserts, info.limiter.samples, info.evaluations})
    writer.number(number);
  writer.number(info.seconds);
  writer.number(info.mean_return);
  writer.numbers(std::span(info.sampler));
  return out;
}

CheckpointInfo info_from(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  CheckpointInfo info;
  info.network = reader.text();
  for (std::uint64_t* number :
       {&info.parameters, &info.learner_steps, &info.skipped_steps, &info.optimizer_steps,
        &info.environment_steps, &info.parameter_version, &info.next_key, &info.limiter.inserts,
        &info.limiter.samples, &info.evaluations})
    *number = reader.number<std::uint64_t>();
  info.seconds = reader.number<double>();
  info.mean_return = reader.number<double>();
  reader.numbers(std::span(info.sampler));
  reader.finish();
  Random().set_state(info.sampler);
  return info;
}

void drop_from_memory(const std::string& path) {
  const troop::detail::FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.is_open()) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace detail

void write_checkpoint(const ObjectStore& store, std::string_view name, const Checkpoint& checkpoint) {
  const std::vector<std::byte> info = detail::info_bytes(checkpoint.info);
  const auto head = detail::file_head(detail::kCheckpointFile);
  std::array<detail::BlockHead, 5> heads;
  std::array<std::span<const std::byte>, 5> contents;
  std::size_t i = 0;
  detail::for_blocks(checkpoint, info, [&](detail::CheckpointBlock type, std::span<const std::byte> bytes) {
    heads[i] = detail::block_head(static_cast<std::uint32_t>(type), bytes);
    contents[i++] = bytes;
  });
  const auto bytes_of = [](const detail::BlockHead& block) { return std::as_bytes(std::span(&block, 1)); };
  const detail::BlockHead end = detail::block_head(detail::kEnd);
  store.write(name, head, bytes_of(heads[0]), contents[0], bytes_of(heads[1]), contents[1],
              bytes_of(heads[2]), contents[2], bytes_of(heads[3]), contents[3], bytes_of(heads[4]),
              contents[4], bytes_of(end));
}

Checkpoint read_checkpoint(const std::string& path) {
  detail::BlockReader reader(path, detail::kCheckpointFile);
  Checkpoint checkpoint;
  try {
    for (std::uint32_t wanted = 1; wanted <= 5; ++wanted) {
      if (reader.next() != wanted) reader.damaged("blocks that are not those of a checkpoint");
      const auto content = reader.content();
      switch (static_cast<detail::CheckpointBlock>(wanted)) {
        case detail::CheckpointBlock::info:
          checkpoint.info = detail::info_from(content);
          break;
        case detail::CheckpointBlock::online:
          detail::values_from(content, checkpoint.online);
          break;
        case detail::CheckpointBlock::target:
          detail::values_from(content, checkpoint.target);
          break;
        case detail::CheckpointBlock::optimizer:
          detail::values_from(content, checkpoint.optimizer);
          break;
        case detail::CheckpointBlock::sessions:
          detail::values_from(content, checkpoint.sessions);
          break;
      }
    }
    if (reader.next() != detail::kEnd) reader.damaged("blocks that are not those of a checkpoint");
    for (const std::vector<float>* values : {&checkpoint.online, &checkpoint.target}) {
      if (values->size() != checkpoint.info.parameters)
        throw Error(std::to_string(values->size()) + " parameters, expected " +
                    std::to_string(checkpoint.info.parameters));
      for (const float value : *values)
        if (!std::isfinite(value)) throw Error("a parameter that is not finite");
    }
    return checkpoint;
  } catch (const FileError&) {
    throw;
  } catch (const Error& error) {
    reader.damaged(error.what());
  }
}

bool is_checkpoint(const std::string& path) {
  std::array<char, 8> magic{};
  return std::ifstream(path, std::ios::binary).read(magic.data(), magic.size()) &&
         std::string_view(magic.data(), magic.size()) == detail::kCheckpointFile.magic;
}

CheckpointInfo read_checkpoint_info(const std::string& path) {
  detail::BlockReader reader(path, detail::kCheckpointFile);
  if (reader.next() != static_cast<std::uint32_t>(detail::CheckpointBlock::info))
    reader.damaged("it does not begin with its counters");
  try {
    return detail::info_from(reader.content());
  } catch (const FileError&) {
    throw;
  } catch (const Error& error) {
    reader.damaged(error.what());
  }
}

CheckpointWriter::CheckpointWriter(RunDirectory& directory, const CheckpointOptions& options)
    : options_((options.validate(), options)), directory_(directory) {
  for (const std::string& name :
       directory_.store().names(detail::kCheckpointFolder, detail::kCheckpointPrefix)) {
    try {
      returns_[name] = read_checkpoint_info(directory_.store().path(name)).mean_return;
    } catch (const FileError&) {
      returns_[name] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  thread_ = std::thread([this] { work(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  condition_.notify_all();
  thread_.join();
}

bool CheckpointWriter::flush(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return deadline.wait(condition_, lock, [&] { return !is_busy_; }) && !statistics_.is_failing;
}

CheckpointStatistics CheckpointWriter::statistics() const {
  const std::lock_guard lock(mutex_);
  CheckpointStatistics statistics = statistics_;
  if (written_at_) statistics.age_seconds = seconds_since(*written_at_);
  return statistics;
}

void CheckpointWriter::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    condition_.wait(lock, [&] { return is_busy_ || is_ending_; });
    if (!is_busy_) return;
    lock.unlock();
    const Clock::time_point start = Clock::now();
    const std::optional<std::uintmax_t> bytes = write();
    const bool is_written = bytes.has_value();
    lock.lock();
    ++(is_written ? statistics_.written : statistics_.failures);
    statistics_.is_failing = !is_written;
    if (is_written) {
      statistics_.learner_steps = checkpoint_.info.learner_steps;
      statistics_.bytes = *bytes;
      written_at_ = Clock::now();
    }
    statistics_.write_seconds = seconds_since(start);
    is_busy_.store(false, std::memory_order_release);
    condition_.notify_all();
  }
}

std::optional<std::uintmax_t> CheckpointWriter::write() {
  const ObjectStore& store = directory_.store();
  const std::string name = std::string(detail::kCheckpointFolder) +
                           detail::object_name(detail::kCheckpointPrefix, directory_.generation(), ++number_);
  try {
    checkpoint_.finish_copy();
    directory_.require_held();
    write_checkpoint(store, name, checkpoint_);
    verify(store.path(name));
    returns_[name] = checkpoint_.info.mean_return;
    const std::uintmax_t bytes = std::filesystem::file_size(store.path(name));
    remove_older();
    return bytes;
  } catch (const std::exception& error) {
    directory_.say(std::string("no checkpoint was written: ") + error.what());
    return std::nullopt;
  }
}

void CheckpointWriter::verify(const std::string& path) {
  detail::drop_from_memory(path);
  detail::BlockReader reader(path, detail::kCheckpointFile);
  while (reader.next() != detail::kEnd) {
  }
}

void CheckpointWriter::remove_older() {
  auto best = returns_.end();
  for (auto it = returns_.begin(); it != returns_.end(); ++it)
    if (!std::isnan(it->second) && (best == returns_.end() || it->second >= best->second)) best = it;
  const std::string kept = best == returns_.end() ? std::string() : best->first;
  while (returns_.size() > options_.keep) {
    auto oldest = returns_.begin();
    if (oldest->first == kept) ++oldest;
    // The best one counts as one of the last if it is.
    if (std::distance(oldest, returns_.end()) <= static_cast<std::ptrdiff_t>(options_.keep)) return;
    directory_.store().remove(oldest->first);
    returns_.erase(oldest);
  }
}

}  // namespace troop::durability
