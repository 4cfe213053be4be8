#include "compat/pack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace monolith {

void pack_buffers(std::span<const uintptr_t> buffers, std::span<const size_t> sizes, char* out) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (sizes[i] == 0) continue;
    std::memcpy(out, reinterpret_cast<const void*>(buffers[i]), sizes[i]);
    out += sizes[i];
  }
}

void value_rowids(const int64_t* splits, size_t num_splits, int64_t* out, size_t num_values) {
  const auto end = static_cast<int64_t>(num_values);
  int64_t done = num_splits == 0 ? -1 : splits[0];
  bool is_right = done == 0;
  for (size_t i = 1; i < num_splits && is_right; ++i) {
    is_right = splits[i] >= done && splits[i] <= end;
    if (!is_right) break;
    std::fill(out + done, out + splits[i], static_cast<int64_t>(i) - 1);
    done = splits[i];
  }
  if (!is_right || done != end) {
    throw std::invalid_argument(
        "[fused_value_rowids] expected row_splits that run from 0 to " + std::to_string(end) +
        ", the number of values, without a step back; build it with Ragged");
  }
}

}  // namespace monolith
