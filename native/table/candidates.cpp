#include "table/candidates.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace monolith {
namespace {

constexpr uint32_t kFirstCapacity = 4;
constexpr uint32_t kAhead = 8;  // places of the log whose candidates are fetched

uint32_t add_saturated(uint32_t a, uint32_t b) { return a > UINT32_MAX - b ? UINT32_MAX : a + b; }

}  // namespace

// Slots for half as many again, more where that fills whole pages.
size_t Candidates::bytes_for(uint32_t capacity) noexcept {
  const size_t log_bytes = size_t{2} * capacity * sizeof(uint32_t);
  const size_t bytes = log_bytes + (size_t{capacity} / 2 + 1) * sizeof(Line);
  return bytes < kPageBytes / 2 ? bytes : (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

uint32_t Candidates::lines_in(size_t bytes, uint32_t capacity) noexcept {
  const size_t log_bytes = size_t{2} * capacity * sizeof(uint32_t);
  return static_cast<uint32_t>((bytes - log_bytes) / sizeof(Line));
}

void Candidates::prefetch(uint64_t hash) const noexcept {
  // Pointer and size may be of two arrays: a fetch from elsewhere does no harm.
  if (lines() != nullptr) __builtin_prefetch(home(home_bits(hash)).line, 1);
}

Candidates::Slot Candidates::find(int64_t key, uint32_t bits) const noexcept {
  if (size_ == 0) return {nullptr, 0};
  for (Slot slot = home(bits); slot.count() != 0; slot = after(slot)) {
    if (slot.key() == key) return slot;
  }
  return {nullptr, 0};
}

Candidates::Slot Candidates::find_stamp(uint32_t stamp, uint32_t bits) const noexcept {
  for (Slot slot = home(bits); slot.count() != 0; slot = after(slot)) {
    if (slot.stamp() == stamp) return slot;
  }
  return {nullptr, 0};
}

bool Candidates::ask(int64_t key, uint64_t hash, uint32_t count, uint32_t now, uint32_t threshold,
                     const Limits& limits, Account& memory, Counters& counters, AdmissionLog& steps,
                     Renumbering* cuts) {
  make_place(cuts);
  const uint32_t bits = home_bits(hash);
  const Slot slot = find(key, bits);
  reserve_steps(steps, 2);
  if (slot.is_none()) {
    if (!make_room(limits, memory, counters, steps, cuts)) return false;  // over budget
    insert(key, bits, count, now);
    steps.push_back({key, 0, 0, 0, count, turn_, AdmissionStep::kNew});
    return false;
  }
  const bool is_stale =
      limits.ttl_seconds != 0 && now > slot.time() && now - slot.time() >= limits.ttl_seconds;
  const uint32_t seen = is_stale ? 0 : slot.count();
  const bool is_admitted = seen >= threshold;
  steps.push_back({key, slot.count(), slot.time(), slot.stamp(), count, turn_,
                   is_admitted ? AdmissionStep::kAdmitted : AdmissionStep::kSeen});
  if (is_admitted) {
    remove(slot);
    return true;
  }
  slot.count() = add_saturated(seen, count);
  slot.time() = std::max(slot.time(), now);
  see(slot, bits);
  return false;
}

bool Candidates::put(const CandidateRow& row, uint64_t hash, const Limits& limits, Account& memory,
                     Counters& counters, AdmissionLog& steps, Renumbering* cuts) {
  make_place(cuts);
  const uint32_t bits = home_bits(hash);
  const Slot slot = find(row.key, bits);
  reserve_steps(steps, 2);
  if (!slot.is_none()) {
    steps.push_back(
        {row.key, slot.count(), slot.time(), slot.stamp(), row.count, turn_, AdmissionStep::kSeen});
    slot.count() = row.count;
    slot.time() = row.time;
    see(slot, bits);
    return true;
  }
  if (!make_room(limits, memory, counters, steps, cuts)) return false;
  insert(row.key, bits, row.count, row.time);
  steps.push_back({row.key, 0, 0, 0, row.count, turn_, AdmissionStep::kNew});
  return true;
}

// Room for one more. False: the budget allows none.
bool Candidates::make_room(const Limits& limits, Account& memory, Counters& counters,
                           AdmissionLog& steps, Renumbering* cuts) {
  bool is_full = size_ >= limits.max_candidates;
  if (!is_full && size_ >= grows_at(limits)) is_full = !grow(memory, cuts) && size_ == capacity_;
  if (!is_full) return true;
  if (size_ == 0) return false;
  drop_oldest(steps);
  ++counters.dropped;
  return true;
}

// False: over budget.
bool Candidates::grow(Account& memory, Renumbering* cuts) {
  const uint32_t capacity = std::max(kFirstCapacity, 2 * capacity_);
  const size_t bytes = bytes_for(capacity);
  auto* fresh = static_cast<Line*>(memory.take(bytes));
  if (fresh == nullptr) return false;
  std::memset(static_cast<void*>(fresh), 0, bytes);
  Candidates old;
  old.lines_.store(lines(), std::memory_order_relaxed);
  old.num_lines_.store(num_lines(), std::memory_order_relaxed);
  old.capacity_ = capacity_;
  num_lines_.store(lines_in(bytes, capacity), std::memory_order_relaxed);
  lines_.store(fresh, std::memory_order_relaxed);
  capacity_ = capacity;
  const uint32_t first = front_, last = back_;
  size_ = front_ = back_ = 0;
  ++turn_;
  if (cuts != nullptr) cuts->begin();
  for (uint32_t place = first; place != last; ++place) {
    if (cuts != nullptr) cuts->move(place, back_);
    const uint32_t bits = old.log(place);
    const Slot slot = old.find_stamp(place, bits);
    if (!slot.is_none()) insert(slot.key(), bits, slot.count(), slot.time());
  }
  if (cuts != nullptr) cuts->end(back_);
  if (old.capacity_ != 0) memory.give(old.lines(), bytes_for(old.capacity_));
  return true;
}

// An absent key; there is a free slot, and a place in the log.
Candidates::Slot Candidates::insert(int64_t key, uint32_t bits, uint32_t count,
                                    uint32_t time) noexcept {
  Slot slot = home(bits);
  while (slot.count() != 0) slot = after(slot);
  slot.key() = key;
  slot.count() = count;
  slot.time() = time;
  ++size_;
  see(slot, bits);
  return slot;
}

void Candidates::see(Slot slot, uint32_t bits) noexcept {
  slot.stamp() = back_;
  log(back_++) = bits;
}

// Before a step, so that all its stamps are of one numbering.
void Candidates::make_place(Renumbering* cuts) noexcept {
  if (capacity_ != 0 && back_ - front_ == 2 * capacity_) squeeze(cuts);
}

void Candidates::squeeze(Renumbering* cuts) noexcept {
  uint32_t kept = front_;
  if (cuts != nullptr) cuts->begin();
  for (uint32_t place = front_; place != back_; ++place) {
    if (cuts != nullptr) cuts->move(place, kept);
    if (back_ - place > kAhead) __builtin_prefetch(home(log(place + kAhead)).line, 1);
    const uint32_t bits = log(place);
    const Slot slot = find_stamp(place, bits);
    if (slot.is_none()) continue;
    slot.stamp() = kept;
    log(kept++) = bits;
  }
  if (cuts != nullptr) cuts->end(kept);
  back_ = kept;
  ++turn_;
}

// Later candidates of the same run move up, so that no search ends too early.
void Candidates::remove(Slot slot) noexcept {
  const auto distance = [this](Slot from, Slot to) {
    const uint32_t a = number(from), b = number(to);
    return b >= a ? b - a : b + num_lines() * kSlots - a;
  };
  Slot hole = slot;
  for (Slot next = after(hole); next.count() != 0; next = after(next)) {
    const Slot start = home(home_bits(key_hash(next.key())));
    if (distance(start, next) < distance(hole, next)) continue;  // it would pass its home
    hole.key() = next.key();
    hole.count() = next.count();
    hole.time() = next.time();
    hole.stamp() = next.stamp();
    hole = next;
  }
  hole.count() = 0;
  --size_;
}

void Candidates::drop_oldest(AdmissionLog& steps) noexcept {
  Slot slot{nullptr, 0};
  do {
    slot = find_stamp(front_, log(front_));
    ++front_;
  } while (slot.is_none());
  steps.push_back(
      {slot.key(), slot.count(), slot.time(), slot.stamp(), 0, turn_, AdmissionStep::kDropped});
  remove(slot);
  __builtin_prefetch(home(log(front_)).line, 1);  // the next to go
}

// The candidate's last sighting did not happen.
void Candidates::unsee(Slot slot, uint32_t bits, const AdmissionStep& step) noexcept {
  const bool is_gone = back_ - 1 - step.stamp >= 2 * capacity_;  // the place has another owner
  if (step.turn != turn_ || slot.stamp() != back_ - 1 || is_gone) return;
  --back_;
  slot.stamp() = step.stamp;
  log(step.stamp) = bits;
  if (static_cast<int32_t>(step.stamp - front_) < 0) front_ = step.stamp;
}

void Candidates::undo(const AdmissionStep& step, uint64_t hash, const Limits& limits,
                      Counters& counters, Renumbering* cuts) noexcept {
  const uint32_t bits = home_bits(hash);
  const Slot slot = find(step.key, bits);
  if (step.kind == AdmissionStep::kAdmitted || step.kind == AdmissionStep::kDropped) {
    if (!slot.is_none() || size_ >= std::min(capacity_, limits.max_candidates)) return;
    make_place(cuts);
    unsee(insert(step.key, bits, step.count, step.time), bits, step);
    counters.dropped -= step.kind == AdmissionStep::kDropped;
    return;
  }
  if (slot.is_none()) return;
  if (step.kind == AdmissionStep::kNew && slot.count() == step.added) {
    back_ -= slot.stamp() == back_ - 1;
    remove(slot);
  } else if (step.kind == AdmissionStep::kSeen &&
             (slot.count() == step.added ||
              slot.count() == add_saturated(step.count, step.added))) {
    slot.count() = step.count;
    slot.time() = step.time;
    unsee(slot, bits, step);
  } else {  // other calls counted it too
    slot.count() -= std::min(step.added, slot.count() - 1);
  }
}

void Candidates::append_then(std::vector<CandidateRow>& rows, uint32_t log_end,
                             std::span<const AdmissionStep> since) const {
  std::unordered_set<int64_t> changed;  // and maybe taken back, or changed again
  auto step = since.begin();
  const auto append_until = [&](uint32_t place) {
    for (; step != since.end() && !is_behind(step->stamp, place); ++step) {
      if (changed.insert(step->key).second) rows.push_back({step->key, step->count, step->time});
    }
  };
  for (uint32_t place = front_; is_behind(log_end, place); ++place) {
    append_until(place);
    if (is_behind(back_, place + kAhead)) __builtin_prefetch(home(log(place + kAhead)).line);
    const Slot slot = find_stamp(place, log(place));
    if (slot.is_none() || (!since.empty() && changed.contains(slot.key()))) continue;
    rows.push_back({slot.key(), slot.count(), slot.time()});
  }
  append_until(log_end);
}

void Candidates::release(Account& memory) noexcept {
  if (capacity_ == 0) return;
  memory.give(lines(), bytes_for(capacity_));
  lines_.store(nullptr, std::memory_order_relaxed);
  num_lines_.store(0, std::memory_order_relaxed);
  capacity_ = size_ = front_ = back_ = 0;
  ++turn_;
}

}  // namespace monolith
