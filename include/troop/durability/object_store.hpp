/// @file
/// Where a run keeps its files: whole objects under names that are never used again.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/file.hpp>

namespace troop::durability {

/// What the file system can do. `disk`: rename in one step, append (a local disk, NFS). `sequential`: only new
/// files, written once from their start to their end and never changed (an object store that is mounted).
enum class StoreKind { disk, sequential };

namespace detail {

/// Whether a file system that refuses fsync with this has simply none.
bool has_no_sync(int error) noexcept;

/// A new file under its final name, to be written from its start on. Throws FileError with path and reason.
class NewFile {
 public:
  explicit NewFile(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  /// Bytes written.
  std::size_t size() const noexcept { return size_; }

  void write(std::span<const std::byte> bytes);

  /// Cuts off what was written beyond `bytes`: the rest of a write that failed.
  void truncate(std::size_t bytes);

  /// Returns when everything written is on the disk.
  void sync();

  void close();

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
  ObjectStore(std::string folder, StoreKind kind);

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
  std::vector<std::string> names(std::string_view folder, std::string_view prefix) const;

  /// Removes an object; one that is not there is removed already.
  void remove(std::string_view name) const;

  /// Removes what crashes have left of objects in `folder` that were not finished.
  void remove_temporary(std::string_view folder) const;

 private:
  struct CloseFolder {
    void operator()(DIR* folder) const noexcept { ::closedir(folder); }
  };

  static void make_folder(const std::string& path);

  std::string folder_;
  StoreKind kind_;
};

}  // namespace troop::durability
