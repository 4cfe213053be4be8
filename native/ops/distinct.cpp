#include "ops/distinct.h"

#include <algorithm>
#include <bit>

#include "table/hash.h"

namespace monolith {
namespace {

constexpr uint32_t kMaxBits = 10;

// order: positions of the hashes by their first bits; those with equal ones stay in order.
void sort_by_bits(std::span<const uint64_t> hashes, uint32_t bits, uint32_t* order) {
  const auto bucket_of = [=](uint64_t hash) { return hash >> 1 >> (63 - bits); };
  uint16_t ends[(size_t{1} << kMaxBits) + 1] = {};
  for (const uint64_t hash : hashes) ++ends[bucket_of(hash) + 1];
  for (size_t bucket = 1; bucket <= size_t{1} << bits; ++bucket) ends[bucket] += ends[bucket - 1];
  for (uint32_t i = 0; i < hashes.size(); ++i) order[ends[bucket_of(hashes[i])]++] = i;
}

// At least n values; what they are does not matter.
template <typename T>
T* room(std::vector<T>& values, size_t n) {
  if (values.size() < n) values.resize(n);
  return values.data();
}

}  // namespace

DistinctKeys::DistinctKeys(const int64_t* given, size_t n, uint64_t salt, uint32_t depth,
                           Scratch& scratch)
    : num_occurs_(n) {
  static_assert(kMost < UINT16_MAX);
  const size_t mask = std::bit_ceil(2 * n) - 1;
  scratch.slots.assign(mask + 1, 0);  // how many keys were met with the one that is there
  uint16_t* slots = scratch.slots.data();
  uint64_t* hashes = room(scratch.hashes, n);  // of those; no two keys share one
  uint32_t* first = room(scratch.first, n);
  numbers_ = std::make_unique_for_overwrite<uint32_t[]>(2 * n);
  uint32_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = key_hash(given[i]);
    size_t slot = place_of(hash, salt) & mask;
    while (slots[slot] != 0 && hashes[slots[slot] - 1] != hash) slot = (slot + 1) & mask;
    // Written whether the key is new or not: nobody could predict a branch.
    const uint32_t found = slots[slot];
    hashes[count] = hash;
    first[count] = static_cast<uint32_t>(i);
    count += found == 0;
    slots[slot] = static_cast<uint16_t>(found == 0 ? count : found);
    numbers_[i] = slots[slot] - 1u;
  }
  num_distinct_ = count;
  const uint32_t bits = std::min({depth, kMaxBits, static_cast<uint32_t>(std::bit_width(n))});
  uint32_t* order = room(scratch.order, n);
  sort_by_bits({hashes, count}, bits, order);
  keys_ = std::make_unique_for_overwrite<int64_t[]>(count);
  seen_ = std::make_unique_for_overwrite<Seen[]>(count);
  uint32_t* numbers = numbers_.get() + n;
  for (uint32_t k = 0; k < count; ++k) {
    keys_[k] = given[first[order[k]]];
    numbers[order[k]] = k;
  }
  for (size_t i = 0; i < n; ++i) numbers_[i] = numbers[numbers_[i]];
}

}  // namespace monolith
