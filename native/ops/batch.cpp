#include "ops/batch.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ops/take.h"
#include "table/hash.h"

namespace monolith {
namespace {

constexpr uint32_t kPartitionKeys = 512;  // a partition and its scratch stay in cache
constexpr uint32_t kMaxBits = 12;
constexpr uint32_t kMaxBucketBits = 13;  // one member's counters fit in the second-level cache

}  // namespace

Batch::Batch(const int64_t* keys, uint32_t n, const uint8_t* skipped, uint64_t salt, uint32_t depth,
             unsigned num_threads, std::pmr::monotonic_buffer_resource& memory)
    : input_(keys), n_(n), skipped_(skipped), salt_(salt) {
  if (n >= 4 * kPartitionKeys) {
    bits_ = std::min(kMaxBits, static_cast<uint32_t>(std::bit_width(n / kPartitionKeys)) - 1);
  }
  // Every member reads all counters: there are at most as many as half the keys.
  const auto most = static_cast<uint32_t>(std::bit_width(n / (4 * num_threads)));
  bucket_bits_ = std::max(bits_, std::min({depth, most, kMaxBucketBits}));
  const size_t num_counters = size_t{num_threads} << bucket_bits_;
  sizes_ = take<uint32_t>(memory, num_counters);
  std::fill_n(sizes_, num_counters, 0);
  cursors_ = take<uint32_t>(memory, num_counters);
  starts_ = take<uint32_t>(memory, (size_t{1} << bits_) + 1);
  num_distinct_ = take<uint32_t>(memory, num_partitions());
  std::fill_n(num_distinct_, num_partitions(), 0);  // for a call that fails before group()
  num_kept_ = take<uint32_t>(memory, num_partitions());
  keys_ = take<int64_t>(memory, n);
  order_ = take<uint32_t>(memory, n);
  entries_ = take<Entry>(memory, n);
}

Batch::Batch(std::span<const int64_t> keys, const KeyLocation* seen, uint64_t num_removed,
             std::pmr::monotonic_buffer_resource& memory)
    : input_(keys.data()),
      n_(static_cast<uint32_t>(keys.size())),
      skipped_(nullptr),
      salt_(0),
      num_removed_(num_removed) {
  starts_ = take<uint32_t>(memory, 2);
  starts_[0] = 0;
  starts_[1] = n_;
  num_distinct_ = take<uint32_t>(memory, 1);
  num_distinct_[0] = n_;
  num_kept_ = take<uint32_t>(memory, 1);
  entries_ = take<Entry>(memory, n_);
  uint32_t num_unseen = 0;
  for (uint32_t i = 0; i < n_; ++i) {
    const bool is_seen = seen[i].line != nullptr;
    Entry& entry = entries_[is_seen ? num_seen_++ : n_ - ++num_unseen];
    entry = {keys[i],
             key_hash(keys[i]),
             seen[i].line,
             seen[i].row,
             kOld,
             static_cast<uint16_t>(seen[i].slot),
             i,
             1};
  }
  std::reverse(entries_ + num_seen_, entries_ + n_);  // in the order of the keys
}

void Batch::count(unsigned member, unsigned num_members) noexcept {
  uint32_t* counts = sizes_ + (size_t{member} << bucket_bits_);
  const auto end = static_cast<uint32_t>(uint64_t{n_} * (member + 1) / num_members);
  for (auto i = static_cast<uint32_t>(uint64_t{n_} * member / num_members); i < end; ++i) {
    if (skipped_ == nullptr || skipped_[i] == 0) ++counts[bucket_of(key_hash(input_[i]))];
  }
}

// Every member computes the same starts from all counts, then moves its own slice.
void Batch::place(unsigned member, unsigned num_members) noexcept {
  uint32_t* cursor = cursors_ + (size_t{member} << bucket_bits_);
  const uint32_t run = (1u << (bucket_bits_ - bits_)) - 1;  // buckets of a partition, less one
  uint32_t start = 0;
  for (uint32_t b = 0; b < 1u << bucket_bits_; ++b) {
    if (member == 0 && (b & run) == 0) starts_[b >> (bucket_bits_ - bits_)] = start;
    for (unsigned m = 0; m < num_members; ++m) {
      if (m == member) cursor[b] = start;
      start += sizes_[(size_t{m} << bucket_bits_) + b];
    }
  }
  if (member == 0) starts_[num_partitions()] = start;
  const auto end = static_cast<uint32_t>(uint64_t{n_} * (member + 1) / num_members);
  for (auto i = static_cast<uint32_t>(uint64_t{n_} * member / num_members); i < end; ++i) {
    if (skipped_ != nullptr && skipped_[i] != 0) continue;
    const uint32_t at = cursor[bucket_of(key_hash(input_[i]))]++;
    keys_[at] = input_[i];
    order_[at] = i;
  }
}

void Batch::group(uint32_t partition, Scratch& scratch) {
  const uint32_t first = starts_[partition];
  const uint32_t n = starts_[partition + 1] - first;
  const int64_t* keys = keys_ + first;
  uint32_t* order = order_ + first;
  Entry* entries = entries_ + first;
  if (n == 1) {  // common in small calls over many tables
    entries[0] = {keys[0], key_hash(keys[0]), nullptr, 0, kOld, 0, first, 1};
    num_distinct_[partition] = 1;
    return;
  }
  const size_t mask = std::bit_ceil(size_t{2} * n + 1) - 1;
  scratch.slots.assign(mask + 1, 0);  // distinct number + 1
  scratch.groups.resize(n);
  uint32_t* slots = scratch.slots.data();
  uint32_t* groups = scratch.groups.data();
  uint32_t num_distinct = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t hash = key_hash(keys[i]);  // different keys have different hashes
    size_t slot = place_of(hash, salt_) & mask;
    while (slots[slot] != 0 && entries[slots[slot] - 1].hash != hash) slot = (slot + 1) & mask;
    if (slots[slot] == 0) {
      slots[slot] = num_distinct + 1;
      entries[num_distinct++] = {keys[i], hash, nullptr, 0, kOld, 0, first + i, 0};
    }
    groups[i] = slots[slot] - 1;
    ++entries[groups[i]].num_occurs;
  }
  num_distinct_[partition] = num_distinct;
  if (num_distinct == n) return;  // every key occurs once, in place
  uint32_t start = first;
  for (uint32_t u = 0; u < num_distinct; ++u) {
    entries[u].first = start;
    start += entries[u].num_occurs;
  }
  scratch.order.assign(order, order + n);
  for (uint32_t i = 0; i < n; ++i) order_[entries[groups[i]].first++] = scratch.order[i];
  for (uint32_t u = 0; u < num_distinct; ++u) entries[u].first -= entries[u].num_occurs;
}

void Batch::sort_out_refused(uint32_t partition, bool are_any) noexcept {
  const std::span<Entry> all = distinct(partition);
  uint32_t num_kept = are_any ? 0 : num_distinct_[partition];
  for (Entry& entry : all.subspan(num_kept)) {
    if (entry.state != kRefused) std::swap(all[num_kept++], entry);
  }
  num_kept_[partition] = num_kept;
}

}  // namespace monolith
