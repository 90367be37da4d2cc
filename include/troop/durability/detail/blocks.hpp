/// @file
/// Files made of checked blocks: what checkpoints, manifests and segments of the replay have in common.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/core/hash.hpp>

namespace troop::durability::detail {

/// Each block is this head and then `bytes` bytes; the checksum is of both but for itself. A file is its magic
/// (8 bytes), its version (4 bytes), 4 zeros, and blocks; the last one is of the type kEnd unless the file was
/// still being appended to.
struct BlockHead {
  std::uint32_t crc = 0, type = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(BlockHead) == 16);

inline constexpr std::uint32_t kEnd = 0;
inline constexpr std::size_t kFileHeadBytes = 16;

/// Which files a reader takes.
struct FileKind {
  std::string_view magic;  ///< 8 characters
  std::uint32_t version;
  std::string_view name;  ///< "checkpoint"
};

inline std::array<std::byte, kFileHeadBytes> file_head(const FileKind& kind) {
  std::array<std::byte, kFileHeadBytes> head{};
  std::memcpy(head.data(), kind.magic.data(), 8);
  std::memcpy(head.data() + 8, &kind.version, sizeof kind.version);
  return head;
}

/// The head of a block whose content is `parts`, one after the other.
template <class... Parts>
BlockHead block_head(std::uint32_t type, const Parts&... parts) {
  BlockHead head{.type = type};
  ((head.bytes += parts.size()), ...);
  head.crc = crc32c(std::as_bytes(std::span(&head, 1)).subspan(sizeof head.crc));
  ((head.crc = crc32c(parts, head.crc)), ...);
  return head;
}

/// Writes a block to whatever has `write(span of bytes)`.
template <class File, class... Parts>
void write_block(File& file, std::uint32_t type, const Parts&... parts) {
  const BlockHead head = block_head(type, parts...);
  file.write(std::as_bytes(std::span(&head, 1)));
  (file.write(parts), ...);
}

/// Reads blocks and checks them; whatever is wrong is thrown as FileError with the file's name.
class BlockReader {
 public:
  BlockReader(const std::string& path, const FileKind& kind) : file_(path), name_(kind.name) {
    std::array<std::byte, kFileHeadBytes> head{};
    if (file_.left() >= head.size()) file_.read(head);
    if (std::memcmp(head.data(), kind.magic.data(), 8) != 0)
      throw FileError(
          path, "is not a troop " + name_ + " (it does not begin with " + std::string(kind.magic) + ")");
    std::uint32_t version = 0;
    std::memcpy(&version, head.data() + 8, sizeof version);
    if (version != kind.version)
      throw FileError(path, "is of format version " + std::to_string(version) +
                                "; this program reads version " + std::to_string(kind.version));
  }

  const std::string& path() const noexcept { return file_.path(); }
  std::size_t left() const noexcept { return file_.left(); }

  /// The type of the next block, whose content is then in `content()`.
  std::uint32_t next() {
    BlockHead head;
    if (file_.left() < sizeof head) damaged("it ends in the middle");
    file_.read(std::as_writable_bytes(std::span(&head, 1)));
    if (head.bytes > file_.left()) damaged("it ends in the middle");
    content_.resize(static_cast<std::size_t>(head.bytes));
    file_.read(content_);
    const BlockHead expected = block_head(head.type, std::span<const std::byte>(content_));
    if (expected.crc != head.crc) damaged("a checksum does not match");
    if (head.type == kEnd && file_.left() > 0) damaged(std::to_string(file_.left()) + " bytes after its end");
    return head.type;
  }

  std::span<const std::byte> content() const noexcept { return content_; }

  [[noreturn]] void damaged(const std::string& reason) const {
    throw FileError(path(), "is damaged: " + reason);
  }

 private:
  FileReader file_;
  std::string name_;
  std::vector<std::byte> content_;
};

}  // namespace troop::durability::detail
