// Implements the passes of a writing call, shared by every verb that writes.
//
//   group    equal keys are brought together, by partitions of the hash
//   reserve  missing keys ask admission and get rows that readers cannot see yet: all that can fail
//   edit     each distinct key's row is changed once, under its bin's lock, and becomes visible
//
// If the second pass fails, the rows that the call reserved are removed again, its admission
// questions are undone and the call throws. A call that finds a row reserved by another call edits
// the row like any other row, and so takes it over.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "table/table.h"
#include "table/team.h"

namespace monolith {

// Allocates rows from the arena in small runs, so that threads rarely contend for it. For one
// thread.
struct Table::RowCache {
  RowCache(Table& table, TouchedLog::Room& room)
      : table(table),
        held_bin(table.index_),
        notes(room),
        sum(buffer(table.layout_)),
        weights(sum + table.layout_.dim()),
        scratch(reinterpret_cast<char*>(weights + table.layout_.dim())) {}
  ~RowCache() { table.arena_.free(numbers + next, end - next); }
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  // Returns the next row, or kNoRow if the budget allows none.
  uint32_t peek() {
    if (next == end) {
      end = table.arena_.allocate(numbers, std::min(wanted, kRun));
      next = 0;
    }
    return next == end ? kNoRow : numbers[next];
  }
  void pop() noexcept { ++next; }
  // Adds a row that became free, after peek() returned kNoRow.
  void put(uint32_t number) noexcept {
    numbers[0] = number;
    next = 0;
    end = 1;
  }

  float* buffer(const Layout& layout) {
    const size_t size = 2 * layout.dim() + layout.num_words();
    if (size <= std::size(small)) return small;
    large = std::make_unique_for_overwrite<float[]>(size);
    return large.get();
  }

  static constexpr size_t kRun = 64;
  // Notes that the row was changed or removed. Under the lock of the bin of the key.
  void note_change(int64_t key, Recorder::Kind kind) noexcept {
    if (table.recorder_) table.recorder_->note(recorded_call, key, kind, call);
  }

  Table& table;
  HeldBin held_bin;
  TouchedLog::Notes notes;
  int64_t recorded_call = -1;
  uint64_t call = 0;  // number of the updating call
  bool draws = true;  // whether new rows get initial values
  std::unique_ptr<float[]> large;
  float small[32];
  float* const sum;      // summed values of one key
  float* const weights;  // decoded weights of one row
  char* const scratch;   // one row
  size_t wanted = 1;     // rows that may still be needed
  size_t next = 0, end = 0;
  uint32_t numbers[kRun];
  uint64_t num_published = 0;  // reserved rows that became visible
  uint64_t num_dropped = 0;    // keys erased by another call meanwhile, without memory for a row
  uint64_t num_refused = 0;    // keys that admission or the budget refused, not counted yet
  AdmissionLog asked;          // admission steps of the call
  Admission::Question question{};  // about the visited key; count 0 if the verb does not ask
};

// Whether missing keys ask admission, and the number of the call.
struct AdmissionMode {
  bool asks = false;
  uint64_t call = 0;
};

// The values of a call: one row of `dim` for each occurrence. Borrowed.
struct Values {
  const float* data = nullptr;
  size_t dim = 0;

  const float* row(uint32_t i) const noexcept { return data + size_t{i} * dim; }
  [[gnu::always_inline]] void prefetch(const Batch& batch,
                                       const Batch::Entry& entry) const noexcept {
    const std::span<const uint32_t> occurrences = batch.occurrences(entry);
    fetch_bytes(row(occurrences.front()), dim * 4);
    if (occurrences.size() == 1) [[likely]]
      return;
    for (size_t i = 1; i < std::min(occurrences.size(), kAhead); ++i) {
      fetch_bytes(row(occurrences[i]), dim * 4);
    }
  }
  // Returns the sum of the rows of the key, in order from the first row (contract 1): in `scratch`,
  // (dim,), or in place for a single occurrence.
  const float* sum(const Batch& batch, const Batch::Entry& entry, const Kernels& kernels,
                   float* scratch) const noexcept {
    const std::span<const uint32_t> occurrences = batch.occurrences(entry);
    const float* first = row(occurrences.front());
    if (occurrences.size() == 1) return first;
    std::copy_n(first, dim, scratch);
    for (size_t i = 1; i < occurrences.size(); ++i) {
      const size_t ahead = i + kAhead - 1;
      if (ahead < occurrences.size()) fetch_bytes(row(occurrences[ahead]), dim * 4);
      kernels.add(scratch, row(occurrences[i]), dim);
    }
    return scratch;
  }

