// Writing verbs.
#include "table/write.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace monolith {
namespace {

// Index of the first NaN or infinity of the gradients, or n.
size_t find_non_finite(const Kernels& kernels, const float* values, size_t n, unsigned threads) {
  constexpr size_t kPiece = size_t{1} << 16;
  std::atomic<size_t> next{0}, found{n};
  const auto scan = [&] {
    for (size_t at; (at = next.fetch_add(kPiece)) < found.load(std::memory_order_relaxed);) {
      const size_t length = std::min(kPiece, n - at);
      const size_t bad = kernels.find_non_finite(values + at, length);
      size_t least = found.load();
      while (bad < length && at + bad < least && !found.compare_exchange_weak(least, at + bad)) {
      }
    }
  };
  Team::run(n < 4 * kPiece ? 1 : std::max(1u, threads), [&](Team&, unsigned) { scan(); });
  return found.load();
}

void clip(float* values, size_t n, float limit) {
  for (size_t i = 0; i < n; ++i) {
    if (std::isnan(values[i])) values[i] = 0.0f;
    if (std::isinf(values[i])) values[i] = std::copysign(limit, values[i]);
  }
}

// Sum of the occurrences' rows in order, starting from the first (contract 1).
const float* sum_rows(const float* values, size_t dim, std::span<const uint32_t> occurrences,
                      const Kernels& kernels, std::vector<float>& scratch) {
  const float* first = values + occurrences.front() * dim;
  if (occurrences.size() == 1) return first;
  std::copy_n(first, dim, scratch.data());
  for (const uint32_t i : occurrences.subspan(1)) {
    kernels.add(scratch.data(), values + i * dim, dim);
  }
  return scratch.data();
}

}  // namespace

void Table::prefetch_row(uint32_t number) const noexcept {
  if (number == kNoRow) return;
  number &= ~kReserved;
  prefetch_bytes(arena_.row(number), arena_.row_bytes());
  __builtin_prefetch(arena_.meta(number), 1);
}

// Reserves a row with initial values for the key. False: the key was there.
bool Table::insert_row(int64_t key, RowCache& rows) {
  const uint64_t hash = key_hash(key);
  const uint32_t number = rows.peek();
  char* row = arena_.row(number);
#if MONOLITH_TSAN
  layout_.initial_row(rows.scratch.data(), key);
  racy_store(row, rows.scratch.data(), rows.scratch.size() * 4);
#else
  layout_.initial_row(reinterpret_cast<float*>(row), key);
#endif
  const Meta fresh{0, 0};
  racy_store(arena_.meta(number), &fresh, sizeof(Meta));
  Bin* bin = index_.lock_bin(hash);
  if (bin->find(key, hash).line != nullptr) {
    bin->lock.unlock();
    return false;
  }
  try {
    bin = index_.make_room(bin, hash);
  } catch (...) {
    bin->lock.unlock();
    throw;
  }
  bin->insert(key, hash, number | kReserved, bin->find_free(hash));
  bin->lock.unlock();
  rows.pop();
  return true;
}

// Removes the key if its row is reserved, or if it is not, as asked. A row that another call has
// reserved counts as missing, also here.
bool Table::remove_row(int64_t key, bool is_reserved) noexcept {
  const uint64_t hash = key_hash(key);
  Bin* bin = index_.lock_bin(hash);
  const Bin::Place place = bin->find(key, hash);
  bool is_removed = false;
  if (place.line != nullptr) {
    const uint32_t row = place.line->rows[place.slot].load(std::memory_order_relaxed);
    const uint32_t number = row & ~kReserved;
    if (is_reserved == (row != number)) {
      bin->remove(place);
      arena_.give(&number, 1);
      is_removed = true;
      bin = index_.tidy(bin);
    }
  }
  bin->lock.unlock();
  return is_removed;
}

// Changes the key's row by edit(row, old time) -> new time; a reserved row has time 0 and becomes
// visible. A key that another call erased since this one saw it is inserted again, as if the
// erasure had come first; where memory does not allow that, the erasure comes last.
template <typename Edit>
void Table::update_row(int64_t key, RowCache& rows, const Edit& edit) noexcept {
  const uint64_t hash = key_hash(key);
  Bin* bin = index_.lock_bin(hash);
  Bin::Place place = bin->find(key, hash);
  while (place.line == nullptr) {
    bin->lock.unlock();
    try {
      insert_row(key, rows);
    } catch (const std::bad_alloc&) {
      ++rows.num_dropped;
      return;
    }
    bin = index_.lock_bin(hash);
    place = bin->find(key, hash);
  }
  std::atomic<uint32_t>& slot = place.line->rows[place.slot];
  const uint32_t number = slot.load(std::memory_order_relaxed) & ~kReserved;
  rows.num_published += slot.load(std::memory_order_relaxed) != number;
  char* row = arena_.row(number);
  Meta* meta = arena_.meta(number);
#if MONOLITH_TSAN
  racy_load(rows.scratch.data(), row, rows.scratch.size() * 4);
  const Meta changed{edit(rows.scratch.data(), meta->time), meta->marks};
  place.line->begin_write();
  racy_store(row, rows.scratch.data(), rows.scratch.size() * 4);
#else
  place.line->begin_write();
  const Meta changed{edit(reinterpret_cast<float*>(row), meta->time), meta->marks};
#endif
  racy_store(meta, &changed, sizeof(Meta));
  slot.store(number, std::memory_order_relaxed);
  place.line->end_write();
  bin->lock.unlock();
}

void Table::lookup_or_insert(const int64_t* keys, size_t n, float* out, uint32_t now,
                             unsigned threads) {
  const Gate::Shared gate(gate_);
  Writer(*this, keys, n, nullptr, now, threads).insert();
  lookup(keys, n, out, true, threads);
}

