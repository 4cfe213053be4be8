// The course of a writing call, shared by every verb that writes.
//
//   group    equal keys are brought together, by partitions of the hash
//   insert   missing keys ask admission and get rows with initial values: all that can fail
//   edit     each distinct key's row is changed once, under its bin's lock
//
// If the second pass runs out of memory, the rows it made are removed again, its questions are
// taken back and the call throws.
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
      : table(table), scratch(table.layout_.num_floats()), sum(table.layout_.dim()) {}
  ~RowCache() { table.arena_.give(numbers + next, end - next); }
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  // kNoRow: the budget allows none.
  uint32_t peek() {
    if (next == end) {
      end = table.arena_.take(numbers, std::min(wanted, kRun));
      next = 0;
    }
    return next == end ? kNoRow : numbers[next];
  }
  void pop() noexcept { ++next; }
  // A row that became free, where peek() gave none.
  void put(uint32_t number) noexcept {
    numbers[0] = number;
    next = 0;
    end = 1;
  }

  static constexpr size_t kRun = 64;
  Table& table;
  std::vector<float> scratch;  // one row
  std::vector<float> sum;      // weights of one row
  AdmissionLog asked;          // what the call's questions changed
  uint64_t call = 0;           // number of the call, for admission
  uint32_t count = 0;          // occurrences of the key that is visited; 0: the verb does not ask
  uint64_t num_refused = 0;    // while visiting
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
  // Whether missing keys ask admission.
  enum Asking : bool { kFree, kAsks };

  Writer(Table& table, const int64_t* keys, size_t n, const uint8_t* skipped, uint32_t now,
         unsigned threads, Asking asking)
      : table_(table),
        now_(now),
        threads_(std::max(1u, threads)),
        batch_(keys, static_cast<uint32_t>(n), skipped, threads_),
        admission_(asking == kAsks ? table.admission_.get() : nullptr),
        call_(admission_ == nullptr ? 0 : admission_->begin_call()) {}

  Batch& batch() noexcept { return batch_; }
  uint64_t num_inserted() const noexcept { return num_inserted_.load(); }
  uint64_t num_refused() const noexcept { return num_refused_.load(); }
  uint64_t num_applied() const noexcept { return num_distinct_.load() - num_refused_.load(); }

  // Inserts the missing keys.
  void insert() {
    pass(true, [](Hands&) {});
  }

  // Inserts the missing keys, which are new or refused in the batch then; then visit(position,
  // rows), which must not throw, for each distinct key that has a row. values: what visit will read
  // of each occurrence.
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
        hands->rows.call = call_;
        prepare(team, *hands, inserts);
      });
      team.meet();
      if (!team.has_failed()) {
        finish(*hands);
      } else if (hands) {
        roll_back();
        if (admission_ != nullptr) admission_->undo(hands->rows.asked);
      }
    });
    table_.counters_.refused += num_refused_;
    table_.epochs_.reclaim();
  }

  void prepare(Team& team, Hands& hands, bool inserts) {
    Counts counts;
    const auto finish = [&] {
      num_inserted_ += counts.inserted;
      num_distinct_ += counts.distinct;
      num_refused_ += counts.refused;
      table_.num_rows_ += counts.inserted;
    };
    try {
      for (uint32_t p; (p = next_prepared_++) < batch_.num_partitions() && !team.has_failed();) {
        batch_.group(p, hands.scratch);
        const auto [first, last] = batch_.distinct(p);
        counts.distinct += last - first;
        find_rows(first, last, inserts, hands.rows, counts);
        hands.guard.refresh();
      }
    } catch (...) {
      finish();
      throw;
    }
    finish();
  }

  // Counted as the work goes, so that a failure leaves the right numbers.
  struct Counts {
    uint64_t inserted = 0, distinct = 0, refused = 0;
  };

  // Notes the row of each key. A key that must ask does so a little after it was found missing:
  // what admission remembers of it is fetched meanwhile.
  void find_rows(uint32_t first, uint32_t last, bool inserts, RowCache& rows, Counts& counts) {
    const bool holds = inserts && table_.evicts_for_budget();
    std::optional<Admission::Turn> turn;
    if (admission_ != nullptr) turn.emplace(*admission_);
    const uint32_t delay = kAhead + (admission_ != nullptr ? kAhead : 0);
    for (uint32_t i = first; i < last + delay; ++i) {
      if (i < last) __builtin_prefetch(home(batch_.key(i)));
      if (i >= first + kAhead && i < last + kAhead) {
        const uint32_t at = i - kAhead;
        const int64_t key = batch_.key(at);
        const uint64_t hash = key_hash(key);
        batch_.row(at) = table_.index_.find(key, hash);
        if (batch_.row(at) == kNoRow && admission_ != nullptr) admission_->prefetch(hash);
        if (batch_.row(at) != kNoRow && holds) hold(at);
      }
      if (i < first + delay || !inserts) continue;
      const uint32_t at = i - delay;
      rows.wanted = last - at;
      if (batch_.row(at) == kNoRow) insert_missing(at, turn, rows, counts);
    }
  }

  void insert_missing(uint32_t at, std::optional<Admission::Turn>& turn, RowCache& rows,
                      Counts& counts) {
    const int64_t key = batch_.key(at);
    if (!turn || !admission_->has_rule(key)) return insert(at, rows, counts);
    const uint64_t hash = key_hash(key);
    turn->cover(hash, batch_.bits());
    batch_.row(at) = table_.index_.find(key, hash);  // another call's question may have come first
    if (batch_.row(at) != kNoRow) return;
    const auto count = static_cast<uint32_t>(batch_.occurrences(at).size());
    if (admission_->ask(*turn, {key, hash, count, now_, call_}, rows.asked)) {
      insert(at, rows, counts);
    } else {
      refuse(at, counts);
    }
  }

  void insert(uint32_t at, RowCache& rows, Counts& counts) {
    switch (table_.insert_row(batch_.key(at), now_, rows)) {
      case Insertion::kInserted:
        batch_.row(at) = rows.numbers[rows.next - 1];
        batch_.state(at) = Batch::kNew;
        ++counts.inserted;
        return;
      case Insertion::kFound:
        return;
      case Insertion::kRefused:
        refuse(at, counts);
    }
  }

  void refuse(uint32_t at, Counts& counts) noexcept {
    batch_.state(at) = Batch::kRefused;
    ++counts.refused;
  }

  // A row of this call is no victim until the call has written it.
  void hold(uint32_t at) noexcept {
    Meta* meta = table_.arena_.meta(batch_.row(at));
    if (meta == nullptr) return;
    __atomic_fetch_or(&meta->marks, Meta::kHeld, __ATOMIC_RELAXED);
    batch_.state(at) = Batch::kHeld;
  }
  void release(uint32_t at) noexcept {
    Meta* meta = table_.arena_.meta(batch_.row(at));
    if (meta != nullptr) __atomic_fetch_and(&meta->marks, ~Meta::kHeld, __ATOMIC_RELAXED);
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
        if (i < last && batch_.state(i) != Batch::kRefused) {
          __builtin_prefetch(home(batch_.key(i)));
          table_.prefetch_row(batch_.row(i));
          values.prefetch(batch_.occurrences(i).back());
        }
        if (i < first + kAhead || batch_.state(i - kAhead) == Batch::kRefused) continue;
        if (admission_ != nullptr) {
          hands.rows.count = static_cast<uint32_t>(batch_.occurrences(i - kAhead).size());
        }
        visit(i - kAhead, hands.rows);
      }
      hands.guard.refresh();
    }
    num_refused_ += hands.rows.num_refused;
  }

  void roll_back() noexcept {
    for (uint32_t p; (p = next_visited_++) < batch_.num_partitions();) {
      const auto [first, last] = batch_.distinct(p);
      for (uint32_t i = first; i < last; ++i) {
        if (batch_.state(i) == Batch::kHeld) release(i);
        if (batch_.state(i) != Batch::kNew || !table_.remove_row(batch_.key(i), true)) continue;
        --table_.num_rows_;
        --table_.counters_.inserted;
      }
    }
  }

  Table& table_;
  const uint32_t now_;
  const unsigned threads_;
  Batch batch_;
  Admission* const admission_;  // null: nobody asks
  const uint64_t call_;
  std::atomic<uint32_t> next_prepared_{0}, next_visited_{0};
  std::atomic<uint64_t> num_inserted_{0}, num_distinct_{0}, num_refused_{0};
};

}  // namespace monolith
