/// @file
/// Runs the cases of tests/golden/network.txt, training steps that PyTorch made in float64, with any
/// Q-network.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <troop/core/view.hpp>
#include <troop/nn/network.hpp>
#include <troop/nn/q_network.hpp>
#include <troop/nn/transition_batch.hpp>

namespace troop::testing {

/// Checks every number of the file with a `QNetwork`, made as QNetwork(network, seed, options). The tolerances
/// are those of float32 sums and, for the parameters, of ten steps of an optimizer that divides by small
/// numbers.
template <class QNetwork>
class GoldenNetwork {
 public:
  /// Returns the number of cases.
  static int run(const std::string& path) {
    std::ifstream file(path);
    REQUIRE_MESSAGE(file.is_open(), "cannot open " << path);
    std::optional<GoldenNetwork> golden;
    int cases = 0;
    std::string name;
    for (std::string text; std::getline(file, text);) {
      std::istringstream line(text);
      std::string keyword;
      line >> keyword;
      if (keyword == "case") {
        if (golden) CHECK(golden->steps_ == 10);
        golden.emplace();
        line >> name;
        ++cases;
        continue;
      }
      REQUIRE(golden.has_value());
      CAPTURE(name);
      CAPTURE(golden->steps_);
      golden->set(keyword, line);
    }
    return cases;
  }

 private:
  using Numbers = std::vector<double>;

  static Numbers numbers_of(std::istream& line) {
    Numbers numbers;
    for (double number; line >> number;) numbers.push_back(number);
    return numbers;
  }

  static std::vector<float> narrow(const Numbers& values) { return {values.begin(), values.end()}; }

  /// Relative to the expected number where that is larger than 1.
  static double largest_difference(std::span<const float> a, const Numbers& b) {
    REQUIRE(a.size() == b.size());
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double difference = std::abs(static_cast<double>(a[i]) - b[i]) / std::max(1.0, std::abs(b[i]));
      worst = difference <= worst ? worst : difference;  // a NaN counts as the worst
    }
    return worst;
  }

  void set(const std::string& keyword, std::istringstream& line) {
    if (keyword == "network") {
      network_ = nn::parse_network(line.str().substr(line.str().find(' ') + 1));
    } else if (keyword == "options") {
      std::string kind, loss;
      line >> kind >> loss >> options_.huber_delta >> options_.optimizer.learning_rate >>
          options_.max_gradient_norm;
      options_.optimizer.kind = kind == "adam" ? nn::OptimizerKind::adam : nn::OptimizerKind::rmsprop;
      options_.loss = loss == "huber" ? nn::Loss::huber : nn::Loss::squared;
    } else if (keyword == "q") {
      start();
      std::vector<float> q(weights_.size() * network_->num_actions());
      q_network_->evaluate(batch().observations(),
                           MatrixView<float>(q.data(), weights_.size(), network_->num_actions()));
      CHECK(largest_difference(q, numbers_of(line)) < 2e-6);
    } else if (keyword == "gradient") {
      step();
      CHECK(largest_difference(q_network_->gradient(), numbers_of(line)) < 2e-6);
    } else if (keyword == "step") {
      if (steps_ > 0) step();
      const auto expected = numbers_of(line);
      REQUIRE(expected.size() == 3);
      CHECK(result_.applied);
      CHECK(static_cast<double>(result_.loss) == doctest::Approx(expected[0]).epsilon(1e-4));
      CHECK(static_cast<double>(result_.gradient_norm) == doctest::Approx(expected[1]).epsilon(1e-4));
      CHECK(static_cast<double>(result_.mean_q) == doctest::Approx(expected[2]).epsilon(1e-4));
      ++steps_;
    } else if (keyword == "priorities") {
      CHECK(largest_difference(priorities_, numbers_of(line)) < 1e-4);
    } else if (keyword == "parameters" && q_network_) {
      CHECK(largest_difference(q_network_->parameters(), numbers_of(line)) < 5e-5);
      if (steps_ == 5) q_network_->sync_target();
    } else {
      arrays_[keyword] = narrow(numbers_of(line));
    }
  }

  nn::TransitionBatch batch() const {
    const std::size_t n = actions_.size(), inputs = network_->num_inputs();
    const auto column = [&](const char* name, std::size_t columns) {
      return MatrixView<const float>(arrays_.at(name).data(), n, columns);
    };
    return {column("observations", inputs), MatrixView<const std::int32_t>(actions_.data(), n, 1),
            column("rewards", 1), column("discounts", 1), column("next_observations", inputs)};
  }

  void start() {
    REQUIRE(network_.has_value());
    for (const float action : arrays_["actions"]) actions_.push_back(static_cast<std::int32_t>(action));
    weights_ = arrays_["weights"];
    priorities_.resize(weights_.size());
    q_network_.emplace(*network_, 0, options_);
    q_network_->set_parameters(arrays_["parameters"]);
    q_network_->set_target_parameters(arrays_["target"]);
  }

  void step() { result_ = q_network_->train_step(batch(), weights_, priorities_); }

  std::optional<nn::Network> network_;
  nn::TrainOptions options_;
  std::map<std::string, std::vector<float>> arrays_;
  std::vector<std::int32_t> actions_;
  std::vector<float> weights_, priorities_;
  std::optional<QNetwork> q_network_;
  nn::TrainResult result_;
  int steps_ = 0;
};

}  // namespace troop::testing
