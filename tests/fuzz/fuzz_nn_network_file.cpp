// A network's text, and a network's file, from any bytes.
//
// Input: what it is (a byte: 0 a text, 1 a file, 2 a file whose checksum is to be put right), then the bytes.
#include <troop/nn/network_file.hpp>

#include <string_view>

#include "fuzz.hpp"

namespace troop::fuzz {
namespace {

void parse(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  try {
    check(nn::to_string(nn::parse_network(text)) == text,
          "the text of a network is the one it was read from");
  } catch (const Error&) {
  }
}

void load(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  try {
    const nn::LoadedNetwork loaded = nn::load_network(file.path());
    check(loaded.parameters.size() == loaded.network.num_parameters(), "every parameter is there");
  } catch (const FileError& error) {
    check(std::string_view(error.what()).find(file.path()) != std::string_view::npos, "the file is named");
  }
}

Bytes with_checksum(std::span<const std::byte> content) {
  Bytes file(content.begin(), content.end());
  ByteWriter(file).number(crc32c(content));
  return file;
}

Bytes file_of(const nn::Network& network) {
  const std::string text = nn::to_string(network);
  const std::vector<float> parameters(network.num_parameters(), 0.25f);
  Bytes file;
  ByteWriter writer(file);
  writer.bytes(std::as_bytes(std::span("TROOPNET", 8)));
  writer.number(std::uint32_t{1});
  writer.number(static_cast<std::uint32_t>(text.size()));
  writer.number(static_cast<std::uint64_t>(parameters.size()));
  writer.bytes(std::as_bytes(std::span(text)));
  writer.bytes(std::as_bytes(std::span(parameters)));
  return file;
}

}  // namespace

void run(std::span<const std::byte> input) {
  Script script(input);
  const auto what = script.number<std::uint8_t>() % 3;
  const Exactly bytes(script.rest());
  if (what == 0) return parse(bytes);
  what == 1 ? load(bytes) : load(with_checksum(bytes));
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> seeds;
  for (const nn::Network& network :
       {nn::dueling_mlp({8, 4}).bind({4}, 2), nn::mlp({3}).bind({2}, 2), nn::mlp({64, 64})}) {
    const std::string text = nn::to_string(network);
    seeds.push_back(ScriptWriter().number(std::uint8_t{0}).bytes(std::as_bytes(std::span(text))));
    if (!network.is_bound()) continue;
    const Bytes file = file_of(network);
    seeds.push_back(ScriptWriter().number(std::uint8_t{1}).bytes(with_checksum(file)));
    seeds.push_back(ScriptWriter().number(std::uint8_t{2}).bytes(file));
  }
  return seeds;
}

}  // namespace troop::fuzz
