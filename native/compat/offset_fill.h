// Rows copied to every place where they are wanted, and back: native_training/ops/unique.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace monolith {

// Rows of one shard: for the slots in order, as many rows of dims[slot] floats as it has keys.
struct FillPart {
  std::span<const int64_t> keys;    // numbers of distinct keys
  std::span<const int64_t> splits;  // (slots + 1,)
  float* values;
  int64_t size;  // floats
};

// Borrowed, all of it.
struct Fill {
  std::vector<FillPart> parts;
  std::span<const int64_t> offsets;        // where the row of a distinct key goes, in floats
  std::span<const int64_t> offset_splits;  // (distinct keys + 1,)
  std::span<const int64_t> dims;           // (slots,)
  float* buffer;
  int64_t size;  // floats
};

// Copies rows to their places. Throws std::invalid_argument, before anything is written, if a part
// has too few values, if splits do not ascend from 0 to the number of values, or if a key or a
// place does not exist.
void fill_buffer(const Fill& fill, unsigned threads);
// The opposite: each row becomes the sum of its places in the buffer, in their order.
void sum_from_buffer(const Fill& fill, unsigned threads);

}  // namespace monolith
