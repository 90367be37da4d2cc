/// @file
/// Views of records in memory: a batch (base, stride, layout), and one field of a batch as a matrix.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>

namespace troop {

/// A matrix of T in somebody else's memory: `rows` rows of `columns` adjacent elements, `stride` bytes from
/// row to row. Cheap to copy; valid as long as the memory is.
template <class T>
class MatrixView {
 public:
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;

  MatrixView() = default;
  MatrixView(T* data, std::size_t rows, std::size_t columns, std::size_t stride)
      : data_(reinterpret_cast<Byte*>(data)), rows_(rows), columns_(columns), stride_(stride) {}

  /// Contiguous rows.
  MatrixView(T* data, std::size_t rows, std::size_t columns)
      : MatrixView(data, rows, columns, columns * sizeof(T)) {}

  std::size_t rows() const noexcept { return rows_; }
  std::size_t columns() const noexcept { return columns_; }
  std::size_t stride() const noexcept { return stride_; }  ///< bytes
  bool is_contiguous() const noexcept { return stride_ == columns_ * sizeof(T); }

  T* row(std::size_t i) const noexcept {
    assert(i < rows_);
    return reinterpret_cast<T*>(data_ + i * stride_);
  }
  std::span<T> row_span(std::size_t i) const noexcept { return {row(i), columns_}; }
  T& operator()(std::size_t i, std::size_t j = 0) const noexcept {
    assert(j < columns_);
    return row(i)[j];
  }

  /// Rows [first, first + count).
  MatrixView rows(std::size_t first, std::size_t count) const noexcept {
    assert(first + count <= rows_);
    MatrixView part(*this);
    part.data_ += first * stride_;
    part.rows_ = count;
    return part;
  }

 private:
  Byte* data_ = nullptr;
  std::size_t rows_ = 0, columns_ = 0, stride_ = 0;
};

/// A batch of records in somebody else's memory: base address, number, stride in bytes, and layout. What
/// `add` takes, what a sample gives, and what is sent. Cheap to copy; valid as long as the memory and the
/// layout are.
///
///     BatchView batch(std::span<const Transition>(transitions));
///     MatrixView<const float> observations = batch.field<float>("observation");   // [batch, 4], no copy
class BatchView {
 public:
  BatchView(const RecordLayout& layout, const void* data, std::size_t size, std::size_t stride)
      : layout_(&layout), data_(static_cast<const std::byte*>(data)), size_(size), stride_(stride) {
    if (stride < layout.size() || stride % layout.alignment() != 0) {
      throw InvalidArgument("stride", std::to_string(stride),
                            "at least the record's size, " + std::to_string(layout.size()) +
                                ", and a multiple of its alignment, " + std::to_string(layout.alignment()));
    }
  }

  /// Adjacent records.
  BatchView(const RecordLayout& layout, const void* data, std::size_t size)
      : BatchView(layout, data, size, layout.size()) {}

  /// The view keeps the layout's address: a temporary would be gone.
  BatchView(const RecordLayout&&, const void*, std::size_t, std::size_t) = delete;
  BatchView(const RecordLayout&&, const void*, std::size_t) = delete;

  /// Records of a type known at compile time.
  template <Record T>
  explicit BatchView(std::span<const T> records)
      : BatchView(RecordLayout::of<T>(), records.data(), records.size()) {}

  const RecordLayout& layout() const noexcept { return *layout_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::size_t stride() const noexcept { return stride_; }  ///< bytes
  const std::byte* data() const noexcept { return data_; }
  const std::byte* record(std::size_t i) const noexcept {
    assert(i < size_);
    return data_ + i * stride_;
  }

  /// One field of all records as a matrix [size, elements of the field]. Throws InvalidArgument when there is
  /// no such field, its dtype is not T's, or the records lie at an address where no T may be.
  template <Element T>
  MatrixView<const T> field(std::string_view name) const {
    const Field& field = layout_->field(name);
    if (field.dtype != dtype_of<T>()) {
      throw InvalidArgument(std::string(name) + ".dtype", std::string(name_of(field.dtype)),
                            std::string(name_of(dtype_of<T>())));
    }
    if (reinterpret_cast<std::uintptr_t>(data_) % alignof(T) != 0) {
      throw InvalidArgument(std::string(name) + ".address", detail::to_text(data_ + field.offset),
                            "a multiple of " + std::to_string(alignof(T)));
    }
    return {reinterpret_cast<const T*>(data_ + field.offset), size_, field.count(), stride_};
  }

  /// Records [first, first + count).
  BatchView records(std::size_t first, std::size_t count) const noexcept {
    assert(first + count <= size_);
    BatchView part(*this);
    part.data_ += first * stride_;
    part.size_ = count;
    return part;
  }

 private:
  const RecordLayout* layout_;
  const std::byte* data_;
  std::size_t size_, stride_;
};

}  // namespace troop
