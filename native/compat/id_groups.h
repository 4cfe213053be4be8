// Groups equal ids, and sorts ids into buckets: native_training/ops/id_groups.py.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "table/hash.h"

namespace monolith {

// Throws std::invalid_argument, whose message begins with `start`, if the splits do not ascend from
// 0 to the number of values.
void check_splits(const std::string& start, std::span<const int64_t> splits, size_t num_values);

// Finds equal ids by hash; reuses its memory between calls. Not thread-safe.
class FirstSeen {
 public:
  FirstSeen();
  // Removes all ids, and makes room for `n` ids.
  void clear(size_t n);
  // Returns the group of an id, which becomes `next` for a new id.
  uint32_t find(int64_t id, uint32_t next) noexcept {
    for (size_t slot = place_of(key_hash(id), salt_) & mask_;; slot = (slot + 1) & mask_) {
      Slot& entry = slots_[slot];
      if (entry.is_used == 0) {
        entry = {id, next, 1};
        return next;
      }
      if (entry.id == id) return entry.group;
    }
  }

 private:
  struct Slot {
    int64_t id;
    uint32_t group;
    uint32_t is_used;
  };
  const uint64_t salt_;  // results do not depend on the salt
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

// Numbers the distinct ids of each row in the order of first occurrence, over all rows. Writes the
// number of each id to `groups`, (num_ids,); the first occurrence of each number to the start of
// `firsts`, (num_ids,); and how many numbers each row has to `counts`, (num_rows,). Throws
// std::invalid_argument, before anything is written, if the row splits are wrong.
void first_seen(std::span<const int64_t> ids, std::span<const int64_t> row_splits, int64_t* groups,
                int64_t* firsts, int64_t* counts);

// Writes the places of the values 0, then of 1, ... in ascending order, and the number of each
// value to `counts`. Returns false, with undefined output, if a value is not in [0, counts.size()).
bool bucket_order(std::span<const int64_t> values, int64_t* order, std::span<int64_t> counts);

}  // namespace monolith
