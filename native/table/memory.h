// Allocates the memory of one table: counted, limited, and on huge pages where that pays.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include "table/page_heap.h"

namespace monolith {

// Names the bytes that were requested and held; reaches Python as MemoryError.
class OutOfMemory : public std::bad_alloc {
 public:
  OutOfMemory(size_t asked_bytes, size_t held_bytes);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Means that the budget of the table allows no more, although the machine has memory.
class OverBudget : public std::bad_alloc {};

// Thread-safe. Blocks are aligned to 64 bytes. Blocks of whole pages come from the PageHeap. Blocks
// of at least 2 MiB are mapped separately, aligned to 2 MiB, and request huge pages.
class Memory {
 public:
  explicit Memory(size_t budget_bytes = SIZE_MAX, size_t used_bytes = 0)
      : used_bytes_(used_bytes), budget_bytes_(budget_bytes) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Returns a block whose contents are undefined below 2 MiB. Throws OutOfMemory.
  void* allocate(size_t bytes);
  void free(void* block, size_t bytes) noexcept;

  size_t held_bytes() const noexcept { return held_bytes_.load(std::memory_order_relaxed); }
  // Makes allocations beyond the limit fail. Memory that is held stays.
  void set_limit(size_t bytes) noexcept { limit_bytes_.store(bytes, std::memory_order_relaxed); }

  // Adds to the bytes that the table reports as used. Returns false, and changes nothing, if they
  // would exceed the budget of the table.
  bool try_use(size_t bytes) noexcept;
  bool has_budget() const noexcept { return budget_bytes_ != SIZE_MAX; }
  void unuse(size_t bytes) noexcept { used_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<size_t> held_bytes_{0};
  std::atomic<size_t> limit_bytes_{SIZE_MAX};
  std::atomic<size_t> used_bytes_;
  const size_t budget_bytes_;
};

}  // namespace monolith
