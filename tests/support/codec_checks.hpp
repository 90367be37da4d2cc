/// @file
/// What every codec must do.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/codec.hpp>
#include <troop/core/random.hpp>

#include "testing.hpp"

namespace troop::testing {

using Bytes = std::vector<std::byte>;

/// Bytes of `kind`: 0 all equal, 1 runs like those of a game's picture, 2 noise.
inline Bytes make_bytes(std::size_t size, unsigned kind, Random& random) {
  Bytes bytes(size);
  std::byte run{7};
  for (auto& byte : bytes) {
    if (kind == 2 || (kind == 1 && random.below(20) == 0)) run = static_cast<std::byte>(random());
    byte = run;
  }
  return bytes;
}

template <Codec C>
Bytes packed(const Bytes& bytes) {
  Bytes out(C::bound(bytes.size()));
  out.resize(C::compress(bytes, out));
  return out;
}

template <Codec C>
void check_round_trips() {
  Random random(seed(), "codec");
  Failures failures;
  for (const std::size_t size : {1, 2, 15, 64, 1000, 7056, 70'000, 1'000'000}) {
    for (unsigned kind = 0; kind < 3; ++kind) {
      const Bytes bytes = make_bytes(size, kind, random);
      const Bytes small = packed<C>(bytes);
      Bytes back(size);
      if (!C::decompress(small, back) || back != bytes) failures.add(std::to_string(size) + " bytes");
      if (kind == 0 && size >= 1000 && small.size() > size / 50)
        failures.add("equal bytes were not made small");
      if (packed<C>(bytes) != small) failures.add("another result the second time");
    }
  }
  TROOP_CHECK_NONE(failures);
}

/// Only the very number of bytes that was packed is accepted, and no shortened input.
template <Codec C>
void check_sizes() {
  Random random(seed(), "codec");
  const Bytes bytes = make_bytes(5000, 1, random);
  const Bytes small = packed<C>(bytes);
  for (const std::size_t other :
       {std::size_t{0}, std::size_t{1}, bytes.size() - 1, bytes.size() + 1, 2 * bytes.size()}) {
    CAPTURE(other);
    Bytes back(other);
    CHECK_FALSE(C::decompress(small, back));
  }
  Failures failures;
  Bytes back(bytes.size());
  for (std::size_t cut = 0; cut < small.size(); ++cut) {
    const Bytes part(small.begin(),
                     small.begin() + static_cast<std::ptrdiff_t>(cut));  // ends where the heap's block does
    if (C::decompress(part, back)) failures.add("the first " + std::to_string(cut) + " bytes");
  }
  TROOP_CHECK_NONE(failures);
}

/// Whatever comes in, nothing is read or written outside: the sanitizers watch.
template <Codec C>
void check_hostile_input() {
  const std::uint64_t used = seed();
  CAPTURE(used);
  Random random(used, "hostile");
  const Bytes bytes = make_bytes(3000, 1, random);
  const Bytes small = packed<C>(bytes);
  std::size_t refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes input = small;
    if (round % 4 == 0) {
      input = make_bytes(1 + random.below(200), 2, random);
    } else {
      for (std::uint64_t i = 0; i <= random.below(4); ++i)
        input[random.below(input.size())] ^= static_cast<std::byte>(random());
    }
    Bytes back(bytes.size());
    refused += C::decompress(input, back) ? 0 : 1;
  }
  CHECK(refused > 5000);  // all the noise at the least
}

template <Codec C>
void check_threads() {
  Failures failures;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&failures, t] {
      Random random(seed(), "threads", t);
      for (int round = 0; round < 50; ++round) {
        const Bytes bytes = make_bytes(7056, 1, random);
        Bytes back(bytes.size());
        if (!C::decompress(packed<C>(bytes), back) || back != bytes)
          failures.add("thread " + std::to_string(t));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  TROOP_CHECK_NONE(failures);
}

}  // namespace troop::testing