 private:
  static constexpr size_t kAhead = 8;  // prefetch distance within the occurrences of a frequent key
};

// Selects the value of the last occurrence of each key.
struct LastValues {
  Values all;
  const float* of(const Batch& batch, const Batch::Entry& entry) const noexcept {
    return all.row(batch.occurrences(entry).back());
  }
  [[gnu::always_inline]] void prefetch(const Batch& batch,
                                       const Batch::Entry& entry) const noexcept {
    fetch_bytes(of(batch, entry), all.dim * 4);
  }
};

// State of a row before its edit.
struct OldRow {
  uint32_t time;
  bool is_new;  // created by this call, or reserved by another call
};

class Table::Writer {
  using Entry = Batch::Entry;

 public:
  // counts: of each value, how many occurrences of its key it is the sum of; null: one each.
  Writer(Table& table, const int64_t* keys, size_t n, const uint8_t* skipped, uint32_t now,
         unsigned threads, AdmissionMode admission_mode = {}, const int32_t* counts = nullptr)
      : table_(table),
        now_(now),
        threads_(std::max(1u, threads)),
        batch_storage_(std::in_place, keys, static_cast<uint32_t>(n), skipped, table.index_.salt(),
                       table.index_depth(), threads_, memory_),
        batch_(*batch_storage_),
        admission_(admission_mode.asks ? table.admission_.get() : nullptr),
        call_(admission_mode.call),
        recorded_call_(Recorder::call()),
        counts_(counts) {}
  // Writes keys that are already grouped in a batch, which is borrowed.
  Writer(Table& table, Batch& grouped, uint32_t now, unsigned threads, AdmissionMode admission_mode)
      : table_(table),
        now_(now),
        threads_(std::max(1u, threads)),
        batch_(grouped),
        admission_(admission_mode.asks ? table.admission_.get() : nullptr),
        call_(admission_mode.call),
        recorded_call_(Recorder::call()) {}

  Batch& batch() noexcept { return batch_; }
  uint64_t num_inserted() const noexcept { return num_inserted_.load(); }
  uint64_t num_edited() const noexcept { return num_edited_.load(); }
  uint64_t num_refused() const noexcept { return num_refused_.load(); }

  // Whether rows that the call creates get initial values; unnecessary if the call overwrites the
  // whole row.
  void set_draws(bool draws) noexcept { draws_ = draws; }

  // `absent` has a flag per occurrence, or is null; a key whose last flag is not zero gets no row.
  void set_absent(const uint8_t* absent) noexcept { absent_ = absent; }
  bool is_absent(const Entry& entry) const noexcept {
    return absent_ != nullptr && absent_[batch_.occurrences(entry).back()] != 0;
  }

  // Inserts the missing keys and calls see(entry, row) for each new row. Returns whether all keys
  // were new. `shown` are the values that see() writes.
  template <typename See>
  bool insert(Values shown, const See& see) {
    std::atomic<bool> are_new{true};
    pass({true, false, false}, [&](ThreadContext& context) {
      if (!publish_all(context, shown, see)) are_new = false;
    });
    return are_new;
  }

  // Reserves rows for the missing keys, which are then new or refused in the batch; then calls
  // visit(entry, rows), which must not throw, for each distinct key that is not refused. `values`
  // are the values that visit() reads.
  template <typename Visit, typename Source = Values>
  void run(bool inserts, const Source& values, const Visit& visit) {
    const bool holds = inserts && table_.evicts_for_budget();
    pass({inserts, holds, true},
         [&](ThreadContext& context) { visit_all(context, values, visit); });
  }

