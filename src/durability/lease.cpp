#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <troop/durability/lease.hpp>

namespace troop::durability {

std::string LeaseHolder::describe() const {
  return host.empty() ? "somebody unknown"
                      : "process " + std::to_string(process) + " on " + host + ", since " + since + " UTC";
}

namespace detail {

std::string numbered(std::string_view prefix, std::uint64_t number, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%0*llu", digits, static_cast<unsigned long long>(number));
  return std::string(prefix) + text;
}

std::uint64_t number_of(std::string_view name) {
  std::uint64_t number = 0;
  const std::size_t first = name.find_last_not_of("0123456789") + 1;
  const auto [end, error] = std::from_chars(name.data() + first, name.data() + name.size(), number);
  return error == std::errc() ? number : 0;
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::optional<LeaseHolder> newest_lease(const ObjectStore& store) {
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

Lease::Lease(const ObjectStore& store, LeaseTimes times)
    : store_(store), times_(std::move(times)), host_(detail::host_name()), boot_(detail::boot_id()) {
  require(times_.duration >= std::chrono::milliseconds(30) && times_.duration <= std::chrono::hours(1),
          "lease", seconds(times_.duration), "from 0.03 to 3600 seconds");
  acquire();
  thread_ = std::jthread([this](const std::stop_token& stop) { keep(stop); });
}

Lease::~Lease() {
  thread_ = {};
  const std::lock_guard lock(mutex_);
  if (is_lost_) return;
  try {
    create(number_ + 1, true);
    remove_older(number_ + 1);
  } catch (const Error&) {  // then the next one waits
  }
}

void Lease::require_held() {
  if (!is_lost_ && Clock::now() - renewed_.load() < times_.duration) return;
  renew();
  if (!is_lost_) return;
  const auto holder = detail::newest_lease(store_);
  throw LeaseHeld(store_.folder() + ": was taken over by " + (holder ? *holder : LeaseHolder{}).describe());
}

void Lease::acquire() {
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

void Lease::refuse(const std::optional<LeaseHolder>& holder) const {
  throw LeaseHeld(store_.folder() + ": is in use by " + (holder ? *holder : LeaseHolder{}).describe());
}

Lease::Lock Lease::take_lock() {
  const std::string path = store_.path("lock");
  const int made = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (made < 0 && errno != EEXIST) troop::detail::throw_file_error(path, "cannot create", errno);
  if (made >= 0) ::close(made);
  lock_.emplace(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!lock_->is_open()) troop::detail::throw_file_error(path, "cannot open", errno);
  if (::flock(lock_->get(), LOCK_EX | LOCK_NB) == 0) return Lock::taken;
  return errno == EWOULDBLOCK ? Lock::busy : Lock::unknown;
}

void Lease::watch(const LeaseHolder& holder) const {
  const Deadline end = Deadline::after(times_.duration);
  while (!end.has_passed()) {
    std::this_thread::sleep_for(times_.duration / 50);
    const auto newest = detail::newest_lease(store_);
    if (newest && newest->number != holder.number && !newest->is_released) refuse(newest);
  }
}

bool Lease::create(std::uint64_t number, bool is_released) {
  std::ostringstream text;
  text << "host " << host_ << "\nprocess " << ::getpid() << "\nsince " << since_ << "\nboot " << boot_ << "\n"
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

void Lease::write(const std::string& path, const std::string& content) {
  detail::NewFile file(path);
  file.write(std::as_bytes(std::span(content)));
  file.close();
}

void Lease::remove_older(std::uint64_t number) const {
  for (const std::string& name : store_.names("", detail::kLeasePrefix))
    if (detail::number_of(name) < number) store_.remove(name);
}

void Lease::renew() {
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

void Lease::keep(const std::stop_token& stop) {
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

}  // namespace troop::durability
