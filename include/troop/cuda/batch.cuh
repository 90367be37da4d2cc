/// @file
/// Batch assembly: observations as they lie in records or in single frames become the network's first input,
/// scaled float32 with the channels last.
#pragma once

#include <cstddef>
#include <cstdint>

#include <troop/cuda/kernel.cuh>

namespace troop::cuda {

/// Shape of an observation as the kernels see it. A vector is `channels` 1 and as many pixels as elements.
struct Image {
  unsigned channels = 1;
  unsigned pixels = 0;  ///< of one channel
};

/// Multiplier of bytes; that of nn::ObservationsView.
inline constexpr float kByteScale = 1.0f / 255.0f;

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(std::uint8_t value) {
  return static_cast<float>(value) * kByteScale;
}

/// Whole observations, row after row, channels first: what records hold.
template <class Element>
struct StackedRows {
  const Element* data;
  Image image;

  __device__ float at(std::size_t row, unsigned channel, unsigned pixel) const {
    return to_float(data[(row * image.channels + channel) * image.pixels + pixel]);
  }
};

/// Observations as stacks of frames, which lie in chunks of 2^shift frames; a frame of index -1 is black, as
/// before an episode's start.
struct FrameStacks {
  const std::uint8_t* const* chunks;  ///< each [2^shift, pixels]
  unsigned shift;
  const std::int32_t* indices;  ///< [rows, channels]
  Image image;

  __device__ float at(std::size_t row, unsigned channel, unsigned pixel) const {
    const std::int32_t frame = indices[row * image.channels + channel];
    if (frame < 0) return 0.0f;
    const auto number = static_cast<unsigned>(frame);
    const std::size_t place = number & ((1u << shift) - 1);
    return to_float(chunks[number >> shift][place * image.pixels + pixel]);
  }
};

/// Writes `rows` observations of `source` into `out` [rows, pixels, channels]. One thread makes all channels
/// of a pixel: its reads are beside those of its neighbours, its writes are as wide as they can be.
template <class Source>
__global__ void assemble(Source source, std::size_t rows, float* out) {
  const unsigned channels = source.image.channels, pixels = source.image.pixels;
  const std::size_t total = rows * pixels, step = element_step(), jump = step / pixels;
  const auto rest = static_cast<unsigned>(step % pixels);
  std::size_t row = first_element() / pixels;
  auto pixel = static_cast<unsigned>(first_element() % pixels);
  for (std::size_t i = first_element(); i < total; i += step) {
    float* const to = out + i * channels;
    unsigned channel = 0;
    if (channels % 4 == 0) {
      for (; channel < channels; channel += 4) {
        float4 four;
        four.x = source.at(row, channel, pixel);
        four.y = source.at(row, channel + 1, pixel);
        four.z = source.at(row, channel + 2, pixel);
        four.w = source.at(row, channel + 3, pixel);
        *reinterpret_cast<float4*>(to + channel) = four;
      }
    }
    for (; channel < channels; ++channel) to[channel] = source.at(row, channel, pixel);
    row += jump;
    pixel += rest;
    if (pixel >= pixels) {
      pixel -= pixels;
      ++row;
    }
  }
}

}  // namespace troop::cuda
