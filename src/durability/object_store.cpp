#include <dirent.h>
#include <fcntl.h>
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

#include <troop/durability/object_store.hpp>

namespace troop::durability {

namespace detail {

bool has_no_sync(int error) noexcept {
  return error == EINVAL || error == ENOTSUP || error == ENOSYS;
}

NewFile::NewFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!file_.is_open()) troop::detail::throw_file_error(path, "cannot create", errno);
}

void NewFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) troop::detail::throw_file_error(path_, "cannot write", written < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    size_ += static_cast<std::size_t>(written);
  }
}

void NewFile::truncate(std::size_t bytes) {
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0 ||
      ::lseek(file_.get(), static_cast<off_t>(bytes), SEEK_SET) < 0)
    troop::detail::throw_file_error(path_, "cannot cut off", errno);
  size_ = bytes;
}

void NewFile::sync() {
  if (::fdatasync(file_.get()) != 0 && !has_no_sync(errno))
    troop::detail::throw_file_error(path_, "cannot write to the disk", errno);
}

void NewFile::close() {
  if (!file_.close()) troop::detail::throw_file_error(path_, "cannot write", errno);
}

}  // namespace detail

ObjectStore::ObjectStore(std::string folder, StoreKind kind) : folder_(std::move(folder)), kind_(kind) {
  require(!folder_.empty(), "folder", "\"\"", "the name of a folder");
  make_folder(folder_);
}

std::vector<std::string> ObjectStore::names(std::string_view folder, std::string_view prefix) const {
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

void ObjectStore::remove(std::string_view name) const {
  const std::string at = path(name);
  if (::unlink(at.c_str()) != 0 && errno != ENOENT)
    troop::detail::throw_file_error(at, "cannot remove", errno);
}

void ObjectStore::remove_temporary(std::string_view folder) const {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path(folder), ignored))
    if (entry.path().extension() == ".tmp") std::filesystem::remove(entry.path(), ignored);
}

void ObjectStore::make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw FileError(path, "cannot make this folder: " + error.message());
}

}  // namespace troop::durability
