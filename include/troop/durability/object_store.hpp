/// @file
/// Where a run keeps its files: whole objects under names that are never used again.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/file.hpp>

namespace troop::durability {

/// What the file system can do. `disk`: rename in one step, append (a local disk, NFS). `sequential`: only new
/// files, written once from their start to their end and never changed (an object store that is mounted).
enum class StoreKind { disk, sequential };

namespace detail {

/// Whether a file system that refuses fsync with this has simply none.
inline bool has_no_sync(int error) noexcept {
  return error == EINVAL || error == ENOTSUP || error == ENOSYS;
}

/// A new file under its final name, to be written from its start on. Throws FileError with path and reason.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (!file_.is_open()) troop::detail::throw_file_error(path, "cannot create", errno);
  }

  const std::string& path() const noexcept { return path_; }
  /// Bytes written.
  std::size_t size() const noexcept { return size_; }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) troop::detail::throw_file_error(path_, "cannot write", written < 0 ? errno : EIO);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      size_ += static_cast<std::size_t>(written);
    }
  }

  /// Cuts off what was written beyond `bytes`: the rest of a write that failed.
  void truncate(std::size_t bytes) {
    if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0 ||
        ::lseek(file_.get(), static_cast<off_t>(bytes), SEEK_SET) < 0)
      troop::detail::throw_file_error(path_, "cannot cut off", errno);
    size_ = bytes;
  }

  /// Returns when everything written is on the disk.
  void sync() {
    if (::fdatasync(file_.get()) != 0 && !has_no_sync(errno))
      troop::detail::throw_file_error(path_, "cannot write to the disk", errno);
  }

  void close() {
    if (!file_.close()) troop::detail::throw_file_error(path_, "cannot write", errno);
  }

 private:
  std::string path_;
  troop::detail::FileHandle file_;
  std::size_t size_ = 0;
};

}  // namespace detail

/// A folder of objects. A name is given once: what is newer has a greater name, and a reader takes the newest
/// object that is whole, which the object's own checksums tell. So nothing needs to be replaced, and a crash at
/// any moment leaves what was there before or the new object.
///
/// Thread-safe for different names. Everything that fails throws FileError with the path and the reason.
///
///     ObjectStore store("run", StoreKind::disk);
///     store.write("checkpoints/checkpoint-000001", head, content);
class ObjectStore {
 public:
  /// Makes the folder if it is not there.
  ObjectStore(std::string folder, StoreKind kind) : folder_(std::move(folder)), kind_(kind) {
    require(!folder_.empty(), "folder", "\"\"", "the name of a folder");
    make_folder(folder_);
  }

  const std::string& folder() const noexcept { return folder_; }
  StoreKind kind() const noexcept { return kind_; }
  std::string path(std::string_view name) const { return folder_ + "/" + std::string(name); }

  /// Makes a folder within this one.
  void make(std::string_view name) const { make_folder(path(name)); }

  /// Writes `parts`, spans of bytes, one after the other as a new object, and returns when it is on the disk.
  /// What is left of one that failed or was cut off by a crash is not whole, or bears the name of a temporary
  /// file.
  template <class... Parts>
  void write(std::string_view name, const Parts&... parts) const {
    if (kind_ == StoreKind::disk) return write_file_atomically(path(name), parts...);
    detail::NewFile file(path(name));
    try {
      (file.write(std::span<const std::byte>(parts)), ...);
      file.sync();
      file.close();
    } catch (...) {
      ::unlink(file.path().c_str());
      throw;
    }
  }

  /// The names in `folder` ("" or "checkpoints/") that begin with `prefix`, in rising order; none where there
  /// is no such folder.
  std::vector<std::string> names(std::string_view folder, std::string_view prefix) const {
    std::vector<std::string> found;
    const std::string at = path(folder);
    const std::unique_ptr<DIR, CloseFolder> opened(::opendir(at.c_str()));
    if (!opened) {
      if (errno == ENOENT) return found;
      troop::detail::throw_file_error(at, "cannot read", errno);
    }
    errno = 0;
    while (const dirent* const entry = ::readdir(opened.get())) {
      const std::string_view name(entry->d_name);
      if (name.starts_with(prefix) && !name.ends_with(".tmp") && name != "." && name != "..")
        found.push_back(std::string(folder).append(name));
      errno = 0;
    }
    if (errno != 0) troop::detail::throw_file_error(at, "cannot read", errno);
    std::sort(found.begin(), found.end());
    return found;
  }

  /// Removes an object; one that is not there is removed already.
  void remove(std::string_view name) const {
    const std::string at = path(name);
    if (::unlink(at.c_str()) != 0 && errno != ENOENT)
      troop::detail::throw_file_error(at, "cannot remove", errno);
  }

  /// Removes what crashes have left of objects in `folder` that were not finished.
  void remove_temporary(std::string_view folder) const {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(path(folder), ignored))
      if (entry.path().extension() == ".tmp") std::filesystem::remove(entry.path(), ignored);
  }

 private:
  struct CloseFolder {
    void operator()(DIR* folder) const noexcept { ::closedir(folder); }
  };

  static void make_folder(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) throw FileError(path, "cannot make this folder: " + error.message());
  }

  std::string folder_;
  StoreKind kind_;
};

}  // namespace troop::durability
