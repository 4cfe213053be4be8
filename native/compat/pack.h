// Packs many buffers into one, and computes the row of every ragged value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace monolith {

// Copies the buffers one after another to `out`, which has room for all of them. buffers[i] has
// sizes[i] bytes, and may be null if sizes[i] is 0.
void pack_buffers(std::span<const uintptr_t> buffers, std::span<const size_t> sizes, char* out);

// out[j] = i for splits[i] <= j < splits[i + 1].  splits: (num_splits,), out: (num_values,) Throws
// std::invalid_argument if the splits do not ascend from 0 to num_values; `out` is then partly
// written, never beyond its end.
void value_rowids(const int64_t* splits, size_t num_splits, int64_t* out, size_t num_values);

}  // namespace monolith
