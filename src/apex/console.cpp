#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstddef>
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

#include <troop/apex/console.hpp>
#include <troop/monitor/json.hpp>

namespace troop::apex {

namespace {

/// Whose lines they are.
struct Speaker {
  std::string role;
  std::atomic<std::int64_t> index = -1;  ///< negative: not known, or none
};

const char* severity_of(spdlog::level::level_enum level) {
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

[[gnu::format(printf, 1, 0)]] std::string text_of(const char* format, std::va_list arguments) {
  std::va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, again);
  va_end(again);
  std::string line(size < 0 ? 0 : static_cast<std::size_t>(size), '\0');
  std::vsnprintf(line.data(), line.size() + 1, format, arguments);
  return line;
}

}  // namespace

struct Console::State {
  LogFormat format;
  std::FILE* out;
  std::shared_ptr<Speaker> speaker;
  std::shared_ptr<TwoStreams> streams;
  spdlog::logger logger;
};

Console::Console(LogFormat format, std::string role, bool is_quiet, std::FILE* out, std::FILE* warnings) {
  auto speaker = std::make_shared<Speaker>();
  auto streams = std::make_shared<TwoStreams>(out, warnings);
  spdlog::logger logger(role, streams);
  speaker->role = std::move(role);
  if (format == LogFormat::json) {
    logger.set_formatter(std::make_unique<JsonLines>(speaker));
  } else {
    logger.set_formatter(std::make_unique<TextLines>());
  }
  logger.set_level(is_quiet ? spdlog::level::err : spdlog::level::info);
  state_.reset(new State{format, out, std::move(speaker), std::move(streams), std::move(logger)});
}

LogFormat Console::format() const noexcept {
  return state_->format;
}
std::FILE* Console::out() const noexcept {
  return state_->out;
}
bool Console::is_quiet() const noexcept {
  return state_->logger.level() == spdlog::level::err;
}
void Console::set_index(std::uint64_t index) const {
  state_->speaker->index = static_cast<std::int64_t>(index);
}
void Console::use_only_stderr() const {
  state_->streams->use_only_the_second();
}

void Console::info(const char* format, ...) const {
  std::va_list arguments;
  va_start(arguments, format);
  state_->logger.log(spdlog::level::info, text_of(format, arguments));
  va_end(arguments);
}

void Console::warning(const char* format, ...) const {
  std::va_list arguments;
  va_start(arguments, format);
  state_->logger.log(spdlog::level::warn, text_of(format, arguments));
  va_end(arguments);
}

void Console::error(const char* format, ...) const {
  std::va_list arguments;
  va_start(arguments, format);
  state_->logger.log(spdlog::level::err, text_of(format, arguments));
  va_end(arguments);
}

void Console::result(const char* format, ...) const {
  std::va_list arguments;
  va_start(arguments, format);
  const std::string line = text_of(format, arguments);
  va_end(arguments);
  state_->streams->log(spdlog::details::log_msg(state_->logger.name(), spdlog::level::info, line));
}

std::function<void(const std::string&)> Console::warnings() const {
  return [console = *this](const std::string& line) { console.warning("%s", line.c_str()); };
}

}  // namespace troop::apex
