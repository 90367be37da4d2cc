/// @file
/// Files that appear whole or not at all, and bounded reading.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>

namespace troop {

namespace detail {

[[noreturn]] inline void throw_file_error(const std::string& path, const std::string& action, int error) {
  throw FileError(path, action + ": " + std::generic_category().message(error));
}

/// An open file descriptor.
class FileHandle {
 public:
  explicit FileHandle(int descriptor) noexcept : descriptor_(descriptor) {}
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  ~FileHandle() { close(); }

  bool is_open() const noexcept { return descriptor_ >= 0; }
  int get() const noexcept { return descriptor_; }
  /// False, with errno set, when the system reports a late write error.
  bool close() noexcept { return descriptor_ < 0 || ::close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

/// The directory that holds `path`.
inline std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// A new file beside `path`, removed at the end unless it was renamed to `path`.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : path_(path), file_(create()) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), std::min(bytes.size(), kMostAtOnce));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) throw_file_error(path_, "cannot write", written < 0 ? errno : EIO);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  /// Gives the file its final name, on the disk too.
  void finish() {
    if (::fsync(file_.get()) != 0) throw_file_error(path_, "cannot write to the disk", errno);
    if (!file_.close()) throw_file_error(path_, "cannot write", errno);
    if (::rename(name_.c_str(), path_.c_str()) != 0) throw_file_error(path_, "cannot replace", errno);
    name_.clear();
    const FileHandle directory(::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Some file systems have no fsync of directories (EINVAL); a directory that may not be read has none
    // either.
    if (directory.is_open() && ::fsync(directory.get()) != 0 && errno != EINVAL)
      throw_file_error(path_, "replaced, but a crash of the machine may undo that", errno);
  }

 private:
  int create() {
    static std::atomic<unsigned> counter{0};
    if (path_.empty() || path_.back() == '/') throw FileError(path_, "is not the name of a file");
    struct stat status {};
    const bool exists = ::stat(path_.c_str(), &status) == 0;
    if (exists && S_ISDIR(status.st_mode)) throw FileError(path_, "is a directory");
    if (exists && !S_ISREG(status.st_mode))  // a rename would put a file in the place of /dev/null
      throw FileError(path_, "is not a regular file");
    while (true) {
      const unsigned number = counter.fetch_add(1);
      std::string name = path_ + "." + std::to_string(::getpid()) + "-" + std::to_string(number) + ".tmp";
      const int file = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file >= 0) {
        name_ = std::move(name);
        return file;
      }
      if (errno != EEXIST && errno != EINTR) throw_file_error(path_, "cannot create a file beside it", errno);
    }
  }

  std::string path_, name_;
  FileHandle file_;
};

}  // namespace detail

/// Writes `parts`, spans of bytes, one after the other as the file `path`, which a reader sees whole or not
/// at all: a temporary file beside it ("PATH.PID-NUMBER.tmp"), fsync, rename, fsync of the directory. A
/// symbolic link is replaced by the file; a directory, device, pipe or socket is refused.
///
/// Throws FileError with the path and the system's reason. Then the old file is intact and the temporary one
/// removed, with one exception that the message names: the directory could not be synced after the rename. A
/// process that is killed meanwhile may leave the temporary file. Thread-safe; of several writers of one path
/// the last wins.
///
///     write_file_atomically("run/head", std::as_bytes(std::span(header)), std::as_bytes(parameters));
template <class... Parts>
void write_file_atomically(const std::string& path, const Parts&... parts) {
  detail::TemporaryFile file(path);
  (file.write(std::span<const std::byte>(parts)), ...);
  file.finish();
}

/// Reads a file from its start to its end, in pieces.
class FileReader {
 public:
  /// Throws FileError when the file cannot be opened or is not a regular file.
  explicit FileReader(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (!file_.is_open()) detail::throw_file_error(path, "cannot open", errno);
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) detail::throw_file_error(path, "cannot read", errno);
    if (!S_ISREG(status.st_mode)) throw FileError(path, "is not a regular file");
    size_ = static_cast<std::size_t>(status.st_size);
  }

  const std::string& path() const noexcept { return path_; }
  /// Bytes of the file when it was opened.
  std::size_t size() const noexcept { return size_; }
  std::size_t left() const noexcept { return size_ - at_; }

  /// Fills `bytes`. Throws FileError when the file ends before.
  void read(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t got = ::read(file_.get(), bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) detail::throw_file_error(path_, "cannot read", errno);
      if (got == 0) throw FileError(path_, "became shorter while it was read");
      at_ += static_cast<std::size_t>(got);
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
  }

  /// Starts again.
  void rewind() {
    if (::lseek(file_.get(), 0, SEEK_SET) != 0) detail::throw_file_error(path_, "cannot read again", errno);
    at_ = 0;
  }

 private:
  std::string path_;
  detail::FileHandle file_;
  std::size_t size_ = 0, at_ = 0;
};

/// The whole file. Throws FileError with the path and the reason when it cannot be read, is not a regular
/// file, or has more than `max_bytes` bytes; no more than these are ever allocated.
inline std::vector<std::byte> read_file(const std::string& path, std::size_t max_bytes) {
  FileReader file(path);
  if (file.size() > max_bytes)
    throw FileError(path, std::to_string(file.size()) + " bytes, more than the " + std::to_string(max_bytes) +
                              " allowed");
  std::vector<std::byte> bytes(file.size());
  file.read(bytes);
  return bytes;
}

/// Gives what is at `path` a second name, that of the first number that is free (network.troop becomes
/// network.1.troop), so that a new file in its place does not destroy it. Returns that name; empty when there
/// is nothing. Nobody ever sees `path` missing, except on file systems without hard links, where the file is
/// renamed. Throws FileError with the path and the system's reason.
///
///     const std::string earlier = keep_earlier_file("network.troop");
///     write_file_atomically("network.troop", bytes);
inline std::string keep_earlier_file(const std::string& path) {
  const std::size_t name = path.rfind('/') + 1;  // npos + 1 is 0
  const std::size_t dot = path.rfind('.');
  const std::size_t stem = dot == std::string::npos || dot <= name ? path.size() : dot;
  struct stat status {};
  for (std::size_t number = 1; ::lstat(path.c_str(), &status) == 0; ++number) {
    std::string kept = path.substr(0, stem) + "." + std::to_string(number) + path.substr(stem);
    if (::link(path.c_str(), kept.c_str()) == 0) return kept;
    if (errno == EEXIST) continue;
    if (::lstat(kept.c_str(), &status) == 0) continue;
    if (::rename(path.c_str(), kept.c_str()) == 0) return kept;
    detail::throw_file_error(path, "cannot keep it as " + kept, errno);
  }
  return {};
}

/// Throws FileError, with the path and the reason, when `write_file_atomically` could not create a file
/// there: for set-up, before hours of work whose result is to be written. Leaves nothing behind.
inline void check_writable(const std::string& path) {
  const detail::TemporaryFile probe(path);
}

}  // namespace troop
