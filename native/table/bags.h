// Groups keys into bags for the pooled verbs; src/monolith/table/bags.py defines their meaning.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace monolith {

enum class PoolMode { kSum, kMean, kSqrtn, kMax };

// All pointers are borrowed for a call.
struct Bags {
  const int64_t* keys;
  size_t num_keys;
  const int64_t* row_splits;  // (num_bags + 1,), or null if each bag has `width` keys
  size_t num_bags;
  PoolMode mode;
  const float* weights;  // (num_keys,), or null; only with kSum
  size_t width = 0;      // keys of each bag, if row_splits is null

  // Whether the splits ascend from 0 to num_keys. The splits come from the caller and are used as
  // addresses.
  bool are_splits_valid() const noexcept {
    if (row_splits == nullptr) return num_bags * width == num_keys;
    if (row_splits[0] != 0 || row_splits[num_bags] != static_cast<int64_t>(num_keys)) return false;
    return std::is_sorted(row_splits, row_splits + num_bags + 1);
  }
  // Whether every bag has exactly one key.
  bool are_single() const noexcept {
    if (num_bags != num_keys || row_splits == nullptr) return num_bags == num_keys;
    for (size_t bag = 0; bag < num_bags; ++bag) {
      if (begin(bag) != bag) return false;
    }
    return true;
  }
  size_t begin(size_t bag) const noexcept {
    return row_splits == nullptr ? bag * width : static_cast<size_t>(row_splits[bag]);
  }
  size_t end(size_t bag) const noexcept { return begin(bag + 1); }
  bool has_factors() const noexcept { return mode == PoolMode::kMean || mode == PoolMode::kSqrtn; }
  // The factor of the mode for a bag, if has_factors().
  float factor(size_t bag) const noexcept {
    const auto count = static_cast<double>(end(bag) - begin(bag));
    return static_cast<float>(1.0 / (mode == PoolMode::kMean ? count : std::sqrt(count)));
  }
  // The first bag that begins at or after the key.
  size_t bag_from(size_t key) const noexcept {
    if (row_splits == nullptr) return key == 0 ? 0 : (key + width - 1) / width;
    const int64_t* at =
        std::lower_bound(row_splits, row_splits + num_bags, static_cast<int64_t>(key));
    return static_cast<size_t>(at - row_splits);
  }
};

// Addresses the rows of bags in a matrix: each row of the matrix holds the rows of `per_row`
// consecutive bags, and begins `stride` values after the row before it. Borrows the data.
template <typename T>
struct BagRows {
  T* data;
  size_t stride;
  size_t per_row = 1;

  T* of(size_t bag, size_t dim) const noexcept {
    if (per_row == 1) return data + bag * stride;
    return data + bag / per_row * stride + bag % per_row * dim;
  }
};

// Pools `rows`, (num_keys, dim), into `out`, (num_bags, dim), bit for bit like Table::lookup_bags.
// `winners`, (num_bags, dim), is written for kMax only. The splits must be valid.
void pool_rows(const Bags& bags, const float* rows, size_t dim, float* out, int32_t* winners,
               unsigned threads);

}  // namespace monolith
