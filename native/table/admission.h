// Admission: whether a missing key gets a row. The definition of each rule is
// src/monolith/table/reference/candidates.py.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "table/account.h"
#include "table/bin.h"
#include "table/candidates.h"
#include "table/cut.h"
#include "table/filter_ring.h"
#include "table/slots.h"

namespace monolith {

enum class AdmissionKind { kNone, kMinCount, kSlidingFilter, kProbabilistic };

struct AdmissionSpec {
  AdmissionKind kind = AdmissionKind::kNone;
  uint32_t threshold = 0;
  SlotValues slots;
  uint64_t max_bytes = 0;    // kMinCount
  uint32_t ttl_seconds = 0;  // kMinCount; 0: none
  uint64_t capacity = 0;     // kSlidingFilter, of all partitions
  uint32_t split_num = 0;    // kSlidingFilter
  bool is_equal = false;     // kProbabilistic
};

// Thread-safe. What is remembered is kept per partition of the key space (the top 12 bits of the
// hash), each with its own lock; partitions are allocated 64 at a time when they are first asked.
class Admission {
  struct Partition;

 public:
  static constexpr uint32_t kPartitions = 4096;

  // cuts: of the table; open ones are given each step.
  Admission(Memory& memory, const Cuts& cuts, const AdmissionSpec& spec, uint64_t seed,
            uint64_t salt);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Whether the key has to ask.
  bool has_rule(int64_t key) const noexcept { return thresholds_.of(key) > 0; }

  // The right to ask about some partitions, for one thread: other questions about them wait, so
  // that an answer and what follows from it (a row) are one step for them.
  class Turn {
   public:
    explicit Turn(Admission& admission) noexcept : admission_(admission) {}
    ~Turn() { end(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Covers the hash, and what shares its first `bits` bits where that is not much: then a batch
    // that is grouped by these bits locks once for many keys. Throws OutOfMemory.
    void cover(uint64_t hash, uint32_t bits);
    void end() noexcept;
    // Whether all hashes that share their first `bits` bits are covered at once.
    static bool covers_all(uint32_t bits) noexcept { return bits + kGroupBits >= 12; }
    bool covers(uint64_t hash) const noexcept {
      return admission_.kind_ == AdmissionKind::kProbabilistic ||
             partition_of(hash) - first_number_ < count_;
    }
    // Fetches what ask() will read; where the turn covers the hash, the ends of its log too. A
    // little later, and only where it covers the hash: the candidate.
    void prefetch(uint64_t hash) noexcept;
    void prefetch_found(uint64_t hash) const noexcept;

   private:
    friend Admission;
    Admission& admission_;
    Partition* first_ = nullptr;  // null: nothing is remembered
    uint32_t count_ = 0;
    uint32_t first_number_ = 0;
    uint32_t fetched_ = kPartitions;  // partition of the last prefetch()
  };

  struct Question {
    int64_t key;
    uint64_t hash;
    uint32_t count;  // occurrences in the call
    uint32_t now;
    uint64_t call;  // number of the call: random answers depend on it
  };
  // Only keys that have a rule, and that the turn covers. Throws OutOfMemory before any change.
  bool ask(Turn& turn, const Question& question, AdmissionLog& log);
  // Takes the steps of a failed call back, the last one first.
  void undo(const AdmissionLog& log) noexcept;

  // Columns of an export, row by row: the number of columns is num_columns().
  uint32_t num_columns() const noexcept;
  // cut: as of an open cut; null: as it is.
  std::vector<int64_t> export_rows(std::span<const uint32_t> partitions, Cut* cut = nullptr);
  // Rows for which the budget has no room count as dropped. Throws OutOfMemory before any change,
  // or after taking it back.
  void import_rows(const int64_t* values, size_t n);
  // As of the table's rows.
  void restart_generations() noexcept;
  // Forgets everything; the caller keeps questions out.
  void clear() noexcept;

  size_t bytes() const noexcept { return sizeof(*this) + memory_.bytes(); }
  // Keys that wait (or counters in use), candidates dropped, and filters that had no counter.
  struct Facts {
    uint64_t candidates = 0, dropped = 0, overflows = 0;
  };
  Facts facts() const noexcept;

 private:
  static constexpr uint32_t kGroupBits = 6;

  struct Partition {
    Lock lock;
    Candidates candidates;
    FilterRing ring;
    Candidates::Counters counters;
    uint32_t generation = 0;  // in which cuts were last told that it changes
  };
  struct Group {
    Partition partitions[1u << kGroupBits];
  };

  static uint32_t partition_of(uint64_t hash) noexcept { return static_cast<uint32_t>(hash >> 52); }
  void prefetch(uint64_t hash) const noexcept;
  // Null if nothing is remembered of the partition.
  Partition* find_partition(uint32_t number) const noexcept;
  // Null: over budget. Throws OutOfMemory.
  Partition* make_partition(uint32_t number);
  // What is remembered of a locked partition, as it was at the cut; null: as it is.
  struct Remembered {
    std::vector<CandidateRow> candidates;
    std::vector<FilterRow> cells;
  };
  void collect(uint32_t number, const Partition& partition, Cut* cut, Remembered& found) const;
  // change(who remembers places of the log) of a locked partition, whose steps open cuts keep.
  template <typename Change>
  bool keeping(uint32_t number, Partition& partition, AdmissionLog& log, const Change& change);
  void begin_keeping(uint32_t number, Partition& partition);
  void undo(Partition& partition, const AdmissionStep& step, Renumbering* cuts) noexcept;
  bool roll(const Question& question) const noexcept;
  // False: over budget.
  bool import_row(const int64_t* values, AdmissionLog& log);

  const AdmissionKind kind_;
  const SlotRule thresholds_;
  const Candidates::Limits limits_;
  const FilterRing::Shape shape_;
  const bool is_equal_;
  const uint64_t seed_;
  const uint64_t salt_;
  const Cuts& cuts_;
  Account memory_;
  Candidates::Counters cleared_;           // of partitions that clear() freed
  std::atomic<uint64_t> num_left_out_{0};  // of imports
  std::mutex mutex_;                       // of allocating groups
  std::atomic<Group*> groups_[kPartitions >> kGroupBits] = {};
};

}  // namespace monolith
