// The columns of an Arrow record batch that batches are made of, checked; seen through Arrow's C
// data interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/arrow_c_data.h"

namespace monolith {

// Of the columns that are wanted.
struct BlockNames {
  std::vector<std::string> ids, floats, times;
};

// Borrows the record batch, which is only read. Safe from any thread.
class ArrowBlock {
 public:
  struct Ids {
    const int64_t* values;
    const int32_t*
        offsets;  // (rows + 1,) of the lists, places in values; null: one id for each row

    // The place in values from which on the ids of a row lie.
    size_t begin(size_t row) const noexcept {
      return offsets == nullptr ? row : static_cast<size_t>(offsets[row]);
    }
  };
  struct Floats {
    const float* values;
    size_t width;  // of the lists of a fixed size; 0: one number for each row

    size_t per_row() const noexcept { return width == 0 ? 1 : width; }
  };

  // Throws std::invalid_argument where a column is not there, is of another type, or has missing
  // values; and where lists reach beyond their values, or do not follow each other.
  ArrowBlock(const BlockNames& names, const ArrowArray& array, const ArrowSchema& schema);

  size_t num_rows() const noexcept { return num_rows_; }
  // In the order of the names.
  const std::vector<Ids>& ids() const noexcept { return ids_; }
  const std::vector<Floats>& floats() const noexcept { return floats_; }
  const std::vector<const int64_t*>& times() const noexcept { return times_; }

 private:
  Ids ids_of(const std::string& name, const ArrowArray&, const ArrowSchema&) const;
  Floats floats_of(const std::string& name, const ArrowArray&, const ArrowSchema&) const;

  size_t num_rows_;
  size_t first_row_;  // of the record batch in its columns
  std::vector<Ids> ids_;
  std::vector<Floats> floats_;
  std::vector<const int64_t*> times_;
};

}  // namespace monolith
