// The course of a writing call, shared by every verb that writes.
//
//   group    equal keys are brought together, by partitions of the hash
//   reserve  missing keys get rows that nobody can see yet: all that can fail happens here
//   edit     each distinct key's row is changed once, under its bin's lock, and becomes visible
//
// If the second pass fails, the rows it reserved are removed again and the call throws. A call that
// meets a row reserved by another one edits it like any other, and so makes it its own.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "table/table.h"
#include "table/team.h"

namespace monolith {

// Rows taken from the arena in small runs, so that threads seldom meet there.
struct Table::RowCache {
  explicit RowCache(Table& table)
      : table(table), scratch(table.layout_.num_floats()), sum(table.layout_.dim()) {}
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
  std::vector<float> scratch;  // one row
  std::vector<float> sum;      // weights of one row
  size_t wanted = 1;           // rows that may still be needed
  size_t next = 0, end = 0;
  uint32_t numbers[kRun];
  uint64_t num_published = 0;  // reserved rows that became visible
  uint64_t num_dropped = 0;    // keys that another call erased in between, without memory for a row
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
        batch_(keys, static_cast<uint32_t>(n), skipped, table.index_.salt(), threads_) {}

  Batch& batch() noexcept { return batch_; }
  uint64_t num_inserted() const noexcept { return num_inserted_.load(); }
  uint64_t num_edited() const noexcept { return num_edited_.load(); }

  // Inserts the missing keys.
  void insert() {
    pass(true, [&](Hands& hands) { publish_all(hands); });
  }

  // Reserves rows for the missing keys, which are new in the batch then; then visit(position,
  // rows), which must not throw, for each distinct key. values: what visit will read of each
  // occurrence.
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
  }

  void prepare(Team& team, Hands& hands, bool inserts) {
    for (uint32_t p; (p = next_prepared_++) < batch_.num_partitions() && !team.has_failed();) {
      batch_.group(p, hands.scratch);
      find_rows(batch_.distinct(p), inserts, hands.rows);
      hands.guard.refresh();
      table_.epochs_.reclaim();  // so that a large batch does not hold all bins that it outgrew
    }
  }

  // Notes the row of each key.
  void find_rows(Batch::Range range, bool inserts, RowCache& rows) {
    const auto [first, last] = range;
    for (uint32_t i = first; i < last + kAhead; ++i) {
      if (i < last) __builtin_prefetch(home(batch_.key(i)));
      if (i < first + kAhead) continue;
      const uint32_t at = i - kAhead;
      const int64_t key = batch_.key(at);
      const uint64_t hash = key_hash(key);
      const Index::Found found = table_.index_.find(key, hash);
      if (found.is_worn) table_.index_.renew(hash);
      batch_.row(at) = found.row;
      if (found.row != kNoRow || !inserts) continue;
      rows.wanted = last - at;
      batch_.row(at) = rows.peek() | kReserved;
      batch_.is_new(at) = table_.insert_row(key, rows);
    }
  }

  const Line* home(int64_t key) const noexcept { return table_.index_.home(key_hash(key)); }

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
      count(last - first, hands);
    }
  }

  // Edits nothing: makes reserved rows visible.
  void publish_all(Hands& hands) {
    for (uint32_t p; (p = next_visited_++) < batch_.num_partitions();) {
      const auto [first, last] = batch_.distinct(p);
      for (uint32_t i = first; i < last; ++i) {
        if (!(batch_.row(i) & kReserved)) continue;
        table_.update_row(batch_.key(i), hands.rows,
                          [&](float*, uint32_t time) { return std::max(time, now_); });
      }
      count(last - first, hands);
    }
  }

  void count(uint64_t distinct, Hands& hands) noexcept {
    const uint64_t inserted = std::exchange(hands.rows.num_published, 0);
    num_edited_ += distinct - std::exchange(hands.rows.num_dropped, 0);
    num_inserted_ += inserted;
    table_.counters_.inserted += inserted;
    hands.guard.refresh();
  }

  void roll_back() noexcept {
    for (uint32_t p; (p = next_visited_++) < batch_.num_partitions();) {
      const auto [first, last] = batch_.distinct(p);
      for (uint32_t i = first; i < last; ++i) {
        if (batch_.is_new(i)) table_.remove_row(batch_.key(i), true);
      }
    }
  }

  Table& table_;
  const uint32_t now_;
  const unsigned threads_;
  Batch batch_;
  std::atomic<uint32_t> next_prepared_{0}, next_visited_{0};
  std::atomic<uint64_t> num_inserted_{0}, num_edited_{0};
};

}  // namespace monolith
