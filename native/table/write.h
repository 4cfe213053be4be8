// The course of a writing call, shared by every verb that writes.
//
//   group    equal keys are brought together, by partitions of the hash
//   reserve  missing keys ask admission and get rows that nobody can see yet: all that can fail
//   edit     each distinct key's row is changed once, under its bin's lock, and becomes visible
//
// If the second pass fails, the rows it reserved are removed again, its questions are taken back
// and the call throws. A call that meets a row reserved by another one edits it like any other, and
// so makes it its own.
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
      : table(table),
        scratch(size_t{table.layout_.num_words()} * 4),
        sum(table.layout_.dim()),
        weights(table.layout_.dim()) {}
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
  std::vector<char> scratch;   // one row
  std::vector<float> sum;      // values of one key
  std::vector<float> weights;  // of one row, decoded
  size_t wanted = 1;           // rows that may still be needed
  size_t next = 0, end = 0;
  uint32_t numbers[kRun];
  uint64_t num_published = 0;  // reserved rows that became visible
  uint64_t num_dropped = 0;    // keys that another call erased in between, without memory for a row
  uint64_t num_refused = 0;    // keys that admission or the budget refused, not counted yet
  AdmissionLog asked;          // what the call's questions changed
  Admission::Question question{};  // about the key that is visited; count 0: the verb does not ask
};

// Whether missing keys ask admission, with the number of the call.
struct Asking {
  bool asks = false;
  uint64_t call = 0;
};

// Where the call's values are, to fetch them ahead.
struct Values {
  const float* data = nullptr;
  size_t dim = 0;
  void prefetch(uint32_t i) const noexcept { prefetch_bytes(data + i * dim, dim * 4); }
};

// What an edited row was.
struct Before {
  uint32_t time;
  bool is_new;  // made by this call, or reserved by another one
};

class Table::Writer {
 public:
  Writer(Table& table, const int64_t* keys, size_t n, const uint8_t* skipped, uint32_t now,
         unsigned threads, Asking asking = {})
      : table_(table),
        now_(now),
        threads_(std::max(1u, threads)),
        batch_(keys, static_cast<uint32_t>(n), skipped, table.index_.salt(), threads_),
        admission_(asking.asks ? table.admission_.get() : nullptr),
        call_(asking.call) {}

  Batch& batch() noexcept { return batch_; }
  uint64_t num_inserted() const noexcept { return num_inserted_.load(); }
  uint64_t num_edited() const noexcept { return num_edited_.load(); }
  uint64_t num_refused() const noexcept { return num_refused_.load(); }

  // Inserts the missing keys.
  void insert() {
    pass({true, false}, [&](Hands& hands) { publish_all(hands); });
  }

