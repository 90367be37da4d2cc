// Preloaded into a program: a disk that is slow and a clock that jumps, while TROOP_CHAOS_SLOW (milliseconds of each
// sync) and TROOP_CHAOS_CLOCK (seconds by which the time of day is off) name files that hold a number.
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

/// The number in the file that `variable` names; 0 where there is none.
long number_in(const char* variable) {
  const char* const path = std::getenv(variable);
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "r");
  if (file == nullptr) return 0;
  long number = 0;
  if (std::fscanf(file, "%ld", &number) != 1) number = 0;
  std::fclose(file);
  return number;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int fdatasync(int file) {
  static auto* const original = next<int(int)>("fdatasync");
  ::usleep(static_cast<useconds_t>(number_in("TROOP_CHAOS_SLOW") * 1000));
  return original(file);
}

extern "C" int fsync(int file) {
  static auto* const original = next<int(int)>("fsync");
  ::usleep(static_cast<useconds_t>(number_in("TROOP_CHAOS_SLOW") * 1000));
  return original(file);
}

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const original = next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = original(clock, time);
  if (clock == CLOCK_REALTIME && result == 0) time->tv_sec += number_in("TROOP_CHAOS_CLOCK");
  return result;
}

extern "C" time_t time(time_t* result) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}