 private:
  static constexpr size_t kBlock = 12;  // keys in one block of the search
  static constexpr size_t kBurst = 12;  // keys whose memory is prefetched together

  // State of one thread of the call.
  struct ThreadContext {
    ThreadContext(Writer& writer, TouchedLog::Room& room)
        : guard(writer.table_.epochs_), rows(writer.table_, room) {
      rows.recorded_call = writer.recorded_call_;
      rows.call = writer.call_;
      rows.draws = writer.draws_;
    }
    Epochs::Guard guard;
    RowCache rows;
    Batch::Scratch scratch;
  };
  // Options of the reserving pass: whether to insert missing keys, to protect existing rows from
  // eviction, and to copy existing rows into open cuts because they will be edited.
  struct Plan {
    bool inserts, holds, edits;
  };

  // Runs the pass that can fail, then finish(context) on each thread.
  template <typename Finish>
  void pass(Plan plan, const Finish& finish) {
    // A key may be noted for cuts, and again if its row was erased before the change.
    const size_t most_notes = (table_.cuts_.newest() == 0 ? 1 : 2) * size_t{batch_.size()};
    TouchedLog::Room room(table_.log_, most_notes, threads_);
    Team::run(threads_, [&](Team& team, unsigned member) {
      if (batch_storage_) batch_storage_->arrange(team, member);
      std::optional<ThreadContext> context;  // allocated before anything changes
      team.attempt([&] {
        context.emplace(*this, room);
        prepare(team, *context, plan);
      });
      team.barrier();
      if (!team.has_failed()) {
        finish(*context);
      } else if (context) {
        roll_back(context->rows);
        if (admission_ != nullptr) admission_->undo(context->rows.asked);
      }
    });
    table_.counters_.refused += num_refused_;
  }

  // Reverses the low `bits` bits, so that consecutive numbers land far apart.
  static uint32_t reversed(uint32_t number, uint32_t bits) noexcept {
    uint32_t result = 0;
    for (; bits > 0; --bits, number >>= 1) result = result << 1 | (number & 1);
    return result;
  }

  // Claims the next partition for a thread. Returns false if none is left. Where neighbouring
  // partitions share a bin, as in a young table, threads work on distant partitions.
  bool claim(std::atomic<uint32_t>& next, uint32_t& partition) const noexcept {
    const uint32_t number = next++;
    partition = are_apart_ ? reversed(number, batch_.bits()) : number;
    return number < batch_.num_partitions();
  }

  void prepare(Team& team, ThreadContext& context, Plan plan) {
    for (uint32_t p; claim(next_prepared_, p) && !team.has_failed();) {
      if (batch_storage_) {
        batch_storage_->group(p, context.scratch);
      } else {
        for (Entry& entry : batch_.distinct(p)) entry.state = Batch::kOld;
      }
      find_rows(knows_seen(plan) ? batch_.unseen(p) : batch_.distinct(p), plan, context.rows);
      const uint64_t num_refused = std::exchange(context.rows.num_refused, 0);
      batch_.sort_out_refused(p, num_refused > 0);
      num_refused_ += num_refused;
      context.guard.refresh();
      table_.epochs_.reclaim();  // so that a large batch does not keep all bins that it replaced
    }
  }

  // Whether the locations of seen keys are still valid: no finished call has removed a row since. A
  // removal by a running call is handled like that of any concurrent call (Table::update_row). If
  // rows are held, or copied for cuts, all keys are searched again.
  bool knows_seen(Plan plan) const noexcept {
    return batch_.num_removed() == table_.num_removed() && !plan.holds &&
           table_.cuts_.newest() == 0;
  }

