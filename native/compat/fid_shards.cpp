#include "compat/fid_shards.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "compat/id_groups.h"
#include "table/team.h"

namespace monolith {
namespace {

// Floor remainder: in [0, num_shards) for negative ids too.
inline int64_t shard_of(int64_t id, int64_t num_shards) {
  if ((num_shards & (num_shards - 1)) == 0) return id & (num_shards - 1);  // a division is slow
  const int64_t rest = id % num_shards;
  return rest < 0 ? rest + num_shards : rest;
}

// work(feature, place of its first id among all ids), each feature once.
template <typename Work>
void by_feature(const FeatureIds& ids, unsigned threads, const Work& work) {
  std::vector<size_t> begins(ids.sizes.size());
  for (size_t f = 1; f < begins.size(); ++f) begins[f] = begins[f - 1] + ids.sizes[f - 1];
  std::atomic<size_t> next{0};
  Team::run(threads, [&](Team& team, unsigned) {
    team.attempt([&] {
      auto local = work.start();
      for (size_t f; (f = next.fetch_add(1)) < begins.size();) work.run(local, f, begins[f]);
    });
  });
}

struct Count {
  const FeatureIds& ids;
  uint64_t* rows;
  int64_t* counts;

  FirstSeen start() const { return {}; }
  void run(FirstSeen& seen, size_t f, size_t begin) const {
    int64_t* next = counts + f * ids.num_shards;
    const auto size = static_cast<size_t>(ids.sizes[f]);
    std::fill_n(next, ids.num_shards, 0);
    if (ids.is_unique) seen.clear(size);
    for (size_t i = 0; i < size; ++i) {
      const int64_t id = ids.values[f][i];
      int64_t& row = next[shard_of(id, ids.num_shards)];
      const int64_t group = ids.is_unique ? seen.find(id, static_cast<uint32_t>(row)) : row;
      rows[begin + i] = group;
      row += group == row ? 1 : 0;
    }
  }
};

struct Place {
  const FeatureIds& ids;
  const ShardPlace* places;
  int64_t* fids;
  uint64_t* codes;

  std::vector<uint64_t> start() const { return std::vector<uint64_t>(ids.num_shards); }
  void run(std::vector<uint64_t>& next, size_t f, size_t begin) const {
    std::fill(next.begin(), next.end(), 0);
    for (size_t i = 0; i < static_cast<size_t>(ids.sizes[f]); ++i) {
      const int64_t id = ids.values[f][i];
      const int64_t shard = shard_of(id, ids.num_shards);
      const ShardPlace& place = places[f * ids.num_shards + shard];
      uint64_t& code = codes[begin + i];
      // Rows are numbered as they are first seen, so that a new number is the next one.
      if (code == next[shard]) fids[place.first + next[shard]++] = id;
      code = place.base + code * place.stride;
    }
  }
};

}  // namespace

size_t feature_cells(std::span<const int64_t* const> splits, std::span<const int64_t> num_splits,
                     std::span<const int64_t> sizes, int32_t* cells) {
  int64_t first = 0;  // id of the feature
  for (size_t f = 0; f < splits.size(); ++f) {
    const std::span<const int64_t> row_splits(splits[f], num_splits[f]);
    const bool is_right = !row_splits.empty() && row_splits.front() == 0 &&
                          row_splits.back() == sizes[f] &&
                          std::is_sorted(row_splits.begin(), row_splits.end());
    if (!is_right) return f;
    for (const int64_t split : row_splits.first(row_splits.size() - 1)) {
      *cells++ = static_cast<int32_t>(first + split);
    }
    first += sizes[f];
  }
  *cells = static_cast<int32_t>(first);
  return splits.size();
}

void count_rows(const FeatureIds& ids, uint64_t* rows, int64_t* counts, unsigned threads) {
  by_feature(ids, threads, Count{ids, rows, counts});
}

void place_rows(const FeatureIds& ids, const ShardPlace* places, int64_t* fids, uint64_t* codes,
                unsigned threads) {
  by_feature(ids, threads, Place{ids, places, fids, codes});
}

}  // namespace monolith
