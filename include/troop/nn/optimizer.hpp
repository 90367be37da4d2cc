/// @file
/// Adam and centred RMSProp over flat parameter spans, and clipping by the global gradient norm.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <troop/core/error.hpp>

namespace troop::nn {

enum class OptimizerKind {
  adam,    ///< Kingma and Ba 2015, 1412.6980
  rmsprop  ///< Tieleman and Hinton 2012; centred as in Graves 2013, 1308.0850, section 4.2
};

/// Options of an optimizer. The defaults are those of Ape-X (Horgan et al. 2018, appendix C) for centred
/// RMSProp and the same step for Adam.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adam;
  double learning_rate = 0.00025 / 4;
  double beta1 = 0.9;       ///< adam: decay of the gradient's mean
  double beta2 = 0.999;     ///< adam: decay of the squared gradient's mean
  double decay = 0.95;      ///< rmsprop: decay of both means
  bool centred = true;      ///< rmsprop: divide by the deviation of the gradient rather than its magnitude
  double epsilon = 1.5e-7;  ///< added to the denominator outside the square root, for both kinds

  /// Throws InvalidArgument naming the first option that is not allowed.
  void validate() const {
    require(std::isfinite(learning_rate) && learning_rate > 0, "learning_rate", learning_rate,
            "a positive number");
    const auto require_decay = [](std::string_view field, double value) {
      require(value >= 0 && value < 1, field, value, "a number from 0 to 1, 1 excluded");
    };
    require_decay("beta1", beta1);
    require_decay("beta2", beta2);
    require_decay("decay", decay);
    require(std::isfinite(epsilon) && epsilon > 0, "epsilon", epsilon, "a positive number");
  }
};

