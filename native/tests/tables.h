// Tables and keys that the tests share.
#pragma once

#include <vector>

#include "table/table.h"

namespace monolith {

inline TableSpec adagrad_table(uint32_t dim) {
  TableSpec spec;
  spec.name = "test";
  spec.seed = 42;
  spec.segments = {{dim,
                    "adagrad",
                    {{"initial_accumulator_value", 0.1f}, {"weight_decay_factor", 0.0f}},
                    -0.05f,
                    0.05f}};
  return spec;
}

inline std::vector<int64_t> keys_from(int64_t first, size_t n) {
  std::vector<int64_t> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = first + static_cast<int64_t>(i);
  return keys;
}

}  // namespace monolith
