// A table in several shards of one process: a call is split by shard, and its rows stay where they
// are.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "table/table.h"

namespace monolith {

// The tables are borrowed and outlive it; they have one config. Every table takes part in every
// update, also without keys, so that their update calls have equal numbers.
class Shards {
 public:
  // owners: shard of each partition, (4096,), a partition being the top 12 bits of a key's hash;
  // empty: the shard is the floor remainder of the key.
  Shards(std::vector<Table*> tables, std::vector<uint16_t> owners)
      : tables_(std::move(tables)), owners_(std::move(owners)) {}

  // As of one table.
  void lookup(const int64_t* keys, size_t n, float* out, bool initial, const float* scales,
              unsigned threads) const;
  // Of tables with NonFinite::kRefuse.
  AppliedCounts apply_gradients(const int64_t* keys, size_t n, const float* grads,
                                const Table::StepOptions& options, uint32_t now, unsigned threads);

 private:
  struct Part {
    Table* table;
    size_t first, n;  // of its keys in the split
    Part piece(size_t at, size_t count) const { return {table, first + at, count}; }
  };
  // The keys of a call shard after shard, each shard's in their order.
  struct Split {
    std::unique_ptr<int64_t[]> keys;
    std::unique_ptr<uint32_t[]> places;  // of each key in the call
    std::vector<Part> parts;             // one per shard
  };
  uint32_t shard_of(int64_t key) const noexcept;
  Split split(const int64_t* keys, size_t n, unsigned threads) const;

  const std::vector<Table*> tables_;
  const std::vector<uint16_t> owners_;
};

}  // namespace monolith
