// The course of a writing call, shared by every verb that writes.
//
//   group    equal keys are brought together, by partitions of the hash
//   insert   missing keys get rows with initial values: all that can fail happens here
//   edit     each distinct key's row is changed once, under its bin's lock
//
// If the second pass runs out of memory, the rows it made are removed again and the call throws.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "table/table.h"
#include "table/team.h"

namespace monolith {

// Rows taken from the arena in small runs, so that threads seldom meet there.
struct Table::RowCache {
  explicit RowCache(Table& table)
      : table(table),
        scratch(size_t{table.layout_.num_words()} * 4),
        sum(table.layout_.dim()),
        weights(table.layout_.dim()) {}
  ~RowCache() { table.arena_.give(numbers + next, end - next); }
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  uint32_t peek() {
    if (next == end) {
      end = table.arena_.take(numbers, std::min(wanted, kRun));
      next = 0;
    }
    return numbers[next];
  }
  void pop() noexcept { ++next; }

  static constexpr size_t kRun = 64;
  Table& table;
  std::vector<char> scratch;   // one row
  std::vector<float> sum;      // values of one key
  std::vector<float> weights;  // of one row, decoded
  size_t wanted = 1;           // rows that may still be needed
  size_t next = 0, end = 0;
  uint32_t numbers[kRun];
};

// Where the call's values are, to fetch them ahead.
struct Values {
  const float* data = nullptr;
  size_t dim = 0;
  void prefetch(uint32_t i) const noexcept { prefetch_bytes(data + i * dim, dim * 4); }
};

class Table::Writer {
 public:
  Writer(Table& table, const int64_t* keys, size_t n, const uint8_t* skipped, uint32_t now,
         unsigned threads)
      : table_(table),
        now_(now),
        threads_(std::max(1u, threads)),
        batch_(keys, static_cast<uint32_t>(n), skipped, threads_) {}

  Batch& batch() noexcept { return batch_; }
  uint64_t num_inserted() const noexcept { return num_inserted_.load(); }
  uint64_t num_distinct() const noexcept { return num_distinct_.load(); }

  // Inserts the missing keys.
  void insert() {
    pass(true, [](Hands&) {});
  }

  // Inserts the missing keys, which are new in the batch then; then visit(position, rows), which
  // must not throw, for each distinct key. values: what visit will read of each occurrence.
  template <typename Visit>
  void run(bool inserts, Values values, const Visit& visit) {
    pass(inserts, [&](Hands& hands) { visit_all(hands, values, visit); });
  }

 private:
  static constexpr uint32_t kAhead = 12;

  // What one thread works with.
  struct Hands {
    explicit Hands(Table& table) : guard(table.epochs_), rows(table) {}
    Epochs::Guard guard;
    RowCache rows;
    Batch::Scratch scratch;
  };

  // All that can fail; then finish(hands) on each thread.
  template <typename Finish>
  void pass(bool inserts, const Finish& finish) {
    Team::run(threads_, [&](Team& team, unsigned member) {
      batch_.count(member, team.size());
      team.meet();
      batch_.place(member, team.size());
      team.meet();
      std::optional<Hands> hands;  // what finishing needs is allocated before anything changes
      team.attempt([&] {
        hands.emplace(table_);
        prepare(team, *hands, inserts);
      });
      team.meet();
      if (!team.has_failed()) {
        finish(*hands);
      } else if (hands) {
        roll_back();
      }
    });
    table_.epochs_.reclaim();
  }

  void prepare(Team& team, Hands& hands, bool inserts) {
    uint64_t inserted = 0, distinct = 0;
    const auto finish = [&] {
      num_inserted_ += inserted;
      num_distinct_ += distinct;
      table_.num_rows_ += inserted;
    };
    try {
      for (uint32_t p; (p = next_prepared_++) < batch_.num_partitions() && !team.has_failed();) {
        batch_.group(p, hands.scratch);
        const auto [first, last] = batch_.distinct(p);
        distinct += last - first;
        find_rows(first, last, inserts, hands.rows, inserted);
        hands.guard.refresh();
        table_.epochs_.reclaim();  // so that a large batch does not hold all bins that it outgrew
      }
    } catch (...) {
      finish();
      throw;
    }
    finish();
  }

  // Notes the row of each key. Counts as it goes, so that a failure leaves the right number.
  void find_rows(uint32_t first, uint32_t last, bool inserts, RowCache& rows, uint64_t& inserted) {
    for (uint32_t i = first; i < last + kAhead; ++i) {
      if (i < last) __builtin_prefetch(home(batch_.key(i)));
      if (i < first + kAhead) continue;
      const uint32_t at = i - kAhead;
      const int64_t key = batch_.key(at);
      batch_.row(at) = table_.index_.find(key, key_hash(key));
      if (batch_.row(at) != kNoRow || !inserts) continue;
      rows.wanted = last - at;
      batch_.row(at) = rows.peek();
      if (!table_.insert_row(key, now_, rows)) continue;
      batch_.is_new(at) = true;
      ++inserted;
    }
  }

  const Line* home(int64_t key) const noexcept {
    const uint64_t hash = key_hash(key);
    return table_.index_.bin_of(hash).home(hash);
  }

  template <typename Visit>
  void visit_all(Hands& hands, Values values, const Visit& visit) {
    for (uint32_t p; (p = next_visited_++) < batch_.num_partitions();) {
      const auto [first, last] = batch_.distinct(p);
      for (uint32_t i = first; i < last + kAhead; ++i) {
        if (i < last) {
          __builtin_prefetch(home(batch_.key(i)));
          table_.prefetch_row(batch_.row(i));
          values.prefetch(batch_.occurrences(i).back());
        }
        if (i >= first + kAhead) visit(i - kAhead, hands.rows);
      }
      hands.guard.refresh();
    }
  }

  void roll_back() noexcept {
    for (uint32_t p; (p = next_visited_++) < batch_.num_partitions();) {
      const auto [first, last] = batch_.distinct(p);
      for (uint32_t i = first; i < last; ++i) {
        if (!batch_.is_new(i) || !table_.remove_row(batch_.key(i), true)) continue;
        --table_.num_rows_;
        --table_.counters_.inserted;
      }
    }
  }

  Table& table_;
  const uint32_t now_;
  const unsigned threads_;
  Batch batch_;
  std::atomic<uint32_t> next_prepared_{0}, next_visited_{0};
  std::atomic<uint64_t> num_inserted_{0}, num_distinct_{0};
};

}  // namespace monolith
