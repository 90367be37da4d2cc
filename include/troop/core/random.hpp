/// @file
/// A fast random generator with named, independent streams and a state that can be saved.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string_view>

#include <troop/core/error.hpp>
#include <troop/core/hash.hpp>

namespace troop {

/// xoshiro256++ (Blackman and Vigna 2019): 32 bytes of state, about 1 ns a draw, passes BigCrush.
///
/// A stream is chosen by (seed, name, index): every component of a run draws from its own, so that adding an
/// actor does not change what the others see. It is a `std::uniform_random_bit_generator`, but its own
/// integer and uniform draws give the same values with every compiler and standard library, which those of
/// `<random>` do not. Not thread-safe: one generator a thread.
///
///     troop::Random random(seed, "actor", 3);
///     int action = static_cast<int>(random.below(num_actions));
class Random {
 public:
  using result_type = std::uint64_t;
  using State = std::array<std::uint64_t, 4>;

  explicit Random(std::uint64_t seed = 0, std::string_view stream = {}, std::uint64_t index = 0) noexcept {
    std::uint64_t mixer = fnv1a(stream);
    mixer ^= split_mix(seed);
    std::uint64_t spread = index;
    mixer ^= std::rotl(split_mix(spread), 32);
    for (auto& word : state_) word = split_mix(mixer);
  }

  static constexpr result_type min() noexcept { return 0; }
  static constexpr result_type max() noexcept { return std::numeric_limits<result_type>::max(); }

  /// 64 random bits.
  result_type operator()() noexcept {
    const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// Uniform in [0, 1), a multiple of 2^-53.
  double uniform() noexcept { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }

  /// Uniform in [low, high), an interval of finite length.
  double uniform(double low, double high) noexcept {
    const double value = low + (high - low) * uniform();
    return value < high ? value : std::nextafter(high, low);  // the sum may have been rounded up to `high`
  }

  /// Uniform integer in [0, bound), without bias (Lemire 2019). `bound` must be positive.
  std::uint64_t below(std::uint64_t bound) noexcept {
    __extension__ using Wide = unsigned __int128;
    Wide product = static_cast<Wide>((*this)()) * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t threshold = (0 - bound) % bound;
      while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<Wide>((*this)()) * bound;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  /// Standard normal, by Box and Muller (1958); draws two uniforms a call.
  double normal() noexcept {
    const double radius = std::sqrt(-2.0 * std::log1p(-uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

  /// The whole state, for a checkpoint.
  const State& state() const noexcept { return state_; }

  /// Continues the stream of a saved state exactly. Throws InvalidArgument for four zeros, from which only
  /// zeros would come.
  void set_state(const State& state) {
    require(state != State{}, "random state", 0, "at least one bit that is set");
    state_ = state;
  }

  friend bool operator==(const Random&, const Random&) = default;

 private:
  State state_;
};

}  // namespace troop
