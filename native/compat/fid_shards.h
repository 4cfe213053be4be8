// Divides the ids of many features into lists by table and shard: native_training/ops/sharding.py.
#pragma once

#include <cstdint>
#include <span>

namespace monolith {

// The ids of all features of a batch, feature by feature. All pointers are borrowed.
struct FeatureIds {
  std::span<const int64_t* const> values;  // of each feature
  std::span<const int64_t> sizes;          // of each feature, in ids
  int64_t num_shards;
  bool is_unique;  // equal ids of a feature share a row
};

// Writes where the cells of all features begin among all ids, and the number of ids: (num_cells +
// 1,). A cell is a row of a feature. `splits` and `num_splits` are the row splits of each feature
// and their number, `sizes` its number of ids. Returns the number of features; or the index of the
// first feature whose splits do not ascend from 0 to its size, without reading later features.
size_t feature_cells(std::span<const int64_t* const> splits, std::span<const int64_t> num_splits,
                     std::span<const int64_t> sizes, int32_t* cells);

// Writes to `rows`, for each id, its row among the rows of its feature and shard, in the order of
// first occurrence; and to `counts`, (features, shards), the numbers of rows. Each feature is
// processed by one thread.
void count_rows(const FeatureIds& ids, uint64_t* rows, int64_t* counts, unsigned threads);

// The destination of the rows of a feature in a shard.
struct ShardPlace {
  int64_t first;    // place in the list of all ids
  uint64_t base;    // code of the first row
  uint64_t stride;  // difference between the codes of consecutive rows
};

// Writes the distinct ids to `fids`, and turns `codes`, the rows of count_rows(), into base + row *
// stride. `places`: (features, shards).
void place_rows(const FeatureIds& ids, const ShardPlace* places, int64_t* fids, uint64_t* codes,
                unsigned threads);

}  // namespace monolith
