// Creates tables and keys for the tests.
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

inline std::vector<uint32_t> all_partitions() {
  std::vector<uint32_t> partitions(Admission::kPartitions);
  for (uint32_t i = 0; i < partitions.size(); ++i) partitions[i] = i;
  return partitions;
}

// Keys of 64 partitions, so that candidates are dropped and filters slide within a call.
inline std::vector<int64_t> crowded_keys(size_t n) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; keys.size() < n; ++key) {
    if (key_hash(key) >> 58 == 0) keys.push_back(key);
  }
  return keys;
}

}  // namespace monolith
