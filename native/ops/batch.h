// Groups the keys of one writing call: partitioned by hash, with equal keys adjacent.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

namespace monolith {

struct Line;

// Location of a key in the index of a table. `line` is null if the key was missing, or must be
// searched.
struct KeyLocation {
  Line* line;
  uint32_t row;   // row number
  uint32_t slot;  // slot of the line
};

// Partitions are hash ranges: threads that work on different partitions never contend for a bin,
// and the bins of one partition stay in cache. Within a partition the keys are sorted by some
// further bits of the hash, so that keys of one bin are adjacent. Occurrences of a key keep their
// order. Borrows keys and memory. After arrange(), different partitions may be used concurrently.
//
//   keys     7 9 7        one partition: entries  7 9, occurrences of 7: 0 2, of 9: 1
class Batch {
 public:
  // `skipped` has a flag per occurrence, not zero for an occurrence to leave out; may be null.
  // `salt` is that of the table (place_of). `depth` is the number of hash bits that distinguish
  // most bins. `memory` provides all arrays of the batch, and outlives the batch.
  Batch(const int64_t* keys, uint32_t n, const uint8_t* skipped, uint64_t salt, uint32_t depth,
        unsigned num_threads, std::pmr::monotonic_buffer_resource& memory);
  // Creates a batch of distinct keys in one partition that needs no grouping: keys with a known
  // location come first. Occurrences are unknown; Entry::first is the position among the keys.
  // `num_removed` is Table::num_removed() before the first location was read.
  Batch(std::span<const int64_t> keys, const KeyLocation* seen, uint64_t num_removed,
        std::pmr::monotonic_buffer_resource& memory);

  uint32_t size() const noexcept { return n_; }
  uint32_t num_partitions() const noexcept { return uint32_t{1} << bits_; }
  // Length of the hash prefix that the keys of a partition share; at most 12.
  uint32_t bits() const noexcept { return bits_; }

  // Scratch of one thread.
  struct Scratch {
    std::vector<uint32_t> slots, groups, order;
  };

  // Partitions the keys; every member of the team calls arrange(). Then group(p) is called once per
  // partition; it allocates only scratch memory.
  template <typename Team>
  void arrange(Team& team, unsigned member) noexcept {
    count(member, team.size());
    team.barrier();
    place(member, team.size());
    team.barrier();
  }
  void group(uint32_t partition, Scratch& scratch);

  enum State : uint16_t { kOld, kHeld, kNew, kRefused };  // kHeld: old, and marked
  // A distinct key. The caller fills in location and state.
  struct Entry {
    int64_t key;
    uint64_t hash;
    Line* line;      // line of the key in the index; may be retired
    uint32_t row;    // row number
    State state;     // kOld at first
    uint16_t slot;   // slot of the line
    uint32_t first;  // start of its occurrences: unique per key, below size()
    uint32_t num_occurs;
  };
  // After group(): the distinct keys of a partition.
  std::span<Entry> distinct(uint32_t partition) const noexcept {
    return {entries_ + starts_[partition], num_distinct_[partition]};
  }
  uint64_t num_removed() const noexcept { return num_removed_; }
  // The distinct keys without a location from the constructor: usually all keys.
  std::span<Entry> unseen(uint32_t partition) const noexcept {
    return distinct(partition).subspan(num_seen_);
  }
  // Moves refused keys after the other keys, which stay in order; the new order remains for a call
  // that reuses the batch. `are_any` is false if no key is refused.
  void sort_out_refused(uint32_t partition, bool are_any) noexcept;
  // After sort_out_refused(): the keys that are not refused.
  std::span<Entry> kept(uint32_t partition) const noexcept {
    return {entries_ + starts_[partition], num_kept_[partition]};
  }
  // The occurrences in a partition, by distinct key in the order of group().
  std::span<const uint32_t> order(uint32_t partition) const noexcept {
    return {order_ + starts_[partition], starts_[partition + 1] - starts_[partition]};
  }
  // Occurrences of a distinct key, ascending.
  std::span<const uint32_t> occurrences(const Entry& entry) const noexcept {
    return {order_ + entry.first, entry.num_occurs};
  }

 private:
  void count(unsigned member, unsigned num_members) noexcept;
  void place(unsigned member, unsigned num_members) noexcept;
  uint32_t bucket_of(uint64_t hash) const noexcept {
    return static_cast<uint32_t>(hash >> 1 >> (63 - bucket_bits_));
  }

  const int64_t* const input_;
  const uint32_t n_;
  const uint8_t* const skipped_;
  const uint64_t salt_;
  const uint64_t num_removed_ = 0;
  uint32_t num_seen_ = 0;
  uint32_t bits_ = 0;
  uint32_t bucket_bits_ = 0;     // a partition is a run of buckets, in which keys are placed
  uint32_t* sizes_ = nullptr;    // (members, buckets)
  uint32_t* cursors_ = nullptr;  // (members, buckets)
  uint32_t* starts_;             // (partitions + 1,)
  uint32_t* num_distinct_;       // (partitions,)
  uint32_t* num_kept_;           // (partitions,), from sort_out_refused() on
  int64_t* keys_ = nullptr;      // of the occurrences, by bucket
  uint32_t* order_ = nullptr;    // occurrences, by partition, then by key
  Entry* entries_;               // by partition, from the place of its first occurrence on
};

}  // namespace monolith
