/// @file
/// One writer at a time: a lease on a folder that says who holds it and that a dead owner loses.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <sstream>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/durability/object_store.hpp>

namespace troop::durability {

/// Somebody else writes here. The message says who: host, process, since when.
class LeaseHeld : public Error {
 public:
  using Error::Error;
};

/// Who holds a lease, or held it last.
struct LeaseHolder {
  std::uint64_t number = 0;  ///< of the lease; grows with each renewal
  std::string host = {};
  std::uint64_t process = 0;
  std::string since = {};  ///< UTC, "2026-12-02 17:05:00"
  std::string boot = {};   ///< which start of which machine
  bool is_released = false;

  std::string describe() const {
    return host.empty() ? "somebody unknown"
                        : "process " + std::to_string(process) + " on " + host + ", since " + since + " UTC";
  }
};

namespace detail {

inline constexpr std::string_view kLeasePrefix = "lease-";

inline std::string numbered(std::string_view prefix, std::uint64_t number, int digits = 12) {
  char text[32];
  std::snprintf(text, sizeof text, "%0*llu", digits, static_cast<unsigned long long>(number));
  return std::string(prefix) + text;
}

/// The number at the end of a name; 0 when there is none.
inline std::uint64_t number_of(std::string_view name) {
  std::uint64_t number = 0;
  const std::size_t first = name.find_last_not_of("0123456789") + 1;
  const auto [end, error] = std::from_chars(name.data() + first, name.data() + name.size(), number);
  return error == std::errc() ? number : 0;
}

inline std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

inline std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

inline std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

/// The newest lease in the folder, whether held or released; none where there is none. One that is not whole
/// has no host.
inline std::optional<LeaseHolder> newest_lease(const ObjectStore& store) {
  const auto names = store.names("", kLeasePrefix);
  if (names.empty()) return std::nullopt;
  LeaseHolder holder{.number = number_of(names.back())};
  std::ifstream file(store.path(names.back()));
  std::string line;
  LeaseHolder read{.number = holder.number};
  while (std::getline(file, line)) {
    const auto value = [&](std::string_view key) -> std::optional<std::string> {
      return line.starts_with(key) ? std::optional(line.substr(key.size())) : std::nullopt;
    };
    if (const auto host = value("host ")) read.host = *host;
    if (const auto process = value("process ")) read.process = std::strtoull(process->c_str(), nullptr, 10);
    if (const auto since = value("since ")) read.since = *since;
    if (const auto boot = value("boot ")) read.boot = *boot;
    if (line == "released") read.is_released = true;
    if (line == "end") return read;
  }
  return holder;
}

}  // namespace detail

struct LeaseTimes {
  /// How long a lease that is not renewed counts as held, where nothing else tells that its owner is dead. It
  /// is renewed three times as often.
  Clock::duration duration = std::chrono::seconds(15);
  /// Takes a sentence when a renewal fails; empty: nothing is said. Called by the lease's thread.
  std::function<void(const std::string&)> log = {};
};

/// Holds a folder against a second writer, on this machine or another one.
///
/// On one machine the system's file lock tells at once whether the owner lives. Across machines, or where the
/// file system knows no locks, a newcomer watches the lease for `duration`: an owner that lives renews it
/// meanwhile, and the newcomer is refused; one that has gone loses it. Nobody's clock is compared with
/// another's. A lease is renewed by the exclusive creation of the file with the next number, so that of two who
/// want it one gets it, and an owner that was thought dead (stopped for a while, say) finds out that it has lost
/// the folder.
///
/// Thread-safe. The constructor blocks for up to `duration` when the last owner was on another machine and has not
/// released the lease. It throws LeaseHeld, or FileError when the folder cannot be written.
///
///     const Lease lease(store);
///     lease.require_held();  // before each write
class Lease {
 public:
  explicit Lease(const ObjectStore& store, LeaseTimes times = {})
      : store_(store), times_(std::move(times)), host_(detail::host_name()), boot_(detail::boot_id()) {
    require(times_.duration >= std::chrono::milliseconds(30) && times_.duration <= std::chrono::hours(1),
            "lease", seconds(times_.duration), "from 0.03 to 3600 seconds");
    acquire();
    thread_ = std::jthread([this](const std::stop_token& stop) { keep(stop); });
  }

  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  /// Releases the lease, so that the next owner need not wait.
  ~Lease() {
    thread_ = {};
    const std::lock_guard lock(mutex_);
    if (is_lost_) return;
    try {
      create(number_ + 1, true);
      remove_older(number_ + 1);
    } catch (const Error&) {  // then the next one waits
    }
  }

  /// Somebody else has taken the folder: nothing must be written any more.
  bool is_lost() const noexcept { return is_lost_; }

