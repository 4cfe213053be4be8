// The candidates of one partition: keys that wait for admission, with their counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "table/memory.h"

namespace monolith {

// One step of admission that a call may have to take back.
struct AdmissionStep {
  enum Kind : uint32_t { kNew, kSeen, kAdmitted, kDropped, kCell };
  int64_t key;
  uint32_t count, time, stamp;  // before the step; kCell: value, split, cell
  uint32_t added;               // to the count
  uint32_t turn;                // of the partition's order; kCell: of its head
  Kind kind;
};
using AdmissionLog = std::vector<AdmissionStep>;

struct CandidateRow {
  int64_t key;
  uint32_t count, time;
};

// An open-addressed array, and a log of sightings that keeps the order: each candidate knows the
// place of its last sighting in the log, older places are void. So a sighting touches the candidate
// alone, where a linked list would touch its neighbours too. The log is a ring; when it is full the
// void places are squeezed out.
//
// The caller locks the partition; prefetch() needs no lock. Memory is borrowed by the owner's
// `Memory` at each call; release() gives it back.
class Candidates {
 public:
  struct Limits {
    uint32_t max_candidates;
    uint32_t ttl_seconds;  // 0: none
  };
  struct Counters {
    std::atomic<uint64_t> dropped{0}, candidates{0}, overflows{0};
  };

  // Whether the key was seen threshold times before, in which case it leaves; else it is counted.
  // Throws OutOfMemory before any change.
  bool ask(int64_t key, uint64_t hash, uint32_t count, uint32_t now, uint32_t threshold,
           const Limits& limits, Account& memory, Counters& counters, AdmissionLog& log);
  // Takes the step back; steps are taken back in reverse order. Exact, unless other calls came
  // between: then what this one had added is subtracted. The order is kept unless the log was
  // squeezed or grew since.
  void undo(const AdmissionStep& step, uint64_t hash, Counters& counters) noexcept;
  // Sets a candidate, as the last one seen.
  void put(const CandidateRow& row, uint64_t hash, const Limits& limits, Account& memory,
           Counters& counters);

  // Least recently seen first.
  void append_to(std::vector<CandidateRow>& rows) const;
  void prefetch(uint64_t hash) const noexcept;
  void release(Account& memory, Counters& counters) noexcept;

 private:
  // 20 bytes: alignment to 8 would waste 4.
  struct Candidate {
    uint32_t key_words[2];
    uint32_t count;  // 0: free
    uint32_t time;
    uint32_t stamp;  // place in the log, modulo 2^32
    int64_t key() const noexcept;
    void set_key(int64_t key) noexcept;
  };

  static constexpr uint32_t kNone = UINT32_MAX;
  static uint32_t home_bits(uint64_t hash) noexcept { return static_cast<uint32_t>(hash >> 20); }
  static size_t bytes_for(uint32_t capacity) noexcept;

  uint32_t num_slots() const noexcept { return slots_for(capacity_); }
  static uint32_t slots_for(uint32_t capacity) noexcept { return capacity + capacity / 4 + 1; }
  uint32_t home(uint32_t bits) const noexcept {
    return static_cast<uint32_t>((uint64_t{bits} * num_slots()) >> 32);
  }
  uint32_t after(uint32_t slot) const noexcept { return slot + 1 == num_slots() ? 0 : slot + 1; }
  Candidate* slots() const noexcept { return slots_.load(std::memory_order_relaxed); }
  uint32_t& log(uint32_t place) const noexcept;

  uint32_t find(int64_t key, uint32_t bits) const noexcept;
  uint32_t find_stamp(uint32_t stamp, uint32_t bits) const noexcept;
  bool make_room(const Limits& limits, Account& memory, Counters& counters, AdmissionLog* log);
  bool grow(Account& memory);
  uint32_t insert(int64_t key, uint32_t bits, uint32_t count, uint32_t time) noexcept;
  void see(uint32_t slot, uint32_t bits) noexcept;
  void unsee(uint32_t slot, uint32_t bits, const AdmissionStep& step) noexcept;
  void squeeze() noexcept;
  void remove(uint32_t slot) noexcept;
  void drop_oldest(AdmissionLog* log) noexcept;

  std::atomic<Candidate*> slots_{nullptr};  // the log follows the slots in memory
  std::atomic<uint32_t> capacity_{0};       // a power of two; the log has twice as many places
  uint32_t size_ = 0;
  uint32_t front_ = 0, back_ = 0;  // places of the log in use: [front_, back_), modulo 2^32
  uint32_t turn_ = 0;              // number of squeezes
};

}  // namespace monolith
