#include <doctest/doctest.h>

#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <troop/core/file.hpp>
#include <troop/core/hash.hpp>
#include <troop/nn/initialize.hpp>
#include <troop/nn/network_file.hpp>

using namespace troop::nn;

namespace {

struct File {
  File()
      : path((std::filesystem::temp_directory_path() / ("troop-network-" + std::to_string(getpid())))
                 .string()) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { std::filesystem::remove(path); }
  std::vector<std::byte> read() const { return troop::read_file(path, 1 << 20); }
  void write(const std::vector<std::byte>& bytes) const {
    std::filesystem::remove(path);  // some file systems sync a file that was truncated
    std::ofstream stream(path, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    REQUIRE(stream.good());
  }
  /// Writes `bytes` with a checksum that fits them.
  void seal(std::vector<std::byte> bytes) const {
    const std::uint32_t crc = troop::crc32c(std::span<const std::byte>(bytes).first(bytes.size() - 4));
    std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
    write(bytes);
  }
  std::string load_error() const {
    try {
      load_network(path);
    } catch (const troop::FileError& error) {
      CHECK(error.path() == path);
      return error.what();
    }
    return "no error";
  }
  std::string path;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const Network kNetwork = dueling_mlp({3, 2}).bind({4}, 2);

}  // namespace

TEST_CASE("a network comes back from its file bit for bit") {
  const File file;
  const Network convolutional = parse_network("input(2,9,8) conv(5,3,2) relu conv(7,2,1) relu dueling(6,3)");
  for (const Network& network : {kNetwork, convolutional}) {
    std::vector<float> parameters = initial_parameters(network, 4);
    parameters[0] = -0.0f;
    parameters[1] = std::numeric_limits<float>::denorm_min();
    save_network(file.path, network, parameters);
    const LoadedNetwork loaded = load_network(file.path);
    CHECK(loaded.network == network);
    REQUIRE(loaded.parameters.size() == parameters.size());
    CHECK(std::memcmp(loaded.parameters.data(), parameters.data(), parameters.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("the bytes are the documented ones") {
  const File file;
  const Network network = mlp({}).bind({1}, 1);
  save_network(file.path, network, std::vector<float>{1.0f, -2.0f});
  const std::string text = "input(1) output(1)";
  const std::string expected = std::string("TROOPNET\1\0\0\0\x12\0\0\0\2\0\0\0\0\0\0\0", 24) + text +
                               std::string("\0\0\x80\x3f\0\0\0\xc0", 8);
  const auto bytes = file.read();
  REQUIRE(bytes.size() == expected.size() + 4);
  CHECK(std::memcmp(bytes.data(), expected.data(), expected.size()) == 0);
}

TEST_CASE("saving refuses what could not be loaded") {
  const File file;
  std::vector<float> parameters = initial_parameters(kNetwork, 4);
  CHECK_THROWS_AS(save_network(file.path, kNetwork, std::vector<float>(3)), troop::InvalidArgument);
  CHECK_THROWS_AS(save_network(file.path, dueling_mlp({3}), parameters), troop::Error);
  CHECK_THROWS_AS(save_network("/no/such/directory/file", kNetwork, parameters), troop::FileError);
  parameters[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(save_network(file.path, kNetwork, parameters), troop::InvalidArgument);
  CHECK_FALSE(std::filesystem::exists(file.path));
}

TEST_CASE("a file cut short anywhere, or longer, is refused") {
  const File file;
  save_network(file.path, kNetwork, initial_parameters(kNetwork, 4));
  const auto whole = file.read();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    file.write({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)});
    CHECK_THROWS_AS(load_network(file.path), troop::FileError);
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  file.write(longer);
  CHECK(has(file.load_error(), "is damaged: " + std::to_string(whole.size() + 1) +
                                   " bytes where its head promises " + std::to_string(whole.size())));
}

TEST_CASE("a file with any bit changed is refused") {
  const File file;
  save_network(file.path, kNetwork, initial_parameters(kNetwork, 4));
  const auto whole = file.read();
  for (std::size_t bit = 0; bit < 8 * whole.size(); bit += bit < 8 * 64 ? 1 : 5) {
    auto changed = whole;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    file.write(changed);
    CAPTURE(bit);
    CHECK_THROWS_AS(load_network(file.path), troop::FileError);
  }
}

TEST_CASE("each reason is named") {
  const File file;
  CHECK(has(file.load_error(), "No such file"));
  file.write(std::vector<std::byte>(100));
  CHECK(has(file.load_error(), "is not a troop network"));
  save_network(file.path, kNetwork, initial_parameters(kNetwork, 4));
  const auto whole = file.read();

  auto changed = whole;
  changed[8] = std::byte{2};
  file.seal(changed);
  CHECK(has(file.load_error(), "is of format version 2; this program reads version 1"));

  changed = whole;
  changed[23] = std::byte{0xff};
  file.seal(changed);
  CHECK(has(file.load_error(), "impossible sizes"));

  changed = whole;
  changed[40] ^= std::byte{1};
  file.write(changed);
  CHECK(has(file.load_error(), "its checksum does not match"));

  changed = whole;
  std::memcpy(changed.data() + 24, "inputs", 6);
  file.seal(changed);
  CHECK(has(file.load_error(), "is damaged: network text"));

  changed = whole;
  changed[24 + 6] = std::byte{'5'};  // input(5): more parameters than the file has
  file.seal(changed);
  CHECK(has(file.load_error(), "is damaged: num_parameters"));

  changed = whole;
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(changed.data() + changed.size() - 8, &infinity, 4);
  file.seal(changed);
  CHECK(has(file.load_error(), "a finite number"));

  // A small file that promises a huge network costs no memory.
  const std::string text = "input(1048576) dense(255) output(2)";
  std::vector<std::byte> huge(whole.begin(), whole.begin() + 24);
  const auto size = static_cast<std::uint32_t>(text.size());
  std::memcpy(huge.data() + 12, &size, 4);
  for (const char c : text) huge.push_back(static_cast<std::byte>(c));
  huge.resize(huge.size() + 4 * kNetwork.num_parameters() + 4);
  file.seal(huge);
  CHECK(has(file.load_error(), "is damaged: num_parameters"));
}
