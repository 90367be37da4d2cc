/// @file
/// What a Q-network eats: observations of uint8 or float32, and batches of transitions, as views of records.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>

namespace troop::nn {

/// A batch of observations in somebody else's memory: `rows` rows of `columns` adjacent elements, `stride`
/// bytes from row to row. Elements are float32, taken as they are, or uint8, which a network reads as x /
/// 255. Cheap to copy; valid as long as the memory is.
///
///     network.evaluate(MatrixView<const float>(observations.data(), num_environments, 4), q);
class ObservationsView {
 public:
  /// Multiplier of uint8 observations. All backends multiply by this float rather than divide by 255.
  static constexpr float kByteScale = 1.0f / 255.0f;

  /// Throws InvalidArgument for another dtype, and for a stride that is shorter than a row or misaligned.
  ObservationsView(const void* data, DType dtype, std::size_t rows, std::size_t columns, std::size_t stride)
      : data_(static_cast<const std::byte*>(data)),
        dtype_(dtype),
        rows_(rows),
        columns_(columns),
        stride_(stride) {
    require(dtype == DType::f32 || dtype == DType::u8, "observation.dtype",
            is_valid(dtype) ? name_of(dtype) : "an unknown dtype", "f32 or u8");
    require(rows <= 1 || (stride >= columns * size_of(dtype) && stride % size_of(dtype) == 0),
            "observation.stride", stride, "bytes of a row or more, a multiple of the element's size");
  }

  /// A matrix of float or std::uint8_t, const or not.
  template <class T>
  requires std::is_same_v < std::remove_const_t<T>,
  float > || std::is_same_v<std::remove_const_t<T>, std::uint8_t> ObservationsView(
                 MatrixView<T> matrix)  // NOLINT(google-explicit-constructor): a view of a view
      : ObservationsView(matrix.rows() == 0 ? nullptr : matrix.row(0), dtype_of<std::remove_const_t<T>>(),
                         matrix.rows(), matrix.columns(), matrix.stride()) {}

  /// One field of a batch of records; a field of more dimensions becomes one row. Throws InvalidArgument when
  /// there is no such field or its dtype is neither f32 nor u8.
  ObservationsView(const BatchView& batch, std::string_view name)
      : data_(nullptr), dtype_(DType::f32), rows_(batch.size()), columns_(0), stride_(batch.stride()) {
    const Field& field = batch.layout().field(name);
    if (field.dtype != DType::f32 && field.dtype != DType::u8)
      throw InvalidArgument(std::string(name) + ".dtype", std::string(name_of(field.dtype)), "f32 or u8");
    data_ = batch.data() == nullptr ? nullptr : batch.data() + field.offset;
    dtype_ = field.dtype;
    columns_ = field.count();
  }

  DType dtype() const noexcept { return dtype_; }
  std::size_t rows() const noexcept { return rows_; }
  std::size_t columns() const noexcept { return columns_; }
  std::size_t stride() const noexcept { return stride_; }  ///< bytes
  const std::byte* data() const noexcept { return data_; }

  /// The same memory as a matrix of its element type, which must be T.
  template <class T>
  MatrixView<const T> as() const noexcept {
    assert(dtype_of<T>() == dtype_);
    return {reinterpret_cast<const T*>(data_), rows_, columns_, stride_};
  }

  /// Rows [first, first + count).
  ObservationsView rows(std::size_t first, std::size_t count) const noexcept {
    assert(first + count <= rows_);
    ObservationsView part(*this);
    part.data_ += first * stride_;
    part.rows_ = count;
    return part;
  }

 private:
  const std::byte* data_;
  DType dtype_;
  std::size_t rows_, columns_, stride_;
};

/// A batch of transitions as a network's `train_step` takes it: five columns, nothing copied.
///
/// Made from records by field name: `observation` and `next_observation` (f32 or u8, the same shape),
/// `action` (i32), `reward` (f32, the n-step return) and `discount` (f32: gamma^n, or 0 where the episode
/// terminated). Other fields are ignored. Cheap to copy; valid as long as the records and their layout are.
///
///     auto batch = replay.sample(512, {.beta = 0.4}, random);
///     network.train_step(TransitionBatch(batch.view()), batch.weights, priorities);
class TransitionBatch {
 public:
  /// Throws InvalidArgument naming the field that is missing, of another dtype, or of another shape.
  explicit TransitionBatch(const BatchView& batch)
      : TransitionBatch(ObservationsView(batch, "observation"), batch.field<std::int32_t>("action"),
                        batch.field<float>("reward"), batch.field<float>("discount"),
                        ObservationsView(batch, "next_observation")) {}

  /// From columns; the last three matrices before `next_observations` have one column.
  TransitionBatch(ObservationsView observations, MatrixView<const std::int32_t> actions,
                  MatrixView<const float> rewards, MatrixView<const float> discounts,
                  ObservationsView next_observations)
      : observations_(observations),
        actions_(actions),
        rewards_(rewards),
        discounts_(discounts),
        next_observations_(next_observations) {
    check_column("action", actions.rows(), actions.columns());
    check_column("reward", rewards.rows(), rewards.columns());
    check_column("discount", discounts.rows(), discounts.columns());
    const auto check_next = [](bool equal, const char* what, const auto& value, const auto& expected) {
      if (!equal)
        throw InvalidArgument(std::string("next_observation") + what, troop::detail::to_text(value),
                              troop::detail::to_text(expected) + " as in observation");
    };
    const auto& next = next_observations;
    check_next(next.rows() == size(), " rows", next.rows(), size());
    check_next(next.columns() == observations.columns(), " elements", next.columns(), observations.columns());
    check_next(next.dtype() == observations.dtype(), ".dtype", name_of(next.dtype()),
               name_of(observations.dtype()));
  }

  std::size_t size() const noexcept { return observations_.rows(); }
  ObservationsView observations() const noexcept { return observations_; }
  ObservationsView next_observations() const noexcept { return next_observations_; }
  std::int32_t action(std::size_t i) const noexcept { return actions_(i); }
  float reward(std::size_t i) const noexcept { return rewards_(i); }      ///< n-step return
  float discount(std::size_t i) const noexcept { return discounts_(i); }  ///< 0 where terminated
  MatrixView<const std::int32_t> actions() const noexcept { return actions_; }
  MatrixView<const float> rewards() const noexcept { return rewards_; }
  MatrixView<const float> discounts() const noexcept { return discounts_; }

 private:
  // Messages are made only when they are needed: a batch is made for every training step.
  void check_column(const char* name, std::size_t rows, std::size_t columns) const {
    if (columns != 1)
      throw InvalidArgument(std::string(name) + " elements", std::to_string(columns),
                            "1 for each transition");
    if (rows != size())
      throw InvalidArgument(std::string(name) + " rows", std::to_string(rows),
                            std::to_string(size()) + " as in observation");
  }

  ObservationsView observations_;
  MatrixView<const std::int32_t> actions_;
  MatrixView<const float> rewards_, discounts_;
  ObservationsView next_observations_;
};

}  // namespace troop::nn
