/// @file
/// Big aligned blocks of memory, and growable arrays of records.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>

namespace troop {

namespace detail {

/// The smallest number in the files `name` from `folder` / `path` up to `folder` itself; a file that is not
/// there, or says "max", bounds nothing.
inline std::size_t least_in_hierarchy(const std::filesystem::path& folder, const std::string& path,
                                      const char* name) {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  const auto look = [&](const std::filesystem::path& place) {
    std::size_t bytes = 0;
    if (std::ifstream(place / name) >> bytes) least = std::min(least, bytes);
  };
  std::filesystem::path place = folder;
  look(place);
  for (const auto& part : std::filesystem::path(path).relative_path()) look(place /= part);
  return least;
}

/// Bytes that the process's control groups allow it, those above them included; the largest number where
/// there are none. `root` holds proc/self/cgroup and sys/fs/cgroup.
inline std::size_t cgroup_memory(const std::filesystem::path& root = "/") {
  const std::filesystem::path folder = root / "sys/fs/cgroup";
  std::size_t least = std::numeric_limits<std::size_t>::max();
  std::ifstream groups(root / "proc/self/cgroup");  // lines HIERARCHY:CONTROLLERS:PATH
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first, second - first + 1);
    controllers.front() = controllers.back() = ',';
    const std::string path = line.substr(second + 1);
    if (controllers == ",,")
      least = std::min(least, least_in_hierarchy(folder, path, "memory.max"));  // version 2
    if (controllers.find(",memory,") != std::string::npos)
      least = std::min(least, least_in_hierarchy(folder / "memory", path, "memory.limit_in_bytes"));
  }
  return least;
}

}  // namespace detail

/// Bytes of memory that this process can have: the machine's physical memory, or less where a control group
/// (a container, a systemd unit, a batch job) is allowed less. Reads a few small files: for set-up.
inline std::size_t physical_memory() {
  const std::size_t machine =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return std::min(machine, detail::cgroup_memory());
}

/// `count * bytes`, or InvalidArgument naming `field` when that is more than a process can address.
inline std::size_t checked_bytes(std::string_view field, std::size_t count, std::size_t bytes) {
  constexpr std::size_t limit = std::size_t{1} << 46;
  if (bytes > 0 && count > limit / bytes) {
    throw InvalidArgument(std::string(field), std::to_string(count),
                          "at most " + std::to_string(limit / bytes));
  }
  return count * bytes;
}

/// A block of zeroed memory, aligned to a cache line. Blocks of 4 MiB or more lie on transparent huge pages
/// where the system grants them (a random access then costs no page-table walk), and their pages are taken
/// only when first touched. Movable, not copyable.
class Block {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  Block() = default;

  /// Throws Error, with the size, when the memory is not to be had.
  explicit Block(std::size_t bytes) : Block(bytes, 0) {}

  /// A block of which only a part is going to be touched: the system is asked for addresses and not for the
  /// promise of so much memory, so that the block may be larger than the machine's memory is. Where the
  /// system promises all or nothing (Linux with vm.overcommit_memory=2, or a limit on addresses) it must fit
  /// all the same.
  static Block reserve(std::size_t bytes) { return Block(bytes, MAP_NORESERVE); }

  /// A block in a new file, of which memory holds what is used often. The name is removed as soon as the file
  /// is open, so that its space is free when the block goes or the process ends, however it ends.
  ///
  /// Throws FileError when the file exists already, or cannot be created, or the disk has not `bytes` bytes
  /// left.
  static Block on_scratch_file(std::size_t bytes, const std::string& path) {
    const detail::FileHandle file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.is_open()) detail::throw_file_error(path, "cannot create", errno);
    ::unlink(path.c_str());
    Block block;
    block.bytes_ = bytes;
    if (bytes == 0) return block;
    if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0)
      detail::throw_file_error(path, "cannot give it " + std::to_string(bytes) + " bytes", error);
    void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (map == MAP_FAILED) detail::throw_file_error(path, "cannot map it into memory", errno);
    block.map_ = map;
    block.mapped_ = bytes;
    block.data_ = static_cast<std::byte*>(map);
    madvise(map, bytes, MADV_RANDOM);
    return block;
  }

  /// Touches every page, so that all memory is taken now. Contents stay.
  void prefault() noexcept {
    constexpr std::size_t kPage = 4096;
    for (std::size_t at = 0; at < bytes_; at += kPage) {
      volatile std::byte& byte = data_[at];
      byte = byte;
    }
  }

  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    Block(std::move(other)).swap(*this);
    return *this;
  }
  ~Block() {
    if (map_ != nullptr) {
      munmap(map_, mapped_);
    } else {
      std::free(data_);
    }
  }

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

  template <class T>
  std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  Block(std::size_t bytes, int flags) : bytes_(bytes) {
    if (bytes == 0) return;
    if (bytes < 2 * kHugePage) {
      data_ = static_cast<std::byte*>(
          std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
      if (data_ == nullptr) fail();
      std::memset(data_, 0, bytes);
      return;
    }
    if (bytes > std::numeric_limits<std::size_t>::max() / 2) fail();  // rounding up would overflow
    mapped_ = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
    void* map = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (map == MAP_FAILED) fail();
    map_ = map;
    data_ = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(map) + kHugePage - 1) / kHugePage *
                                         kHugePage);
    madvise(data_, mapped_ - kHugePage, MADV_HUGEPAGE);
  }

  void swap(Block& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(map_, other.map_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
  }
  [[noreturn]] void fail() const { throw Error("cannot allocate " + std::to_string(bytes_) + " bytes"); }

  std::byte* data_ = nullptr;
  void* map_ = nullptr;
  std::size_t bytes_ = 0, mapped_ = 0;
};

/// A growable array of adjacent records of a layout known at run time. Growing keeps the records and leaves
/// new ones zeroed; shrinking keeps the memory. Not thread-safe.
class RecordArray {
 public:
  explicit RecordArray(RecordLayout layout, std::size_t size = 0)
      : layout_(std::make_shared<const RecordLayout>(std::move(layout))) {
    resize(size);
  }

  const RecordLayout& layout() const noexcept { return *layout_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::size_t capacity() const noexcept { return block_.bytes() / layout_->size(); }

  void resize(std::size_t size) {
    if (size > capacity()) {
      reserve(size);  // new memory is zeroed
    } else if (size > size_) {
      std::memset(block_.data() + size_ * layout_->size(), 0, (size - size_) * layout_->size());
    }
    size_ = size;
  }

  void reserve(std::size_t size) {
    if (size <= capacity()) return;
    Block grown(checked_bytes("size", std::max(size, 2 * capacity()), layout_->size()));
    if (size_ > 0) std::memcpy(grown.data(), block_.data(), size_ * layout_->size());
    block_ = std::move(grown);
  }

  std::byte* data() noexcept { return block_.data(); }
  const std::byte* data() const noexcept { return block_.data(); }
  std::byte* record(std::size_t i) noexcept {
    assert(i < size_);
    return block_.data() + i * layout_->size();
  }
  const std::byte* record(std::size_t i) const noexcept {
    assert(i < size_);
    return block_.data() + i * layout_->size();
  }

  /// The records as those of a type known at compile time; throws LayoutMismatch unless the layouts are
  /// equal.
  template <Record T>
  std::span<const T> as() const {
    layout_->require_equal(RecordLayout::of<T>());
    return {reinterpret_cast<const T*>(data()), size_};
  }

  BatchView view() const { return {*layout_, data(), size_}; }

 private:
  std::shared_ptr<const RecordLayout> layout_;
  Block block_;
  std::size_t size_ = 0;
};

}  // namespace troop
