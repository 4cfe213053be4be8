// Copies rows to all of their places, and sums gradients back: native_training/ops/unique.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace monolith {

// Rows of one shard: for each slot in order, one row of dims[slot] floats per key.
struct FillPart {
  std::span<const int64_t> keys;    // indices of distinct keys
  std::span<const int64_t> splits;  // (slots + 1,)
  float* values;
  int64_t size;  // floats
};

// All spans and pointers are borrowed.
struct Fill {
  std::vector<FillPart> parts;
  std::span<const int64_t> offsets;        // places of the row of each distinct key, in floats
  std::span<const int64_t> offset_splits;  // (distinct keys + 1,)
  std::span<const int64_t> dims;           // (slots,)
  float* buffer;
  int64_t size;  // floats
};

// Copies rows to their places. Throws std::invalid_argument, before anything is written, if a part
// has too few values, if splits do not ascend from 0 to the number of values, or if a key or a
// place does not exist.
void fill_buffer(const Fill& fill, unsigned threads);
// Does the opposite: sets each row to the sum of its places in the buffer, in their order.
void sum_from_buffer(const Fill& fill, unsigned threads);

}  // namespace monolith
