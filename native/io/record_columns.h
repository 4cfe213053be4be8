// Stores columns that grow record by record: ids with row splits, and matrices of floats.
//
//   ids     values  7 8 9      splits  0 2 2 3      rows [7, 8] [] [9]
//   floats  width 2: 0.5 1 | 2 3 | 4 5               one row each
//
// A row is written by `start`, one or more appends, and `finish`. A record that is rolled back
// leaves no values. Owns its memory; movable; not thread-safe.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "io/wire.h"

namespace monolith {

// A growing array of numbers that does not touch its memory before it is written.
template <class T>
class Array {
 public:
  Array() = default;
  Array(Array&& other) noexcept { swap(other); }
  Array& operator=(Array&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Array() { std::free(data_); }

  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  size_t capacity() const noexcept { return capacity_; }
  void resize(size_t size) noexcept { size_ = size; }  // at most the capacity

  // Returns the address for `more` further numbers, which the size does not include yet.
  T* room(size_t more) {
    if (capacity_ - size_ < more) [[unlikely]]
      reserve(size_ + more + size_ / 2 + 64);
    return data_ + size_;
  }

  void reserve(size_t capacity) {
    if (capacity <= capacity_) return;
    void* grown = std::realloc(data_, capacity * sizeof(T));
    if (grown == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(grown);
    capacity_ = capacity;
  }

 private:
  void swap(Array& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

struct ColumnSpec {
  std::string name;
  bool is_ids = true;
  uint32_t width = 1;     // floats of a row
  bool has_fill = false;  // a row with fewer floats is filled with `fill`
  float fill = 0;
  bool takes_first = false;  // of more floats than the width, the first are used
  bool is_one_each = false;  // ids: each row has exactly one
};

struct Column {
  Array<int64_t> ids;
  Array<int32_t> splits;  // (rows + 1,); its capacity is kept by RecordColumns
  Array<float> floats;    // (rows, width), likewise

  // State of the row that is being written.
  uint64_t mark = 0;  // mark of the last row or cell that was started
  uint32_t num_floats = 0;
  int priority = 0;
  bool is_ids = true;  // copied from the spec, like the next two members, for fast access
  bool is_one_each = false;
  uint32_t width = 1;

  // State of a record that is a batch.
  int64_t list_rows = -1;  // number of features of its list; -1 if the record has no such list
  bool is_shared = false;
  int list_priority = 0;

  ColumnSpec spec;

  bool has_one_each(size_t rows) const noexcept;  // whether every row has exactly one id
};

struct RecordColumns {
  std::vector<Column> columns;
  size_t num_rows = 0;

  RecordColumns() = default;
  RecordColumns(RecordColumns&&) noexcept = default;
  RecordColumns& operator=(RecordColumns&&) noexcept = default;
  explicit RecordColumns(const std::vector<ColumnSpec>& specs);

  // Reserves memory for `rows` rows of every column.
  void ensure_rows(size_t rows) {
    if (rows > row_capacity_) [[unlikely]]
      grow_rows(rows);
  }

  // Drops all complete and partial rows after the first `rows` rows.
  void roll_back(size_t rows) noexcept;

 private:
  void grow_rows(size_t rows);

  size_t row_capacity_ = 0;
};

}  // namespace monolith
