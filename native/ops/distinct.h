// Which keys of a short list are equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/batch.h"

namespace monolith {

// Distinct keys are numbered in the order of the first bits of their hashes, as they lie in a
// table; those that share these bits, in the order of their first occurrence.
//
//   keys 7 9 7        distinct 9 7, numbers 1 0 1, as_met 1 0
class DistinctKeys {
 public:
  static constexpr size_t kMost = 8000;  // keys of a list whose slots stay in the first-level cache

  // What making them needs; to be used again.
  struct Scratch {
    std::vector<uint16_t> slots, places, others;
    std::vector<uint64_t> hashes;
    std::vector<uint32_t> first, order;
  };

  DistinctKeys() = default;
  // n: at most kMost. salt: of the table, see place_of. depth: bits of the hash that tell most bins
  // of the table apart.
  DistinctKeys(const int64_t* keys, size_t n, uint64_t salt, uint32_t depth, Scratch& scratch);

  size_t size() const noexcept { return num_distinct_; }
  std::span<const int64_t> keys() const noexcept { return {keys_.get(), num_distinct_}; }
  // Of each occurrence, the number of its key.
  std::span<const uint16_t> numbers() const noexcept { return {numbers_.get(), num_occurs_}; }
  // The numbers in the order of their first occurrence.
  std::span<const uint16_t> as_met() const noexcept {
    return {numbers_.get() + num_occurs_, num_distinct_};
  }

  // Where each of them is; a lookup of them writes it, and the rows that the table had lost before.
  KeyLocation* seen() const noexcept { return seen_.get(); }
  uint64_t num_removed = 0;

 private:
  void find_first(Scratch& scratch) noexcept;

  size_t num_occurs_ = 0, num_distinct_ = 0;
  std::unique_ptr<int64_t[]> keys_;
  std::unique_ptr<uint16_t[]> numbers_;  // then as_met
  std::unique_ptr<KeyLocation[]> seen_;
};

}  // namespace monolith
