#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troop/durability/run_directory.hpp>

namespace troop::durability {

std::vector<std::byte> Manifest::to_bytes() const {
  std::vector<std::byte> out;
  ByteWriter writer(out);
  writer.number(generation);
  for (const std::string* text : {&created, &environment, &network, &options, &result}) writer.text(*text);
  writer.number(static_cast<std::uint8_t>(is_finished));
  writer.text({reinterpret_cast<const char*>(layout.data()), layout.size()});
  return out;
}

Manifest Manifest::from_bytes(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Manifest manifest;
  manifest.generation = reader.number<std::uint64_t>();
  for (std::string* text :
       {&manifest.created, &manifest.environment, &manifest.network, &manifest.options, &manifest.result})
    *text = reader.text();
  manifest.is_finished = reader.number<std::uint8_t>() != 0;
  const std::string layout = reader.text();
  const auto layout_bytes = std::as_bytes(std::span(layout));
  manifest.layout.assign(layout_bytes.begin(), layout_bytes.end());
  reader.finish();
  return manifest;
}

namespace detail {

std::string object_name(std::string_view prefix, std::uint64_t generation, std::uint64_t number) {
  return numbered(prefix, generation, 6) + numbered("-", number);
}

std::uint64_t generation_of(std::string_view name) {
  const std::size_t dash = name.rfind('-');
  return dash == std::string_view::npos ? 0 : number_of(name.substr(0, dash));
}

Manifest read_manifest_file(const std::string& path) {
  BlockReader reader(path, kManifestFile);
  if (reader.next() != kManifestBlock) reader.damaged("it does not begin with what it is about");
  try {
    Manifest manifest = Manifest::from_bytes(reader.content());
    if (reader.next() != kEnd) reader.damaged("more than one manifest");
    return manifest;
  } catch (const FileError&) {
    throw;
  } catch (const Error& error) {
    reader.damaged(error.what());
  }
}

}  // namespace detail

RunDirectory::RunDirectory(const RunDirectoryOptions& options)
    : log_(options.lease.log), store_(options.path, options.store), lease_(store_, options.lease) {
  for (const std::string_view folder : {"checkpoints", "replay"}) store_.make(folder);
  std::uint64_t last = 0;
  for (const std::string_view folder : {"", "checkpoints/", "replay/"}) {
    store_.remove_temporary(folder);
    for (const std::string& name : store_.names(folder, ""))
      if (!name.starts_with(detail::kLeasePrefix)) last = std::max(last, detail::generation_of(name));
  }
  manifest_ = read_manifest(store_, [&](const std::string& sentence) { say(sentence); });
  if (!manifest_ && last > 0) say(options.path + ": no manifest is whole; what it was about is not known");
  generation_ = last + 1;
}

void RunDirectory::write_manifest(Manifest manifest) {
  require_held();
  manifest.generation = generation_;
  if (manifest.created.empty()) manifest.created = manifest_ ? manifest_->created : detail::utc_now();
  const std::vector<std::byte> content = manifest.to_bytes();
  const auto head = detail::file_head(detail::kManifestFile);
  const detail::BlockHead block = detail::block_head(detail::kManifestBlock, content),
                          end = detail::block_head(detail::kEnd);
  const std::string name = detail::object_name(detail::kManifestPrefix, generation_, ++manifests_);
  store_.write(name, head, std::as_bytes(std::span(&block, 1)), content, std::as_bytes(std::span(&end, 1)));
  for (const std::string& older : store_.names("", detail::kManifestPrefix))
    if (older < name) store_.remove(older);
  manifest_ = std::move(manifest);
}

void RunDirectory::say(const std::string& sentence) const {
  if (log_) log_(sentence);
}

}  // namespace troop::durability
