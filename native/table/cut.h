// Cuts: the table at one moment, kept while writers go on.
//
// Every row carries the generation of the table in which it was last noted (Meta). A cut starts a
// new generation. A call that is about to change a row of an older one first gives the cuts opened
// since then a copy, and notes the row. So a cut reads a row from the table while its generation is
// older than the cut, and from the copies afterwards; a newer row without a copy was not there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "table/arena.h"
#include "table/bin.h"
#include "table/candidates.h"

namespace monolith {

// Thread-safe.
class Cut {
 public:
  static constexpr uint32_t kPartitions = 4096;
  static uint32_t partition_of(uint64_t hash) noexcept { return static_cast<uint32_t>(hash >> 52); }

  // What the table counted at the cut.
  struct Facts {
    uint64_t num_rows;
    uint64_t num_update_calls;
    uint64_t num_recorded;  // events of the record
    uint32_t latest_time;
  };

  Cut(Memory& memory, size_t row_bytes);
  ~Cut();
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  // Once, before anybody else has it.
  void begin(uint32_t generation, const Facts& facts) noexcept {
    generation_ = generation;
    facts_ = facts;
  }
  uint32_t generation() const noexcept { return generation_; }
  const Facts& facts() const noexcept { return facts_; }

  // Keeps a copy of the row, unless its partition was released. Throws OutOfMemory.
  void keep(int64_t key, uint64_t hash, uint32_t time, const char* row);
  // Fetches what keep() and keep_step() will need of a partition.
  void prefetch(uint32_t partition) const noexcept {
    if (Group* group = find_group(partition)) fetch_line(group->shard(partition));
  }
  // The kept rows with first <= hash <= last, ascending by hash.
  struct KeptRow {
    uint64_t hash;
    int64_t key;
    uint32_t time;
    size_t row;  // where in the collected bytes
  };
  void collect(uint64_t first, uint64_t last, std::vector<KeptRow>& kept_rows,
               std::vector<char>& rows);

  // Of what admission remembers in a partition a cut keeps the steps that changed it since. Under
  // the lock of that partition; keeping throws OutOfMemory.
  //
  // Before the first step: how many candidates there are, and where their log ends.
  void begin_steps(uint32_t partition, uint32_t num_candidates, uint32_t log_end);
  // A step that was just taken, unless what it changed is newer than the cut.
  void keep_step(uint32_t partition, const AdmissionStep& step);
  struct Steps {
    uint32_t log_end;  // in today's numbering of the log, like the stamps
    std::vector<AdmissionStep> since;
  };
  Steps steps(uint32_t partition);

  // Nobody will read the partition's rows and candidates any more: nothing more is kept of them.
  // Memory of rows is freed when that is said of all partitions of their group.
  void release(uint32_t partition) noexcept;
  // Of what is kept and of the lists of it, without the groups that hold them.
  size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class CutPlaces;
  struct Record {  // the row follows it
    int64_t key;
    uint64_t time;
  };
  template <typename T>
  struct Array {  // in memory of the table
    T* data = nullptr;
    uint32_t size = 0, capacity = 0;
  };
  struct alignas(64) Shard {  // of a partition
    Array<const char*> rows;  // where their records are
    Lock lock;                // of the steps
    uint32_t num_steps = 0;   // ever kept: each has its number in `added`
    Array<AdmissionStep> steps;
    uint32_t num_candidates = 0;
    uint32_t log_end = 0;  // changes under the partition's lock only
    std::span<AdmissionStep> all_steps() noexcept { return {steps.data, steps.size}; }
  };
  // Records of rows lie one after the other, in blocks that neighbouring partitions share: what was
  // written last is in the cache, and what will be written next can be fetched.
  struct Block {
    Block* next;
    size_t bytes;  // with this header; records follow
  };
  // Made when the first of its partitions keeps something.
  static constexpr uint32_t kGroupBits = 4;
  struct Group {
    Lock lock;  // of all that is about rows
    Block* blocks = nullptr;
    char* next_record = nullptr;
    char* end = nullptr;  // of the newest block, which is the first of `blocks`
    Shard shards[1u << kGroupBits];

    Shard* shard(uint32_t partition) noexcept {
      return shards + (partition & ((1u << kGroupBits) - 1));
    }
  };
  Group* find_group(uint32_t partition) const noexcept {
    return groups_[partition >> kGroupBits].load(std::memory_order_acquire);
  }
  Shard* find_shard(uint32_t partition) const noexcept {
    Group* group = find_group(partition);
    return group == nullptr ? nullptr : group->shard(partition);
  }
  Group& make_group(uint32_t partition);
  void add_block(Group& group);
  void free_blocks(Group& group) noexcept;
  // Under the lock of what is kept: release() takes it after it has said so.
  bool is_released(uint32_t partition) const noexcept {
    return released_[partition >> 6].load() >> (partition & 63) & 1;
  }
  bool are_all_released(uint32_t group) const noexcept {
    constexpr uint64_t kAll = (uint64_t{1} << (1u << kGroupBits)) - 1;
    const uint32_t first = group << kGroupBits;
    return (released_[first >> 6].load() >> (first & 63) & kAll) == kAll;
  }
  template <typename T>
  void grow(Array<T>& array);
  template <typename T>
  void free(Array<T>& array) noexcept;

  Memory& memory_;
  const size_t row_bytes_;
  const size_t record_bytes_;
  uint32_t generation_ = 0;
  Facts facts_{};
  std::atomic<size_t> bytes_{0};
  std::atomic<Group*> groups_[kPartitions >> kGroupBits] = {};
  std::atomic<uint64_t> released_[kPartitions / 64] = {};  // a bit per partition
};

// The open cuts of a table. Changed only by a call that has the table for itself; the others read.
class Cuts {
 public:
  static constexpr size_t kMost = 4;

  explicit Cuts(uint32_t first_generation) : generation_(first_generation) { open_.reserve(kMost); }

  uint32_t generation() const noexcept { return generation_; }
  // Generation of the newest open cut; 0: none is open.
  uint32_t newest() const noexcept { return newest_; }
  const std::vector<std::shared_ptr<Cut>>& open() const noexcept { return open_; }

  bool is_last_generation() const noexcept { return generation_ == Meta::kLastGeneration; }
  void next_generation() noexcept { ++generation_; }
  void restart_generations() noexcept { generation_ = 0; }
  void add(std::shared_ptr<Cut> cut) noexcept;
  void remove(const Cut& cut) noexcept;

 private:
  uint32_t generation_;
  uint32_t newest_ = 0;
  std::vector<std::shared_ptr<Cut>> open_;
};

// The places of a partition's log that open cuts remember.
class CutPlaces final : public Renumbering {
 public:
  CutPlaces(const Cuts& cuts, uint32_t partition) noexcept : cuts_(cuts), partition_(partition) {}

  void begin() noexcept override;
  void move(uint32_t old_place, uint32_t new_place) noexcept override;
  void end(uint32_t new_place) noexcept override;

 private:
  struct ShardCursor {
    Cut::Shard* shard;
    uint32_t next;  // step that has its old stamp yet
    uint32_t new_end;
    bool has_end;
  };
  const Cuts& cuts_;
  const uint32_t partition_;
  ShardCursor cursors_[Cuts::kMost];
  size_t num_cursors_ = 0;
};

}  // namespace monolith
