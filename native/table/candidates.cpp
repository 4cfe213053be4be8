#include "table/candidates.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "ops/fetch.h"

namespace monolith {
namespace {

constexpr uint32_t kFirstCapacity = 4;
constexpr uint32_t kAhead = 8;       // places of the log to prefetch: two cache lines
constexpr uint32_t kBucketKeys = 8;  // at most, in a full log, so that few buckets are full

// Vector extensions of the compiler, which maps them to instructions of every relevant processor.
constexpr uint32_t kAtOnce = 4;
using Words [[gnu::vector_size(4 * kAtOnce)]] = uint32_t;
using Numbers [[gnu::vector_size(4 * kAtOnce)]] = int32_t;
Words load(const uint32_t* words) {
  Words result;
  std::memcpy(&result, words, sizeof(result));
  return result;
}

size_t log_bytes_for(uint32_t capacity) { return size_t{2} * capacity * sizeof(CandidateRow); }

uint32_t add_saturated(uint32_t a, uint32_t b) { return a > UINT32_MAX - b ? UINT32_MAX : a + b; }

}  // namespace

// Adds buckets where that fills whole pages.
size_t Candidates::bytes_for(uint32_t capacity) noexcept {
  const size_t num_buckets = size_t{capacity} / kBucketKeys + 1;
  const size_t bytes = log_bytes_for(capacity) + num_buckets * sizeof(Bucket);
  return bytes < kPageBytes / 2 ? bytes : (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

template <typename Is>
uint32_t Candidates::Bucket::match(const Is& is) const noexcept {
  Words result{};
  for (uint32_t first = 0; first <= kSlots; first += kAtOnce) {
    result |= is(load(words + first)) & (Words{1, 2, 4, 8} << first);
  }
  return (result[0] | result[1] | result[2] | result[3]) & ((1u << kSlots) - 1);
}

// Clears entries, but not the mark.
template <typename Is>
void Candidates::Bucket::clear(const Is& is) noexcept {
  const uint32_t mark = words[kSlots];
  for (uint32_t first = 0; first <= kSlots; first += kAtOnce) {
    const Words four = load(words + first), rest = four & ~is(four);
    std::memcpy(words + first, &rest, sizeof(rest));
  }
  words[kSlots] = mark;
}

void Candidates::prefetch(uint64_t hash) const noexcept {
  // Pointer and size may belong to two arrays: a prefetch of a wrong address is harmless.
  if (buckets() != nullptr) fetch_line(home(home_bits(hash)));
}

void Candidates::prefetch_ends() const noexcept {
  if (capacity_ == 0) return;
  for (const uint32_t place : {front_, back_}) {
    fetch_line(&record(place));
    fetch_line(&record(place + kAhead / 2));
  }
}

void Candidates::prefetch_found(uint64_t hash) const noexcept {
  if (size_ == 0) return;
  const uint32_t bits = home_bits(hash);
  const uint32_t match = matches(*home(bits), bits);
  if (match != 0) fetch_line(&record(home(bits)->words[__builtin_ctz(match)]));
}

// Returns a mask whose bit s is set if entry s may belong to a key with these bits.
uint32_t Candidates::matches(const Bucket& bucket, uint32_t bits) const noexcept {
  const uint32_t wanted = entry_of(bits, 0), mask = ~(num_places() - 1);
  return bucket.match([=](Words entries) { return Words((entries & mask) == wanted); });
}

// Returns a predicate: whether entries are free, or their places have left the log, which is not
// empty.
auto Candidates::is_free() const noexcept {
  const auto last = static_cast<int32_t>(back_ - 1 - front_);
  return [front = front_, mask = num_places() - 1, last](Words entries) {
    return Words(entries == 0) | Words(Numbers((entries - front) & mask) > last);
  };
}

// Returns null if there is no entry.
uint32_t* Candidates::find(int64_t key, uint32_t bits) const noexcept {
  if (size_ == 0) return nullptr;
  Bucket* bucket = home(bits);
  do {
    for (uint32_t match = matches(*bucket, bits); match != 0; match &= match - 1) {
      uint32_t* entry = bucket->words + __builtin_ctz(match);
      const CandidateRow& row = record(*entry);
      if (row.key == key && row.count != 0 && is_in_log(*entry)) return entry;
    }
    if (!is_in_log(bucket->mark())) {
      bucket->mark() = 0;  // or the mark would be valid again when its place is reused
      return nullptr;
    }
    bucket = after(bucket);
  } while (bucket != home(bits));
  return nullptr;
}

bool Candidates::ask(int64_t key, uint64_t hash, uint32_t count, uint32_t now, uint32_t threshold,
                     const Limits& limits, Account& memory, Counters& counters, AdmissionLog& steps,
                     Renumbering* cuts) {
  make_place(cuts);
  const uint32_t bits = home_bits(hash);
  uint32_t* const entry = find(key, bits);
  reserve_steps(steps, 2);
  if (entry == nullptr) {
    if (!make_room(limits, memory, counters, steps, cuts)) return false;  // over budget
    insert(key, bits, count, now);
    steps.push_back({key, 0, 0, 0, count, turn_, AdmissionStep::kNew});
    return false;
  }
  const CandidateRow row = record(*entry);
  const bool is_stale =
      limits.ttl_seconds != 0 && now > row.time && now - row.time >= limits.ttl_seconds;
  const uint32_t seen = is_stale ? 0 : row.count;
  const bool is_admitted = seen >= threshold;
  steps.push_back({key, row.count, row.time, place_of_entry(*entry), count, turn_,
                   is_admitted ? AdmissionStep::kAdmitted : AdmissionStep::kSeen});
  if (is_admitted) {
    remove(entry);
    return true;
  }
  see(entry, bits, add_saturated(seen, count), std::max(row.time, now));
  return false;
}

bool Candidates::put(const CandidateRow& row, uint64_t hash, const Limits& limits, Account& memory,
                     Counters& counters, AdmissionLog& steps, Renumbering* cuts) {
  make_place(cuts);
  const uint32_t bits = home_bits(hash);
  uint32_t* const entry = find(row.key, bits);
  reserve_steps(steps, 2);
  if (entry != nullptr) {
    const CandidateRow& old = record(*entry);
    steps.push_back({row.key, old.count, old.time, place_of_entry(*entry), row.count, turn_,
                     AdmissionStep::kSeen});
    see(entry, bits, row.count, row.time);
    return true;
  }
  if (!make_room(limits, memory, counters, steps, cuts)) return false;
  insert(row.key, bits, row.count, row.time);
  steps.push_back({row.key, 0, 0, 0, row.count, turn_, AdmissionStep::kNew});
  return true;
}

// Makes room for one more candidate. Returns false if the budget allows none.
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

// Returns false if the budget does not allow it.
bool Candidates::grow(Account& memory, Renumbering* cuts) {
  const uint32_t capacity = std::max(kFirstCapacity, 2 * capacity_);
  const size_t bytes = bytes_for(capacity), log_bytes = log_bytes_for(capacity);
  auto* fresh = static_cast<char*>(memory.allocate(bytes));
  if (fresh == nullptr) return false;
  std::memset(fresh, 0, bytes);
  Candidates old;
  old.buckets_.store(buckets(), std::memory_order_relaxed);
  old.capacity_ = capacity_;
  num_buckets_.store(static_cast<uint32_t>((bytes - log_bytes) / sizeof(Bucket)),
                     std::memory_order_relaxed);
  buckets_.store(reinterpret_cast<Bucket*>(fresh + log_bytes), std::memory_order_relaxed);
  capacity_ = capacity;
  const uint32_t first = front_, last = back_;
  front_ = back_ = 0;
  ++turn_;
  if (cuts != nullptr) cuts->begin();
  for (uint32_t place = first; place != last; ++place) {
    if (cuts != nullptr) cuts->move(place, back_);
    if (old.record(place).count != 0) record(back_++) = old.record(place);
  }
  if (cuts != nullptr) cuts->end(back_);
  index_all();
  if (old.capacity_ != 0) memory.free(&old.record(0), bytes_for(old.capacity_));
  return true;
}

// Frees a place of the log before a step, so that all stamps of the step use one numbering.
void Candidates::make_place(Renumbering* cuts) noexcept {
  if (capacity_ != 0 && back_ - front_ == num_places()) squeeze(cuts);
}

void Candidates::squeeze(Renumbering* cuts) noexcept {
  uint32_t new_place = front_;
  if (cuts != nullptr) cuts->begin();
  for (uint32_t place = front_; place != back_; ++place) {
    if (cuts != nullptr) cuts->move(place, new_place);
    if (record(place).count != 0) record(new_place++) = record(place);
  }
  if (cuts != nullptr) cuts->end(new_place);
  back_ = new_place;
  ++turn_;
  index_all();
}

void Candidates::index_all() noexcept {
  std::memset(static_cast<void*>(buckets()), 0, num_buckets() * sizeof(Bucket));
  for (uint32_t place = front_; place != back_; ++place) {
    const CandidateRow& row = record(place);
    if (row.count != 0) index(home_bits(key_hash(row.key)), place);
  }
}

// Adds an entry for the record at a place of the log. Clears expired entries: an expired entry
// whose place is reused would not look free.
void Candidates::index(uint32_t bits, uint32_t place) noexcept {
  Bucket* bucket = home(bits);
  do {
    const uint32_t free = bucket->match(is_free());
    if (free != 0) {
      bucket->clear(is_free());
      uint32_t* entry = bucket->words + __builtin_ctz(free);
      *entry = entry_of(bits, place);
      return mark_path(bits, entry);
    }
    bucket = after(bucket);
  } while (bucket != home(bits));
  index_all();  // some entries are free now, because there are fewer candidates than entries
}

// The newest place of the log is at least as new as the place of the entry.
void Candidates::mark_path(uint32_t bits, const uint32_t* entry) noexcept {
  for (Bucket* bucket = home(bits); !bucket->has(entry); bucket = after(bucket)) {
    bucket->mark() = entry_of(0, back_ - 1);
  }
}

// Inserts an absent key. There is room, and a free place in the log.
void Candidates::insert(int64_t key, uint32_t bits, uint32_t count, uint32_t time) noexcept {
  record(back_) = {key, count, time};
  fetch_line(&record(back_ + kAhead));
  ++size_;
  ++back_;
  index(bits, back_ - 1);
}

void Candidates::see(uint32_t* entry, uint32_t bits, uint32_t count, uint32_t time) noexcept {
  CandidateRow& row = record(*entry);
  record(back_) = {row.key, count, time};
  row.count = 0;
  *entry = entry_of(bits, back_++);
  mark_path(bits, entry);
}

void Candidates::remove(uint32_t* entry) noexcept {
  record(*entry).count = 0;
  *entry = 0;
  --size_;
}

// The entry of the candidate expires with its place.
void Candidates::drop_oldest(AdmissionLog& steps) noexcept {
  while (record(front_).count == 0) ++front_;
  CandidateRow& row = record(front_);
  steps.push_back({row.key, row.count, row.time, front_, 0, turn_, AdmissionStep::kDropped});
  row.count = 0;
  ++front_;
  --size_;
  fetch_line(&record(front_ + kAhead));
}

// Whether the place of the log that the step vacated may be used again.
bool Candidates::has_left(const AdmissionStep& step) const noexcept {
  const bool is_gone = back_ - step.stamp > num_places();  // the place has another owner
  return step.turn == turn_ && !is_gone && record(step.stamp).count == 0;
}

// Restores a record at a place that has_left(): undoes the last sighting of a candidate, or its
// removal.
void Candidates::put_back(const CandidateRow& row, uint32_t place) noexcept {
  record(place) = row;
  if (is_behind(front_, place)) front_ = place;
}

void Candidates::undo(const AdmissionStep& step, uint64_t hash, const Limits& limits,
                      Counters& counters, Renumbering* cuts) noexcept {
  const uint32_t bits = home_bits(hash);
  uint32_t* const entry = find(step.key, bits);
  if (step.kind == AdmissionStep::kAdmitted || step.kind == AdmissionStep::kDropped) {
    if (entry != nullptr || size_ >= std::min(capacity_, limits.max_candidates)) return;
    counters.dropped -= step.kind == AdmissionStep::kDropped;
    if (has_left(step)) {
      put_back({step.key, step.count, step.time}, step.stamp);
      ++size_;
      index(bits, step.stamp);
    } else {
      make_place(cuts);
      insert(step.key, bits, step.count, step.time);
    }
    return;
  }
  if (entry == nullptr) return;
  CandidateRow& row = record(*entry);
  if (step.kind == AdmissionStep::kNew && row.count == step.added) {
    remove(entry);
  } else if (step.kind == AdmissionStep::kSeen &&
             (row.count == step.added || row.count == add_saturated(step.count, step.added))) {
    row.count = step.count;
    row.time = step.time;
    if (!has_left(step)) return;
    put_back(row, step.stamp);
    row.count = 0;
    *entry = entry_of(bits, step.stamp);
  } else {  // other calls counted the key too
    row.count -= std::min(step.added, row.count - 1);
  }
}

void Candidates::append_then(std::vector<CandidateRow>& rows, uint32_t log_end,
                             std::span<const AdmissionStep> since) const {
  std::unordered_set<int64_t> changed;  // later undone or changed again, possibly
  auto step = since.begin();
  const auto append_until = [&](uint32_t place) {
    for (; step != since.end() && !is_behind(step->stamp, place); ++step) {
      if (changed.insert(step->key).second) rows.push_back({step->key, step->count, step->time});
    }
  };
  for (uint32_t place = front_; is_behind(log_end, place); ++place) {
    append_until(place);
    const CandidateRow& row = record(place);
    if (row.count == 0 || (!since.empty() && changed.contains(row.key))) continue;
    rows.push_back(row);
  }
  append_until(log_end);
}

void Candidates::free(Account& memory) noexcept {
  if (capacity_ == 0) return;
  memory.free(&record(0), bytes_for(capacity_));
  buckets_.store(nullptr, std::memory_order_relaxed);
  num_buckets_.store(0, std::memory_order_relaxed);
  capacity_ = size_ = front_ = back_ = 0;
  ++turn_;
}

}  // namespace monolith
