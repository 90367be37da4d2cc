/// @file
/// Where the learner computes: the option --device and what becomes of it on this machine.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/cuda/network.hpp>

namespace troop::apex {

/// `--device`: `auto` (the first GPU that can be used, or the CPU), `cpu`, `cuda` (the first GPU) or
/// `cuda:N`.
struct Device {
  bool cpu = false, gpu = false;  ///< which are allowed
  std::size_t index = 0;          ///< of the GPU
};

/// Throws InvalidArgument for anything else.
inline Device parse_device(const std::string& text) {
  Device device{.cpu = text == "auto" || text == "cpu", .gpu = text != "cpu"};
  if (device.cpu || text == "cuda") return device;
  const char* const end = text.data() + text.size();
  if (text.starts_with("cuda:")) {
    const auto [stop, error] = std::from_chars(text.data() + 5, end, device.index);
    if (error == std::errc() && stop == end) return device;
  }
  throw InvalidArgument("device", "\"" + text + "\"", "auto or cpu or cuda or cuda:N");
}

/// The learner's GPU, if it has one, and a sentence for the user.
struct ChosenDevice {
  std::optional<cuda::DeviceOptions> gpu = {};
  std::string note = {};
};

/// Looks for the GPU unless `--device cpu` is given. Throws Error with the reason when it cannot be used and
/// `auto` is not given.
inline ChosenDevice choose_device(const std::string& text, cuda::Precision precision, bool deterministic) {
  const Device device = parse_device(text);
  if (!device.gpu) return {};
  try {
    const std::vector<cuda::DeviceInfo> devices = cuda::devices();
    require(device.index < devices.size(), "--device", text,
            "a GPU from cuda:0 to cuda:" + std::to_string(devices.size() - 1));
    cuda::require_usable(device.index);
    return {.gpu =
                cuda::DeviceOptions{
                    .device = device.index, .precision = precision, .deterministic = deterministic},
            .note = "the learner computes on GPU " + std::to_string(device.index) + ", " +
                    devices[device.index].name};
  } catch (const InvalidArgument&) {
    throw;
  } catch (const Error& error) {
    if (!device.cpu) throw Error("--device " + text + ": " + error.what());
    return {.note = "--device auto: the learner computes on the CPU; " + std::string(error.what())};
  }
}

}  // namespace troop::apex
