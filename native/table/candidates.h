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

// An open-addressed array, and a log of sightings that keeps the order: each candidate knows the
// place of its last sighting in the log, older places are void. So a sighting touches the candidate
// alone, where a linked list would touch its neighbours too. The log is a ring; when it is full the
// void places are squeezed out.
//
//   block   | lines of three slots: key, count, time, stamp | log: hash bits of the key |
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
  // if there is room. The order is kept unless the log was squeezed, grew or went round since.
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
  void release(Account& memory) noexcept;
  uint32_t size() const noexcept { return size_; }

 private:
  static constexpr uint32_t kSlots = 3;
  struct alignas(64) Line {
    int64_t keys[kSlots];
    uint32_t counts[kSlots];  // 0: free
    uint32_t times[kSlots];
    uint32_t stamps[kSlots];  // place of the last sighting in the log, modulo 2^32
  };
  static_assert(sizeof(Line) == 64);
  struct Slot {
    Line* line;
    uint32_t at;
    bool is_none() const noexcept { return line == nullptr; }
    int64_t& key() const noexcept { return line->keys[at]; }
    uint32_t& count() const noexcept { return line->counts[at]; }
    uint32_t& time() const noexcept { return line->times[at]; }
    uint32_t& stamp() const noexcept { return line->stamps[at]; }
  };

  uint32_t home_bits(uint64_t hash) const noexcept { return place_of(hash, salt_); }
  static size_t bytes_for(uint32_t capacity) noexcept;
  static uint32_t lines_in(size_t bytes, uint32_t capacity) noexcept;

  Line* lines() const noexcept { return lines_.load(std::memory_order_relaxed); }
  uint32_t num_lines() const noexcept { return num_lines_.load(std::memory_order_relaxed); }
  uint32_t& log(uint32_t place) const noexcept {
    return reinterpret_cast<uint32_t*>(lines() + num_lines())[place & (2 * capacity_ - 1)];
  }
  Slot home(uint32_t bits) const noexcept {
    return {lines() + ((uint64_t{bits} * num_lines()) >> 32), 0};
  }
  Slot after(Slot slot) const noexcept {
    if (slot.at + 1 < kSlots) return {slot.line, slot.at + 1};
    return {slot.line + 1 == lines() + num_lines() ? lines() : slot.line + 1, 0};
  }
  uint32_t number(Slot slot) const noexcept {
    return static_cast<uint32_t>(slot.line - lines()) * kSlots + slot.at;
  }

  Slot find(int64_t key, uint32_t bits) const noexcept;
  Slot find_stamp(uint32_t stamp, uint32_t bits) const noexcept;
  bool make_room(const Limits& limits, Account& memory, Counters& counters, AdmissionLog& steps,
                 Renumbering* cuts);
  uint32_t grows_at(const Limits& limits) const noexcept {
    if (capacity_ >= limits.max_candidates) return capacity_;
    return capacity_ - static_cast<uint32_t>(uint64_t{capacity_} * early_ / 512);
  }
  bool grow(Account& memory, Renumbering* cuts);
  void make_place(Renumbering* cuts) noexcept;
  Slot insert(int64_t key, uint32_t bits, uint32_t count, uint32_t time) noexcept;
  void see(Slot slot, uint32_t bits) noexcept;
  void unsee(Slot slot, uint32_t bits, const AdmissionStep& step) noexcept;
  void squeeze(Renumbering* cuts) noexcept;
  void remove(Slot slot) noexcept;
  void drop_oldest(AdmissionLog& steps) noexcept;

  uint64_t salt_ = 1;
  uint8_t early_ = 0;  // of 512 parts of the capacity
  std::atomic<Line*> lines_{nullptr};
  std::atomic<uint32_t> num_lines_{0};
  uint32_t capacity_ = 0;  // candidates, a power of two; the log has twice as many places
  uint32_t size_ = 0;
  uint32_t front_ = 0, back_ = 0;  // places of the log in use: [front_, back_), modulo 2^32
  uint32_t turn_ = 0;              // number of squeezes
};

}  // namespace monolith
