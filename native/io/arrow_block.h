// The columns of an Arrow record batch, copied side by side into memory of the caller.
//
//   user: int64          7 9             ids     7 9 | 3 1      column after column
//   history: list<int64> [3, 1] []       splits  0 1 2          (columns, rows + 1), each from 0
//                                                0 2 2
//   price: float         .5 2.           floats  .5 2. | 1. 0.  column after column
//   click: float         1. 0.
//   time: int64          5 6             times   5 6            column after column
//
// A float column may have lists of a fixed size: then so many floats for each row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/arrow_c_data.h"

namespace monolith {

// Of the columns that are wanted, in the order of their memory.
struct BlockNames {
  std::vector<std::string> ids, floats, times;
};

// Borrows names and the record batch, which is only read. Safe from any thread.
class ArrowBlock {
 public:
  // Throws std::invalid_argument where a column is not there, is of another type, or has missing
  // values; and where lists reach beyond their values.
  ArrowBlock(const BlockNames& names, const ArrowArray& array, const ArrowSchema& schema);

  size_t num_rows() const noexcept { return num_rows_; }
  // Of all id columns.
  size_t num_ids() const noexcept { return num_ids_; }
  // Whether every id column has exactly one id in each row, and is no list.
  bool is_one_each() const noexcept { return is_one_each_; }
  // Of each float column: the size of its lists; 0: it has none.
  const std::vector<size_t>& widths() const noexcept { return widths_; }

  // Fills memory of the sizes above. splits may be null if is_one_each.
  // Throws std::invalid_argument where lists do not follow each other.
  void copy(int64_t* ids, int64_t* splits, float* floats, int64_t* times) const;

 private:
  template <typename T>
  struct Column {
    const std::string* name;
    const T* values;
    size_t count;
    const int32_t* offsets;  // (rows + 1,), values begin at the first; null: no lists
  };

  Column<int64_t> ids_of(const std::string& name, const ArrowArray&, const ArrowSchema&) const;
  Column<float> floats_of(const std::string& name, const ArrowArray&, const ArrowSchema&);

  size_t num_rows_;
  size_t num_ids_ = 0;
  bool is_one_each_ = true;
  size_t first_row_;  // of the record batch in its columns
  std::vector<size_t> widths_;
  std::vector<Column<int64_t>> ids_, times_;
  std::vector<Column<float>> floats_;
};

}  // namespace monolith
