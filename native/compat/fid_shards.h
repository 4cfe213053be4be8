// Ids of many features to lists by table and shard: native_training/ops/sharding.py.
#pragma once

#include <cstdint>
#include <span>

namespace monolith {

// The ids of all features of a batch, feature by feature. Borrowed.
struct FeatureIds {
  std::span<const int64_t* const> values;  // of each feature
  std::span<const int64_t> sizes;          // of each feature, in ids
  int64_t num_shards;
  bool is_unique;  // equal ids of a feature share a row
};

// Where the cells of all features begin among all ids, and their number: (num_cells + 1,). A cell
// is a row of a feature. splits, num_splits: row splits of each feature and how many; sizes: its
// ids. Returns the number of features; that of the first one, before any other is read, whose
// splits do not ascend from 0 to its size.
size_t feature_cells(std::span<const int64_t* const> splits, std::span<const int64_t> num_splits,
                     std::span<const int64_t> sizes, int32_t* cells);

// rows: of each id, feature by feature, its row among the rows of its feature and shard, in the
// order in which they are first seen; counts: (features, shards), how many rows there are.
// A feature is one thread's.
void count_rows(const FeatureIds& ids, uint64_t* rows, int64_t* counts, unsigned threads);

// Where the rows of a feature in a shard go.
struct ShardPlace {
  int64_t first;    // in the list of all ids
  uint64_t base;    // what the first row becomes in the codes
  uint64_t stride;  // from one row to the next in the codes
};

// places: (features, shards). fids: the distinct ids, written; codes: the rows of count_rows,
// turned into base + row * stride.
void place_rows(const FeatureIds& ids, const ShardPlace* places, int64_t* fids, uint64_t* codes,
                unsigned threads);

}  // namespace monolith
