#include "ops/distinct.h"

#include <algorithm>
#include <bit>

#include "table/hash.h"

namespace monolith {
namespace {

constexpr uint32_t kMaxBits = 10;
constexpr uint16_t kEmpty = UINT16_MAX;  // free slot
static_assert(DistinctKeys::kMost < kEmpty);

// Writes to `order` the positions of the hashes, sorted stably by their first bits.
void sort_by_bits(std::span<const uint64_t> hashes, uint32_t bits, uint32_t* order) {
  const auto bucket_of = [=](uint64_t hash) { return hash >> 1 >> (63 - bits); };
  uint16_t ends[(size_t{1} << kMaxBits) + 1] = {};
  for (const uint64_t hash : hashes) ++ends[bucket_of(hash) + 1];
  for (size_t bucket = 1; bucket <= size_t{1} << bits; ++bucket) ends[bucket] += ends[bucket - 1];
  for (uint32_t i = 0; i < hashes.size(); ++i) order[ends[bucket_of(hashes[i])]++] = i;
}

// Returns memory for at least `n` values, with undefined contents.
template <typename T>
T* room(std::vector<T>& values, size_t n) {
  if (values.size() < n) values.resize(n);
  return values.data();
}

}  // namespace

// Writes to `numbers_` the first occurrence of the key of each occurrence. No branch depends on
// whether a key is new, and no key waits for the previous key, unlike in a loop that finds and adds
// keys one by one.
void DistinctKeys::find_first(Scratch& scratch) noexcept {
  const size_t mask = scratch.slots.size() - 1;
  const uint16_t* places = scratch.places.data();
  const uint64_t* hashes = scratch.hashes.data();
  uint16_t *slots = scratch.slots.data(), *others = scratch.others.data();
  for (size_t i = num_occurs_; i-- > 0;) slots[places[i]] = static_cast<uint16_t>(i);
  size_t num_others = 0;
  for (size_t i = 0; i < num_occurs_; ++i) {
    numbers_[i] = slots[places[i]];
    others[num_others] = static_cast<uint16_t>(i);
    num_others += hashes[numbers_[i]] != hashes[i];
  }
  for (size_t k = 0; k < num_others; ++k) {  // keys that are not the first at their place
    const uint16_t i = others[k];
    size_t slot = places[i];
    do {
      slot = (slot + 1) & mask;
      if (slots[slot] == kEmpty) slots[slot] = i;
    } while (hashes[slots[slot]] != hashes[i]);
    numbers_[i] = slots[slot];
  }
}

DistinctKeys::DistinctKeys(const int64_t* keys, size_t n, uint64_t salt, uint32_t depth,
                           Scratch& scratch)
    : num_occurs_(n), numbers_(std::make_unique_for_overwrite<uint16_t[]>(2 * n)) {
  scratch.slots.assign(std::bit_ceil(2 * n), kEmpty);
  const size_t mask = scratch.slots.size() - 1;
  uint64_t* hashes = room(scratch.hashes, n);  // different keys have different hashes
  uint16_t* places = room(scratch.places, n);
  room(scratch.others, n);
  for (size_t i = 0; i < n; ++i) {
    hashes[i] = key_hash(keys[i]);
    places[i] = static_cast<uint16_t>(place_of(hashes[i], salt) & mask);
  }
  find_first(scratch);
  uint32_t* first = room(scratch.first, n);
  uint32_t count = 0;  // number of distinct keys; from here on `hashes` holds their hashes
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t is_new = numbers_[i] == i;
    const uint32_t known = numbers_[numbers_[i]];
    hashes[count] = hashes[i];
    first[count] = i;
    // A conditional expression would compile to a branch.
    numbers_[i] = static_cast<uint16_t>(known + (count - known) * is_new);
    count += is_new;
  }
  num_distinct_ = count;
  const uint32_t bits = std::min({depth, kMaxBits, static_cast<uint32_t>(std::bit_width(n))});
  uint32_t* order = room(scratch.order, n);
  sort_by_bits({hashes, count}, bits, order);
  keys_ = std::make_unique_for_overwrite<int64_t[]>(count);
  seen_ = std::make_unique_for_overwrite<KeyLocation[]>(count);
  uint16_t* as_met = numbers_.get() + n;
  for (uint32_t k = 0; k < count; ++k) {
    keys_[k] = keys[first[order[k]]];
    as_met[order[k]] = static_cast<uint16_t>(k);
  }
  for (size_t i = 0; i < n; ++i) numbers_[i] = as_met[numbers_[i]];
}

}  // namespace monolith
