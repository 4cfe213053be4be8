// Which keys of a table a shard holds: src/monolith/table/routing.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolith {

// A shard of a table; by_partition: of PartitionRouting, else of FloorModRouting.
struct ShardPlace {
  bool by_partition;
  uint32_t num_shards;
  uint32_t shard;
};

// Index of the first key that another shard holds, or n.
size_t find_foreign(const int64_t* keys, size_t n, const ShardPlace& place) noexcept;

}  // namespace monolith
