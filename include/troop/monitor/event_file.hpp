/// @file
/// Event files, which TensorBoard reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <troop/monitor/metrics.hpp>

namespace troop::monitor {

/// Values counted in buckets, as a histogram shows them.
struct EventHistogram {
  std::vector<double> limits;  ///< upper ends of the buckets, rising
  std::vector<double> counts;  ///< as many
  double min = 0.0, max = 0.0, sum = 0.0, sum_squares = 0.0;

  /// Of single values, in `buckets` of equal width. Values that are not finite are left out.
  static EventHistogram of(std::span<const float> values, std::size_t buckets = 32);
};

/// An option of a run as TensorBoard's HPARAMS tab compares it between runs.
struct HyperParameter {
  std::string name;
  std::variant<double, bool, std::string> value;
};

struct EventFileOptions {
  std::string directory;  ///< made if it is not there; TensorBoard calls it a run
  /// Of a run that goes on: what an earlier process wrote from this step on is not shown any more.
  std::optional<std::uint64_t> resumed_at = {};
  std::size_t max_bytes = std::size_t{64} << 20;  ///< a file that is longer is followed by another one
  std::size_t buffer_bytes = 64 << 10;            ///< written by themselves when so much has come together
  /// Takes one line when the events cannot be written, once for each time that the trouble begins.
  std::function<void(const std::string&)> log = [](const std::string& line) {
    std::fprintf(stderr, "%s\n", line.c_str());
  };

  /// Throws InvalidArgument naming the field.
  void validate() const;
};

/// Appends events to files that TensorBoard reads while they grow: `tensorboard --logdir` with the directory,
/// or with the one above it for several runs. An event costs some hundred nanoseconds and goes to the disk
/// with the next `flush`, when the buffer is full, and at the end.
///
/// A disk that is full or gone stops nobody: events are dropped and counted, the log gets one line, and when
/// there is room again the file goes on, whole. Only the constructor throws. Thread-safe.
///
///     EventFile events({.directory = "runs/7"});
///     events.scalar("learner/loss", 0.25, 1000);
///     events.flush();
class EventFile {
 public:
  /// Throws InvalidArgument for bad options, FileError when the directory or the file cannot be made.
  explicit EventFile(const EventFileOptions& options);

  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  ~EventFile();

  void scalar(std::string_view tag, double value, std::uint64_t step);

  /// As one event, for example all of `Metrics::scalars`.
  void scalars(std::span<const Scalar> scalars, std::uint64_t step);

  void histogram(std::string_view tag, const EventHistogram& h, std::uint64_t step);

  /// Shown as Markdown.
  void text(std::string_view tag, std::string_view text, std::uint64_t step = 0);

  /// What distinguishes this run from others, and which scalars they are to be compared by. Once a run.
  void hyper_parameters(std::span<const HyperParameter> parameters, std::span<const std::string> metrics);

  /// Writes what has come together. Not that it is on the disk: an event file is no checkpoint.
  void flush();

  /// Events that could not be written.
  std::uint64_t dropped() const;

  /// The file that is being written.
  std::string path() const;

 private:
  class Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace troop::monitor
