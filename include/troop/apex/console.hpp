/// @file
/// What a process of a run says, a line each: as people read it, or as JSON for what collects logs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <spdlog/details/log_msg.h>
#include <spdlog/formatter.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <troop/monitor/json.hpp>

namespace troop::apex {

/// How the lines of a process look.
enum class LogFormat : std::uint8_t {
  text,  ///< the sentence alone; errors begin with `error: `
  json  ///< an object with `time` (RFC 3339, UTC), `severity`, `role`, `index` where there is one, and `message`
};

namespace detail {

/// Whose lines they are.
struct Speaker {
  std::string role;
  std::atomic<std::int64_t> index = -1;  ///< negative: not known, or none
};

inline const char* severity_of(spdlog::level::level_enum level) {
  return level >= spdlog::level::err    ? "ERROR"
         : level == spdlog::level::warn ? "WARNING"
         : level == spdlog::level::info ? "INFO"
                                        : "DEBUG";
}

class TextLines final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    append(message.level >= spdlog::level::err ? "error: " : "", line);
    append({message.payload.data(), message.payload.size()}, line);
    append("\n", line);
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<TextLines>(); }

  static void append(std::string_view text, spdlog::memory_buf_t& line) {
    line.append(text.data(), text.data() + text.size());
  }
};

class JsonLines final : public spdlog::formatter {
 public:
  explicit JsonLines(std::shared_ptr<const Speaker> speaker) : speaker_(std::move(speaker)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const auto since_epoch =
        std::chrono::duration_cast<std::chrono::milliseconds>(message.time.time_since_epoch()).count();
    const std::time_t seconds = static_cast<std::time_t>(since_epoch / 1000);
    std::tm utc{};
    ::gmtime_r(&seconds, &utc);
    char date[32], time[48];
    std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    std::snprintf(time, sizeof time, "%s.%03dZ", date, static_cast<int>(since_epoch % 1000));
    monitor::JsonWriter json;
    json.begin().member("time", time).member("severity", severity_of(message.level));
    json.member("role", speaker_->role);
    if (const std::int64_t index = speaker_->index; index >= 0) json.member("index", index);
    json.member("message", std::string_view(message.payload.data(), message.payload.size())).end();
    TextLines::append(json.text() + "\n", line);
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonLines>(speaker_); }

 private:
  std::shared_ptr<const Speaker> speaker_;
};

/// What is worth a warning goes to the second stream, after everything that the first one has.
class TwoStreams final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  TwoStreams(std::FILE* out, std::FILE* warnings) : out_(out), warnings_(warnings) {}

  void use_only_the_second() {
    const std::lock_guard lock(mutex_);
    out_ = warnings_;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::FILE* const stream = message.level >= spdlog::level::warn ? warnings_ : out_;
    if (stream != out_) std::fflush(out_);
    std::fwrite(line.data(), 1, line.size(), stream);
    std::fflush(stream);
  }
  void flush_() override {}

  std::FILE *out_, *warnings_;
};

}  // namespace detail

/// The lines of a process, by spdlog: reports go to the standard output, warnings and errors to the standard error
/// output. A quiet one says only results and errors. Copies speak for the same process. Thread-safe; a line is never
/// torn.
///
///     const Console console(LogFormat::json, "actor");
///     console.set_index(16);
///     console.info("connected to %s", "head:7777");
///     // {"time":"2026-12-03T10:00:00.000Z","severity":"INFO","role":"actor","index":16,"message":"connected to ..."}
class Console {
 public:
  explicit Console(LogFormat format = LogFormat::text, std::string role = "all", bool is_quiet = false,
                   std::FILE* out = stdout, std::FILE* warnings = stderr)
      : format_(format),
        out_(out),
        speaker_(std::make_shared<detail::Speaker>()),
        streams_(std::make_shared<detail::TwoStreams>(out, warnings)),
        logger_(std::make_shared<spdlog::logger>(role, streams_)) {
    speaker_->role = std::move(role);
    if (format == LogFormat::json) {
      logger_->set_formatter(std::make_unique<detail::JsonLines>(speaker_));
    } else {
      logger_->set_formatter(std::make_unique<detail::TextLines>());
    }
    logger_->set_level(is_quiet ? spdlog::level::err : spdlog::level::info);
  }

  LogFormat format() const noexcept { return format_; }
  std::FILE* out() const noexcept { return out_; }  ///< where reports go
  bool is_quiet() const noexcept { return logger_->level() == spdlog::level::err; }

  /// The index of an actor's first environment, once it is leased.
  void set_index(std::uint64_t index) const { speaker_->index = static_cast<std::int64_t>(index); }

  /// From now on everything goes to the standard error output: nobody reads the other one any more.
  void use_only_stderr() const { streams_->use_only_the_second(); }

  /// Each takes what printf does, without an end of line.
  [[gnu::format(printf, 2, 3)]] void info(const char* format, ...) const {
    std::va_list arguments;
    va_start(arguments, format);
    logger_->log(spdlog::level::info, text(format, arguments));
    va_end(arguments);
  }
  [[gnu::format(printf, 2, 3)]] void warning(const char* format, ...) const {
    std::va_list arguments;
    va_start(arguments, format);
    logger_->log(spdlog::level::warn, text(format, arguments));
    va_end(arguments);
  }
  [[gnu::format(printf, 2, 3)]] void error(const char* format, ...) const {
    std::va_list arguments;
    va_start(arguments, format);
    logger_->log(spdlog::level::err, text(format, arguments));
    va_end(arguments);
  }
  /// What the process was started for: said in any case.
  [[gnu::format(printf, 2, 3)]] void result(const char* format, ...) const {
    std::va_list arguments;
    va_start(arguments, format);
    const std::string line = text(format, arguments);
    va_end(arguments);
    streams_->log(spdlog::details::log_msg(logger_->name(), spdlog::level::info, line));
  }

  /// For the options of troop's pieces, which tell by a function what goes wrong and is tried again.
  std::function<void(const std::string&)> warnings() const {
    return [console = *this](const std::string& line) { console.warning("%s", line.c_str()); };
  }

 private:
  static std::string text(const char* format, std::va_list arguments) {
    std::va_list again;
    va_copy(again, arguments);
    const int size = std::vsnprintf(nullptr, 0, format, again);
    va_end(again);
    std::string line(size < 0 ? 0 : static_cast<std::size_t>(size), '\0');
    std::vsnprintf(line.data(), line.size() + 1, format, arguments);
    return line;
  }

  LogFormat format_;
  std::FILE* out_;
  std::shared_ptr<detail::Speaker> speaker_;
  std::shared_ptr<detail::TwoStreams> streams_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace troop::apex
