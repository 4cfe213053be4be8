#include "io/record_columns.h"

#include <algorithm>

namespace monolith {

namespace {

constexpr size_t kFirstRows = 256;

}  // namespace

bool Column::has_one_each(size_t rows) const noexcept {
  if (ids.size() != rows) return false;
  bool is_one = true;
  for (size_t i = 0; i <= rows; ++i) is_one &= splits.data()[i] == static_cast<int32_t>(i);
  return is_one;
}

RecordColumns::RecordColumns(const std::vector<ColumnSpec>& specs) : columns(specs.size()) {
  for (size_t i = 0; i < specs.size(); ++i) {
    columns[i].spec = specs[i];
    columns[i].is_ids = specs[i].is_ids;
    columns[i].is_one_each = specs[i].is_one_each;
    columns[i].width = specs[i].width;
  }
  grow_rows(kFirstRows);
}

void RecordColumns::grow_rows(size_t rows) {
  const size_t capacity = std::max(rows, 2 * row_capacity_);
  for (Column& column : columns) {
    if (column.spec.is_ids) {
      column.splits.reserve(capacity + 1);
      column.splits.data()[0] = 0;
    } else {
      column.floats.reserve(capacity * column.spec.width);
    }
  }
  row_capacity_ = capacity;
}

void RecordColumns::roll_back(size_t rows) noexcept {
  num_rows = rows;
  for (Column& column : columns) {
    if (column.spec.is_ids) column.ids.resize(static_cast<size_t>(column.splits.data()[rows]));
  }
}

}  // namespace monolith
