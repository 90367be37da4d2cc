#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <troop/durability/npz.hpp>

namespace troop::durability {

namespace detail {

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      std::uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0u);
      table[byte] = value;
    }
    return table;
  }();
  crc = ~crc;
  for (const std::byte byte : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

std::string npy_head(std::span<const std::size_t> shape) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (const std::size_t extent : shape) text += std::to_string(extent) + ", ";
  text += "), }";
  constexpr std::size_t kFixed = 10;  // magic, version and the length of the text
  text.append(63 - (kFixed + text.size()) % 64, ' ');
  text += '\n';
  std::string head("\x93NUMPY\x01\x00", 8);
  head += static_cast<char>(text.size() & 0xff);
  head += static_cast<char>(text.size() >> 8);
  return head + text;
}

void ZipEntry::append_common(ByteWriter& out) const {
  constexpr std::uint16_t kVersion = 20, kStored = 0, kFlags = 0, kTime = 0, kDate = 0x21;  // 1980-01-01
  for (const std::uint16_t number : {kVersion, kFlags, kStored, kTime, kDate}) out.number(number);
  for (const std::uint32_t number : {crc, bytes, bytes}) out.number(number);
  out.number(static_cast<std::uint16_t>(name.size()));
  out.number(std::uint16_t{0});  // no extra field
}

}  // namespace detail

void save_npz(const std::string& path, const nn::Network& network, std::span<const float> parameters) {
  require(parameters.size() == network.num_parameters(), "parameters", parameters.size(),
          std::to_string(network.num_parameters()) + " floats");
  std::vector<std::byte> file;
  file.reserve(parameters.size_bytes() + network.parameter_blocks().size() * 512);
  ByteWriter out(file);
  std::vector<detail::ZipEntry> entries;
  for (const nn::ParameterBlock& block : network.parameter_blocks()) {
    const std::string head = detail::npy_head(block.shape);
    const auto head_bytes = std::as_bytes(std::span(head));
    const auto values = std::as_bytes(parameters.subspan(block.offset, block.size()));
    const detail::ZipEntry entry{.name = block.name + ".npy",
                                 .crc = detail::crc32(values, detail::crc32(head_bytes)),
                                 .bytes = static_cast<std::uint32_t>(head_bytes.size() + values.size()),
                                 .offset = static_cast<std::uint32_t>(file.size())};
    out.number(std::uint32_t{0x04034b50});
    entry.append_common(out);
    out.bytes(std::as_bytes(std::span(entry.name)));
    out.bytes(head_bytes);
    out.bytes(values);
    entries.push_back(entry);
  }
  const std::size_t directory = file.size();
  for (const detail::ZipEntry& entry : entries) {
    out.number(std::uint32_t{0x02014b50});
    out.number(std::uint16_t{20});
    entry.append_common(out);
    for (int i = 0; i < 3; ++i) out.number(std::uint16_t{0});  // comment, disk, kind
    out.number(std::uint32_t{0});                              // attributes
    out.number(entry.offset);
    out.bytes(std::as_bytes(std::span(entry.name)));
  }
  const std::size_t directory_bytes = file.size() - directory;
  out.number(std::uint32_t{0x06054b50});
  out.number(std::uint32_t{0});
  for (int i = 0; i < 2; ++i) out.number(static_cast<std::uint16_t>(entries.size()));
  out.number(static_cast<std::uint32_t>(directory_bytes));
  out.number(static_cast<std::uint32_t>(directory));
  out.number(std::uint16_t{0});
  write_file_atomically(path, file);
}

}  // namespace troop::durability
