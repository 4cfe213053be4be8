// Evicts rows by expiry and by budget. Also exports and imports candidates.
#include <algorithm>

#include "table/table.h"

namespace monolith {
namespace {

constexpr int kBinsPerSlice = 64;
constexpr uint32_t kLinesHeld = 16;  // lines per lock of a sweep: one or two microseconds
constexpr int64_t kSecondsPerDay = 86400;
constexpr uint32_t kSampled = 16;
constexpr uint64_t kAgeingPeriod = 8;  // samplings after which use counts are halved

}  // namespace

uint64_t Table::evict(uint32_t reference) {
  const Gate::Shared gate(gate_);  // held for the whole call, so that no cut sees a part of it
  uint64_t count = 0;
  for (EvictResult slice{0, 0};;) {
    slice = evict_bins(slice.next, reference);
    count += slice.count;
    if (slice.next == 0) return count;
  }
}

Table::EvictResult Table::evict_slice(uint64_t first, uint32_t reference) {
  const Gate::Shared gate(gate_);
  return evict_bins(first, reference);
}

Table::EvictResult Table::evict_bins(uint64_t first, uint32_t reference) {
  EvictResult result{0, first};
  Epochs::Guard guard(epochs_);
  TouchedLog::Room room(log_, 0, 0);
  TouchedLog::Notes notes(room);
  for (int i = 0; i < kBinsPerSlice; ++i) {
    uint64_t last;
    result.count += evict_bin(result.next, reference, notes, last);
    result.next = last + 1;
    if (result.next == 0) break;
    guard.refresh();
  }
  counters_.evicted += result.count;
  return result;
}

// Whether the row has expired.
bool Table::is_expired(int64_t key, uint32_t number, uint32_t reference) const noexcept {
  uint32_t time;
  racy_load(&time, &arena_.meta(number)->time, sizeof(time));
  return int64_t{reference} - int64_t{time} >= int64_t{expiry_days_.of(key)} * kSecondsPerDay;
}

// Searches expired rows without the lock of the bin, and locks the bin for a few lines at a time,
// only where there are expired rows: a thread that is preempted in between delays no other thread.
// A row that is inserted or removed meanwhile may count as present or absent, as if the sweep had
// been earlier or later.
uint32_t Table::evict_bin(uint64_t hash, uint32_t reference, TouchedLog::Notes& notes,
                          uint64_t& last) noexcept {
  uint32_t num_evicted = 0;
  Bin* bin = index_.bin_of(hash).bin();
  const auto fetch = [&](const Line& line) {
    for (const auto& row : line.rows) {
      const uint32_t number = row.load(std::memory_order_relaxed);
      if (!(number & kReserved)) fetch_line(arena_.meta(number));
    }
  };
  for (uint32_t first = 0; first < bin->num_lines;) {
    const uint32_t end = std::min(first + kLinesHeld, bin->num_lines);
    for (uint32_t l = first; l < std::min(end + kLinesHeld, bin->num_lines); ++l) {
      if (first == 0 || l >= end) fetch(bin->lines()[l]);
    }
    bool has_expired = false;
    for (Line* line = bin->lines() + first; line != bin->lines() + end; ++line) {
      line->for_each([&](int64_t key, uint32_t number, uint32_t) {
        has_expired |= is_expired(key, number, reference);
      });
    }
    if (has_expired) {
      Bin* const now = index_.lock_bin(hash);
      if (now != bin) {  // another call has replaced the bin: start again
        now->lock.unlock();
        bin = now;
        first = 0;
        continue;
      }
      num_evicted += evict_lines(*bin, first, end, reference, notes);
    }
    first = end;
  }
  last = bin->last_hash();
  if (num_evicted > 0) {
    bin = index_.lock_bin(hash);
    index_.tidy(bin)->lock.unlock();
  }
  return num_evicted;
}

// Evicts from some lines of the locked bin, and unlocks the bin.
uint32_t Table::evict_lines(Bin& bin, uint32_t first, uint32_t end, uint32_t reference,
                            TouchedLog::Notes& notes) noexcept {
  uint32_t numbers[kLinesHeld * Line::kSlots];
  uint32_t num_evicted = 0, num_rows = 0;
  for (Line* line = bin.lines() + first; line != bin.lines() + end; ++line) {
    line->for_each([&](int64_t key, uint32_t number, uint32_t slot) {
      ++num_rows;
      if (!is_expired(key, number, reference) || !keep_victim(key, number, notes)) return;
      bin.remove({line, slot});
      numbers[num_evicted++] = number;
    });
  }
  bin.lock.unlock();
  arena_.free(numbers, num_evicted);
  raise_to(counters_.sweep_held_max, num_rows);
  return num_evicted;
}

// Copies a row into open cuts and notes its key in the log, under the lock of its bin and before
// its removal. Returns false without memory; the row then stays.
bool Table::keep_victim(int64_t key, uint32_t number, TouchedLog::Notes& notes) noexcept {
  try {
    if (notes.is_on()) notes.note_extra(key);
    if (cuts_.newest() != 0) keep_row(key, number, nullptr);
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (recorder_) recorder_->note(Recorder::call(), key, Recorder::kRemoved);
  return true;
}

// Removes one row of the locked bin: the oldest or the least used of the first 16 evictable rows,
// from a random place on. Neighbours in a bin share only a prefix of their hashes. Returns false if
// a running call holds every row, or if the policy refuses.
bool Table::evict_for_budget(Bin& bin, TouchedLog::Notes& notes, uint32_t& number) noexcept {
  if (!evicts_for_budget()) return false;
  struct Candidate {
    Bin::Place place;
    Meta* meta;
    uint64_t rank;  // the row with the smallest rank is removed
  };
  Candidate sampled[kSampled];
  uint32_t n = 0;
  const uint64_t number_of_sampling = num_samplings_.fetch_add(1, std::memory_order_relaxed);
  const bool is_by_use = budget_policy_ == BudgetPolicy::kEvictLeastFrequent;
  const bool ages = is_by_use && number_of_sampling % kAgeingPeriod == 0;
  const uint64_t drawn = key_hash(static_cast<int64_t>(number_of_sampling));
  const uint32_t start = static_cast<uint32_t>(((drawn & UINT32_MAX) * bin.num_lines) >> 32);
  for (uint32_t l = 0; l < bin.num_lines && n < kSampled; ++l) {
    Line& line = bin.lines()[(start + l) % bin.num_lines];
    for (uint32_t slot = 0; slot < Line::kSlots && n < kSampled; ++slot) {
      const uint32_t row = line.rows[slot].load(std::memory_order_relaxed);
      if (row & kReserved) continue;  // free, or not written yet
      Meta* meta = arena_.meta(row);
      uint32_t marks;
      racy_load(&marks, &meta->marks, sizeof(marks));
      if (marks & Meta::kHeld) continue;
      const uint64_t uses = is_by_use ? marks & Meta::kUses : 0;
      sampled[n++] = {{&line, slot}, meta, uses << 32 | meta->time};
      if (!ages) continue;
      const uint32_t aged = (marks & ~Meta::kUses) | ((marks & Meta::kUses) / 2);
      racy_store(&meta->marks, &aged, sizeof(aged));
    }
  }
  if (n == 0) return false;
  const Candidate& victim = *std::min_element(
      sampled, sampled + n, [](const auto& a, const auto& b) { return a.rank < b.rank; });
  number = victim.place.line->rows[victim.place.slot].load(std::memory_order_relaxed);
  const int64_t key = victim.place.line->keys[victim.place.slot].load(std::memory_order_relaxed);
  if (!keep_victim(key, number, notes)) return false;
  bin.remove(victim.place);
  counters_.evicted_for_budget.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::vector<int64_t> Table::export_candidates(std::span<const uint32_t> partitions, Cut* cut) {
  const Gate::Shared gate(gate_);
  return admission_ ? admission_->export_rows(partitions, cut) : std::vector<int64_t>();
}

void Table::import_candidates(const int64_t* values, size_t n) {
  const Gate::Shared gate(gate_);
  if (admission_) admission_->import_rows(values, n);
}

Admission::Facts Table::admission_facts() {
  const Gate::Shared gate(gate_);
  return admission_ ? admission_->facts() : Admission::Facts();
}

}  // namespace monolith
