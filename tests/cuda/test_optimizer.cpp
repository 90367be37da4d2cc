#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <troop/core/float16.hpp>
#include <troop/core/random.hpp>
#include <troop/cuda/optimizer.cuh>
#include <troop/cuda/runtime.cuh>
#include <troop/nn/optimizer.hpp>

#include "device_array.hpp"
#include "testing.hpp"

namespace {

using namespace troop::cuda;
using troop::nn::OptimizerKind;
using troop::nn::OptimizerOptions;
using troop::testing::DeviceArray;
using troop::testing::Failures;
using troop::testing::stream;

std::vector<float> normals(std::size_t size, troop::Random& random) {
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

/// The optimizer on the device.
struct Device {
  Device(const OptimizerOptions& options, double max_norm, const std::vector<float>& values)
      : parameters(values),
        gradient(values.size()),
        first(values.size()),
        second(values.size()),
        partial(16),
        sums(2),
        counter(1),
        state(1),
        report(1) {
    const bool is_adam = options.kind == OptimizerKind::adam;
    rule = is_adam ? UpdateRule::adam : (options.centred ? UpdateRule::centred_rmsprop : UpdateRule::rmsprop);
    step_options = {is_adam ? options.beta1 : options.decay,
                    is_adam ? options.beta2 : options.decay,
                    options.learning_rate,
                    max_norm,
                    static_cast<float>(options.epsilon),
                    is_adam};
  }

  StepReport step(const std::vector<float>& g) {
    gradient.set(g);
    sums.set({6.0, 3.0});
    const unsigned blocks = num_blocks(g.size(), 2);
    launch("prepare_update", prepare_update<float>, blocks, kThreads, stream(), gradient.data(), g.size(),
           partial.data(), counter.data(), sums.data(), 1u, 2u, step_options, state.data(), report.data());
    const auto update = rule == UpdateRule::adam      ? update_parameters<UpdateRule::adam>
                        : rule == UpdateRule::rmsprop ? update_parameters<UpdateRule::rmsprop>
                                                      : update_parameters<UpdateRule::centred_rmsprop>;
    launch("update_parameters", update, blocks, kThreads, stream(), parameters.data(), gradient.data(),
           first.data(), second.data(), g.size(), step_options, state.data(), report.data());
    return report.get()[0];
  }

  DeviceArray<float> parameters, gradient, first, second;
  DeviceArray<double> partial, sums;
  DeviceArray<unsigned> counter;
  DeviceArray<StepState> state;
  DeviceArray<StepReport> report;
  UpdateRule rule;
  StepOptions step_options;
};

const std::vector<OptimizerOptions> kKinds = {
    {.kind = OptimizerKind::adam, .learning_rate = 0.01},
    {.kind = OptimizerKind::rmsprop, .learning_rate = 0.01},
    {.kind = OptimizerKind::rmsprop, .learning_rate = 0.01, .centred = false}};

}  // namespace

TEST_CASE("twenty steps are those of nn::Optimizer, clipped or not") {
  troop::Random random(troop::testing::seed());
  for (const OptimizerOptions& options : kKinds)
    for (const std::size_t size : {std::size_t{1}, std::size_t{31}, std::size_t{1000}, std::size_t{20001}})
      for (const double max_norm : {0.0, 0.5, 1e9}) {
        CAPTURE(size);
        CAPTURE(max_norm);
        auto expected = normals(size, random);
        Device device(options, max_norm, expected);
        troop::nn::Optimizer reference(options, size);
        Failures failures;
        for (std::uint64_t step = 1; step <= 20; ++step) {
          const auto gradient = normals(size, random);
          const auto report = device.step(gradient);
          const double norm = std::sqrt(troop::nn::sum_of_squares(gradient));
          reference.step(expected, gradient, troop::nn::clip_factor(norm, max_norm));
          if (report.applied != 1 || report.steps != step || report.num_skipped != 0)
            failures.add("counters");
          if (std::abs(static_cast<double>(report.gradient_norm) - norm) > 1e-6 * norm) failures.add("norm");
          if (report.loss != 3.0f || report.mean_q != 1.5f) failures.add("sums");
        }
        const auto values = device.parameters.get();
        for (std::size_t i = 0; i < size; ++i)
          if (!(std::abs(values[i] - expected[i]) <= 2e-5f)) failures.add("parameter " + std::to_string(i));
        const auto first = device.first.get(), second = device.second.get();
        const auto state = reference.state();
        for (std::size_t i = 0; i < size; ++i) {
          if (!(std::abs(first[i] - state[i]) <= 1e-5f)) failures.add("first mean");
          if (state.size() > size && !(std::abs(second[i] - state[size + i]) <= 1e-5f))
            failures.add("second mean");
        }
        TROOP_CHECK_NONE(failures);
      }
}

TEST_CASE("a step whose norm or loss is not finite changes nothing but the count of skipped steps") {
  troop::Random random(troop::testing::seed());
  for (const OptimizerOptions& options : kKinds) {
    const auto values = normals(300, random);
    Device device(options, 40.0, values);
    device.step(normals(300, random));
    const auto parameters = device.parameters.get(), first = device.first.get(), second = device.second.get();
    auto gradient = normals(300, random);
    std::uint64_t skipped = 0;
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      gradient[217] = bad;
      const auto report = device.step(gradient);
      CHECK(report.applied == 0);
      CHECK(report.steps == 1);
      CHECK(report.num_skipped == ++skipped);
    }
    CHECK(device.parameters.get() == parameters);
    CHECK(device.first.get() == first);
    CHECK(device.second.get() == second);
    gradient[217] = 0.5f;
    CHECK(device.step(gradient).steps == 2);
  }
}

TEST_CASE("parameters are sent in the order of the host, as floats or halves") {
  const std::size_t size = 3000;
  troop::Random random(troop::testing::seed());
  std::vector<float> values = normals(size, random);
  const float special[] = {0.0f,
                           -0.0f,
                           65504.0f,
                           65519.9f,
                           65520.0f,
                           -1e9f,
                           6e-8f,
                           2e-8f,
                           6.1e-5f,
                           1.0f / 3.0f,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity()};
  std::copy(std::begin(special), std::end(special), values.begin());
  std::vector<std::uint32_t> positions(size);
  std::iota(positions.begin(), positions.end(), 0u);
  for (std::size_t i = size; i > 1; --i) std::swap(positions[i - 1], positions[random.below(i)]);
  const DeviceArray<float> device(values), flat(size), back(size);
  const DeviceArray<std::uint16_t> halves(size);
  const DeviceArray<std::uint32_t> places(positions);
  launch("gather_parameters", gather_parameters<float>, 3, kThreads, stream(), device.data(), places.data(),
         size, flat.data());
  launch("gather_parameters", gather_parameters<std::uint16_t>, 3, kThreads, stream(), device.data(),
         places.data(), size, halves.data());
  launch("scatter_parameters", scatter_parameters<float>, 3, kThreads, stream(), flat.data(), places.data(),
         size, back.data());
  const auto a = flat.get();
  const auto b = halves.get();
  Failures failures;
  for (std::size_t i = 0; i < size; ++i) {
    const float value = values[positions[i]];
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(value)) failures.add("a float");
    if (b[i] != troop::to_float16(value)) failures.add("the half of " + std::to_string(value));
  }
  TROOP_CHECK_NONE(failures);
  CHECK(back.get() == values);
}
