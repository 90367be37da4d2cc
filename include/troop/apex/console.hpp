/// @file
/// What a process of a run says, a line each: as people read it, or as JSON for what collects logs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

namespace troop::apex {

/// How the lines of a process look.
enum class LogFormat : std::uint8_t {
  text,  ///< the sentence alone; errors begin with `error: `
  json  ///< an object with `time` (RFC 3339, UTC), `severity`, `role`, `index` where there is one, and `message`
};

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
                   std::FILE* out = stdout, std::FILE* warnings = stderr);

  LogFormat format() const noexcept;
  std::FILE* out() const noexcept;  ///< where reports go
  bool is_quiet() const noexcept;

  /// The index of an actor's first environment, once it is leased.
  void set_index(std::uint64_t index) const;

  /// From now on everything goes to the standard error output: nobody reads the other one any more.
  void use_only_stderr() const;

  /// Each takes what printf does, without an end of line.
  [[gnu::format(printf, 2, 3)]] void info(const char* format, ...) const;
  [[gnu::format(printf, 2, 3)]] void warning(const char* format, ...) const;
  [[gnu::format(printf, 2, 3)]] void error(const char* format, ...) const;
  /// What the process was started for: said in any case.
  [[gnu::format(printf, 2, 3)]] void result(const char* format, ...) const;

  /// For the options of troop's pieces, which tell by a function what goes wrong and is tried again.
  std::function<void(const std::string&)> warnings() const;

 private:
  struct State;

  std::shared_ptr<State> state_;
};

}  // namespace troop::apex
