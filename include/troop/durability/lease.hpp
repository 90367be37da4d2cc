/// @file
/// One writer at a time: a lease on a folder that says who holds it and that a dead owner loses.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

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

  std::string describe() const;
};

namespace detail {

inline constexpr std::string_view kLeasePrefix = "lease-";

std::string numbered(std::string_view prefix, std::uint64_t number, int digits = 12);

/// The number at the end of a name; 0 when there is none.
std::uint64_t number_of(std::string_view name);

std::string host_name();

std::string boot_id();

std::string utc_now();

/// The newest lease in the folder, whether held or released; none where there is none. One that is not whole
/// has no host.
std::optional<LeaseHolder> newest_lease(const ObjectStore& store);

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
  explicit Lease(const ObjectStore& store, LeaseTimes times = {});

  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  /// Releases the lease, so that the next owner need not wait.
  ~Lease();

  /// Somebody else has taken the folder: nothing must be written any more.
  bool is_lost() const noexcept { return is_lost_; }

  /// Throws LeaseHeld when the lease is lost. Looks at the folder when it could not be renewed for long.
  void require_held();

 private:
  static double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

  enum class Lock { taken, busy, unknown };

  void acquire();

  [[noreturn]] void refuse(const std::optional<LeaseHolder>& holder) const;

  /// The system's lock of a file that stays; the system frees it when its owner ends, however it ends.
  Lock take_lock();

  /// Returns when the lease was not renewed for its whole duration.
  void watch(const LeaseHolder& holder) const;

  /// Makes the lease of this number; false when there is one.
  bool create(std::uint64_t number, bool is_released);

  static void write(const std::string& path, const std::string& content);

  void remove_older(std::uint64_t number) const;

  /// Makes the next lease, or finds out that somebody else has. Throws FileError when neither can be.
  void renew();

  void keep(const std::stop_token& stop);

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
