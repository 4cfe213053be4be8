// Equal ids brought together, and ids counted into buckets: native_training/ops/id_groups.py.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "table/hash.h"

namespace monolith {

// Throws std::invalid_argument, which begins with `start`, if the splits do not ascend from 0 to
// the number of values.
void check_splits(const std::string& start, std::span<const int64_t> splits, size_t num_values);

// Finds equal ids by hash; the memory is used again from call to call. Not for two threads.
class FirstSeen {
 public:
  FirstSeen();
  // Forgets everything; makes room for n ids.
  void clear(size_t n);
  // The group of an id: `next` if it was not seen before.
  uint32_t find(int64_t id, uint32_t next) noexcept {
    for (size_t slot = place_of(key_hash(id), salt_) & mask_;; slot = (slot + 1) & mask_) {
      Slot& found = slots_[slot];
      if (found.is_used == 0) {
        found = {id, next, 1};
        return next;
      }
      if (found.id == id) return found.group;
    }
  }

 private:
  struct Slot {
    int64_t id;
    uint32_t group;
    uint32_t is_used;
  };
  const uint64_t salt_;  // answers do not depend on it
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

// Numbers the distinct ids of each row in the order in which they are first seen, over all rows.
// groups: (num_ids,), the number of each id; firsts: (num_ids,), where each number is first seen,
// of which as many are written as there are numbers; counts: (num_rows,), numbers of each row.
// Throws std::invalid_argument, before anything is written, if the row splits are wrong.
void first_seen(std::span<const int64_t> ids, std::span<const int64_t> row_splits, int64_t* groups,
                int64_t* firsts, int64_t* counts);

// The places of the values 0, then of 1, ... in ascending order; counts: how many of each.
// False, and nothing to rely on, if a value is not in [0, counts.size()).
bool bucket_order(std::span<const int64_t> values, int64_t* order, std::span<int64_t> counts);

}  // namespace monolith
