// Checks the columns of an Arrow record batch, and reads them through Arrow's C data interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/arrow_c_data.h"

namespace monolith {

// Names of the requested columns.
struct BlockNames {
  std::vector<std::string> ids, floats, times;
};

// Borrows the record batch, which is only read. Thread-safe.
class ArrowBlock {
 public:
  struct Ids {
    const int64_t* values;
    const int32_t* offsets;  // (rows + 1,), or null if each row has one id

    // Returns the place in `values` of the first id of a row.
    size_t begin(size_t row) const noexcept {
      return offsets == nullptr ? row : static_cast<size_t>(offsets[row]);
    }
  };
  struct Floats {
    const float* values;
    size_t width;  // size of the fixed-size lists, or 0 for one number per row

    size_t per_row() const noexcept { return width == 0 ? 1 : width; }
  };

  // Throws std::invalid_argument if a column is missing, has another type, or has nulls; and if
  // lists reach beyond their values, or are not contiguous.
  ArrowBlock(const BlockNames& names, const ArrowArray& array, const ArrowSchema& schema);

  size_t num_rows() const noexcept { return num_rows_; }
  // The columns in the order of the names.
  const std::vector<Ids>& ids() const noexcept { return ids_; }
  const std::vector<Floats>& floats() const noexcept { return floats_; }
  const std::vector<const int64_t*>& times() const noexcept { return times_; }

 private:
  Ids ids_of(const std::string& name, const ArrowArray&, const ArrowSchema&) const;
  Floats floats_of(const std::string& name, const ArrowArray&, const ArrowSchema&) const;

  size_t num_rows_;
  size_t first_row_;  // offset of the record batch in its columns
  std::vector<Ids> ids_;
  std::vector<Floats> floats_;
  std::vector<const int64_t*> times_;
};

}  // namespace monolith
