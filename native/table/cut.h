// Cuts keep the table of one moment while writers continue.
//
// Every row carries the generation of the table in which the row was last noted (Meta). A cut
// starts a new generation. Before a call changes a row of an older generation, it copies the row
// into every cut that was opened since, and notes the row. So a cut reads a row from the table
// while the generation of the row is older than the cut, and from its copies afterwards; a newer
// row without a copy did not exist at the cut.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "table/arena.h"
#include "table/bin.h"
#include "table/candidates.h"
#include "table/touched_log.h"

namespace monolith {

// Thread-safe. Owns its copies; borrows the memory and the touched log of the table.
class Cut {
 public:
  static constexpr uint32_t kPartitions = 4096;
  static uint32_t partition_of(uint64_t hash) noexcept { return static_cast<uint32_t>(hash >> 52); }

  // Counters of the table at the cut.
  struct Facts {
    uint64_t num_rows;
    uint64_t num_update_calls;
    uint64_t num_recorded;  // events of the recorder
    uint32_t latest_time;
  };

  Cut(Memory& memory, size_t row_bytes);
  ~Cut();
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  // Call begin() once, before other threads use the cut, and read_log() if the cut has a cursor.
  void begin(uint32_t generation, const Facts& facts) noexcept {
    generation_ = generation;
    facts_ = facts;
  }
  void read_log(TouchedLog& log, const std::string& cursor) { read_.emplace(log, cursor); }
  uint32_t generation() const noexcept { return generation_; }
  const Facts& facts() const noexcept { return facts_; }
  // Copies the keys that changed since the cursor's previous read. Returns false if every key may
  // have changed, if the cut has no cursor, and after end_read().
  bool copy_changes(std::vector<int64_t>& keys);
  // Lets the log drop the notes that copy_changes() reads.
  void release_changes() noexcept;
  // Ends the read of the log; the cursor is left behind unless `is_read`.
  void end_read(bool is_read) noexcept;

  // Stores a copy of the row, unless its partition was released. Throws OutOfMemory.
  void keep(int64_t key, uint64_t hash, uint32_t time, const char* row);
  // Prefetches the memory of a partition that keep() and keep_step() will access.
  void prefetch(uint32_t partition) const noexcept {
    if (Group* group = find_group(partition)) fetch_line(group->shard(partition));
  }
  // Collects the kept rows with first <= hash <= last, ascending by hash. `rows` receives their
  // bytes.
  struct KeptRow {
    uint64_t hash;
    int64_t key;
    uint32_t time;
    size_t row;  // offset in the collected bytes
  };
  void collect(uint64_t first, uint64_t last, std::vector<KeptRow>& kept_rows,
               std::vector<char>& rows);
  // Finds the kept rows of some keys, which ascend by hash and may repeat. Appends to `found_rows`
  // each key that has a row; `rows`, if not null, receives their bytes.
  struct WantedKey {
    uint64_t hash;
    size_t index;
  };
  struct FoundRow {
    size_t index;
    uint32_t time;
    size_t row;  // offset in the bytes
  };
  void find(std::span<const WantedKey> keys, std::vector<FoundRow>& found_rows,
            std::vector<char>* rows);

  // A cut stores the admission steps that changed the candidates and filters of a partition since
  // the cut. Call these methods under the lock of that partition of Admission; begin_steps() and
  // keep_step() throw OutOfMemory.
  //
  // Call begin_steps() before the first step, with the number of candidates and the end of their
  // log.
  void begin_steps(uint32_t partition, uint32_t num_candidates, uint32_t log_end);
  // Stores a step that was just made, unless the candidate that it changed is newer than the cut.
  void keep_step(uint32_t partition, const AdmissionStep& step);
  struct Steps {
    uint32_t log_end;  // in the current numbering of the log, like the stamps
    std::vector<AdmissionStep> since;
  };
  Steps steps(uint32_t partition);

  // Declares that no thread will read the rows and candidates of the partition any more; the cut
  // then stores no more of them. The memory of rows is freed when all partitions of their group are
  // released.
  void release(uint32_t partition) noexcept;
  // Bytes of the copies and their lists, without the groups.
  size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class CutPlaces;
  using Time = uint64_t;  // header of a record: a copied row
  struct Kept {
    int64_t key;
    const char* record;
  };
  template <typename T>
  struct Array {  // allocated from the memory of the table
    T* data = nullptr;
    uint32_t size = 0, capacity = 0;
  };
  struct alignas(64) Shard {  // of a partition
    Array<Kept> rows;
    Lock lock;               // guards the steps
    uint32_t num_steps = 0;  // number of steps ever kept; each step has its number in `added`
    Array<AdmissionStep> steps;
    uint32_t num_candidates = 0;
    uint32_t log_end = 0;  // changes only under the lock of the partition
    std::span<const Kept> all_rows() const noexcept { return {rows.data, rows.size}; }
    std::span<AdmissionStep> all_steps() noexcept { return {steps.data, steps.size}; }
  };
  // Records of rows are contiguous, in blocks that neighbouring partitions share: the last record
  // is in the cache, and the place of the next record can be prefetched.
  struct Block {
    Block* next;
    size_t bytes;  // size with this header; the records follow
  };
  // Allocated when the first of its partitions stores a row or a step.
  static constexpr uint32_t kGroupBits = 4;
  struct Group {
    Lock lock;  // guards blocks and rows
    Block* blocks = nullptr;
    char* next_record = nullptr;
    char* end = nullptr;  // end of the newest block, which is the first of `blocks`
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
  class Buckets;
  template <typename Row>
  void copy_records(const std::vector<const char*>& records, std::span<Row> rows,
                    std::vector<char>& bytes) const;
  Group& make_group(uint32_t partition);
  void add_block(Group& group);
  void free_blocks(Group& group) noexcept;
  // Call under the lock of the rows or steps: release() sets the bit before it takes that lock.
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
  std::mutex read_mutex_;
  std::optional<TouchedLog::Read> read_;  // of the cursor of the cut
  std::atomic<size_t> bytes_{0};
  std::atomic<Group*> groups_[kPartitions >> kGroupBits] = {};
  std::atomic<uint64_t> released_[kPartitions / 64] = {};  // one bit per partition
};

// The open cuts of a table. Calls that hold Gate::Exclusive change them; calls that hold
// Gate::Shared only read them.
class Cuts {
 public:
  static constexpr size_t kMost = 4;

  explicit Cuts(uint32_t first_generation) : generation_(first_generation) { open_.reserve(kMost); }

  uint32_t generation() const noexcept { return generation_; }
  // Generation of the newest open cut, or 0 if no cut is open.
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

// Updates the places of a partition's log that open cuts hold, when the log is renumbered.
class CutPlaces final : public Renumbering {
 public:
  CutPlaces(const Cuts& cuts, uint32_t partition) noexcept : cuts_(cuts), partition_(partition) {}

  void begin() noexcept override;
  void move(uint32_t old_place, uint32_t new_place) noexcept override;
  void end(uint32_t new_place) noexcept override;

 private:
  struct ShardCursor {
    Cut::Shard* shard;
    uint32_t next;  // first step that still has its old stamp
    uint32_t new_end;
    bool has_end;
  };
  const Cuts& cuts_;
  const uint32_t partition_;
  ShardCursor cursors_[Cuts::kMost];
  size_t num_cursors_ = 0;
};

}  // namespace monolith
