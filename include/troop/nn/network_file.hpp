/// @file
/// Networks on disk: description and parameters in one small, checked file.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troop/core/bytes.hpp>  // states the byte order
#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/core/hash.hpp>
#include <troop/nn/network.hpp>

namespace troop::nn {

/// A bound network with its parameters, as `load_network` gives them.
struct LoadedNetwork {
  Network network;
  std::vector<float> parameters;
};

namespace detail {

struct NetworkFileHead {
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::uint32_t kMaxText = 4096;

  char magic[8] = {'T', 'R', 'O', 'O', 'P', 'N', 'E', 'T'};
  std::uint32_t version = kVersion;
  std::uint32_t text_bytes = 0;
  std::uint64_t num_parameters = 0;
};
static_assert(sizeof(NetworkFileHead) == 24);

}  // namespace detail

/// Writes a bound network and its parameters atomically (see `write_file_atomically`).
///
/// The bytes, all numbers little-endian:
///
///     offset  bytes  content
///     0       8      "TROOPNET"
///     8       4      format version, 1
///     12      4      T, length of the text, 1 to 4096
///     16      8      N, number of parameters
///     24      T      canonical text of the bound network (`to_string`), no terminator
///     24+T    4 N    parameters, float32, in the order that Network documents
///     24+T+4N 4      CRC-32C of all bytes before
///
/// Throws Error for a network that is not bound, InvalidArgument when the number of parameters is another or
/// a parameter is not finite, FileError when the file cannot be written; then an old file is intact.
inline void save_network(const std::string& path, const Network& network, std::span<const float> parameters) {
  require(parameters.size() == network.num_parameters(), "parameters", parameters.size(),
          std::to_string(network.num_parameters()) + " floats");
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (!std::isfinite(parameters[i]))
      throw InvalidArgument("parameters[" + std::to_string(i) + "]", std::to_string(parameters[i]),
                            "a finite number");
  const std::string text = to_string(network);
  detail::NetworkFileHead head;
  head.text_bytes = static_cast<std::uint32_t>(text.size());
  head.num_parameters = parameters.size();
  require(text.size() <= detail::NetworkFileHead::kMaxText, "network text", text.size(),
          "at most 4096 characters");
  const auto head_bytes = std::as_bytes(std::span(&head, 1));
  const auto text_bytes = std::as_bytes(std::span(text));
  const std::uint32_t crc = crc32c(std::as_bytes(parameters), crc32c(text_bytes, crc32c(head_bytes)));
  write_file_atomically(path, head_bytes, text_bytes, std::as_bytes(parameters),
                        std::as_bytes(std::span(&crc, 1)));
}

/// Reads what `save_network` wrote. Throws FileError, naming the file and the reason, for a file that cannot
/// be read, is foreign, of a newer version, truncated, longer than it says, changed in any bit, holds a
/// network beyond Network's limits or a parameter that is not finite.
inline LoadedNetwork load_network(const std::string& path) {
  using Head = detail::NetworkFileHead;
  const std::vector<std::byte> file =
      read_file(path, sizeof(Head) + Head::kMaxText + Network::kMaxParameters * sizeof(float) + 4);
  Head head;
  if (file.size() < sizeof(head) || std::memcmp(file.data(), head.magic, sizeof(head.magic)) != 0)
    throw FileError(path, "is not a troop network (it does not begin with TROOPNET)");
  std::memcpy(&head, file.data(), sizeof(head));
  if (head.version != Head::kVersion)
    throw FileError(path, "is of format version " + std::to_string(head.version) +
                              "; this program reads version " + std::to_string(Head::kVersion));
  if (head.text_bytes == 0 || head.text_bytes > Head::kMaxText ||
      head.num_parameters > Network::kMaxParameters)
    throw FileError(path, "is damaged: impossible sizes in its head");
  const std::size_t parameter_bytes = static_cast<std::size_t>(head.num_parameters) * sizeof(float);
  const std::size_t expected = sizeof(head) + head.text_bytes + parameter_bytes + 4;
  if (file.size() != expected)
    throw FileError(path, "is damaged: " + std::to_string(file.size()) + " bytes where its head promises " +
                              std::to_string(expected));
  const auto content = std::span(file).first(file.size() - 4);
  std::uint32_t crc = 0;
  std::memcpy(&crc, file.data() + content.size(), 4);
  if (crc != crc32c(content)) throw FileError(path, "is damaged: its checksum does not match");

  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof(head), head.text_bytes);
  try {
    LoadedNetwork loaded{parse_network(text), std::vector<float>(head.num_parameters)};
    require(loaded.network.num_parameters() == head.num_parameters, "num_parameters", head.num_parameters,
            std::to_string(loaded.network.num_parameters()) + " for " + std::string(text));
    std::memcpy(loaded.parameters.data(), text.data() + text.size(), parameter_bytes);
    for (const float parameter : loaded.parameters)
      require(std::isfinite(parameter), "parameter", parameter, "a finite number");
    return loaded;
  } catch (const Error& error) {
    throw FileError(path, std::string("is damaged: ") + error.what());
  }
}

}  // namespace troop::nn
