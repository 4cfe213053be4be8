// Many tables in one call: their keys lie one after another, and threads share all of the work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "table/table.h"

namespace monolith {

// The tables are borrowed and outlive it. Its calls may run beside each other and beside calls of
// the tables.
class TableGroup {
 public:
  explicit TableGroup(std::vector<Table*> tables) : tables_(std::move(tables)) {}

  // Keys of all tables: those of table t are [splits[t], splits[t + 1]). Rows lie in the same
  // order, each with the dim of its table. Throws std::invalid_argument if the splits do not ascend
  // from 0 to num_keys.
  struct Keys {
    const int64_t* keys;
    size_t num_keys;
    const int64_t* splits;  // (tables + 1,)
  };

  // scales: of the views, one per segment, table after table; likewise rates.
  void lookup(const Keys& keys, float* out, bool initial, const float* scales,
              unsigned threads) const;
  void assign(const Keys& keys, const float* values, uint32_t now, unsigned threads);
  void assign_add(const Keys& keys, const float* values, uint32_t now, unsigned threads);
  // Sums over the tables. Under NonFinite::kRefuse all gradients are checked before a row changes.
  AppliedCounts apply_gradients(const Keys& keys, const float* grads,
                                const Table::StepOptions& options, uint32_t now, unsigned threads);

  // Gradients that come once for each key, as the sum of those of its occurrences.
  struct Push {
    Keys keys;
    const float* grads;
    const int32_t* counts;       // (num_keys,), occurrences
    const uint8_t* are_stepped;  // (tables,), not zero for all tables with keys: a table that is
                                 // stepped without a key counts an update
    const int64_t* times;        // (tables,)
    const float* rates;          // of all segments
    const float* scales;         // likewise
  };
  // apply_gradients of the tables that are stepped, each at the number of its updates so far.
  AppliedCounts push(const Push& push, unsigned threads);

 private:
  // What a call is about in one table.
  struct Part {
    Table* table;
    const int64_t* keys;
    size_t n;
    size_t first_float;    // of its rows
    size_t first_segment;  // of its table
    size_t number;         // of its table
    Part piece(size_t first, size_t count) const {
      return {table,         keys + first, count, first_float + first * table->layout().dim(),
              first_segment, number};
    }
  };
  // Of the tables with keys, and of those that are stepped; null: of none.
  std::vector<Part> parts_of(const Keys& keys, const uint8_t* are_stepped = nullptr) const;
  static void check_finite(const std::vector<Part>& parts, const float* grads, unsigned threads);

  const std::vector<Table*> tables_;
};

// A step of one table on the sum of its gradients; all of it is borrowed for the call.
struct TableStep {
  Table* table;
  GradientSum* sum;
  const float* rates;  // one per segment
  uint32_t now;
  uint8_t* is_done;                 // set when the table has made its step; may be null
  size_t n;                         // occurrences in the sum
  AppliedCounts* counts = nullptr;  // what the step did; may be null
};

// Table::apply_bag_gradients of different tables without views, at the number of each table's
// updates so far; threads share all of the work. If memory runs out in one, others may be done.
void step_tables(const std::vector<TableStep>& steps, unsigned threads);

}  // namespace monolith
