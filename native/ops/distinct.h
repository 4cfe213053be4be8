// Finds equal keys in a short list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/batch.h"

namespace monolith {

// Distinct keys are numbered in the order of the first bits of their hashes, as in a table; keys
// that share these bits are in the order of their first occurrence. Owns its arrays; immutable
// except for seen() and num_removed.
//
//   keys 7 9 7        distinct 9 7, numbers 1 0 1, as_met 1 0
class DistinctKeys {
 public:
  static constexpr size_t kMost =
      8000;  // at most this many keys, so that slots stay in the first-level cache

  // Scratch memory of the constructor, for reuse.
  struct Scratch {
    std::vector<uint16_t> slots, places, others;
    std::vector<uint64_t> hashes;
    std::vector<uint32_t> first, order;
  };

  DistinctKeys() = default;
  // `n` is at most kMost. `salt` is that of the table (place_of). `depth` is the number of hash
  // bits that distinguish most bins of the table.
  DistinctKeys(const int64_t* keys, size_t n, uint64_t salt, uint32_t depth, Scratch& scratch);

  size_t size() const noexcept { return num_distinct_; }
  std::span<const int64_t> keys() const noexcept { return {keys_.get(), num_distinct_}; }
  // The number of the distinct key of each occurrence.
  std::span<const uint16_t> numbers() const noexcept { return {numbers_.get(), num_occurs_}; }
  // The numbers of the distinct keys in the order of their first occurrence.
  std::span<const uint16_t> as_met() const noexcept {
    return {numbers_.get() + num_occurs_, num_distinct_};
  }

  // Location of each distinct key, and Table::num_removed() before; both are written by a lookup.
  KeyLocation* seen() const noexcept { return seen_.get(); }
  uint64_t num_removed = 0;

 private:
  void find_first(Scratch& scratch) noexcept;

  size_t num_occurs_ = 0, num_distinct_ = 0;
  std::unique_ptr<int64_t[]> keys_;
  std::unique_ptr<uint16_t[]> numbers_;  // (num_occurs_ + num_distinct_,): numbers, then as_met
  std::unique_ptr<KeyLocation[]> seen_;
};

}  // namespace monolith
