#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/core/hash.hpp>
#include <troop/monitor/event_file.hpp>

namespace troop::monitor {

namespace {

/// A message of Protocol Buffers under construction, field by field in the wire format.
class Message {
  using Output = google::protobuf::io::CodedOutputStream;

 public:
  Message& real(int field, double value) {
    return write(field, kEightBytes,
                 [&](Output& out) { out.WriteLittleEndian64(std::bit_cast<std::uint64_t>(value)); });
  }
  Message& single(int field, float value) {
    return write(field, kFourBytes,
                 [&](Output& out) { out.WriteLittleEndian32(std::bit_cast<std::uint32_t>(value)); });
  }
  Message& integer(int field, std::uint64_t value) {
    return write(field, kVarint, [&](Output& out) { out.WriteVarint64(value); });
  }
  Message& text(int field, std::string_view value) {
    return write(field, kBytes, [&](Output& out) {
      out.WriteVarint64(value.size());
      out.WriteRaw(value.data(), static_cast<int>(value.size()));
    });
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  Message& reals(int field, std::span<const double> values) {  // packed
    return write(field, kBytes, [&](Output& out) {
      out.WriteVarint64(values.size_bytes());
      for (const double value : values) out.WriteLittleEndian64(std::bit_cast<std::uint64_t>(value));
    });
  }

  const std::string& bytes() const noexcept { return bytes_; }

 private:
  enum WireType : unsigned { kVarint = 0, kEightBytes = 1, kBytes = 2, kFourBytes = 5 };

  template <class F>
  Message& write(int field, WireType type, F f) {
    google::protobuf::io::StringOutputStream stream(&bytes_);
    Output out(&stream);
    out.WriteTag(static_cast<unsigned>(field) << 3 | type);
    f(out);
    return *this;
  }

  std::string bytes_;
};

/// The checksum of an event file's records: CRC-32C, turned so that a checksum of checksums is not weak.
std::uint32_t masked_crc32c(std::string_view bytes) noexcept {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8u;
}

/// A record of an event file: length (8 bytes), its checksum (4), data, their checksum (4), little-endian.
void append_record(std::string_view data, std::string& out) {
  using Output = google::protobuf::io::CodedOutputStream;
  std::uint8_t number[8];
  const auto append = [&](std::size_t size) { out.append(reinterpret_cast<const char*>(number), size); };
  const auto checksum = [&](std::string_view of) {
    Output::WriteLittleEndian32ToArray(masked_crc32c(of), number);
    append(4);
  };
  Output::WriteLittleEndian64ToArray(data.size(), number);
  append(8);
  checksum(std::string_view(reinterpret_cast<const char*>(number), 8));
  out.append(data);
  checksum(data);
}

}  // namespace

EventHistogram EventHistogram::of(std::span<const float> values, std::size_t buckets) {
  EventHistogram h;
  double number = 0.0;
  for (const float v : values) {
    const double value = v;
    if (!std::isfinite(value)) continue;
    h.min = number == 0.0 ? value : std::min(h.min, value);
    h.max = number == 0.0 ? value : std::max(h.max, value);
    h.sum += value;
    h.sum_squares += value * value;
    number += 1.0;
  }
  if (number == 0.0) return h;
  const double width = std::max(h.max - h.min, 1e-12) / static_cast<double>(buckets);
  for (std::size_t i = 0; i < buckets; ++i) h.limits.push_back(h.min + width * static_cast<double>(i + 1));
  h.counts.resize(buckets);
  for (const float v : values) {
    if (!std::isfinite(v)) continue;
    const auto bucket = static_cast<std::size_t>((static_cast<double>(v) - h.min) / width);
    h.counts[std::min(bucket, buckets - 1)] += 1.0;
  }
  return h;
}

void EventFileOptions::validate() const {
  require(!directory.empty(), "directory", "\"\"", "the name of a directory");
  require(max_bytes >= 4096, "max_bytes", max_bytes, "at least 4096");
  require(buffer_bytes <= (std::size_t{1} << 30), "buffer_bytes", buffer_bytes, "at most 2^30");
}

/// All of it; the header says what its functions promise.
class EventFile::Impl {
 public:
  explicit Impl(const EventFileOptions& options) : options_((options.validate(), options)) {
    std::error_code error;
    std::filesystem::create_directories(options_.directory, error);
    if (error) throw FileError(options_.directory, "cannot make the directory: " + error.message());
    if (const int failure = open(); failure != 0)
      throw FileError(path_, "cannot create: " + std::generic_category().message(failure));
    if (options_.resumed_at) {  // SessionLog with status START
      add(event(*options_.resumed_at).message(7, Message().integer(1, 1)));
    }
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { flush(); }

  void scalar(std::string_view tag, double value, std::uint64_t step) {
    add_value(Message().text(1, tag).single(2, static_cast<float>(value)), step);
  }

  void scalars(std::span<const Scalar> scalars, std::uint64_t step) {
    if (scalars.empty()) return;
    Message summary;
    for (const Scalar& scalar : scalars) {
      Message value;
      value.text(1, scalar.tag).single(2, static_cast<float>(scalar.value));
      summary.message(1, value);
    }
    add(event(step).message(5, summary));
  }

  void histogram(std::string_view tag, const EventHistogram& h, std::uint64_t step) {
    double number = 0.0;
    for (const double count : h.counts) number += count;
    Message message;
    message.real(1, h.min).real(2, h.max).real(3, number).real(4, h.sum).real(5, h.sum_squares);
    message.reals(6, h.limits).reals(7, h.counts);
    add_value(Message().text(1, tag).message(5, message), step);
  }

  void text(std::string_view tag, std::string_view text, std::uint64_t step) {
    constexpr std::uint64_t kString = 7;
    Message tensor;
    tensor.integer(1, kString).message(2, Message()).text(8, text);
    add_value(Message().text(1, tag).message(8, tensor).message(9, metadata("text", {})), step);
  }

  void hyper_parameters(std::span<const HyperParameter> parameters, std::span<const std::string> metrics) {
    constexpr std::uint64_t kText = 1, kBool = 2, kNumber = 3;
    Message experiment, start;
    for (const HyperParameter& p : parameters) {
      Message value;
      std::uint64_t type = kText;
      if (const auto* number = std::get_if<double>(&p.value)) {
        value.real(2, *number);
        type = kNumber;
      } else if (const auto* flag = std::get_if<bool>(&p.value)) {
        value.integer(4, *flag ? 1 : 0);
        type = kBool;
      } else {
        value.text(3, std::get<std::string>(p.value));
      }
      start.message(1, Message().text(1, p.name).message(2, value));
      experiment.message(4, Message().text(1, p.name).integer(4, type));
    }
    for (const std::string& tag : metrics)
      experiment.message(5, Message().message(1, Message().text(2, tag)));
    start.real(5, seconds());
    add_hyper_parameters("_hparams_/experiment", Message().message(2, experiment));
    add_hyper_parameters("_hparams_/session_start_info", Message().message(3, start));
  }

  void flush() {
    const std::lock_guard lock(mutex_);
    write_out();
  }

  std::uint64_t dropped() const {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }

  std::string path() const {
    const std::lock_guard lock(mutex_);
    return path_;
  }

 private:
  /// Since 1970.
  static double seconds() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  static Message event(std::uint64_t step) {
    Message message;
    message.real(1, seconds()).integer(2, step);
    return message;
  }

  static Message metadata(std::string_view plugin, const Message& content) {
    Message data;
    data.text(1, plugin).message(2, content);
    return Message().message(1, data);
  }

  void add_value(const Message& value, std::uint64_t step) {
    add(event(step).message(5, Message().message(1, value)));
  }

  void add_hyper_parameters(std::string_view tag, const Message& content) {
    constexpr std::uint64_t kFloat = 1;
    Message tensor;  // an empty one; the content is in the metadata
    tensor.integer(1, kFloat).message(2, Message().message(2, Message().integer(1, 1)));
    tensor.single(5, 0.0f);
    add_value(Message().text(1, tag).message(8, tensor).message(9, metadata("hparams", content)), 0);
  }

  void add(const Message& event) {
    const std::lock_guard lock(mutex_);
    append_record(event.bytes(), buffer_);
    ++buffered_;
    if (buffer_.size() >= options_.buffer_bytes) write_out();
  }

  /// Opens the next file; returns the system's error number, 0 for none.
  int open() {
    static std::atomic<unsigned> files{0};
    char host[64] = "";
    ::gethostname(host, sizeof host - 1);
    do {  // TensorBoard reads files in the order of their names
      char name[160];
      std::snprintf(name, sizeof name, "/events.out.tfevents.%010lld.%s.%d.%04u",
                    static_cast<long long>(seconds()), host, ::getpid(), files++);
      path_ = options_.directory + name;
      file_.emplace(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    } while (!file_->is_open() && errno == EEXIST);
    size_ = 0;
    return file_->is_open() ? 0 : errno;
  }

  // The following needs the lock.

  void write_out() {
    if (buffer_.empty() && size_ > 0) return;
    const int failure = try_to_write();
    if (failure != 0) {
      dropped_ += buffered_;
      if (!std::exchange(is_failing_, true) && options_.log)
        options_.log(path_ +
                     ": cannot write, so events are left out: " + std::generic_category().message(failure));
      // Half a record would hide all that follow it.
      if (file_->is_open() && ::ftruncate(file_->get(), static_cast<off_t>(size_)) == 0)
        ::lseek(file_->get(), static_cast<off_t>(size_), SEEK_SET);
    } else {
      is_failing_ = false;
    }
    buffer_.clear();
    buffered_ = 0;
  }

  int try_to_write() {
    if (size_ >= options_.max_bytes || !file_->is_open()) {
      if (const int failure = open(); failure != 0) return failure;
    }
    if (size_ == 0) {
      std::string first;
      append_record(Message().real(1, seconds()).text(3, "brain.Event:2").bytes(), first);
      buffer_.insert(0, first);
    }
    std::string_view left = buffer_;
    while (!left.empty()) {
      const ssize_t written = ::write(file_->get(), left.data(), left.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return written < 0 ? errno : EIO;
      left.remove_prefix(static_cast<std::size_t>(written));
    }
    size_ += buffer_.size();
    return 0;
  }

  const EventFileOptions options_;
  mutable std::mutex mutex_;  // guards the following
  std::string path_;
  std::optional<troop::detail::FileHandle> file_;
  std::size_t size_ = 0;  // of the records that are whole
  std::string buffer_;
  std::uint64_t buffered_ = 0, dropped_ = 0;  // events
  bool is_failing_ = false;
};

EventFile::EventFile(const EventFileOptions& options) : impl_(std::make_unique<Impl>(options)) {}
EventFile::~EventFile() = default;
void EventFile::scalar(std::string_view tag, double value, std::uint64_t step) {
  impl_->scalar(tag, value, step);
}
void EventFile::scalars(std::span<const Scalar> scalars, std::uint64_t step) {
  impl_->scalars(scalars, step);
}
void EventFile::histogram(std::string_view tag, const EventHistogram& h, std::uint64_t step) {
  impl_->histogram(tag, h, step);
}
void EventFile::text(std::string_view tag, std::string_view text, std::uint64_t step) {
  impl_->text(tag, text, step);
}
void EventFile::hyper_parameters(std::span<const HyperParameter> parameters,
                                 std::span<const std::string> metrics) {
  impl_->hyper_parameters(parameters, metrics);
}
void EventFile::flush() {
  impl_->flush();
}
std::uint64_t EventFile::dropped() const {
  return impl_->dropped();
}
std::string EventFile::path() const {
  return impl_->path();
}

}  // namespace troop::monitor
