// Enumerates the columns of an export and their places in a row.
#pragma once

#include "table/table.h"

namespace monolith {

// Calls f(offset in the row, address of row i in the column, bytes) for every column: weights, then
// state.
template <typename F>
void for_each_column(const Layout& layout, const Table::Columns& columns, size_t i, const F& f) {
  const size_t num_segments = layout.segments().size();
  size_t state = layout.weight_bytes();
  for (size_t c = 0; c < columns.data.size(); ++c) {
    const size_t bytes = columns.sizes[c];
    f(c < num_segments ? layout.segments()[c].weight_offset : state, columns.data[c] + i * bytes,
      bytes);
    if (c >= num_segments) state += bytes;
  }
}

}  // namespace monolith
