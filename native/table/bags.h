// Keys in bags, as the pooled verbs take them; src/monolith/table/bags.py says what they mean.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace monolith {

enum class PoolMode { kSum, kMean, kSqrtn, kMax };

// Borrowed for a call.
struct Bags {
  const int64_t* keys;
  size_t num_keys;
  const int64_t* row_splits;  // (num_bags + 1,), or null: each bag has `width` keys
  size_t num_bags;
  PoolMode mode;
  const float* weights;  // (num_keys,), or null; only of kSum
  size_t width = 0;      // keys of each bag, where there are no splits

  // Whether the splits ascend from 0 to num_keys. They lie in the caller's memory, and what they
  // say is used as addresses.
  bool are_splits_valid() const noexcept {
    if (row_splits == nullptr) return num_bags * width == num_keys;
    if (row_splits[0] != 0 || row_splits[num_bags] != static_cast<int64_t>(num_keys)) return false;
    return std::is_sorted(row_splits, row_splits + num_bags + 1);
  }
  // Whether every bag is one key.
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
  // What the mode multiplies with in a bag, where it has factors.
  float factor(size_t bag) const noexcept {
    const auto count = static_cast<double>(end(bag) - begin(bag));
    return static_cast<float>(1.0 / (mode == PoolMode::kMean ? count : std::sqrt(count)));
  }
  // The first bag that begins at the key or behind it.
  size_t bag_from(size_t key) const noexcept {
    if (row_splits == nullptr) return key == 0 ? 0 : (key + width - 1) / width;
    const int64_t* at =
        std::lower_bound(row_splits, row_splits + num_bags, static_cast<int64_t>(key));
    return static_cast<size_t>(at - row_splits);
  }
};

// Where the rows of bags lie in a matrix: bag after bag, `per_row` of them side by side in each of
// its rows, which begin `stride` values after each other.
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

// Rows of the keys, (num_keys, dim), to one per bag, out (num_bags, dim), with the bits of
// Table::lookup_bags; winners (num_bags, dim), of kMax only. The splits are valid.
void pool_rows(const Bags& bags, const float* rows, size_t dim, float* out, int32_t* winners,
               unsigned threads);

}  // namespace monolith