  // Notes the row of each key, in stages on blocks of keys, like RowSearch; each stage runs two
  // blocks after its memory was prefetched. A missing key that must ask admission does so two
  // blocks later, while its candidate is prefetched in two steps. A row that open cuts need, as its
  // metadata shows, is prefetched likewise.
  void find_rows(std::span<Entry> entries, Plan plan, RowCache& rows) {
    const bool keeps = plan.edits && table_.cuts_.newest() != 0;
    const HeldBin::Scope scope(rows.held_bin);
    std::optional<Admission::Turn> turn;
    if (admission_ != nullptr) turn.emplace(*admission_);
    const size_t num_blocks = (entries.size() + kBlock - 1) / kBlock;
    const auto block_of = [&](size_t b) {
      return entries.subspan(b * kBlock, std::min(kBlock, entries.size() - b * kBlock));
    };
    constexpr size_t kFound = 4;  // blocks until all keys of a block are searched
    const size_t delay = kFound + (keeps || admission_ != nullptr ? 2 : 0);
    CutRows cut_rows;
    LateKeys late[2];
    for (size_t b = 0; b < num_blocks + delay; ++b) {  // b - 2 wraps for the first blocks
      if (b < num_blocks) {
        const Index::Homes homes = table_.index_.homes();
        for (Entry& entry : block_of(b)) entry.line = homes.of(entry.hash);
        for (const Entry& entry : block_of(b)) fetch_line(entry.line);
      }
      find_late(late[b % 2], plan, turn, rows);
      if (b - 2 < num_blocks) find_at_home(block_of(b - 2), late[b % 2], plan, turn, rows);
      if (b - kFound < num_blocks) {
        if (turn) {
          for (const Entry& entry : block_of(b - kFound)) {
            if (asks(entry, plan, turn)) turn->prefetch(entry.hash);
          }
        }
        if (keeps) fetch_marks(block_of(b - kFound));
      }
      if (keeps) {
        for (const Entry* entry : cut_rows.all()) keep_for_cuts(*entry, rows);
        cut_rows.size = 0;
        if (b - kFound - 1 < num_blocks) fetch_for_cuts(block_of(b - kFound - 1), cut_rows);
      }
      if (admission_ != nullptr && b - kFound - 1 < num_blocks) {
        for (const Entry& entry : block_of(b - kFound - 1)) {
          if (asks(entry, plan, turn)) turn->prefetch_found(entry.hash);
        }
      }
      if (plan.inserts && b - delay < num_blocks) {
        for (Entry& entry : block_of(b - delay)) {
          if (!is_wanted(entry, plan)) continue;
          rows.wanted = entries.size() - static_cast<size_t>(&entry - entries.data());
          insert_missing(entry, turn, rows);
        }
      }
    }
  }

  // Whether the call must create a row for the key.
  bool is_wanted(const Entry& entry, Plan plan) const noexcept {
    return plan.inserts && entry.row == kNoRow && !is_absent(entry);
  }

  // Whether admission decides about the key.
  bool asks(const Entry& entry, Plan plan,
            const std::optional<Admission::Turn>& turn) const noexcept {
    return turn && is_wanted(entry, plan) && admission_->has_rule(entry.key);
  }

  // Keys of a block that were not decided by their home lines.
  struct LateKeys {
    Entry* entries[kBlock];
    size_t size = 0;
  };

  void find_at_home(std::span<Entry> entries, LateKeys& late, Plan plan,
                    std::optional<Admission::Turn>& turn, RowCache& rows) {
    for (Entry& entry : entries) {
      Index::Location location;
      if (Index::find_in(entry.line, entry.key, location)) [[likely]] {
        note(entry, location, plan, turn, rows);
      } else {
        table_.index_.prefetch_after(entry.hash, entry.line);
        late.entries[late.size++] = &entry;
      }
    }
  }

  void find_late(LateKeys& late, Plan plan, std::optional<Admission::Turn>& turn, RowCache& rows) {
    for (size_t i = 0; i < late.size; ++i) {
      Entry& entry = *late.entries[i];
      note(entry, table_.index_.find(entry.key, entry.hash), plan, turn, rows);
    }
    late.size = 0;
  }

