/// @file
/// The directory of a run: whose it is, what it is about, and the names of its files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <troop/core/bytes.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/durability/detail/blocks.hpp>
#include <troop/durability/lease.hpp>
#include <troop/durability/object_store.hpp>

namespace troop::durability {

/// What a run is about. Written when a program begins with it and when the run is finished.
struct Manifest {
  std::uint64_t generation = 0;        ///< how many programs have worked on the run, this one included
  std::string created;                 ///< UTC
  std::string environment;             ///< its name
  std::string network;                 ///< canonical text, bound
  std::vector<std::byte> layout = {};  ///< of the records, as a ByteWriter writes it
  std::string options = {};            ///< those of the program, a line each; for people
  bool is_finished = false;
  std::string result = {};  ///< the last line of a run that is finished

  std::vector<std::byte> to_bytes() const;

  static Manifest from_bytes(std::span<const std::byte> bytes);
};

namespace detail {

inline constexpr FileKind kManifestFile{"TROOPRUN", 1, "run manifest"};
inline constexpr std::string_view kManifestPrefix = "manifest-";
inline constexpr std::uint32_t kManifestBlock = 1;

/// "manifest-000002-000000000001": the generation, and a number that grows within it.
std::string object_name(std::string_view prefix, std::uint64_t generation, std::uint64_t number);

/// The generation in such a name.
std::uint64_t generation_of(std::string_view name);

Manifest read_manifest_file(const std::string& path);

}  // namespace detail

/// The newest manifest in `store` that is whole; none where there is none. `say` takes a sentence for each that
/// is not.
template <class Say>
std::optional<Manifest> read_manifest(const ObjectStore& store, Say&& say) {
  const auto names = store.names("", detail::kManifestPrefix);
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    try {
      return detail::read_manifest_file(store.path(*name));
    } catch (const FileError& error) {
      say(std::string(error.what()));
    }
  }
  return std::nullopt;
}

/// Options of a run directory.
struct RunDirectoryOptions {
  std::string path;
  StoreKind store = StoreKind::disk;
  LeaseTimes lease = {};
};

/// The directory of a run, held by this program alone for as long as the object lives.
///
///     DIR/lock, lease-N                who holds it
///     DIR/manifest-G-N                 what the run is about; G: the generation, one more for each program
///     DIR/checkpoints/checkpoint-G-N   networks, optimizer, counters (checkpoint.hpp)
///     DIR/replay/segment-G-N           what was inserted (replay_log.hpp)
///     DIR/replay/priorities-G-N
///
/// Objects of an older generation are never changed. So a program that was thought dead and is not does no harm
/// to what its successor has written.
///
/// Thread-safe, but for `write_manifest`. The constructor makes the directory where there is none; it blocks and
/// throws as Lease does.
///
///     RunDirectory directory({.path = "run"});
///     if (directory.manifest() && !resume) ...
class RunDirectory {
 public:
  explicit RunDirectory(const RunDirectoryOptions& options);

  const ObjectStore& store() const noexcept { return store_; }
  const std::string& path() const noexcept { return store_.folder(); }

  /// What was there when it was opened; none in a new directory.
  const std::optional<Manifest>& manifest() const noexcept { return manifest_; }

  /// Of this program, from 1.
  std::uint64_t generation() const noexcept { return generation_; }

  /// As Lease says.
  bool is_lost() const noexcept { return lease_.is_lost(); }
  void require_held() { lease_.require_held(); }

  /// Writes the manifest of this generation, in the place of what there was.
  void write_manifest(Manifest manifest);

  /// Says a sentence where the options say.
  void say(const std::string& sentence) const;

 private:
  const std::function<void(const std::string&)> log_;
  const ObjectStore store_;
  Lease lease_;
  std::optional<Manifest> manifest_;
  std::uint64_t generation_ = 0, manifests_ = 0;
};

}  // namespace troop::durability
