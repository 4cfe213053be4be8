// Stores the candidates of one partition: keys that wait for admission, with their counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "table/account.h"
#include "table/hash.h"

namespace monolith {

// One step of admission, which a failed call undoes. Steps of a filter: a cell was written (kCell),
// a cell was forgotten, the head moved, a key got no cell (kOverflow).
struct AdmissionStep {
  enum Kind : uint32_t { kNew, kSeen, kAdmitted, kDropped, kCell, kForgotten, kHead, kOverflow };
  int64_t key;  // in steps of a filter: a hash of the partition
  // State before the step. For a cell of a filter: value, split, cell. For its head: split, moves
  // (low, high word).
  uint32_t count, time, stamp;
  uint32_t added;  // to the count
  uint32_t turn;   // renumberings of the log; in steps of a filter: moves of the head, after kHead
  Kind kind;

  bool is_of_filter() const noexcept { return kind >= kCell; }
};
using AdmissionLog = std::vector<AdmissionStep>;

// Whether a place of the log comes after the place `other`; numbers wrap around.
inline bool is_behind(uint32_t place, uint32_t other) noexcept {
  return static_cast<int32_t>(place - other) > 0;
}

// Reserves `num_steps` further steps, so that appending them cannot fail. Throws std::bad_alloc.
inline void reserve_steps(AdmissionLog& log, size_t num_steps) {
  if (log.capacity() - log.size() < num_steps) log.reserve(4 * log.size() + 256 + num_steps);
}

// Callback for holders of places of a log, called when the places of a partition's log are
// renumbered.
class Renumbering {
 public:
  virtual void begin() noexcept = 0;
  // Maps the old places after the previous call, up to and including `old_place`, to `new_place`.
  // Calls come in ascending order.
  virtual void move(uint32_t old_place, uint32_t new_place) noexcept = 0;
  // Maps all places after the last old place to `new_place`.
  virtual void end(uint32_t new_place) noexcept = 0;

 protected:
  ~Renumbering() = default;
};

struct CandidateRow {
  int64_t key;
  uint32_t count, time;
};

// A log that holds the candidates in the order in which they were last seen, and an index of their
// places in the log. The log is a ring: a candidate that is seen again moves to the end and leaves
// a void place, and when the ring is full the void places are squeezed out.
//
//   block   | log: key, count, time of each place | buckets: 15 entries and a mark |
//
// An entry is a place of the log and some bits of the hash of the key. The record at the place
// confirms the entry, and the entry expires when the place leaves the log. So the oldest candidate
// is dropped without an access to the index: a new key costs one random line of memory, and
// neighbouring records in the log.
//
// Not thread-safe: the caller locks the partition, except for prefetch(). Owns one block, allocated
// from the account that each call names, and freed by free().
class Candidates {
 public:
  // Call before the first ask(). `salt` is that of the table (place_of), `number` that of the
  // partition. Each partition grows at a different fill between one half and full, so that one call
  // does not pay for growing all partitions.
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

  // Returns whether the key was seen `threshold` times before; the key then leaves the candidates,
  // otherwise it is counted. Throws OutOfMemory before any change.
  bool ask(int64_t key, uint64_t hash, uint32_t count, uint32_t now, uint32_t threshold,
           const Limits& limits, Account& memory, Counters& counters, AdmissionLog& steps,
           Renumbering* cuts = nullptr);
  // Undoes the step; steps are undone in reverse order. Exact, unless other calls ran since: then
  // the count of this step is subtracted, and a candidate that the step removed returns if there is
  // room. The order is restored unless the log was squeezed, grew or wrapped since, which a call
  // with many new keys does by itself.
  void undo(const AdmissionStep& step, uint64_t hash, const Limits& limits, Counters& counters,
            Renumbering* cuts = nullptr) noexcept;
  // Sets a candidate as the most recently seen one. Returns false if the budget allows no
  // candidate. Throws OutOfMemory before any change.
  bool put(const CandidateRow& row, uint64_t hash, const Limits& limits, Account& memory,
           Counters& counters, AdmissionLog& steps, Renumbering* cuts = nullptr);

  // Appends the candidates, the least recently seen first.
  void append_to(std::vector<CandidateRow>& rows) const { append_then(rows, back_, {}); }
  // Appends the candidates as they were when the log ended at `log_end`. `since` holds the later
  // steps that changed an older candidate, in the order of their stamps.
  void append_then(std::vector<CandidateRow>& rows, uint32_t log_end,
                   std::span<const AdmissionStep> since) const;
  uint32_t log_end() const noexcept { return back_; }
  void prefetch(uint64_t hash) const noexcept;
  // Prefetch both ends of the log; and the candidate, some time after prefetch(). Under the lock of
  // the partition.
  void prefetch_ends() const noexcept;
  void prefetch_found(uint64_t hash) const noexcept;
  void free(Account& memory) noexcept;
  uint32_t size() const noexcept { return size_; }

 private:
  // The mark is the place of a record that is at least as new as every record that overflowed from
  // this bucket into the next one: a search ends at a bucket whose mark has left the log. A word of
  // 0 is a free entry, or no mark.
  struct alignas(64) Bucket {
    static constexpr uint32_t kSlots = 15;
    uint32_t words[kSlots + 1];
    uint32_t& mark() noexcept { return words[kSlots]; }
    bool has(const uint32_t* entry) const noexcept {
      return static_cast<size_t>(entry - words) < kSlots;
    }
    // Returns a mask whose bit s is is(entry s). `is` takes several entries at once, and sets all
    // bits of an element or none.
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
  // Returns the record at a place, or at the place of an entry. A count of 0 means a void place.
  CandidateRow& record(uint32_t place) const noexcept {
    auto* log = reinterpret_cast<CandidateRow*>(buckets()) - num_places();
    return log[place & (num_places() - 1)];
  }
  // Returns the entry of a place: never 0, with hash bits other than those that choose the bucket.
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
  uint8_t early_ = 0;  // how early to grow, in 512ths of the capacity
  std::atomic<Bucket*> buckets_{nullptr};
  std::atomic<uint32_t> num_buckets_{0};
  uint32_t capacity_ = 0;  // in candidates, a power of two; the log has 2 * capacity_ places
  uint32_t size_ = 0;
  uint32_t front_ = 0, back_ = 0;  // places of the log in use: [front_, back_), modulo 2^32
  uint32_t turn_ = 0;              // number of renumberings
};

}  // namespace monolith
