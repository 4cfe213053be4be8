#include "ops/placement.h"

#include <algorithm>

#include "table/hash.h"

namespace monolith {
namespace {

constexpr uint32_t kPartitionBits = 12;

// Blocks without a branch per key, which compilers make vectors of.
template <typename IsForeign>
size_t find_first(const int64_t* keys, size_t n, const IsForeign& is_foreign) noexcept {
  constexpr size_t kBlock = 256;
  for (size_t first = 0; first < n; first += kBlock) {
    const size_t last = std::min(n, first + kBlock);
    uint64_t are_foreign = 0;
    for (size_t i = first; i < last; ++i) are_foreign |= is_foreign(keys[i]);
    if (are_foreign == 0) continue;
    for (size_t i = first; i < last; ++i) {
      if (is_foreign(keys[i])) return i;
    }
  }
  return n;
}

}  // namespace

size_t find_foreign(const int64_t* keys, size_t n, const ShardPlace& place) noexcept {
  if (place.by_partition) {
    return find_first(keys, n, [=](int64_t key) {
      const uint64_t partition = key_hash(key) >> (64 - kPartitionBits);
      return static_cast<uint64_t>(partition * place.num_shards >> kPartitionBits != place.shard);
    });
  }
  const auto num_shards = static_cast<int64_t>(place.num_shards);
  return find_first(keys, n, [=](int64_t key) {
    const int64_t remainder = key % num_shards;
    const int64_t shard = remainder < 0 ? remainder + num_shards : remainder;
    return static_cast<uint64_t>(shard != static_cast<int64_t>(place.shard));
  });
}

}  // namespace monolith
