// The candidates of one partition: keys that wait for admission, with their counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "table/account.h"
#include "table/hash.h"

namespace monolith {

// One step of admission that a call may have to take back. Of a filter: a cell was written, a cell
// was forgotten, the head moved, a key found no cell.
struct AdmissionStep {
  enum Kind : uint32_t { kNew, kSeen, kAdmitted, kDropped, kCell, kForgotten, kHead, kOverflow };
  int64_t key;  // of a filter: a hash of the partition
  // Before the step. A filter's cell: value, split, cell. Its head: split, moves (low, high word).
  uint32_t count, time, stamp;
  uint32_t added;  // to the count
  uint32_t turn;   // of the partition's order; of a filter: moves of the head, after kHead
  Kind kind;

  bool is_of_filter() const noexcept { return kind >= kCell; }
};
using AdmissionLog = std::vector<AdmissionStep>;

// Whether a place of the log comes after another one; numbers wrap around.
inline bool is_behind(uint32_t place, uint32_t other) noexcept {
  return static_cast<int32_t>(place - other) > 0;
}

// Room for so many more steps, so that noting them cannot fail. Throws std::bad_alloc.
inline void reserve_steps(AdmissionLog& log, size_t num_steps) {
  if (log.capacity() - log.size() < num_steps) log.reserve(4 * log.size() + 256 + num_steps);
}

// Told how the places of a partition's log are numbered anew, by those who remember some.
class Renumbering {
 public:
  virtual void begin() noexcept = 0;
  // What lay at the old place, or before it and behind the last one named, lies at the new place
  // now, or goes before it. Ascending.
  virtual void move(uint32_t old_place, uint32_t new_place) noexcept = 0;
  // The same for what lies behind the last old place.
  virtual void end(uint32_t new_place) noexcept = 0;

 protected:
  ~Renumbering() = default;
};

struct CandidateRow {
  int64_t key;
  uint32_t count, time;
};

// A log of sightings, which holds the candidates in the order in which they were last seen, and an
// index of their places in it. The log is a ring; a candidate that is seen again moves to its end
// and leaves a void place, and when the ring is full the void places are squeezed out.
//
//   block   | log: key, count, time of each place | buckets: 15 entries and a mark |
//
// An entry is a place of the log and some bits of the key's hash. It is a hint that the record at
// the place confirms, and it ends when its place leaves the log. So the oldest candidate goes
// without a look at the index: a new key takes one random line of memory, and neighbours in the
// log.
//
// The caller locks the partition; prefetch() needs no lock. The block is taken from the account
// that each call names; release() gives it back.
class Candidates {
 public:
  // Before the first question. salt: of the table, see place_of. number: of the partition. Each
  // grows at a fill of its own between a half and all, or one call would pay for all of them.
  void set_up(uint64_t salt, uint32_t number) noexcept {
    salt_ = salt;
    early_ = static_cast<uint8_t>(key_hash(number));
  }

  struct Limits {
    uint32_t max_candidates;
    uint32_t ttl_seconds;  // 0: none
  };
  struct Counters {
    uint64_t dropped = 0, overflows = 0;
  };

  // Whether the key was seen threshold times before, in which case it leaves; else it is counted.
  // Throws OutOfMemory before any change.
  bool ask(int64_t key, uint64_t hash, uint32_t count, uint32_t now, uint32_t threshold,
           const Limits& limits, Account& memory, Counters& counters, AdmissionLog& steps,
           Renumbering* cuts = nullptr);
  // Takes the step back; steps are taken back in reverse order. Exact, unless other calls came
  // between: then what this one had added is subtracted, and a candidate that it made go comes back
  // if there is room. The order is kept unless the log was squeezed, grew or went round since,
  // which a call with many new keys does by itself.
  void undo(const AdmissionStep& step, uint64_t hash, const Limits& limits, Counters& counters,
            Renumbering* cuts = nullptr) noexcept;
  // Sets a candidate, as the last one seen. False: the budget allows none. Throws OutOfMemory
  // before any change.
  bool put(const CandidateRow& row, uint64_t hash, const Limits& limits, Account& memory,
           Counters& counters, AdmissionLog& steps, Renumbering* cuts = nullptr);