  // Stores the location of a key before the next key is searched: so no other key of this call
  // evicts the row, and later keys are searched under the turn.
  void note(Entry& entry, const Index::Location& location, Plan plan,
            std::optional<Admission::Turn>& turn, RowCache& rows) {
    if (location.is_worn) [[unlikely]] {
      rows.held_bin.release();
      table_.index_.renew(entry.hash);
    }
    entry.line = location.line;
    entry.slot = static_cast<uint16_t>(location.slot);
    entry.row = location.row;
    if (location.row != kNoRow) {
      if (plan.holds) hold(entry);
    } else if (asks(entry, plan, turn) && Admission::Turn::covers_all(batch_.bits()) &&
               !turn->covers(entry.hash)) {
      cover(entry, *turn, rows);
    }
  }

  // Covers the key by the turn: from now on no other call that asks admission inserts a key that
  // the turn covers.
  void cover(Entry& entry, Admission::Turn& turn, RowCache& rows) {
    constexpr size_t kMost = 1 << 17;  // at the cap a key needs two steps; few of many keys may ask
    if (rows.asked.capacity() == 0) {
      rows.asked.reserve(std::min(kMost, 2 * size_t{batch_.size()} / threads_));
    }
    rows.held_bin.release();  // turns are locked before bins
    turn.cover(entry.hash, batch_.bits());
    entry.row = table_.index_.find(entry.key, entry.hash).row;  // another call may have been first
  }

  // Keys of a block whose unchanged rows an open cut may need.
  struct CutRows {
    const Entry* entries[kBlock];
    size_t size = 0;
    std::span<const Entry* const> all() const noexcept { return {entries, size}; }
  };

  [[gnu::always_inline]] void fetch_marks(std::span<const Entry> entries) const noexcept {
    for (const Entry& entry : entries) {
      if (entry.row != kNoRow) fetch_line(table_.arena_.meta(entry.row & ~kReserved));
    }
  }

  void fetch_for_cuts(std::span<const Entry> entries, CutRows& cut_rows) const noexcept {
    for (const Entry& entry : entries) {
      if (entry.row == kNoRow) continue;
      uint32_t marks;
      racy_load(&marks, &table_.arena_.meta(entry.row & ~kReserved)->marks, sizeof(marks));
      cut_rows.entries[cut_rows.size] = &entry;
      cut_rows.size += Meta::generation(marks) != table_.cuts_.generation();
    }
    for (const Entry* entry : cut_rows.all()) {
      fetch_bytes(table_.arena_.row(entry->row & ~kReserved), table_.arena_.row_bytes());
    }
    for (const Entry* entry : cut_rows.all()) {
      for (const auto& cut : table_.cuts_.open()) cut->prefetch(Cut::partition_of(entry->hash));
    }
  }

  // Copies the row into the open cuts before the call changes the row.
  void keep_for_cuts(const Entry& entry, RowCache& rows) {
    const Bin::Place place =
        rows.held_bin.lock(entry.hash)->find(entry.key, entry.hash, {entry.line, entry.slot});
    if (place.line == nullptr) return;
    const uint32_t number = place.line->rows[place.slot].load(std::memory_order_relaxed);
    if (!(number & kReserved)) table_.keep_row(entry.key, number, &rows.notes);
  }

  void insert_missing(Entry& entry, std::optional<Admission::Turn>& turn, RowCache& rows) {
    if (!turn || !admission_->has_rule(entry.key)) return insert(entry, rows);
    if (!Admission::Turn::covers_all(batch_.bits())) cover(entry, *turn, rows);
    if (entry.row != kNoRow) return;
    if (admission_->ask(*turn, question(entry), rows.asked)) return insert(entry, rows);
    refuse(entry, rows);
  }

  Admission::Question question(const Entry& entry) const noexcept {
    return {entry.key, entry.hash, occurrences_of(entry), now_, call_};
  }

  uint32_t occurrences_of(const Entry& entry) const noexcept {
    if (counts_ == nullptr) return entry.num_occurs;
    uint64_t total = 0;
    for (const uint32_t i : batch_.occurrences(entry)) total += static_cast<uint32_t>(counts_[i]);
    return static_cast<uint32_t>(std::min<uint64_t>(total, UINT32_MAX));
  }