  /// Throws LeaseHeld when the lease is lost. Looks at the folder when it could not be renewed for long.
  void require_held() {
    if (!is_lost_ && Clock::now() - renewed_.load() < times_.duration) return;
    renew();
    if (!is_lost_) return;
    const auto holder = detail::newest_lease(store_);
    throw LeaseHeld(store_.folder() + ": was taken over by " + (holder ? *holder : LeaseHolder{}).describe());
  }

 private:
  static double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

  enum class Lock { taken, busy, unknown };

  void acquire() {
    const Lock lock = take_lock();
    const auto holder = detail::newest_lease(store_);
    if (lock == Lock::busy) refuse(holder);
    if (holder && !holder->is_released) {
      // The system's lock says all there is to say about owners on this machine, and no more.
      const bool is_dead = lock == Lock::taken && !boot_.empty() && holder->boot == boot_;
      if (!is_dead) watch(*holder);
    }
    number_ = (holder ? holder->number : 0) + 1;
    if (!create(number_, false)) refuse(detail::newest_lease(store_));
    renewed_ = Clock::now();
    remove_older(number_);
  }

  [[noreturn]] void refuse(const std::optional<LeaseHolder>& holder) const {
    throw LeaseHeld(store_.folder() + ": is in use by " + (holder ? *holder : LeaseHolder{}).describe());
  }

  /// The system's lock of a file that stays; the system frees it when its owner ends, however it ends.
  Lock take_lock() {
    const std::string path = store_.path("lock");
    const int made = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (made < 0 && errno != EEXIST) troop::detail::throw_file_error(path, "cannot create", errno);
    if (made >= 0) ::close(made);
    lock_.emplace(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!lock_->is_open()) troop::detail::throw_file_error(path, "cannot open", errno);
    if (::flock(lock_->get(), LOCK_EX | LOCK_NB) == 0) return Lock::taken;
    return errno == EWOULDBLOCK ? Lock::busy : Lock::unknown;
  }

  /// Returns when the lease was not renewed for its whole duration.
  void watch(const LeaseHolder& holder) const {
    const Deadline end = Deadline::after(times_.duration);
    while (!end.has_passed()) {
      std::this_thread::sleep_for(times_.duration / 50);
      const auto newest = detail::newest_lease(store_);
      if (newest && newest->number != holder.number && !newest->is_released) refuse(newest);
    }
  }

  /// Makes the lease of this number; false when there is one.
  bool create(std::uint64_t number, bool is_released) {
    std::ostringstream text;
    text << "host " << host_ << "\nprocess " << ::getpid() << "\nsince " << since_ << "\nboot " << boot_
         << "\n"
         << (is_released ? "released\n" : "") << "end\n";
    const std::string content = text.str();
    const std::string path = store_.path(detail::numbered(detail::kLeasePrefix, number));
    // On a disk it appears whole, by a link; elsewhere whoever reads it too early reads it again.
    if (store_.kind() == StoreKind::disk) {
      const std::string temporary = path + "." + std::to_string(::getpid()) + ".tmp";
      ::unlink(temporary.c_str());
      write(temporary, content);
      const int error = ::link(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
      ::unlink(temporary.c_str());
      if (error == 0) return true;
      if (error == EEXIST) return false;
    }
    if (std::error_code ignored; std::filesystem::exists(path, ignored)) return false;
    write(path, content);
    return true;
  }

  static void write(const std::string& path, const std::string& content) {
    detail::NewFile file(path);
    file.write(std::as_bytes(std::span(content)));
    file.close();
  }

  void remove_older(std::uint64_t number) const {
    for (const std::string& name : store_.names("", detail::kLeasePrefix))
      if (detail::number_of(name) < number) store_.remove(name);
  }

  /// Makes the next lease, or finds out that somebody else has. Throws FileError when neither can be.
  void renew() {
    const std::lock_guard lock(mutex_);
    if (is_lost_) return;
    const auto newest = detail::newest_lease(store_);
    if (newest && newest->number > number_) {
      is_lost_ = true;
      return;
    }
    if (!create(number_ + 1, false)) {
      is_lost_ = true;
      return;
    }
    ++number_;
    renewed_ = Clock::now();
    remove_older(number_);
  }

  void keep(const std::stop_token& stop) {
    bool has_failed = false;
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any condition;
    while (!stop.stop_requested() && !is_lost_) {
      condition.wait_for(lock, stop, times_.duration / 3, [] { return false; });
      if (stop.stop_requested()) return;
      try {
        renew();
        has_failed = false;
      } catch (const Error& error) {
        if (!std::exchange(has_failed, true) && times_.log)
          times_.log(std::string("cannot renew the lease of the run directory: ") + error.what());
      }
    }
  }

  const ObjectStore store_;
  const LeaseTimes times_;
  const std::string host_, boot_, since_ = detail::utc_now();
  std::optional<troop::detail::FileHandle> lock_;
  std::mutex mutex_;  // of renewals
  std::uint64_t number_ = 0;
  std::atomic<Clock::time_point> renewed_{};
  std::atomic<bool> is_lost_{false};
  std::jthread thread_;
};

}  // namespace troop::durability
