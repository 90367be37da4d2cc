#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <temporary_directory.hpp>
#include <testing.hpp>

#include <troop/core/bytes.hpp>
#include <troop/core/file.hpp>
#include <troop/durability/npz.hpp>
#include <troop/nn/network.hpp>

using namespace troop;

namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("the checksum is that of ZIP") {
  const std::string text = "123456789";
  CHECK(durability::detail::crc32(std::as_bytes(std::span(text))) == 0xcbf43926u);
}

TEST_CASE("the head of an array says its shape and ends at a multiple of 64 bytes") {
  for (std::size_t first = 1; first < 100'000'000; first *= 3) {
    const std::vector<std::size_t> shape{first, 7};
    const std::string head = durability::detail::npy_head(shape);
    CHECK(head.size() % 64 == 0);
    CHECK(head.substr(0, 6) == "\x93NUMPY");
    CHECK(head.back() == '\n');
    CHECK(head.find("{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(first) +
                    ", 7, ), }") == 10);
    std::uint16_t length = 0;
    std::memcpy(&length, head.data() + 8, 2);
    CHECK(length == head.size() - 10);
  }
}

TEST_CASE("a network's arrays lie in the file one after the other, each with its name and its values") {
  const testing::TemporaryDirectory directory;
  const nn::Network network = nn::dueling_mlp({6, 5}).bind({3}, 2);
  std::vector<float> parameters(network.num_parameters());
  std::iota(parameters.begin(), parameters.end(), 0.5f);
  const std::string path = directory.file("weights.npz");
  durability::save_npz(path, network, parameters);
  const std::vector<std::byte> file = read_file(path, 1 << 20);

  ByteReader reader(file);
  std::vector<std::uint32_t> offsets, checksums;
  for (const nn::ParameterBlock& block : network.parameter_blocks()) {
    offsets.push_back(static_cast<std::uint32_t>(file.size() - reader.left()));
    CHECK(reader.number<std::uint32_t>() == 0x04034b50);
    reader.bytes(10);
    checksums.push_back(reader.number<std::uint32_t>());
    const auto bytes = reader.number<std::uint32_t>();
    CHECK(reader.number<std::uint32_t>() == bytes);
    const auto name_bytes = reader.number<std::uint16_t>();
    CHECK(reader.number<std::uint16_t>() == 0);
    CHECK(text_of(reader.bytes(name_bytes)) == block.name + ".npy");
    const auto content = reader.bytes(bytes);
    CHECK(durability::detail::crc32(content) == checksums.back());
    const auto values = content.last(block.size() * sizeof(float));
    CHECK(std::memcmp(values.data(), parameters.data() + block.offset, values.size()) == 0);
    CHECK((content.size() - values.size()) % 64 == 0);
  }
  const std::size_t directory_at = file.size() - reader.left();
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    CHECK(reader.number<std::uint32_t>() == 0x02014b50);
    reader.bytes(12);
    CHECK(reader.number<std::uint32_t>() == checksums[i]);
    reader.bytes(8);
    const auto name_bytes = reader.number<std::uint16_t>();
    reader.bytes(12);
    CHECK(reader.number<std::uint32_t>() == offsets[i]);
    CHECK(text_of(reader.bytes(name_bytes)) == network.parameter_blocks()[i].name + ".npy");
  }
  const std::size_t end = file.size() - reader.left();
  CHECK(reader.number<std::uint32_t>() == 0x06054b50);
  reader.bytes(4);
  CHECK(reader.number<std::uint16_t>() == offsets.size());
  CHECK(reader.number<std::uint16_t>() == offsets.size());
  CHECK(reader.number<std::uint32_t>() == end - directory_at);
  CHECK(reader.number<std::uint32_t>() == directory_at);
  CHECK(reader.number<std::uint16_t>() == 0);
  CHECK_NOTHROW(reader.finish());
}

TEST_CASE("parameters of another network are refused") {
  const testing::TemporaryDirectory directory;
  const nn::Network network = nn::dueling_mlp({6}).bind({3}, 2);
  const std::vector<float> parameters(3);
  CHECK(testing::error_of([&] { durability::save_npz(directory.file("x.npz"), network, parameters); }) ==
        "parameters: 3 is not allowed; expected " + std::to_string(network.num_parameters()) + " floats");
}
