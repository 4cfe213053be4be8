// Counts the keys of one partition approximately, in a ring of counting filters that forgets the
// oldest filter.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "table/account.h"
#include "table/candidates.h"

namespace monolith {

struct FilterRow {
  int64_t split;  // -1: `cell` is the head, `value` the number of its moves
  int64_t cell;
  int64_t value;
};

// src/monolith/table/reference/cuckoo_filter.py defines the counts. A cell holds a 12-bit signature
// and a 20-bit count; 0 is empty. Not thread-safe: the caller locks the partition. Owns its
// filters, which are allocated from the account at their first write, and freed by free().
class FilterRing {
 public:
  struct Shape {
    Shape(uint64_t capacity, uint32_t split_num);
    uint32_t num_splits;
    uint64_t split_capacity;
    uint64_t num_cells;
  };

  // Counts the key. Returns its count before this call, or nullopt if there is no cell for the key.
  // Sets `is_over`, and counts nothing, if the budget allows no filter. Throws OutOfMemory before
  // any change.
  std::optional<uint32_t> add(uint64_t hash, uint32_t count, const Shape& shape, Account& memory,
                              Candidates::Counters& counters, AdmissionLog& log, bool& is_over);
  // Returns the count of the key.
  uint32_t get(uint64_t hash, const Shape& shape) const noexcept;
  // Undoes the step; steps are undone in reverse order. Exact, unless other calls came between: a
  // head that they moved stays, and cells that were forgotten stay forgotten.
  void undo(const AdmissionStep& step, const Shape& shape, Candidates::Counters& counters) noexcept;

  // Appends the cells as they were before the steps `since`, which are in order; only the first
  // step on a cell matters. Appends nothing if nothing was counted.
  void append_to(std::vector<FilterRow>& rows, const Shape& shape,
                 std::span<const AdmissionStep> since = {}) const;
  // Sets a row of append_to(); `hash` is any hash of the partition. Returns false if the budget
  // allows no filter for the cell. Throws OutOfMemory before any change.
  bool put(const FilterRow& row, uint64_t hash, const Shape& shape, Account& memory,
           AdmissionLog& log);
  void free(const Shape& shape, Account& memory) noexcept;
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
