#include "table/candidates.h"

#include <algorithm>
#include <cstring>

#include "table/hash.h"

namespace monolith {
namespace {

constexpr uint32_t kFirstCapacity = 4;

uint32_t add_saturated(uint32_t a, uint32_t b) { return a > UINT32_MAX - b ? UINT32_MAX : a + b; }

}  // namespace

int64_t Candidates::Candidate::key() const noexcept {
  int64_t key;
  std::memcpy(&key, key_words, sizeof(key));
  return key;
}

void Candidates::Candidate::set_key(int64_t key) noexcept {
  std::memcpy(key_words, &key, sizeof(key));
}

size_t Candidates::bytes_for(uint32_t capacity) noexcept {
  return size_t{slots_for(capacity)} * sizeof(Candidate) + size_t{2} * capacity * sizeof(uint32_t);
}

uint32_t& Candidates::log(uint32_t place) const noexcept {
  auto* log = reinterpret_cast<uint32_t*>(slots() + num_slots());
  return log[place & (2 * capacity_.load(std::memory_order_relaxed) - 1)];
}

void Candidates::prefetch(uint64_t hash) const noexcept {
  const Candidate* slots = slots_.load(std::memory_order_relaxed);
  // Pointer and size may be of two arrays: a fetch from elsewhere does no harm.
  if (slots != nullptr) __builtin_prefetch(slots + home(home_bits(hash)), 1);
}

uint32_t Candidates::find(int64_t key, uint32_t bits) const noexcept {
  if (size_ == 0) return kNone;
  for (uint32_t slot = home(bits); slots()[slot].count != 0; slot = after(slot)) {
    if (slots()[slot].key() == key) return slot;
  }
  return kNone;
}

uint32_t Candidates::find_stamp(uint32_t stamp, uint32_t bits) const noexcept {
  for (uint32_t slot = home(bits); slots()[slot].count != 0; slot = after(slot)) {
    if (slots()[slot].stamp == stamp) return slot;
  }
  return kNone;
}

bool Candidates::ask(int64_t key, uint64_t hash, uint32_t count, uint32_t now, uint32_t threshold,
                     const Limits& limits, Account& memory, Counters& counters, AdmissionLog& log) {
  const uint32_t bits = home_bits(hash);
  uint32_t slot = find(key, bits);
  if (log.capacity() < log.size() + 2) log.reserve(2 * log.size() + 64);
  if (slot == kNone) {
    if (!make_room(limits, memory, counters, &log)) return false;  // over budget: not counted
    slot = insert(key, bits, count, now);
    log.push_back({key, 0, 0, 0, count, turn_, AdmissionStep::kNew});
    counters.candidates.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  Candidate& candidate = slots()[slot];
  const bool is_stale =
      limits.ttl_seconds != 0 && now > candidate.time && now - candidate.time >= limits.ttl_seconds;
  const uint32_t seen = is_stale ? 0 : candidate.count;
  const bool is_admitted = seen >= threshold;
  log.push_back({key, candidate.count, candidate.time, candidate.stamp, count, turn_,
                 is_admitted ? AdmissionStep::kAdmitted : AdmissionStep::kSeen});
  if (is_admitted) {
    remove(slot);
    counters.candidates.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }
  candidate.count = add_saturated(seen, count);
  candidate.time = std::max(candidate.time, now);
  see(slot, bits);
  return false;
}

void Candidates::put(const CandidateRow& row, uint64_t hash, const Limits& limits, Account& memory,
                     Counters& counters) {
  const uint32_t bits = home_bits(hash);
  const uint32_t slot = find(row.key, bits);
  if (slot != kNone) {
    slots()[slot].count = row.count;
    slots()[slot].time = row.time;
    see(slot, bits);
  } else if (make_room(limits, memory, counters, nullptr)) {
    insert(row.key, bits, row.count, row.time);
    counters.candidates.fetch_add(1, std::memory_order_relaxed);
  }
}

// Room for one more. False: the budget allows none.
bool Candidates::make_room(const Limits& limits, Account& memory, Counters& counters,
                           AdmissionLog* log) {
  const uint32_t capacity = capacity_.load(std::memory_order_relaxed);
  bool is_full = size_ >= limits.max_candidates;
  if (!is_full && size_ == capacity) is_full = !grow(memory);
  if (!is_full) return true;
  if (size_ == 0) return false;
  drop_oldest(log);
  counters.dropped.fetch_add(1, std::memory_order_relaxed);
  counters.candidates.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

// False: over budget.
bool Candidates::grow(Account& memory) {
  const uint32_t old_capacity = capacity_.load(std::memory_order_relaxed);
  const uint32_t capacity = std::max(kFirstCapacity, 2 * old_capacity);
  const size_t bytes = bytes_for(capacity);
  auto* fresh = static_cast<Candidate*>(memory.take(bytes));
  if (fresh == nullptr) return false;
  Candidates old;
  old.slots_.store(slots(), std::memory_order_relaxed);
  old.capacity_.store(old_capacity, std::memory_order_relaxed);
  std::memset(static_cast<void*>(fresh), 0, bytes);
  slots_.store(fresh, std::memory_order_relaxed);
  capacity_.store(capacity, std::memory_order_relaxed);
  const uint32_t first = front_, last = back_;
  size_ = front_ = back_ = 0;
  ++turn_;
  for (uint32_t place = first; place != last; ++place) {
    const uint32_t bits = old.log(place);
    const uint32_t slot = old.find_stamp(place, bits);
    if (slot == kNone) continue;
    const Candidate& candidate = old.slots()[slot];
    insert(candidate.key(), bits, candidate.count, candidate.time);
  }
  memory.give(old.slots(), bytes_for(old_capacity));
  return true;
}

// An absent key; there is a free slot.
uint32_t Candidates::insert(int64_t key, uint32_t bits, uint32_t count, uint32_t time) noexcept {
  uint32_t slot = home(bits);
  while (slots()[slot].count != 0) slot = after(slot);
  Candidate& candidate = slots()[slot];
  candidate.set_key(key);
  candidate.count = count;
  candidate.time = time;
  ++size_;
  see(slot, bits);
  return slot;
}

void Candidates::see(uint32_t slot, uint32_t bits) noexcept {
  if (back_ - front_ == 2 * capacity_.load(std::memory_order_relaxed)) {
    slots()[slot].stamp = front_ - 1;  // void: the place that it is about to leave
    squeeze();
  }
  slots()[slot].stamp = back_;
  log(back_++) = bits;
}

void Candidates::squeeze() noexcept {
  constexpr uint32_t kAhead = 8;
  uint32_t kept = front_;
  for (uint32_t place = front_; place != back_; ++place) {
    if (back_ - place > kAhead) __builtin_prefetch(slots() + home(log(place + kAhead)));
    const uint32_t bits = log(place);
    const uint32_t slot = find_stamp(place, bits);
    if (slot == kNone) continue;
    slots()[slot].stamp = kept;
    log(kept++) = bits;
  }
  back_ = kept;
  ++turn_;
}

// Later candidates of the same run move up, so that no search ends too early.
void Candidates::remove(uint32_t slot) noexcept {
  const auto distance = [n = num_slots()](uint32_t from, uint32_t to) {
    return to >= from ? to - from : to + n - from;
  };
  uint32_t hole = slot;
  for (uint32_t next = after(hole); slots()[next].count != 0; next = after(next)) {
    const uint32_t start = home(home_bits(key_hash(slots()[next].key())));
    if (distance(start, next) < distance(hole, next)) continue;  // it would pass its home
    slots()[hole] = slots()[next];
    hole = next;
  }
  slots()[hole].count = 0;
  --size_;
}

void Candidates::drop_oldest(AdmissionLog* steps) noexcept {
  uint32_t slot;
  do {
    slot = find_stamp(front_, log(front_));
    ++front_;
  } while (slot == kNone);
  const Candidate& oldest = slots()[slot];
  if (steps != nullptr) {
    steps->push_back(
        {oldest.key(), oldest.count, oldest.time, oldest.stamp, 0, turn_, AdmissionStep::kDropped});
  }
  remove(slot);
  __builtin_prefetch(slots() + home(log(front_)));  // the next to go
}

// The candidate's last sighting did not happen.
void Candidates::unsee(uint32_t slot, uint32_t bits, const AdmissionStep& step) noexcept {
  if (step.turn != turn_ || slots()[slot].stamp != back_ - 1) return;
  --back_;
  slots()[slot].stamp = step.stamp;
  log(step.stamp) = bits;
  if (static_cast<int32_t>(step.stamp - front_) < 0) front_ = step.stamp;
}

void Candidates::undo(const AdmissionStep& step, uint64_t hash, Counters& counters) noexcept {
  const uint32_t bits = home_bits(hash);
  const uint32_t slot = find(step.key, bits);
  if (step.kind == AdmissionStep::kAdmitted || step.kind == AdmissionStep::kDropped) {
    if (slot != kNone || size_ == capacity_.load(std::memory_order_relaxed)) return;
    unsee(insert(step.key, bits, step.count, step.time), bits, step);
    counters.candidates.fetch_add(1, std::memory_order_relaxed);
    counters.dropped.fetch_sub(step.kind == AdmissionStep::kDropped, std::memory_order_relaxed);
    return;
  }
  if (slot == kNone) return;
  Candidate& candidate = slots()[slot];
  if (step.kind == AdmissionStep::kNew && candidate.count == step.added) {
    back_ -= candidate.stamp == back_ - 1;
    remove(slot);
    counters.candidates.fetch_sub(1, std::memory_order_relaxed);
  } else if (step.kind == AdmissionStep::kSeen &&
             (candidate.count == step.added ||
              candidate.count == add_saturated(step.count, step.added))) {
    candidate.count = step.count;
    candidate.time = step.time;
    unsee(slot, bits, step);
  } else {  // other calls counted it too
    candidate.count -= std::min(step.added, candidate.count - 1);
  }
}

void Candidates::append_to(std::vector<CandidateRow>& rows) const {
  for (uint32_t place = front_; place != back_; ++place) {
    const uint32_t slot = find_stamp(place, log(place));
    if (slot == kNone) continue;
    const Candidate& candidate = slots()[slot];
    rows.push_back({candidate.key(), candidate.count, candidate.time});
  }
}

void Candidates::release(Account& memory, Counters& counters) noexcept {
  const uint32_t capacity = capacity_.load(std::memory_order_relaxed);
  if (capacity == 0) return;
  memory.give(slots(), bytes_for(capacity));
  counters.candidates.fetch_sub(size_, std::memory_order_relaxed);
  slots_.store(nullptr, std::memory_order_relaxed);
  capacity_.store(0, std::memory_order_relaxed);
  size_ = front_ = back_ = 0;
  ++turn_;
}

}  // namespace monolith
