// Decides whether a missing key gets a row. src/monolith/table/reference/candidates.py defines each
// rule.
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
  uint32_t ttl_seconds = 0;  // kMinCount; 0 means no expiry
  uint64_t capacity = 0;     // kSlidingFilter; total of all partitions
  uint32_t split_num = 0;    // kSlidingFilter
  bool is_equal = false;     // kProbabilistic
};

// Thread-safe, except where a method says otherwise. Candidates and filters are kept per partition
// of the key space (the top 12 bits of the hash), each with its own lock; partitions are allocated
// 64 at a time at their first question. Borrows the memory and the cuts.
class Admission {
  struct Partition;

 public:
  static constexpr uint32_t kPartitions = 4096;

  // `cuts` are those of the table; open cuts receive each step.
  Admission(Memory& memory, const Cuts& cuts, const AdmissionSpec& spec, uint64_t seed,
            uint64_t salt);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Whether an admission rule applies to the key.
  bool has_rule(int64_t key) const noexcept { return thresholds_.of(key) > 0; }

  // Locks some partitions for the questions of one thread. Questions of other threads about these
  // partitions wait, so that an answer and the row that follows from the answer are one atomic step
  // for them.
  class Turn {
   public:
    explicit Turn(Admission& admission) noexcept : admission_(admission) {}
    ~Turn() { end(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Locks the partition of the hash, and all partitions that share its first `bits` bits if these
    // are few: a batch that is grouped by these bits then locks once for many keys. Throws
    // OutOfMemory.
    void cover(uint64_t hash, uint32_t bits);
    void end() noexcept;
    // Whether cover() covers all hashes that share their first `bits` bits.
    static bool covers_all(uint32_t bits) noexcept { return bits + kGroupBits >= 12; }
    bool covers(uint64_t hash) const noexcept {
      return admission_.kind_ == AdmissionKind::kProbabilistic ||
             partition_of(hash) - first_number_ < count_;
    }
    // prefetch() fetches the memory that ask() will read first, and the ends of the log if the turn
    // covers the hash. prefetch_found() fetches the candidate; call it some time later, and only if
    // the turn covers the hash.
    void prefetch(uint64_t hash) noexcept;
    void prefetch_found(uint64_t hash) const noexcept;

   private:
    friend Admission;
    Admission& admission_;
    Partition* first_ = nullptr;  // null if there is no partition
    uint32_t count_ = 0;
    uint32_t first_number_ = 0;
    uint32_t fetched_ = kPartitions;  // partition of the last prefetch()
  };

  struct Question {
    int64_t key;
    uint64_t hash;
    uint32_t count;  // occurrences in the call
    uint32_t now;
    uint64_t call;  // number of the call, which seeds random answers
  };
  // Returns whether the key gets a row. The key must have a rule and be covered by the turn. Throws
  // OutOfMemory before any change.
  bool ask(Turn& turn, const Question& question, AdmissionLog& log);
  // Undoes the steps of a failed call, the last step first.
  void undo(const AdmissionLog& log) noexcept;

  // Number of columns of an export row.
  uint32_t num_columns() const noexcept;
  // Returns the rows of the partitions, num_columns() numbers each: as of an open `cut`, or the
  // current rows if `cut` is null.
  std::vector<int64_t> export_rows(std::span<const uint32_t> partitions, Cut* cut = nullptr);
  // Adds rows of an export. Rows for which the budget has no room count as dropped. Throws
  // OutOfMemory before any change, or after undoing all changes.
  void import_rows(const int64_t* values, size_t n);
  // Sets the generation of every partition to 0, like Arena::restart_generations().
  void restart_generations() noexcept;
  // Frees all candidates and filters. The caller excludes questions.
  void clear() noexcept;

  size_t bytes() const noexcept { return sizeof(*this) + memory_.bytes(); }
  // Counts of waiting keys (or counters in use), of dropped candidates, and of keys for which a
  // filter had no counter.
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
    uint32_t generation = 0;  // in which open cuts were last notified of a change
  };
  struct Group {
    Partition partitions[1u << kGroupBits];
  };

  static uint32_t partition_of(uint64_t hash) noexcept { return static_cast<uint32_t>(hash >> 52); }
  void prefetch(uint64_t hash) const noexcept;
  // Returns null if the partition is not allocated.
  Partition* find_partition(uint32_t number) const noexcept;
  // Returns null if the budget does not allow it. Throws OutOfMemory.
  Partition* make_partition(uint32_t number);
  // The rows of a locked partition, as of `cut`, or the current rows if `cut` is null.
  struct PartitionRows {
    std::vector<CandidateRow> candidates;
    std::vector<FilterRow> cells;
  };
  void collect(uint32_t number, const Partition& partition, Cut* cut, PartitionRows& rows) const;
  // Calls change(renumbering callback) for a locked partition, and passes the steps of the change
  // to open cuts.
  template <typename Change>
  bool keeping(uint32_t number, Partition& partition, AdmissionLog& log, const Change& change);
  void begin_keeping(uint32_t number, Partition& partition);
  void undo(Partition& partition, const AdmissionStep& step, Renumbering* cuts) noexcept;
  bool roll(const Question& question) const noexcept;
  // Returns false if the budget does not allow it.
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
  Candidates::Counters cleared_;           // counters of partitions that clear() freed
  std::atomic<uint64_t> num_left_out_{0};  // imported rows without room in the budget
  std::mutex mutex_;                       // guards the allocation of groups
  std::atomic<Group*> groups_[kPartitions >> kGroupBits] = {};
};

}  // namespace monolith
