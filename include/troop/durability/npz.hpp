/// @file
/// Parameters for others: an .npz file, as numpy.load reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <troop/core/bytes.hpp>
#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/nn/network.hpp>

namespace troop::durability {

namespace detail {

/// CRC-32 as ZIP and Ethernet have it: the reflected polynomial 0xedb88320.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept;

/// The head of an .npy file, format 1.0, of a little-endian float32 array in C order. Its length is a multiple of
/// 64.
std::string npy_head(std::span<const std::size_t> shape);

/// What ZIP says of a file that it holds, in front of it and again in its directory.
struct ZipEntry {
  std::string name;
  std::uint32_t crc = 0, bytes = 0, offset = 0;

  /// The part that both have in common, after signature and, in the directory, the version of the writer.
  void append_common(ByteWriter& out) const;
};

}  // namespace detail

/// Writes the parameters of a bound network as `path`, an .npz file with one float32 array for each weight matrix
/// and bias vector, under the names that `Network::parameter_blocks` gives them ("0.dense.weight") and in the
/// shapes that PyTorch has: a Dense layer's weight is [out, in]. The file appears whole or not at all.
///
/// Throws InvalidArgument when the number of parameters is another, FileError when the file cannot be written.
///
///     save_npz("weights.npz", network, parameters);   // numpy.load("weights.npz")["0.dense.weight"]
void save_npz(const std::string& path, const nn::Network& network, std::span<const float> parameters);

}  // namespace troop::durability