void Table::assign(const int64_t* keys, size_t n, const float* values, uint32_t now,
                   unsigned threads) {
  const Gate::Shared gate(gate_);
  const size_t dim = layout_.dim();
  Writer writer(*this, keys, n, nullptr, now, threads);
  writer.run(true, {values, dim}, [&](uint32_t i, RowCache& rows) {
    const float* last = values + writer.batch().occurrences(i).back() * dim;
    update_row(writer.batch().key(i), rows, [&](float* row, uint32_t time) {
      std::copy_n(last, dim, row);
      return std::max(time, now);
    });
  });
}

void Table::assign_add(const int64_t* keys, size_t n, const float* values, uint32_t now,
                       unsigned threads) {
  const Gate::Shared gate(gate_);
  const size_t dim = layout_.dim();
  Writer writer(*this, keys, n, nullptr, now, threads);
  writer.run(true, {values, dim}, [&](uint32_t i, RowCache& rows) {
    const float* sum =
        sum_rows(values, dim, writer.batch().occurrences(i), layout_.kernels(), rows.sum);
    update_row(writer.batch().key(i), rows, [&](float* row, uint32_t time) {
      layout_.kernels().add(row, sum, dim);
      return std::max(time, now);
    });
  });
}

std::string Table::refusal(size_t row, size_t column, float value) const {
  const char* shown = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  return std::string("[Table.apply_gradients] expected finite gradients, got ") + shown +
         " at row " + std::to_string(row) + ", column " + std::to_string(column) + " (table '" +
         name_ + "'); see TableConfig.non_finite";
}

AppliedCounts Table::apply_gradients(const int64_t* keys, size_t n, const float* grads,
                                     const float* rates, int64_t step, uint32_t now,
                                     unsigned threads) {
  const size_t dim = layout_.dim();
  std::unique_ptr<uint8_t[]> skipped;
  std::unique_ptr<float[]> clipped;
  AppliedCounts counts;
  const size_t bad = find_non_finite(layout_.kernels(), grads, n * dim, threads);
  if (bad < n * dim && non_finite_ == NonFinite::kRefuse) {
    throw std::invalid_argument(refusal(bad / dim, bad % dim, grads[bad]));
  }
  if (bad < n * dim && non_finite_ == NonFinite::kSkip) {
    skipped = std::make_unique<uint8_t[]>(n);
    for (size_t i = 0; i < n; ++i) {
      skipped[i] = layout_.kernels().find_non_finite(grads + i * dim, dim) < dim;
      counts.skipped += skipped[i];
    }
  }
  if (bad < n * dim && non_finite_ == NonFinite::kClip) {
    clipped = std::make_unique_for_overwrite<float[]>(n * dim);
    std::copy_n(grads, n * dim, clipped.get());
    clip(clipped.get(), n * dim, clip_value_);
    grads = clipped.get();
  }
  const Gate::Shared gate(gate_);
  Writer writer(*this, keys, n, skipped.get(), now, threads);
  writer.run(true, {grads, dim}, [&](uint32_t i, RowCache& rows) {
    const float* sum =
        sum_rows(grads, dim, writer.batch().occurrences(i), layout_.kernels(), rows.sum);
    update_row(writer.batch().key(i), rows, [&](float* row, uint32_t time) {
      layout_.step(row, sum, rates, step);
      return std::max(time, now);
    });
  });
  counters_.skipped += counts.skipped;
  counts.applied = writer.num_edited();
  counts.inserted = writer.num_inserted();
  return counts;
}

void Table::reinitialize(const int64_t* keys, size_t n, int32_t* existed, uint32_t now,
                         unsigned threads) {
  const Gate::Shared gate(gate_);
  Writer writer(*this, keys, n, nullptr, now, threads);
  writer.run(true, {}, [&](uint32_t i, RowCache& rows) {
    const int64_t key = writer.batch().key(i);
    update_row(key, rows, [&](float* row, uint32_t) {
      layout_.initial_row(row, key);
      return now;
    });
    for (const uint32_t at : writer.batch().occurrences(i)) {
      existed[at] = !writer.batch().is_new(i);
    }
  });
}

void Table::erase(const int64_t* keys, size_t n, bool* existed, unsigned threads) {
  const Gate::Shared gate(gate_);
  std::atomic<uint64_t> erased{0};
  Writer writer(*this, keys, n, nullptr, 0, threads);
  writer.run(false, {}, [&](uint32_t i, RowCache&) {
    const bool is_removed = remove_row(writer.batch().key(i), false);
    erased += is_removed;
    for (const uint32_t at : writer.batch().occurrences(i)) existed[at] = is_removed;
  });
  counters_.erased += erased;
}

void Table::import_rows(const int64_t* keys, size_t n, const Columns& columns, unsigned threads) {
  const Gate::Shared gate(gate_);
  Writer writer(*this, keys, n, nullptr, 0, threads);
  writer.run(true, {}, [&](uint32_t i, RowCache& rows) {
    const size_t last = writer.batch().occurrences(i).back();
    update_row(writer.batch().key(i), rows, [&](float* row, uint32_t) {
      for (size_t c = 0; c < columns.data.size(); ++c) {
        std::copy_n(columns.data[c] + last * columns.sizes[c], columns.sizes[c], row);
        row += columns.sizes[c];
      }
      return static_cast<uint32_t>(columns.times[last]);
    });
  });
}

void Table::clear() {
  const Gate::Alone gate(gate_);
  arena_.reserve_clear();
  index_.clear();
  arena_.clear();
  counters_.erased.store(counters_.inserted.load());
  epochs_.reclaim();
}

}  // namespace monolith