/// Sum of the squares, in double, in an order that depends on the size only.
inline double sum_of_squares(std::span<const float> values) noexcept {
  constexpr std::size_t kLanes = 8;
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  for (std::size_t lane = 0; i < values.size(); ++i, ++lane) {
    const auto value = static_cast<double>(values[i]);
    lanes[lane] += value * value;
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// Factor that shortens a gradient of `norm` to `max_norm`, as torch.nn.utils.clip_grad_norm_ computes it:
/// min(1, max_norm / (norm + 1e-6)). A `max_norm` of 0 clips nothing.
inline double clip_factor(double norm, double max_norm) noexcept {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

/// Optimizer with its state: two means for each parameter (one for RMSProp that is not centred), as one flat
/// span of float32, so that checkpoints and other backends can read and set it.
///
/// The updates are those of torch.optim.Adam and torch.optim.RMSprop (no weight decay, no momentum), with g
/// the gradient and the step number t from 1:
/// - adam: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; p -= lr / (1 - beta1^t) * m / (sqrt(v
///   / (1 - beta2^t)) + epsilon);
/// - rmsprop: s = decay s + (1 - decay) g^2; centred: a = decay a + (1 - decay) g; p -= lr * g / (sqrt(s -
///   a^2) + epsilon). So epsilon stands outside the square root, unlike in DeepMind's DQN. The rounding of s
///   - a^2 can fall below 0 where a gradient hardly changes; it counts as 0 here, where PyTorch would make a
///   NaN.
///
/// A step is `begin_step()`, then `update` over ranges that cover every parameter once, in any order and from
/// any number of threads; or `step` for all at once. Neither allocates. One to two ns a parameter.
///
///     Optimizer optimizer({.kind = OptimizerKind::rmsprop}, parameters.size());
///     optimizer.step(parameters, gradient, clip_factor(norm, 40.0));
class Optimizer {
 public:
  /// Throws InvalidArgument for options that are not allowed.
  Optimizer(const OptimizerOptions& options, std::size_t num_parameters)
      : options_((options.validate(), options)),
        size_(num_parameters),
        state_(num_parameters * (options.kind == OptimizerKind::adam || options.centred ? 2 : 1)) {}

  const OptimizerOptions& options() const noexcept { return options_; }
  std::size_t size() const noexcept { return size_; }

  /// Steps taken.
  std::uint64_t steps() const noexcept { return steps_; }

  /// The means, one after the other: adam m, v; rmsprop s, a.
  std::span<const float> state() const noexcept { return state_; }

  /// Continues from a saved state. Throws InvalidArgument when the size is another.
  void set_state(std::uint64_t steps, std::span<const float> state) {
    require(state.size() == state_.size(), "optimizer state", state.size(),
            std::to_string(state_.size()) + " floats");
    std::copy(state.begin(), state.end(), state_.begin());
    steps_ = steps;
  }

  void begin_step() noexcept { ++steps_; }

  /// Updates parameters [first, first + count) with `gradient_factor` times their gradient. Both spans are
  /// those of all parameters.
  void update(std::span<float> parameters, std::span<const float> gradient, float gradient_factor,
              std::size_t first, std::size_t count) noexcept {
    assert(parameters.size() == size_ && gradient.size() == size_ && first + count <= size_);
    const Constants constants = this->constants(gradient_factor);
    for (std::size_t at = first; at < first + count; at += kBlock) {
      const std::size_t n = std::min(kBlock, first + count - at);
      float* mean = state_.data() + at;
      if (options_.kind == OptimizerKind::adam) {
        adam(constants, parameters.data() + at, gradient.data() + at, mean, mean + size_, n);
      } else if (options_.centred) {
        centred(constants, parameters.data() + at, gradient.data() + at, mean, mean + size_, n);
      } else {
        uncentred(constants, parameters.data() + at, gradient.data() + at, mean, n);
      }
    }
  }

  /// A whole step in one call.
  void step(std::span<float> parameters, std::span<const float> gradient,
            double gradient_factor = 1.0) noexcept {
    begin_step();
    update(parameters, gradient, static_cast<float>(gradient_factor), 0, size_);
  }

 private:
  static constexpr std::size_t kBlock = 256;  // small enough for the stack and the first cache

  struct Constants {
    float factor, keep1, take1, keep2, take2, rate, root, epsilon;
  };

  Constants constants(float factor) const noexcept {
    const bool is_adam = options_.kind == OptimizerKind::adam;
    const double decay1 = is_adam ? options_.beta1 : options_.decay;
    const double decay2 = is_adam ? options_.beta2 : options_.decay;
    const auto t = static_cast<double>(steps_);
    const double bias1 = is_adam ? 1.0 - std::pow(decay1, t) : 1.0;
    const double bias2 = is_adam ? 1.0 - std::pow(decay2, t) : 1.0;
    const auto narrow = [](double value) { return static_cast<float>(value); };
    return {factor,
            narrow(decay1),
            narrow(1.0 - decay1),
            narrow(decay2),
            narrow(1.0 - decay2),
            narrow(options_.learning_rate / bias1),
            narrow(1.0 / std::sqrt(bias2)),
            narrow(options_.epsilon)};
  }

  // Square roots of `count` numbers that are not negative. By hand, because a compiler that keeps errno for
  // std::sqrt does not vectorise it. (The masked form, because GCC 12 warns of an uninitialised value inside
  // the other one.)
  static void square_roots(float* values, std::size_t count) noexcept {
    std::size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
      _mm512_storeu_ps(values + i, _mm512_maskz_sqrt_ps(0xffff, _mm512_loadu_ps(values + i)));
#elif defined(__AVX__)
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(values + i, _mm256_sqrt_ps(_mm256_loadu_ps(values + i)));
#elif defined(__SSE2__)
    for (; i + 4 <= count; i += 4) _mm_storeu_ps(values + i, _mm_sqrt_ps(_mm_loadu_ps(values + i)));
#endif
    for (; i < count; ++i) values[i] = std::sqrt(values[i]);
  }

  static void adam(const Constants& c, float* __restrict parameters, const float* __restrict gradient,
                   float* __restrict mean, float* __restrict square, std::size_t n) noexcept {
    float root[kBlock];
    for (std::size_t i = 0; i < n; ++i) {
      const float g = c.factor * gradient[i];
      mean[i] += c.take1 * (g - mean[i]);
      square[i] = c.keep2 * square[i] + c.take2 * (g * g);
      root[i] = square[i];
    }
    square_roots(root, n);
    for (std::size_t i = 0; i < n; ++i) parameters[i] -= c.rate * (mean[i] / (root[i] * c.root + c.epsilon));
  }

  static void centred(const Constants& c, float* __restrict parameters, const float* __restrict gradient,
                      float* __restrict square, float* __restrict mean, std::size_t n) noexcept {
    float root[kBlock];
    for (std::size_t i = 0; i < n; ++i) {
      const float g = c.factor * gradient[i];
      square[i] = c.keep2 * square[i] + c.take2 * (g * g);
      mean[i] += c.take1 * (g - mean[i]);
      const float variance = square[i] - mean[i] * mean[i];
      root[i] = variance > 0.0f ? variance : 0.0f;
    }
    square_roots(root, n);
    for (std::size_t i = 0; i < n; ++i)
      parameters[i] -= c.rate * (c.factor * gradient[i] / (root[i] + c.epsilon));
  }

  static void uncentred(const Constants& c, float* __restrict parameters, const float* __restrict gradient,
                        float* __restrict square, std::size_t n) noexcept {
    float root[kBlock];
    for (std::size_t i = 0; i < n; ++i) {
      const float g = c.factor * gradient[i];
      square[i] = c.keep2 * square[i] + c.take2 * (g * g);
      root[i] = square[i];
    }
    square_roots(root, n);
    for (std::size_t i = 0; i < n; ++i)
      parameters[i] -= c.rate * (c.factor * gradient[i] / (root[i] + c.epsilon));
  }

  OptimizerOptions options_;
  std::size_t size_;
  std::vector<float> state_;
  std::uint64_t steps_ = 0;
};

}  // namespace troop::nn
