#include "table/filter_ring.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace monolith {
namespace {

constexpr uint64_t kLeastCapacity = 300;
constexpr uint32_t kLeastSplits = 5;
constexpr uint64_t kProbes = 16;
constexpr uint64_t kSlack = 64;  // cells after the last start, so that probing does not wrap
constexpr uint32_t kCountBits = 20;
constexpr uint32_t kMaxCount = (1u << kCountBits) - 1;

// Encodes the partition of a step.
int64_t name(uint64_t hash) { return static_cast<int64_t>(hash); }

uint32_t signature(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) & 0xFFF; }

}  // namespace

FilterRing::Shape::Shape(uint64_t capacity, uint32_t split_num)
    : num_splits(std::max(split_num, kLeastSplits)),
      split_capacity(std::max(capacity, kLeastCapacity) / (num_splits - 1)),
      num_cells(split_capacity * 6 / 5 + kSlack) {}

void FilterRing::Split::set(uint64_t cell, uint32_t value) noexcept {
  num_elements += (value != 0) - (cells[cell] != 0);
  cells[cell] = value;
}

bool FilterRing::make_ring(const Shape& shape, Account& memory) {
  if (splits_ != nullptr) return true;
  splits_ = static_cast<Split*>(memory.allocate(shape.num_splits * sizeof(Split)));
  if (splits_ == nullptr) return false;
  for (uint32_t i = 0; i < shape.num_splits; ++i) new (splits_ + i) Split;
  return true;
}

bool FilterRing::make(Split& split, const Shape& shape, Account& memory) {
  if (split.cells != nullptr) return true;
  const size_t bytes = shape.num_cells * sizeof(uint32_t);
  split.cells = static_cast<uint32_t*>(memory.allocate(bytes));
  if (split.cells != nullptr) std::memset(split.cells, 0, bytes);
  return split.cells != nullptr;
}

// Returns the cell of the key, or the free cell for the key, or kFull. A filter without cells is
// empty.
uint64_t FilterRing::probe(const Split& split, uint64_t hash, const Shape& shape) const noexcept {
  const uint64_t start = ((hash & UINT32_MAX) * (shape.num_cells - kSlack)) >> 32;
  if (split.cells == nullptr) return start;
  for (uint64_t cell = start; cell < start + kProbes; ++cell) {
    const uint32_t value = split.cells[cell];
    if (value == 0 || value >> kCountBits == signature(hash)) return cell;
  }
  return kFull;
}

std::optional<uint32_t> FilterRing::add(uint64_t hash, uint32_t count, const Shape& shape,
                                        Account& memory, Candidates::Counters& counters,
                                        AdmissionLog& log, bool& is_over) {
  is_over = !make_ring(shape, memory);
  if (is_over) return 0;
  uint32_t at = head_;
  uint64_t cell = probe(splits_[at], hash, shape);
  if (cell == kFull) {
    at = (head_ + 1) % shape.num_splits;
    cell = probe(splits_[at], hash, shape);
  }
  if (cell == kFull) {
    reserve_steps(log, 1);
    log.push_back({name(hash), 0, 0, 0, 0, turn(), AdmissionStep::kOverflow});
    ++counters.overflows;
    return std::nullopt;
  }
  Split& split = splits_[at];
  is_over = !make(split, shape, memory);
  if (is_over) return 0;
  const uint32_t old = split.cells[cell];
  const uint64_t num_in_head = splits_[head_].num_elements + (at == head_);
  const bool is_last = old == 0 && num_in_head + 1 >= shape.split_capacity;
  const uint64_t num_forgotten = splits_[(head_ + 2) % shape.num_splits].num_elements;
  reserve_steps(log, is_last ? num_forgotten + 2 : 1);
  log.push_back(
      {name(hash), old, at, static_cast<uint32_t>(cell), count, turn(), AdmissionStep::kCell});
  const uint32_t before = old != 0 ? old & kMaxCount : count_before(hash, shape);
  const uint32_t after = count > kMaxCount - before ? kMaxCount : before + count;
  split.set(cell, signature(hash) << kCountBits | after);
  if (is_last) advance(hash, shape, counters, log);
  return before;
}

uint32_t FilterRing::get(uint64_t hash, const Shape& shape) const noexcept {
  if (splits_ == nullptr) return 0;
  for (const uint32_t at : {head_, (head_ + 1) % shape.num_splits}) {
    const uint64_t cell = probe(splits_[at], hash, shape);
    if (cell == kFull) continue;
    const uint32_t value = splits_[at].cells == nullptr ? 0 : splits_[at].cells[cell];
    return value != 0 ? value & kMaxCount : count_before(hash, shape);
  }
  return kMaxCount;
}

// Returns the count in the nearest earlier filter that contains the key.
uint32_t FilterRing::count_before(uint64_t hash, const Shape& shape) const noexcept {
  const uint64_t most = std::min<uint64_t>(head_increment_, shape.num_splits - 2);
  for (uint32_t back = 1; back <= most; ++back) {
    const Split& split = splits_[(head_ + shape.num_splits - back) % shape.num_splits];
    const uint64_t cell = probe(split, hash, shape);
    if (split.cells == nullptr || cell == kFull) continue;
    if (split.cells[cell] != 0) return split.cells[cell] & kMaxCount;
  }
  return 0;
}

