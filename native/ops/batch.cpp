#include "ops/batch.h"

#include <algorithm>
#include <bit>

#include "table/hash.h"

namespace monolith {
namespace {

constexpr uint32_t kPartitionKeys =
    256;  // a partition and its scratch fit in the first-level cache
constexpr uint32_t kMaxBits = 12;

}  // namespace

Batch::Batch(const int64_t* keys, uint32_t n, const uint8_t* skipped, uint64_t salt,
             unsigned num_threads)
    : input_(keys), n_(n), skipped_(skipped), salt_(salt) {
  if (n >= 4 * kPartitionKeys) {
    bits_ = std::min(kMaxBits, static_cast<uint32_t>(std::bit_width(n / kPartitionKeys)) - 1);
  }
  sizes_.resize(size_t{num_threads} << bits_);
  cursors_.resize(size_t{num_threads} << bits_);
  starts_.resize((size_t{1} << bits_) + 1);
  num_distinct_.resize(size_t{1} << bits_);
  keys_ = std::make_unique_for_overwrite<int64_t[]>(n);
  order_ = std::make_unique_for_overwrite<uint32_t[]>(n);
  firsts_ = std::make_unique_for_overwrite<uint32_t[]>(n);
  counts_ = std::make_unique_for_overwrite<uint32_t[]>(n);
  rows_ = std::make_unique_for_overwrite<uint32_t[]>(n);
  is_new_ = std::make_unique<bool[]>(n);
}

uint32_t Batch::partition_of(int64_t key) const noexcept {
  return static_cast<uint32_t>(key_hash(key) >> 1 >> (63 - bits_));
}

void Batch::count(unsigned member, unsigned num_members) noexcept {
  uint32_t* counts = sizes_.data() + (size_t{member} << bits_);
  const auto end = static_cast<uint32_t>(uint64_t{n_} * (member + 1) / num_members);
  for (auto i = static_cast<uint32_t>(uint64_t{n_} * member / num_members); i < end; ++i) {
    if (skipped_ == nullptr || skipped_[i] == 0) ++counts[partition_of(input_[i])];
  }
}

// Every member computes the same starts from all counts, then moves its own slice.
void Batch::place(unsigned member, unsigned num_members) noexcept {
  uint32_t* cursor = cursors_.data() + (size_t{member} << bits_);
  uint32_t start = 0;
  for (uint32_t p = 0; p < num_partitions(); ++p) {
    if (member == 0) starts_[p] = start;
    for (unsigned m = 0; m < num_members; ++m) {
      if (m == member) cursor[p] = start;
      start += sizes_[(size_t{m} << bits_) + p];
    }
  }
  if (member == 0) starts_.back() = start;
  const auto end = static_cast<uint32_t>(uint64_t{n_} * (member + 1) / num_members);
  for (auto i = static_cast<uint32_t>(uint64_t{n_} * member / num_members); i < end; ++i) {
    if (skipped_ != nullptr && skipped_[i] != 0) continue;
    const uint32_t at = cursor[partition_of(input_[i])]++;
    keys_[at] = input_[i];
    order_[at] = i;
  }
}

void Batch::group(uint32_t partition, Scratch& scratch) {
  const uint32_t first = starts_[partition];
  const uint32_t n = starts_[partition + 1] - first;
  int64_t* keys = keys_.get() + first;
  uint32_t* order = order_.get() + first;
  uint32_t* firsts = firsts_.get() + first;
  uint32_t* counts = counts_.get() + first;
  const size_t mask = std::bit_ceil(size_t{2} * n + 1) - 1;
  scratch.slots.assign(mask + 1, 0);  // distinct number + 1
  scratch.groups.resize(n);
  uint32_t num_distinct = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const int64_t key = keys[i];
    size_t slot = place_of(key_hash(key), salt_) & mask;
    while (scratch.slots[slot] != 0 && keys[scratch.slots[slot] - 1] != key) {
      slot = (slot + 1) & mask;
    }
    if (scratch.slots[slot] == 0) {
      scratch.slots[slot] = num_distinct + 1;
      counts[num_distinct] = 0;
      keys[num_distinct++] = key;
    }
    scratch.groups[i] = scratch.slots[slot] - 1;
    ++counts[scratch.groups[i]];
  }
  num_distinct_[partition] = num_distinct;
  uint32_t start = first;
  for (uint32_t u = 0; u < num_distinct; ++u) {
    firsts[u] = start;
    start += counts[u];
  }
  if (num_distinct == n) return;  // already one occurrence each, in order
  scratch.order.assign(order, order + n);
  for (uint32_t i = 0; i < n; ++i) {
    order_[firsts[scratch.groups[i]]++] = scratch.order[i];
  }
  for (uint32_t u = 0; u < num_distinct; ++u) firsts[u] -= counts[u];
}

}  // namespace monolith
