#include "ops/distinct.h"

#include <bit>

#include "table/hash.h"

namespace monolith {

DistinctKeys::DistinctKeys(const int64_t* given, size_t n, uint64_t salt)
    : keys(n), first(n), numbers(n) {
  static_assert(kMost < UINT16_MAX);
  const size_t mask = std::bit_ceil(2 * n + 1) - 1;
  std::vector<uint16_t> slots(mask + 1);  // distinct number + 1
  uint16_t* slot_of = slots.data();
  int64_t* distinct = keys.data();
  uint16_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t key = given[i];
    size_t slot = place_of(key_hash(key), salt) & mask;
    while (slot_of[slot] != 0 && distinct[slot_of[slot] - 1] != key) slot = (slot + 1) & mask;
    if (slot_of[slot] == 0) {
      distinct[count] = key;
      first[count] = static_cast<uint32_t>(i);
      slot_of[slot] = ++count;
    }
    numbers[i] = slot_of[slot] - 1u;
  }
  keys.resize(count);
  first.resize(count);
}

}  // namespace monolith