  // Reserves rows for the missing keys, which are new or refused in the batch then; then
  // visit(position, rows), which must not throw, for each distinct key that is not refused. values:
  // what visit will read of each occurrence.
  template <typename Visit>
  void run(bool inserts, Values values, const Visit& visit) {
    const bool holds = inserts && table_.evicts_for_budget();
    pass({inserts, holds}, [&](Hands& hands) { visit_all(hands, values, visit); });
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
  // What the reserving pass does: inserts missing keys, keeps found rows from becoming victims.
  struct Plan {
    bool inserts, holds;
  };

  // All that can fail; then finish(hands) on each thread.
  template <typename Finish>
  void pass(Plan plan, const Finish& finish) {
    Team::run(threads_, [&](Team& team, unsigned member) {
      batch_.count(member, team.size());
      team.meet();
      batch_.place(member, team.size());
      team.meet();
      std::optional<Hands> hands;  // what finishing needs is allocated before anything changes
      team.attempt([&] {
        hands.emplace(table_);
        prepare(team, *hands, plan);
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
  }

  void prepare(Team& team, Hands& hands, Plan plan) {
    for (uint32_t p; (p = next_prepared_++) < batch_.num_partitions() && !team.has_failed();) {
      batch_.group(p, hands.scratch);
      find_rows(batch_.distinct(p), plan, hands.rows);
      hands.guard.refresh();
      table_.epochs_.reclaim();  // so that a large batch does not hold all bins that it outgrew
    }
  }

  // Notes the row of each key. A key that must ask does so a little after it was found missing:
  // what admission remembers of it is fetched meanwhile.
  void find_rows(Batch::Range range, Plan plan, RowCache& rows) {
    const auto [first, last] = range;
    const uint32_t delay = admission_ != nullptr ? 2 * kAhead : kAhead;
    std::optional<Admission::Turn> turn;
    if (admission_ != nullptr) turn.emplace(*admission_);
    for (uint32_t i = first; i < last + delay; ++i) {
      if (i < last) __builtin_prefetch(home(batch_.key(i)));
      if (i >= first + kAhead && i < last + kAhead) find_row(i - kAhead, plan);
      if (i < first + delay || !plan.inserts) continue;
      rows.wanted = last - (i - delay);
      if (batch_.row(i - delay) == kNoRow) insert_missing(i - delay, turn, rows);
    }
    num_refused_ += std::exchange(rows.num_refused, 0);
  }

  void find_row(uint32_t at, Plan plan) {
    const int64_t key = batch_.key(at);
    const uint64_t hash = key_hash(key);
    const Index::Found found = table_.index_.find(key, hash);
    if (found.is_worn) table_.index_.renew(hash);
    batch_.row(at) = found.row;
    if (found.row != kNoRow) {
      if (plan.holds) hold(at);
    } else if (admission_ != nullptr) {
      admission_->prefetch(hash);
    }
  }

  void insert_missing(uint32_t at, std::optional<Admission::Turn>& turn, RowCache& rows) {
    const int64_t key = batch_.key(at);
    if (!turn || !admission_->has_rule(key)) return insert(at, rows);
    const uint64_t hash = key_hash(key);
    turn->cover(hash, batch_.bits());
    batch_.row(at) = table_.index_.find(key, hash).row;  // another call's question may be first
    if (batch_.row(at) != kNoRow) return;
    if (admission_->ask(*turn, question(at), rows.asked)) return insert(at, rows);
    refuse(at, rows);
  }

  Admission::Question question(uint32_t at) const noexcept {
    const int64_t key = batch_.key(at);
    const auto count = static_cast<uint32_t>(batch_.occurrences(at).size());
    return {key, key_hash(key), count, now_, call_};
  }

  void insert(uint32_t at, RowCache& rows) {
    const Insertion insertion = table_.insert_row(batch_.key(at), rows);
    if (insertion == Insertion::kRefused) return refuse(at, rows);
    batch_.row(at) = kReserved;  // by this call or another one
    if (insertion == Insertion::kFound) return;
    batch_.row(at) |= rows.numbers[rows.next - 1];
    batch_.state(at) = Batch::kNew;
  }

  void refuse(uint32_t at, RowCache& rows) noexcept {
    batch_.state(at) = Batch::kRefused;
    ++rows.num_refused;
  }

  // A row of this call is no victim until the call has written it.
  void hold(uint32_t at) noexcept {
    Meta* meta = table_.arena_.meta(batch_.row(at) & ~kReserved);
    if (meta == nullptr) return;
    __atomic_fetch_or(&meta->marks, Meta::kHeld, __ATOMIC_RELAXED);
    batch_.state(at) = Batch::kHeld;
  }
  void release(uint32_t at) noexcept {
    Meta* meta = table_.arena_.meta(batch_.row(at) & ~kReserved);
    if (meta != nullptr) __atomic_fetch_and(&meta->marks, ~Meta::kHeld, __ATOMIC_RELAXED);
  }

  const Line* home(int64_t key) const noexcept { return table_.index_.home(key_hash(key)); }

  template <typename Visit>
  void visit_all(Hands& hands, Values values, const Visit& visit) {
    for (uint32_t p; (p = next_visited_++) < batch_.num_partitions();) {
      const auto [first, last] = batch_.distinct(p);
      uint32_t num_visited = 0;
      for (uint32_t i = first; i < last + kAhead; ++i) {
        if (i < last && batch_.state(i) != Batch::kRefused) {
          __builtin_prefetch(home(batch_.key(i)));
          table_.prefetch_row(batch_.row(i));
          values.prefetch(batch_.occurrences(i).back());
        }
        const uint32_t at = i - kAhead;
        if (i < first + kAhead || batch_.state(at) == Batch::kRefused) continue;
        if (admission_ != nullptr) hands.rows.question = question(at);
        visit(at, hands.rows);
        ++num_visited;
      }
      count(num_visited, hands);
    }
  }

  // Edits nothing: makes reserved rows visible.
  void publish_all(Hands& hands) {
    for (uint32_t p; (p = next_visited_++) < batch_.num_partitions();) {
      const auto [first, last] = batch_.distinct(p);
      uint32_t num_present = 0;
      for (uint32_t i = first; i < last; ++i) {
        if (batch_.state(i) == Batch::kRefused) continue;
        ++num_present;
        if (!(batch_.row(i) & kReserved)) continue;
        table_.update_row(batch_.key(i), hands.rows,
                          [&](char*, const Before& before) { return std::max(before.time, now_); });
      }
      count(num_present, hands);
    }
  }

  void count(uint64_t distinct, Hands& hands) noexcept {
    const uint64_t inserted = std::exchange(hands.rows.num_published, 0);
    const uint64_t refused = std::exchange(hands.rows.num_refused, 0);
    num_edited_ += distinct - refused - std::exchange(hands.rows.num_dropped, 0);
    num_inserted_ += inserted;
    num_refused_ += refused;
    table_.counters_.inserted += inserted;
    hands.guard.refresh();
  }

  void roll_back() noexcept {
    for (uint32_t p; (p = next_visited_++) < batch_.num_partitions();) {
      const auto [first, last] = batch_.distinct(p);
      for (uint32_t i = first; i < last; ++i) {
        if (batch_.state(i) == Batch::kHeld) release(i);
        if (batch_.state(i) == Batch::kNew) table_.remove_row(batch_.key(i), true);
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
  std::atomic<uint64_t> num_inserted_{0}, num_edited_{0}, num_refused_{0};
};

}  // namespace monolith
