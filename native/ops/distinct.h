// Which keys of a short list are equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace monolith {

// Distinct keys are numbered in the order of their first occurrence.
//
//   keys     7 9 7        distinct 7 9, first 0 1, numbers 0 1 0
struct DistinctKeys {
  static constexpr size_t kMost = 8000;  // keys of a list whose slots stay in the first-level cache

  std::vector<int64_t> keys;      // distinct
  std::vector<uint32_t> first;    // occurrence of each
  std::vector<uint32_t> numbers;  // of each occurrence

  DistinctKeys() = default;
  // n: at most kMost. salt: of the table, see place_of.
  DistinctKeys(const int64_t* keys, size_t n, uint64_t salt);
};

}  // namespace monolith
