// The approximate counts of one partition: a ring of counting filters that forgets the oldest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "table/account.h"
#include "table/candidates.h"

namespace monolith {

struct FilterRow {
  int64_t split;  // -1: the cell is the head, the value how often it moved
  int64_t cell;
  int64_t value;
};

// The definition is src/monolith/table/reference/cuckoo_filter.py. A cell holds a 12-bit signature
// and a 20-bit count, 0 is empty. Filters are allocated when they are first written. The caller
// locks the partition; prefetch() needs that too.
class FilterRing {
 public:
  struct Shape {
    Shape(uint64_t capacity, uint32_t split_num);
    uint32_t num_splits;
    uint64_t split_capacity;
    uint64_t num_cells;
  };

  // Counts the key; its count before, or nothing if there is no cell for it. is_over: the budget
  // allows no filter, and nothing was counted. Throws OutOfMemory before any change.
  std::optional<uint32_t> add(uint64_t hash, uint32_t count, const Shape& shape, Account& memory,
                              Candidates::Counters& counters, AdmissionLog& log, bool& is_over);
  // Count of the key, without counting it.
  uint32_t get(uint64_t hash, const Shape& shape) const noexcept;
  // Takes the step back; steps are taken back in reverse order. Exact, unless other calls came
  // between: a head that they moved on stays, and what was forgotten by then stays forgotten.
  void undo(const AdmissionStep& step, const Shape& shape, Candidates::Counters& counters) noexcept;

  // Nothing, if nothing was counted. since: as it was before these steps, the first one first; of
  // steps on one cell only the first one counts.
  void append_to(std::vector<FilterRow>& rows, const Shape& shape,
                 std::span<const AdmissionStep> since = {}) const;
  // Sets what append_to gave; any hash of the partition. False: the budget allows no filter for a
  // cell. Throws OutOfMemory before any change.
  bool put(const FilterRow& row, uint64_t hash, const Shape& shape, Account& memory,
           AdmissionLog& log);
  void release(const Shape& shape, Account& memory) noexcept;
  uint64_t size(const Shape& shape) const noexcept;

 private:
  struct Split {
    uint32_t* cells = nullptr;
    uint64_t num_elements = 0;  // cells that are not empty
    void set(uint64_t cell, uint32_t value) noexcept;
  };
  static constexpr uint64_t kFull = UINT64_MAX;

  bool make(Split& split, const Shape& shape, Account& memory);
  bool make_ring(const Shape& shape, Account& memory);
  uint64_t probe(const Split& split, uint64_t hash, const Shape& shape) const noexcept;
  uint32_t count_before(uint64_t hash, const Shape& shape) const noexcept;
  void move_head(uint64_t hash, uint32_t head, uint64_t increment, AdmissionLog& log) noexcept;
  void advance(uint64_t hash, const Shape& shape, Candidates::Counters& counters,
               AdmissionLog& log) noexcept;
  uint32_t turn() const noexcept { return static_cast<uint32_t>(head_increment_); }

  Split* splits_ = nullptr;
  uint32_t head_ = 0;
  uint64_t head_increment_ = 0;
};

}  // namespace monolith
