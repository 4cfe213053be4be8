// Implements the writing verbs.
#include "table/write.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include "table/columns.h"

namespace monolith {
namespace {

// Returns the index of the first NaN or infinity of the gradients, or n.
size_t find_non_finite(const Kernels& kernels, const float* values, size_t n, unsigned threads) {
  constexpr size_t kPiece = size_t{1} << 16;
  std::atomic<size_t> next{0}, first_bad{n};
  const auto scan = [&] {
    for (size_t at; (at = next.fetch_add(kPiece)) < first_bad.load(std::memory_order_relaxed);) {
      const size_t length = std::min(kPiece, n - at);
      const size_t bad = kernels.find_non_finite(values + at, length);
      size_t least = first_bad.load();
      while (bad < length && at + bad < least &&
             !first_bad.compare_exchange_weak(least, at + bad)) {
      }
    }
  };
  Team::run(n < 4 * kPiece ? 1 : std::max(1u, threads), [&](Team&, unsigned) { scan(); });
  return first_bad.load();
}

void clip(float* values, size_t n, float limit) {
  for (size_t i = 0; i < n; ++i) {
    if (std::isnan(values[i])) values[i] = 0.0f;
    if (std::isinf(values[i])) values[i] = std::copysign(limit, values[i]);
  }
}

}  // namespace

// Inserts a row for the missing key. write(number of the row) returns kReserved, or 0 if readers
// may see the row at once.
template <typename Write>
Table::Insertion Table::insert_row(Batch::Entry& entry, RowCache& rows, const Write& write) {
  const uint64_t hash = entry.hash;
  Bin* bin = rows.held_bin.lock(hash);
  if (rows.peek() == kNoRow) {
    uint32_t victim;
    if (!evict_for_budget(*bin, rows.notes, victim)) return Insertion::kRefused;
    rows.put(victim);
  }
  const uint32_t number = rows.peek();
  const Meta fresh{0, Meta::noted(0, cuts_.generation())};
  racy_store(arena_.meta(number), &fresh, sizeof(Meta));
  if (bin->find(entry.key, hash, {entry.line, entry.slot}).line != nullptr) {
    return Insertion::kFound;
  }
  Bin::Place place;
  try {
    if (bin->has_room()) place = bin->find_free(hash);
    if (place.line == nullptr || place.line->is_worn()) {
      bin = index_.make_room(bin, hash);
      rows.held_bin.replace(bin);
      place = bin->find_free(hash);
    }
  } catch (const OverBudget&) {  // then a row of the same bin is evicted instead
    uint32_t victim;
    if (!evict_for_budget(*bin, rows.notes, victim)) return Insertion::kRefused;
    arena_.free(&victim, 1);
    place = bin->find_free(hash);
  }
  entry.line = place.line;
  entry.slot = static_cast<uint16_t>(place.slot);
  entry.row = number | write(number);
  bin->insert(entry.key, hash, entry.row, place);
  rows.pop();
  return Insertion::kInserted;
}

// Reserves a row for the key. The row gets its values when it becomes visible, in update_row().
Table::Insertion Table::insert_row(Batch::Entry& entry, RowCache& rows) {
  return insert_row(entry, rows, [](uint32_t) { return kReserved; });
}

// Inserts a key again whose row another call removed since this call found or reserved it: the key
// is missing, and asks admission again. Returns false if the key stays missing, because of
// admission, budget or memory.
bool Table::insert_again(const Batch::Entry& entry, RowCache& rows) noexcept {
  const auto [key, hash] = std::pair(entry.key, entry.hash);
  Batch::Entry again = entry;
  try {
    std::optional<Admission::Turn> turn;
    const Admission::Question& question = rows.question;
    if (question.count > 0 && admission_->has_rule(key)) {
      turn.emplace(*admission_).cover(hash, 12);
      if (index_.find(key, hash).row != kNoRow) return true;
      rows.asked.clear();
      if (!admission_->ask(*turn, question, rows.asked)) {
        ++rows.num_refused;
        return false;
      }
    }
    const bool is_refused = insert_row(again, rows) == Insertion::kRefused;
    rows.num_refused += is_refused;
    return !is_refused;
  } catch (const std::bad_alloc&) {
    ++rows.num_dropped;
    return false;
  }
}

// Removes the key if `is_reserved` matches the state of its row. A row that another call has
// reserved counts as missing, also here.
bool Table::remove_row(const Batch::Entry& entry, bool is_reserved, RowCache& rows) noexcept {
  Bin* bin = rows.held_bin.lock(entry.hash);
  const Bin::Place place = bin->find(entry.key, entry.hash, {entry.line, entry.slot});
  if (place.line == nullptr) return false;
  const uint32_t row = place.line->rows[place.slot].load(std::memory_order_relaxed);
  const uint32_t number = row & ~kReserved;
  if (is_reserved != (row != number)) return false;
  uint32_t marks;
  racy_load(&marks, &arena_.meta(number)->marks, sizeof(marks));
  const bool is_noted = Meta::generation(marks) == cuts_.generation();
  bin->remove(place);
  arena_.free(&number, 1);
  Bin* tidied = index_.tidy(bin);
  if (tidied != bin) rows.held_bin.replace(tidied);
  if (is_reserved) return true;  // no reader saw the row
  if (rows.notes.is_on()) rows.notes.note(entry.key, !is_noted);
  rows.note_change(entry.key, Recorder::kRemoved);
  return true;
}

// Changes the row of the key by edit(row, OldRow), which returns the new time. A reserved row has
// time 0 and becomes visible, with initial values unless the call overwrites the whole row. If
// another call has erased the key since this call found it, the key is inserted again, as if the
// erasure had come first; if that is not possible, the erasure comes last.
template <typename Edit>
void Table::update_row(const Batch::Entry& entry, RowCache& rows, const Edit& edit) noexcept {
  const auto [key, hash] = std::pair(entry.key, entry.hash);
  Bin::Place place = rows.held_bin.lock(hash)->find(key, hash, {entry.line, entry.slot});
  while (place.line == nullptr) {
    rows.held_bin.release();
    if (!insert_again(entry, rows)) return;
    place = rows.held_bin.lock(hash)->find(key, hash);
  }
  std::atomic<uint32_t>& slot = place.line->rows[place.slot];
  const uint32_t seen = slot.load(std::memory_order_relaxed);
  const uint32_t number = seen & ~kReserved;
  const auto [row, meta] = arena_.place(number);
  const OldRow old{meta->time, seen != number};
  const bool draws = old.is_new && rows.draws;
  rows.num_published += old.is_new;
  uint32_t marks;
  racy_load(&marks, &meta->marks, sizeof(marks));  // another call may set kHeld concurrently
  uint32_t next_marks = Meta::used(marks);
  if (rows.notes.is_on()) {
    rows.notes.note(key, old.is_new | (Meta::generation(marks) != cuts_.generation()));
    next_marks = Meta::noted(next_marks, cuts_.generation());
  }
#if MONOLITH_TSAN
  racy_load(rows.scratch, row, layout_.num_words() * 4);
  if (draws) layout_.initial_row(rows.scratch, rows.weights, key);
  const Meta changed{edit(rows.scratch, old), next_marks};
  place.line->begin_write();
  racy_store(row, rows.scratch, layout_.num_words() * 4);
#else
  place.line->begin_write();
  if (draws) layout_.initial_row(row, rows.weights, key);
  const Meta changed{edit(row, old), next_marks};
#endif
  racy_store(meta, &changed, sizeof(Meta));
  slot.store(number, std::memory_order_relaxed);
  place.line->end_write();
  rows.note_change(key, Recorder::kEdited);
}

// Calls edit(weights) on the weights of a row: in place if they are floats, otherwise decoded
// before and encoded after. A serving row starts from zeros, whatever its code of zeros decodes to.
template <typename Edit>
void Table::edit_weights(char* row, bool is_new, int64_t key, uint64_t call, RowCache& rows,
                         const Edit& edit) const noexcept {
  if (layout_.is_plain()) return edit(reinterpret_cast<float*>(row));
  float* weights = rows.weights;
  if (is_serving_ && is_new) {
    std::fill_n(weights, layout_.dim(), 0.0f);
  } else {
    layout_.decode(weights, row);
  }
  edit(weights);
  layout_.encode(row, weights, key, call);
}

// Calls update(number of the call). A call that throws returns its number, unless a later call has
// started.
template <typename Update>
void Table::numbered(const Update& update) {
  uint64_t number = ++num_update_calls_;
  try {
    update(number);
  } catch (...) {
    num_update_calls_.compare_exchange_strong(number, number - 1);
    throw;
  }
}

// Raises latest_time at the end of a successful call, while the gate excludes cuts.
void Table::saw(uint32_t time) noexcept {
  uint32_t latest = latest_time_.load();
  while (latest < time && !latest_time_.compare_exchange_weak(latest, time)) {
  }
}

void Table::lookup_or_insert(const int64_t* keys, size_t n, float* out, const float* scales,
                             uint32_t now, unsigned threads) {
  const Gate::Shared gate(gate_);
  const size_t dim = layout_.dim();
  Writer writer(*this, keys, n, nullptr, now, threads);
  const bool are_new = writer.insert({out, dim}, [&](const Batch::Entry& entry, const char* row) {
    for (const uint32_t i : writer.batch().occurrences(entry)) {
      layout_.decode(out + i * dim, row);
      if (layout_.has_views()) layout_.see(out + i * dim, scales);
    }
  });
  if (!are_new) lookup(keys, n, out, true, scales, threads);
  saw(now);
}

void Table::assign(const int64_t* keys, size_t n, const float* values, uint32_t now,
                   unsigned threads, const uint8_t* absent) {
  const Gate::Shared gate(gate_);
  const size_t dim = layout_.dim();
  std::atomic<uint64_t> erased{0};
  numbered([&](uint64_t call) {
    Writer writer(*this, keys, n, nullptr, now, threads, {true, call});
    writer.set_absent(absent);
    const LastValues source{{values, dim}};
    writer.run(true, source, [&](const Batch::Entry& entry, RowCache& rows) {
      if (writer.is_absent(entry)) {
        erased += remove_row(entry, false, rows);
        return;
      }
      const float* last = source.of(writer.batch(), entry);
      const int64_t key = entry.key;
      update_row(entry, rows, [&](char* row, const OldRow& old) {
        if (layout_.is_plain()) {
          std::memcpy(row, last, dim * 4);
        } else {
          layout_.encode(row, last, key, call);
        }
        return std::max(old.time, now);
      });
    });
  });
  counters_.erased += erased;
  saw(now);
}

void Table::assign_add(const int64_t* keys, size_t n, const float* values, uint32_t now,
                       unsigned threads) {
  const Gate::Shared gate(gate_);
  const size_t dim = layout_.dim();
  numbered([&](uint64_t call) {
    Writer writer(*this, keys, n, nullptr, now, threads, {true, call});
    const Values source{values, dim};
    writer.run(true, source, [&](const Batch::Entry& entry, RowCache& rows) {
      const float* sum = source.sum(writer.batch(), entry, layout_.kernels(), rows.sum);
      const int64_t key = entry.key;
      update_row(entry, rows, [&](char* row, const OldRow& old) {
        edit_weights(row, old.is_new, key, call, rows,
                     [&](float* weights) { layout_.kernels().add(weights, sum, dim); });
        return std::max(old.time, now);
      });
    });
  });
  saw(now);
}

std::string Table::refusal(size_t row, size_t column, float value) const {
  const char* shown = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  return std::string("[Table.apply_gradients] expected finite gradients, got ") + shown +
         " at row " + std::to_string(row) + ", column " + std::to_string(column) + " (table '" +
         name_ + "'); see TableConfig.non_finite";
}

void Table::check_finite(const float* grads, size_t n, unsigned threads) const {
  if (non_finite_ != NonFinite::kRefuse) return;
  const size_t dim = layout_.dim();
  const size_t bad = find_non_finite(layout_.kernels(), grads, n * dim, threads);
  if (bad < n * dim) throw std::invalid_argument(refusal(bad / dim, bad % dim, grads[bad]));
}

AppliedCounts Table::apply_gradients(const int64_t* keys, size_t n, const float* grads,
                                     const StepOptions& options, uint32_t now, unsigned threads,
                                     const int32_t* num_occurs) {
  const size_t dim = layout_.dim();
  std::unique_ptr<uint8_t[]> skipped;
  std::unique_ptr<float[]> clipped;
  uint64_t num_skipped = 0;
  check_finite(grads, n, threads);
  const bool has_bad = non_finite_ != NonFinite::kRefuse &&
                       find_non_finite(layout_.kernels(), grads, n * dim, threads) < n * dim;
  if (has_bad && non_finite_ == NonFinite::kSkip) {
    skipped = std::make_unique<uint8_t[]>(n);
    for (size_t i = 0; i < n; ++i) {
      skipped[i] = layout_.kernels().find_non_finite(grads + i * dim, dim) < dim;
      if (skipped[i] != 0) num_skipped += num_occurs == nullptr ? 1 : num_occurs[i];
    }
  }
  if (has_bad && non_finite_ == NonFinite::kClip) {
    clipped = std::make_unique_for_overwrite<float[]>(n * dim);
    std::copy_n(grads, n * dim, clipped.get());
    clip(clipped.get(), n * dim, clip_value_);
    grads = clipped.get();
  }
  const auto writer = [&](uint64_t call) {
    return Writer(*this, keys, n, skipped.get(), now, threads, {true, call}, num_occurs);
  };
  AppliedCounts counts = step_rows(writer, Values{grads, dim}, options, now);
  counts.skipped = num_skipped;
  counters_.skipped += num_skipped;
  return counts;
}

GradientSum Table::sum_bag_gradients(std::span<const BagPiece> pieces, unsigned threads,
                                     std::pmr::monotonic_buffer_resource* memory,
                                     const DistinctKeys* distinct) const {
  size_t num_keys = 0;
  for (const BagPiece& piece : pieces) {
    check_bags("sum_bag_gradients", piece.bags);
    num_keys += piece.bags.num_keys;
  }
  if (distinct != nullptr && !admission_) {  // admission needs the number of occurrences
    return GradientSum(pieces.front(), layout_.dim(), layout_.kernels(), *distinct, memory);
  }
  const uint32_t depth = num_keys < 4 ? 0 : index_depth();  // few keys need no buckets
  return GradientSum(pieces, layout_.dim(), layout_.kernels(), index_.salt(), depth,
                     std::max(1u, threads), memory);
}

// If a gradient or a sum is not finite, the gradients of the keys are written out, so that the
// policy applies to each of them.
AppliedCounts Table::apply_bag_gradients(GradientSum& sum, const StepOptions& options, uint32_t now,
                                         unsigned threads) {
  if (std::isfinite(sum.norm())) {
    const auto writer = [&](uint64_t call) {
      return Writer(*this, sum.batch(), now, threads, {true, call});
    };
    return step_rows(writer, sum, options, now);
  }
  const size_t dim = layout_.dim();
  const BagGradients& source = sum.grads();
  const auto grads = std::make_unique_for_overwrite<float[]>(source.size() * dim);
  source.write_out(layout_.kernels(), grads.get());
  return apply_gradients(source.keys(), source.size(), grads.get(), options, now, threads);
}

// Makes one optimizer step for each distinct key of make_writer(number of the call), with the sum
// of its gradients.
template <typename MakeWriter, typename Source>
AppliedCounts Table::step_rows(const MakeWriter& make_writer, const Source& grads,
                               const StepOptions& options, uint32_t now) {
  const size_t dim = layout_.dim();
  AppliedCounts counts;
  const Gate::Shared gate(gate_);
  numbered([&](uint64_t call) {
    Writer writer = make_writer(call);
    writer.run(true, grads, [&](const Batch::Entry& entry, RowCache& rows) {
      const float* sum = grads.sum(writer.batch(), entry, layout_.kernels(), rows.sum);
      if (layout_.changes_gradients() && sum != rows.sum) {
        sum = std::copy_n(sum, dim, rows.sum) - dim;  // the gradients of the caller stay unchanged
      }
      const int64_t key = entry.key;
      update_row(entry, rows, [&](char* row, const OldRow& old) {
        edit_weights(row, old.is_new, key, call, rows, [&](float* weights) {
          if (layout_.changes_gradients()) {
            layout_.see_gradients(rows.sum, weights, options.scales);
          }
          layout_.step(weights, row, sum, options.rates, options.step);
        });
        return std::max(old.time, now);
      });
    });
    counts.applied = writer.num_edited();
    counts.inserted = writer.num_inserted();
    counts.refused = writer.num_refused();
    saw(now);
  });
  return counts;
}

void Table::reinitialize(const int64_t* keys, size_t n, int32_t* existed, uint32_t now,
                         unsigned threads) {
  const Gate::Shared gate(gate_);
  std::fill_n(existed, n, 0);  // a key that the budget refuses is not visited
  Writer writer(*this, keys, n, nullptr, now, threads);
  writer.set_draws(false);
  writer.run(true, {}, [&](const Batch::Entry& entry, RowCache& rows) {
    const int64_t key = entry.key;
    update_row(entry, rows, [&](char* row, const OldRow&) {
      layout_.initial_row(row, rows.weights, key);
      return now;
    });
    for (const uint32_t at : writer.batch().occurrences(entry)) {
      existed[at] = entry.state != Batch::kNew;
    }
  });
  saw(now);
}

void Table::erase(const int64_t* keys, size_t n, bool* existed, unsigned threads) {
  const Gate::Shared gate(gate_);
  std::atomic<uint64_t> erased{0};
  Writer writer(*this, keys, n, nullptr, 0, threads);
  writer.run(false, {}, [&](const Batch::Entry& entry, RowCache& rows) {
    const bool is_removed = remove_row(entry, false, rows);
    erased += is_removed;
    for (const uint32_t at : writer.batch().occurrences(entry)) existed[at] = is_removed;
  });
  counters_.erased += erased;
}

void Table::import_rows(const int64_t* keys, size_t n, const Columns& columns, unsigned threads,
                        const uint8_t* absent) {
  const Gate::Shared gate(gate_);
  std::atomic<uint64_t> erased{0};
  Writer writer(*this, keys, n, nullptr, 0, threads);
  writer.set_draws(false);
  writer.set_absent(absent);
  writer.run(true, {}, [&](const Batch::Entry& entry, RowCache& rows) {
    if (writer.is_absent(entry)) {
      erased += remove_row(entry, false, rows);
      return;
    }
    const size_t last = writer.batch().occurrences(entry).back();
    update_row(entry, rows, [&](char* row, const OldRow&) {
      for_each_column(layout_, columns, last, [&](size_t offset, const char* column, size_t bytes) {
        std::memcpy(row + offset, column, bytes);
      });
      return static_cast<uint32_t>(columns.times[last]);
    });
  });
  counters_.erased += erased;
  if (n > 0) saw(static_cast<uint32_t>(*std::max_element(columns.times, columns.times + n)));
}

void Table::fill_rows(const int64_t* keys, size_t n, const Columns& columns) {
  std::optional<Gate::Shared> gate(std::in_place, gate_);
  if (memory_.has_budget() || cuts_.newest() != 0 || recorder_ != nullptr) {
    gate.reset();
    return import_rows(keys, n, columns, 1);
  }
  constexpr size_t kAhead = 16, kBlock = 512;  // in keys; other calls may lock between blocks
  Epochs::Guard guard(epochs_);
  TouchedLog::Room room(log_, n, 1);
  RowCache rows(*this, room);
  rows.draws = false;
  const auto copy = [&](char* row, size_t i) {
    for_each_column(layout_, columns, i, [&](size_t offset, const char* column, size_t bytes) {
      std::memcpy(row + offset, column, bytes);
    });
    return static_cast<uint32_t>(columns.times[i]);
  };
  uint64_t num_new = 0;
  const auto put = [&](size_t i) {
    Batch::Entry entry{keys[i], key_hash(keys[i]), nullptr, kNoRow, Batch::kOld, 0, 0, 1};
    const Insertion done = insert_row(entry, rows, [&](uint32_t number) {
      char* row = MONOLITH_TSAN ? rows.scratch : arena_.row(number);
      const Meta meta{copy(row, i), Meta::used(Meta::noted(0, cuts_.generation()))};
      if (MONOLITH_TSAN) racy_store(arena_.row(number), row, size_t{layout_.num_words()} * 4);
      racy_store(arena_.meta(number), &meta, sizeof(Meta));
      return 0u;
    });
    if (done == Insertion::kFound) {
      return update_row(entry, rows, [&](char* row, const OldRow&) { return copy(row, i); });
    }
    if (rows.notes.is_on()) rows.notes.note(keys[i]);
    ++num_new;
  };
  const auto finish = [&] { counters_.inserted += num_new + rows.num_published; };
  try {
    for (size_t first = 0; first < n; first += kBlock) {
      const size_t last = std::min(n, first + kBlock);
      const HeldBin::Scope scope(rows.held_bin);
      for (size_t i = first; i < std::min(last, first + kAhead); ++i) prefetch_home(keys[i]);
      for (size_t i = first; i < last; ++i) {
        if (i + kAhead < last) prefetch_home(keys[i + kAhead]);
        rows.wanted = n - i;
        put(i);
      }
      rows.held_bin.release();
      guard.refresh();
      epochs_.reclaim();
    }
  } catch (...) {
    finish();
    throw;
  }
  finish();
  if (n > 0) saw(static_cast<uint32_t>(*std::max_element(columns.times, columns.times + n)));
}

void Table::expect_rows(size_t n) {
  const Gate::Exclusive gate(gate_);
  if (!memory_.has_budget()) index_.expect(n);
  epochs_.reclaim();
}

bool Table::clear() {
  const Gate::Exclusive gate(gate_);
  if (!cuts_.open().empty()) return false;
  index_.clear(arena_.num_retired_by_clear());
  arena_.clear();
  if (admission_) admission_->clear();
  counters_.erased += num_rows();
  latest_time_ = 0;
  log_.forget();
  epochs_.reclaim();
  return true;
}

}  // namespace monolith
