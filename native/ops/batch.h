// The keys of one writing call: partitioned by hash, equal keys brought together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace monolith {

// Partitions are hash ranges: threads that work on different ones never meet in a bin, and one
// partition's bins stay in cache. Occurrences of a key keep their order.
//
//   keys     7 9 7        one partition: keys  7 9, occurrences of 7: 0 2, of 9: 1
class Batch {
 public:
  // skipped: per occurrence, not zero to leave it out; may be null.
  // salt: of the table, see place_of.
  Batch(const int64_t* keys, uint32_t n, const uint8_t* skipped, uint64_t salt,
        unsigned num_threads);

  uint32_t num_partitions() const noexcept { return uint32_t{1} << bits_; }

  // Scratch of one thread.
  struct Scratch {
    std::vector<uint32_t> slots, groups, order;
  };

  // Three passes, each finished by all threads before the next: count(member), then place(member),
  // then group(p) once per partition, which allocates nothing but scratch.
  void count(unsigned member, unsigned num_members) noexcept;
  void place(unsigned member, unsigned num_members) noexcept;
  void group(uint32_t partition, Scratch& scratch);

  // After group(): positions [first, last) of the distinct keys of a partition.
  struct Range {
    uint32_t first, last;
  };
  Range distinct(uint32_t partition) const noexcept {
    return {starts_[partition], starts_[partition] + num_distinct_[partition]};
  }
  int64_t key(uint32_t position) const noexcept { return keys_[position]; }
  // Occurrences of a distinct key, ascending.
  std::span<const uint32_t> occurrences(uint32_t position) const noexcept {
    return {order_.get() + firsts_[position], counts_[position]};
  }
  // For the caller to fill in per distinct key; is_new is false at first.
  uint32_t& row(uint32_t position) noexcept { return rows_[position]; }
  bool& is_new(uint32_t position) noexcept { return is_new_[position]; }

 private:
  uint32_t partition_of(int64_t key) const noexcept;

  const int64_t* const input_;
  const uint32_t n_;
  const uint8_t* const skipped_;
  const uint64_t salt_;
  uint32_t bits_ = 0;
  std::vector<uint32_t> sizes_;         // (members, partitions)
  std::vector<uint32_t> cursors_;       // (members, partitions)
  std::vector<uint32_t> starts_;        // (partitions + 1,)
  std::vector<uint32_t> num_distinct_;  // (partitions,)
  std::unique_ptr<int64_t[]> keys_;     // by partition; the distinct ones of each come first
  std::unique_ptr<uint32_t[]> order_;   // occurrences, by partition, then by key
  std::unique_ptr<uint32_t[]> firsts_;  // of each distinct key, into order_
  std::unique_ptr<uint32_t[]> counts_;
  std::unique_ptr<uint32_t[]> rows_;
  std::unique_ptr<bool[]> is_new_;
};

}  // namespace monolith