  void insert(Entry& entry, RowCache& rows) {
    switch (table_.insert_row(entry, rows)) {
      case Insertion::kRefused:
        return refuse(entry, rows);
      case Insertion::kFound:  // another call inserted the key first, and may not have published it
        entry.row = kReserved;
        return;
      case Insertion::kInserted:
        entry.state = Batch::kNew;
    }
  }

  void refuse(Entry& entry, RowCache& rows) noexcept {
    rows.held_bin.release();  // the bin is not held over refused keys
    entry.state = Batch::kRefused;
    ++rows.num_refused;
  }

  // Protects a row of this call from eviction until the call has written it.
  void hold(Entry& entry) noexcept {
    Meta* meta = table_.arena_.meta(entry.row & ~kReserved);
    if (meta == nullptr) return;
    __atomic_fetch_or(&meta->marks, Meta::kHeld, __ATOMIC_RELAXED);
    entry.state = Batch::kHeld;
  }
  void release(const Entry& entry) noexcept {
    Meta* meta = table_.arena_.meta(entry.row & ~kReserved);
    if (meta != nullptr) __atomic_fetch_and(&meta->marks, ~Meta::kHeld, __ATOMIC_RELAXED);
  }

  // Prefetches the memory for the visits of a burst of keys, kind by kind, between the visits of
  // the previous burst. A processor retires no instruction after a prefetch until its address is
  // translated; if page tables are not cached, a translation takes as long as the fetch, but about
  // six translations run concurrently. Borrows writer and values.
  template <typename Source>
  class Prefetcher {
   public:
    Prefetcher(const Writer& writer, const Source& values) noexcept
        : writer_(writer), arena_(writer.table_.arena_), values_(values) {}

    // `step` runs from 0 to kBurst - 1 for each burst.
    [[gnu::always_inline]] void fetch(size_t step, std::span<const Entry> burst) noexcept {
      if (step == 0) fetch_rows(burst);
      if (step == kBurst / 3) fetch_marks(burst);
      if (step == kBurst / 3 * 2) fetch_values(burst);
    }
    [[gnu::always_inline]] void fetch(std::span<const Entry> burst) noexcept {
      fetch_rows(burst);
      fetch_marks(burst);
      fetch_values(burst);
    }

   private:
    // For a key without a row, a valid dummy address is prefetched.
    [[gnu::always_inline]] void fetch_rows(std::span<const Entry> burst) noexcept {
      for (size_t i = 0; i < burst.size(); ++i) {
        const bool has_row = burst[i].row != kNoRow;
        places_[i] = has_row ? arena_.place(burst[i].row & ~kReserved) : nowhere_;
      }
      for (size_t i = 0; i < burst.size(); ++i) fetch_line(places_[i].row);
      const size_t more = arena_.row_bytes() - std::min(arena_.row_bytes(), sizeof(Line));
      for (size_t i = 0; i < burst.size(); ++i) fetch_bytes(places_[i].row + sizeof(Line), more);
    }
    [[gnu::always_inline]] void fetch_marks(std::span<const Entry> burst) noexcept {
      for (size_t i = 0; i < burst.size(); ++i) fetch_line(places_[i].meta);
      for (const Entry& entry : burst) fetch_line(entry.line);
      for (const Entry& entry : burst) {
        if (const uint64_t prefix = entry.hash >> 1 >> (63 - writer_.depth_); prefix != bin_) {
          bin_ = prefix;
          fetch_line(writer_.table_.index_.bin_of(entry.hash).bin());
        }
      }
    }
    [[gnu::always_inline]] void fetch_values(std::span<const Entry> burst) noexcept {
      for (const Entry& entry : burst) values_.prefetch(writer_.batch_, entry);
    }

