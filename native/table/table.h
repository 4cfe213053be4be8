// The table: any int64 key -> a row of weights and optimizer state.
//
// The verbs and their meaning: src/monolith/embedding/verbs.py. Any two methods may run at once
// from any two threads. Readers take no lock. Arguments are borrowed for the call; outputs are
// written in full. A method that throws has changed nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "ops/batch.h"
#include "table/arena.h"
#include "table/gate.h"
#include "table/index.h"
#include "table/layout.h"
#include "table/memory.h"

namespace monolith {

enum class NonFinite { kRefuse, kSkip, kClip };

struct TableSpec {
  std::string name;  // for messages
  std::vector<SegmentSpec> segments;
  uint64_t seed = 0;
  NonFinite non_finite = NonFinite::kRefuse;
  float clip_value = 0;
  uint32_t first_version = 0;  // of index lines; tests force the wrap-around with it
};

struct AppliedCounts {
  uint64_t applied = 0, inserted = 0, refused = 0, skipped = 0;
};

// Counters since construction.
struct TableCounters {
  std::atomic<uint64_t> inserted{0}, erased{0}, skipped{0};
  mutable std::atomic<uint64_t> reader_retries{0};  // a writer changed the row while it was copied
  mutable std::atomic<uint64_t> reader_waits{0};    // a reader met a row being written
  mutable std::atomic<uint64_t> reader_wait_max_ns{0};
};

class Table {
 public:
  explicit Table(const TableSpec& spec);

  const Layout& layout() const noexcept { return layout_; }
  // While calls run, the count may lag behind them.
  uint64_t num_rows() const noexcept {
    const uint64_t erased = counters_.erased.load(std::memory_order_relaxed);
    const uint64_t inserted = counters_.inserted.load(std::memory_order_relaxed);
    return inserted > erased ? inserted - erased : 0;
  }
  size_t row_bytes() noexcept { return arena_.bytes(); }
  size_t index_bytes() const noexcept { return index_.bytes(); }
  size_t held_bytes() const noexcept { return memory_.held_bytes(); }
  const TableCounters& counters() const noexcept { return counters_; }
  const IndexCounters& index_counters() const noexcept { return index_.counters(); }
  // Allocations beyond the limit fail as if the machine had no more memory.
  void set_memory_limit(size_t bytes) noexcept { memory_.set_limit(bytes); }

  // out: (n, dim). A missing key reads as its initial values, or as zeros.
  void lookup(const int64_t* keys, size_t n, float* out, bool initial, unsigned threads) const;
  void contains(const int64_t* keys, size_t n, bool* out, unsigned threads) const;
  // Whole rows. columns: one buffer per column of an export, in the order of the row.
  struct Columns {
    int64_t* times;            // (n,)
    std::vector<float*> data;  // (n, sizes[i]) each
    std::vector<uint32_t> sizes;
  };
  void entries(const int64_t* keys, size_t n, bool* present, const Columns& columns,
               unsigned threads) const;
  // Up to limit rows with first <= hash <= last, ascending by hash. Returns how many.
  size_t export_rows(uint64_t first, uint64_t last, size_t limit, int64_t* keys,
                     const Columns& columns);

  void lookup_or_insert(const int64_t* keys, size_t n, float* out, uint32_t now, unsigned threads);
  void assign(const int64_t* keys, size_t n, const float* values, uint32_t now, unsigned threads);
  void assign_add(const int64_t* keys, size_t n, const float* values, uint32_t now,
                  unsigned threads);
  // Throws std::invalid_argument under NonFinite::kRefuse.
  AppliedCounts apply_gradients(const int64_t* keys, size_t n, const float* grads,
                                const float* rates, int64_t step, uint32_t now, unsigned threads);
  void reinitialize(const int64_t* keys, size_t n, int32_t* existed, uint32_t now,
                    unsigned threads);
  void erase(const int64_t* keys, size_t n, bool* existed, unsigned threads);
  void import_rows(const int64_t* keys, size_t n, const Columns& columns, unsigned threads);
  void clear();

 private:
  class Writer;
  struct RowCache;

  template <typename Hit, typename Miss>
  void read(const int64_t* keys, size_t first, size_t last, bool with_row, const Hit& hit,
            const Miss& miss) const;
  template <typename Hit>
  bool read_one(int64_t key, const Hit& hit) const;
  template <typename Piece>
  void in_pieces(size_t n, unsigned threads, const Piece& piece) const;
  void wait_for_writer(const Line& line, uint32_t version) const noexcept;
  void read_entry(uint32_t number, size_t i, const Columns& columns, float* scratch) const;

  bool insert_row(int64_t key, RowCache& rows);
  bool remove_row(int64_t key, bool is_reserved) noexcept;
  template <typename Edit>
  void update_row(int64_t key, RowCache& rows, const Edit& edit) noexcept;
  void prefetch_row(uint32_t number) const noexcept;
  std::string refusal(size_t row, size_t column, float value) const;

  const std::string name_;
  const Layout layout_;
  const NonFinite non_finite_;
  const float clip_value_;
  Memory memory_;
  mutable Epochs epochs_;  // outlives arena_ and index_
  Arena arena_;
  Index index_;
  Gate gate_;
  TableCounters counters_;
};

}  // namespace monolith
