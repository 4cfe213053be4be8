// The keys of one writing call: partitioned by hash, equal keys brought together.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

namespace monolith {

struct Line;

// Where a key was seen in the index of a table. line: null if it was not, or is to be looked for.
struct KeyLocation {
  Line* line;
  uint32_t row;   // its number
  uint32_t slot;  // of the line
};

// Partitions are hash ranges: threads that work on different ones never meet in a bin, and one
// partition's bins stay in cache. Within a partition the keys are sorted by some further bits of
// the hash, so that those of a bin are neighbours. Occurrences of a key keep their order.
//
//   keys     7 9 7        one partition: entries  7 9, occurrences of 7: 0 2, of 9: 1
class Batch {
 public:
  // skipped: per occurrence, not zero to leave it out; may be null.
  // salt: of the table, see place_of. depth: bits of the hash that tell most bins apart. memory:
  // gives what the batch needs, takes all of it back at once, and outlives the batch.
  Batch(const int64_t* keys, uint32_t n, const uint8_t* skipped, uint64_t salt, uint32_t depth,
        unsigned num_threads, std::pmr::monotonic_buffer_resource& memory);
  // Distinct keys in one partition, with nothing left to do: those that were seen come first, then
  // the others. Occurrences are not known; Entry::first is the place among the keys. num_removed:
  // rows that the table had lost before the first key was seen.
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

  // What the members of a team do first, all together; then group(p) once per partition, which
  // allocates nothing but scratch.
  template <typename Team>
  void arrange(Team& team, unsigned member) noexcept {
    count(member, team.size());
    team.barrier();
    place(member, team.size());
    team.barrier();
  }
  void group(uint32_t partition, Scratch& scratch);

  enum State : uint16_t { kOld, kHeld, kNew, kRefused };  // kHeld: old, and marked
  // A distinct key. The caller fills in what it learns of it.
  struct Entry {
    int64_t key;
    uint64_t hash;
    Line* line;      // where it was seen in the index; may be gone
    uint32_t row;    // its number
    State state;     // kOld at first
    uint16_t slot;   // of the line
    uint32_t first;  // of its occurrences; no other key has it, and it is less than size()
    uint32_t num_occurs;
  };
  // After group(): the distinct keys of a partition.
  std::span<Entry> distinct(uint32_t partition) const noexcept {
    return {entries_ + starts_[partition], num_distinct_[partition]};
  }
  uint64_t num_removed() const noexcept { return num_removed_; }
  // Of them, those that were not seen before the batch was made: most often all.
  std::span<Entry> unseen(uint32_t partition) const noexcept {
    return distinct(partition).subspan(num_seen_);
  }
  // Puts those that are refused behind the others, which stay in order; a call that uses the batch
  // again finds them where they are then. are_any: false if there are none.
  void sort_out_refused(uint32_t partition, bool are_any) noexcept;
  // After sort_out_refused(): the others.
  std::span<Entry> kept(uint32_t partition) const noexcept {
    return {entries_ + starts_[partition], num_kept_[partition]};
  }
  // The occurrences in a partition: those of its first distinct key, as group() left them, of the
  // second, and so on.
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