    const Writer& writer_;
    const Arena& arena_;
    const Source& values_;
    Meta none_{};
    const Arena::Place nowhere_{reinterpret_cast<char*>(&none_), &none_};
    Arena::Place places_[kBurst];
    uint64_t bin_ = UINT64_MAX;  // bin of the last key, as the first bits of its hash
  };

  template <typename Visit, typename Source>
  void visit_all(ThreadContext& context, const Source& values, const Visit& visit) {
    for (uint32_t p; claim(next_visited_, p);) {
      const std::span<Entry> entries = batch_.kept(p);
      for_each(entries, values, [&](const Entry& entry) {
        if (admission_ != nullptr) context.rows.question = question(entry);
        visit(entry, context.rows);
      });
      context.rows.held_bin.release();
      count(entries.size(), context);
    }
  }

  // Calls use(entry) for each entry after its memory was prefetched.
  template <typename Source, typename Use>
  void for_each(std::span<const Entry> entries, const Source& values, const Use& use) {
    const auto burst_at = [&](size_t first) {
      first = std::min(first, entries.size());
      return entries.subspan(first, std::min(kBurst, entries.size() - first));
    };
    Prefetcher<Source> prefetcher(*this, values);
    prefetcher.fetch(burst_at(0));
    for (size_t first = 0; first < entries.size(); first += kBurst) {
      const std::span<const Entry> burst = burst_at(first), next = burst_at(first + kBurst);
      for (size_t step = 0; step < kBurst; ++step) {
        prefetcher.fetch(step, next);
        if (step < burst.size()) use(burst[step]);
      }
    }
  }

  // Makes reserved rows visible without an edit, and calls see() for them. Returns whether all keys
  // were new.
  template <typename See>
  bool publish_all(ThreadContext& context, Values shown, const See& see) {
    uint64_t num_keys = 0, num_seen = 0;
    for (uint32_t p; claim(next_visited_, p);) {
      const std::span<Entry> entries = batch_.kept(p);
      num_keys += batch_.distinct(p).size();
      for_each(entries, shown, [&](const Entry& entry) {
        if (!(entry.row & kReserved)) return;
        table_.update_row(entry, context.rows, [&](char* row, const OldRow& old) {
          see(entry, row);
          num_seen += old.is_new;
          return old.is_new ? now_ : old.time;  // another call may have been first
        });
      });
      context.rows.held_bin.release();
      count(entries.size(), context);
    }
    return num_seen == num_keys;
  }

  void count(uint64_t distinct, ThreadContext& context) noexcept {
    const uint64_t inserted = std::exchange(context.rows.num_published, 0);
    const uint64_t refused = std::exchange(context.rows.num_refused, 0);
    num_edited_ += distinct - refused - std::exchange(context.rows.num_dropped, 0);
    num_inserted_ += inserted;
    num_refused_ += refused;
    table_.counters_.inserted += inserted;
    context.guard.refresh();
  }

  void roll_back(RowCache& rows) noexcept {
    for (uint32_t p; claim(next_visited_, p);) {
      for (const Entry& entry : batch_.distinct(p)) {
        if (entry.state == Batch::kHeld) release(entry);
        if (entry.state == Batch::kNew) table_.remove_row(entry, true, rows);
      }
      rows.held_bin.release();
    }
  }

  Table& table_;
  const uint32_t now_;
  const unsigned threads_;
  std::pmr::monotonic_buffer_resource memory_;
  std::optional<Batch> batch_storage_;  // empty if batch_ is the caller's grouped batch
  Batch& batch_;
  Admission* const admission_;  // null if no key asks
  const uint64_t call_;
  const int64_t recorded_call_;
  const int32_t* const counts_ = nullptr;
  const uint32_t depth_ = table_.index_depth();  // bits of a hash that distinguish most bins
  const bool are_apart_ = threads_ > 1 && depth_ < batch_.bits() + 2;
  bool draws_ = true;
  const uint8_t* absent_ = nullptr;
  std::atomic<uint32_t> next_prepared_{0}, next_visited_{0};
  std::atomic<uint64_t> num_inserted_{0}, num_edited_{0}, num_refused_{0};
};

}  // namespace monolith
