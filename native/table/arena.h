// Allocates the rows of a table in chunks that never move, with a free list for erased rows.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "ops/fetch.h"
#include "table/epochs.h"
#include "table/memory.h"

namespace monolith {

// Metadata of a row. It is stored apart from weights and state, so that a lookup of 16 weights
// touches one cache line. Written under the lock of the bin; read under that lock or between two
// reads of the version of the line.
struct Meta {
  uint32_t time;       // last update in seconds; in a free row: the next free row
  uint32_t marks = 0;  // use count, kHeld, generation

  static constexpr uint32_t kUses = 0xFF;     // number of writing calls; saturates and is aged
  static constexpr uint32_t kHeld = 1u << 8;  // a running call will write the row: do not evict
  // Generation of the table in which the row was last noted; changes under the lock of the bin.
  static constexpr uint32_t kGenerationBits = 23;
  static constexpr uint32_t kLastGeneration = (1u << kGenerationBits) - 1;
  static constexpr uint32_t generation(uint32_t marks) noexcept { return marks >> 9; }
  static constexpr uint32_t noted(uint32_t marks, uint32_t generation) noexcept {
    return (marks & (kUses | kHeld)) | generation << 9;
  }

  // Returns the marks after a writing call.
  static constexpr uint32_t used(uint32_t marks) noexcept {
    marks &= ~kHeld;
    return (marks & kUses) == kUses ? marks : marks + 1;
  }
};

// A row number is (chunk << 18) | index. Chunks start at one page and double, up to 256 Ki rows or
// 256 MiB. Row addresses stay valid until clear(); afterwards row() returns null or another row.
// Thread-safe, except where a method says otherwise.
class Arena {
 public:
  static constexpr uint32_t kIndexBits = 18;

  // The top bit of a row number is kReserved; the last chunk is left out because of kNoRow.
  static constexpr uint32_t kMaxChunks = (1u << (31 - kIndexBits)) - 1;

  // `row_bytes` is a multiple of 8. Tests pass a smaller `most_chunks`.
  Arena(Memory& memory, Epochs& epochs, size_t row_bytes, uint32_t most_chunks = kMaxChunks);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* row(uint32_t number) const noexcept {
    char* rows = chunk(number).rows.load(std::memory_order_acquire);
    return rows == nullptr ? nullptr : rows + size_t{number & kIndexMask} * row_bytes_;
  }
  // Returns null after clear(), like row(); never null under the lock of the bin of the row.
  Meta* meta(uint32_t number) const noexcept {
    Meta* meta = chunk(number).meta.load(std::memory_order_acquire);
    return meta == nullptr ? nullptr : meta + (number & kIndexMask);
  }

  // Returns both addresses without a check. The caller knows that the table was not cleared since
  // the number was read.
  struct Place {
    char* row;
    Meta* meta;
  };
  Place place(uint32_t number) const noexcept {
    const Chunk& at = chunk(number);
    const uint32_t index = number & kIndexMask;
    return {at.rows.load(std::memory_order_acquire) + size_t{index} * row_bytes_,
            at.meta.load(std::memory_order_acquire) + index};
  }

  size_t row_bytes() const noexcept { return row_bytes_; }
  // Bytes of all rows that were ever allocated, including rows that are free now.
  size_t bytes() const noexcept {
    return num_rows_.load(std::memory_order_relaxed) * (row_bytes_ + sizeof(Meta));
  }

  // Allocates up to `n` rows, freed rows first, and returns their count: 0 if the budget allows
  // none. Throws OutOfMemory and allocates none.
  size_t allocate(uint32_t* numbers, size_t n);
  void free(const uint32_t* numbers, size_t n) noexcept;

  // Sets every row's generation to 0. The caller excludes writers.
  void restart_generations() noexcept;

  // Frees every chunk once no reader uses it. The caller excludes writers, and has reserved
  // num_retired_by_clear() retirements in Epochs.
  size_t num_retired_by_clear() const noexcept { return size_t{2} * num_chunks_; }
  void clear() noexcept;

 private:
  static constexpr uint32_t kIndexMask = (1u << kIndexBits) - 1;
  struct Chunk {
    std::atomic<char*> rows{nullptr};
    std::atomic<Meta*> meta{nullptr};
  };
  const Chunk& chunk(uint32_t number) const noexcept {
    return chunks_.load(std::memory_order_acquire)[number >> kIndexBits];
  }
  // If a row has two lines and lookups need only the first, a processor fetches the second as well
  // when both lie in one aligned pair. So the rows of large chunks begin one line later, and the
  // last place stays empty (docs/design/0016-rows-begin-at-odd-lines.md).
  uint32_t num_places(uint32_t chunk_number) const noexcept;
  size_t shift(uint32_t chunk_number) const noexcept;  // of the first row, in bytes
  uint32_t capacity(uint32_t chunk_number) const noexcept {
    return num_places(chunk_number) - (shift(chunk_number) > 0);
  }
  void add_chunk();
  void grow_directory();
  static void free_block(void* owner, void* block, size_t bytes);

  Memory& memory_;
  Epochs& epochs_;
  const size_t row_bytes_;
  const uint32_t first_rows_;
  const uint32_t max_rows_;
  const uint32_t most_chunks_;
  std::atomic<Chunk*> chunks_{nullptr};

  std::mutex mutex_;
  std::atomic<size_t> num_rows_{0};  // ever allocated, in all chunks
  uint32_t max_chunks_ = 0;          // length of chunks_
  uint32_t num_chunks_ = 0;          // allocated
  uint32_t num_used_ = 0;            // rows ever allocated in the last chunk
  uint32_t free_ = UINT32_MAX;
};

}  // namespace monolith