void FilterRing::move_head(uint64_t hash, uint32_t head, uint64_t increment,
                           AdmissionLog& log) noexcept {
  log.push_back({name(hash), head_, turn(), static_cast<uint32_t>(head_increment_ >> 32), 0,
                 static_cast<uint32_t>(increment), AdmissionStep::kHead});
  head_ = head;
  head_increment_ = increment;
}

// The log has room for the forgotten cells, and for the head.
void FilterRing::advance(uint64_t hash, const Shape& shape, Candidates::Counters& counters,
                         AdmissionLog& log) noexcept {
  const uint32_t oldest = (head_ + 2) % shape.num_splits;
  Split& split = splits_[oldest];
  counters.dropped += split.num_elements;
  for (uint32_t cell = 0; split.num_elements > 0; ++cell) {
    if (split.cells[cell] == 0) continue;
    log.push_back(
        {name(hash), split.cells[cell], oldest, cell, 0, turn(), AdmissionStep::kForgotten});
    split.set(cell, 0);
  }
  move_head(hash, (head_ + 1) % shape.num_splits, head_increment_ + 1, log);
}

void FilterRing::undo(const AdmissionStep& step, const Shape& shape,
                      Candidates::Counters& counters) noexcept {
  if (step.kind == AdmissionStep::kOverflow) {
    --counters.overflows;
    return;
  }
  const uint32_t moved = turn() - step.turn;
  if (step.kind == AdmissionStep::kHead) {
    if (moved != 0) return;
    head_ = step.count;
    head_increment_ = uint64_t{step.stamp} << 32 | step.time;
    return;
  }
  Split& split = splits_[step.time];
  const bool is_forgotten = step.kind == AdmissionStep::kForgotten;
  if (is_forgotten ? moved != 0 || split.cells[step.stamp] != 0 : moved + 1 >= shape.num_splits) {
    return;
  }
  split.set(step.stamp, step.count);
  counters.dropped -= is_forgotten;
}

void FilterRing::append_to(std::vector<FilterRow>& rows, const Shape& shape,
                           std::span<const AdmissionStep> since) const {
  if (splits_ == nullptr) return;
  uint32_t head = head_;
  uint64_t head_increment = head_increment_;
  std::vector<std::vector<uint32_t>> splits(shape.num_splits);
  for (uint32_t i = 0; i < shape.num_splits; ++i) {
    const uint32_t* cells = splits_[i].cells;
    if (cells != nullptr) splits[i].assign(cells, cells + shape.num_cells);
  }
  for (auto step = since.rbegin(); step != since.rend(); ++step) {
    if (step->kind == AdmissionStep::kHead) {
      head = step->count;
      head_increment = uint64_t{step->stamp} << 32 | step->time;
    } else {
      splits[step->time][step->stamp] = step->count;
    }
  }
  const size_t first = rows.size();
  rows.push_back({-1, head, static_cast<int64_t>(head_increment)});
  for (uint32_t i = 0; i < shape.num_splits; ++i) {
    for (size_t cell = 0; cell < splits[i].size(); ++cell) {
      const uint32_t value = splits[i][cell];
      if (value != 0) rows.push_back({i, static_cast<int64_t>(cell), value});
    }
  }
  if (rows.size() == first + 1 && head_increment == 0) rows.pop_back();
}

bool FilterRing::put(const FilterRow& row, uint64_t hash, const Shape& shape, Account& memory,
                     AdmissionLog& log) {
  if (!make_ring(shape, memory)) return row.split < 0;
  reserve_steps(log, 1);
  if (row.split < 0) {
    move_head(hash, static_cast<uint32_t>(row.cell), static_cast<uint64_t>(row.value), log);
    return true;
  }
  Split& split = splits_[row.split];
  if (!make(split, shape, memory)) return false;
  const auto cell = static_cast<uint32_t>(row.cell);
  log.push_back({name(hash), split.cells[cell], static_cast<uint32_t>(row.split), cell, 0, turn(),
                 AdmissionStep::kCell});
  split.set(cell, static_cast<uint32_t>(row.value));
  return true;
}

uint64_t FilterRing::size(const Shape& shape) const noexcept {
  uint64_t size = 0;
  for (uint32_t i = 0; splits_ != nullptr && i < shape.num_splits; ++i) {
    size += splits_[i].num_elements;
  }
  return size;
}

void FilterRing::free(const Shape& shape, Account& memory) noexcept {
  if (splits_ == nullptr) return;
  for (uint32_t i = 0; i < shape.num_splits; ++i) {
    memory.free(splits_[i].cells, shape.num_cells * sizeof(uint32_t));
  }
  memory.free(splits_, shape.num_splits * sizeof(Split));
  splits_ = nullptr;
  head_ = 0;
  head_increment_ = 0;
}

}  // namespace monolith