  // Least recently seen first.
  void append_to(std::vector<CandidateRow>& rows) const { append_then(rows, back_, {}); }
  // As they were when the log ended at log_end; since: the steps since then that changed an older
  // candidate, in the order of their stamps.
  void append_then(std::vector<CandidateRow>& rows, uint32_t log_end,
                   std::span<const AdmissionStep> since) const;
  uint32_t log_end() const noexcept { return back_; }
  void prefetch(uint64_t hash) const noexcept;
  // The same under the lock: both ends of the log; and, a little after the first, the candidate.
  void prefetch_ends() const noexcept;
  void prefetch_found(uint64_t hash) const noexcept;
  void free(Account& memory) noexcept;
  uint32_t size() const noexcept { return size_; }

 private:
  // The mark is the place of a record that is not older than any that went on to the next bucket
  // because this one was full: a search ends where it has left the log. 0: free, or no mark.
  struct alignas(64) Bucket {
    static constexpr uint32_t kSlots = 15;
    uint32_t words[kSlots + 1];
    uint32_t& mark() noexcept { return words[kSlots]; }
    bool has(const uint32_t* entry) const noexcept {
      return static_cast<size_t>(entry - words) < kSlots;
    }
    // Bit s: is(entry s). Takes several entries at once: all bits of an element are set, or none.
    template <typename Is>
    uint32_t match(const Is& is) const noexcept;
    template <typename Is>
    void clear(const Is& is) noexcept;
  };
  static_assert(sizeof(Bucket) == 64);

  uint32_t home_bits(uint64_t hash) const noexcept { return place_of(hash, salt_); }
  static size_t bytes_for(uint32_t capacity) noexcept;

  Bucket* buckets() const noexcept { return buckets_.load(std::memory_order_relaxed); }
  uint32_t num_buckets() const noexcept { return num_buckets_.load(std::memory_order_relaxed); }
  Bucket* home(uint32_t bits) const noexcept {
    return buckets() + ((uint64_t{bits} * num_buckets()) >> 32);
  }
  Bucket* after(Bucket* bucket) const noexcept {
    return bucket + 1 == buckets() + num_buckets() ? buckets() : bucket + 1;
  }

  uint32_t num_places() const noexcept { return 2 * capacity_; }
  // A place, or an entry that has one. Count 0: void.
  CandidateRow& record(uint32_t place) const noexcept {
    auto* log = reinterpret_cast<CandidateRow*>(buckets()) - num_places();
    return log[place & (num_places() - 1)];
  }
  // Not 0, and apart from the bits that choose the bucket.
  uint32_t entry_of(uint32_t bits, uint32_t place) const noexcept {
    return (bits * 2 + 1) * num_places() + (place & (num_places() - 1));
  }
  uint32_t place_of_entry(uint32_t entry) const noexcept {
    return front_ + ((entry - front_) & (num_places() - 1));
  }
  bool is_in_log(uint32_t entry) const noexcept {
    return entry != 0 && place_of_entry(entry) - front_ < back_ - front_;
  }

  uint32_t matches(const Bucket& bucket, uint32_t bits) const noexcept;
  auto is_free() const noexcept;
  uint32_t* find(int64_t key, uint32_t bits) const noexcept;
  bool make_room(const Limits& limits, Account& memory, Counters& counters, AdmissionLog& steps,
                 Renumbering* cuts);
  uint32_t grows_at(const Limits& limits) const noexcept {
    if (capacity_ >= limits.max_candidates) return capacity_;
    return capacity_ - static_cast<uint32_t>(uint64_t{capacity_} * early_ / 512);
  }
  bool grow(Account& memory, Renumbering* cuts);
  void make_place(Renumbering* cuts) noexcept;
  void squeeze(Renumbering* cuts) noexcept;
  void index_all() noexcept;
  void index(uint32_t bits, uint32_t place) noexcept;
  void mark_path(uint32_t bits, const uint32_t* entry) noexcept;
  void insert(int64_t key, uint32_t bits, uint32_t count, uint32_t time) noexcept;
  void see(uint32_t* entry, uint32_t bits, uint32_t count, uint32_t time) noexcept;
  bool has_left(const AdmissionStep& step) const noexcept;
  void put_back(const CandidateRow& row, uint32_t place) noexcept;
  void remove(uint32_t* entry) noexcept;
  void drop_oldest(AdmissionLog& steps) noexcept;

  uint64_t salt_ = 1;
  uint8_t early_ = 0;  // of 512 parts of the capacity
  std::atomic<Bucket*> buckets_{nullptr};
  std::atomic<uint32_t> num_buckets_{0};
  uint32_t capacity_ = 0;  // candidates, a power of two; the log has twice as many places
  uint32_t size_ = 0;
  uint32_t front_ = 0, back_ = 0;  // places of the log in use: [front_, back_), modulo 2^32
  uint32_t turn_ = 0;              // number of renumberings
};

}  // namespace monolith
