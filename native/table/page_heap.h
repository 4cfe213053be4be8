// Blocks of whole pages for the index of a table: compact, on huge pages once the index is large.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "table/memory.h"

namespace monolith {

// Index arrays of many sizes come and go while a table grows. They are cut out of 2 MiB slabs by a
// bitmap of pages, so freed neighbours merge by themselves; a small table uses the ordinary heap.
// Thread-safe.
class PageHeap {
 public:
  explicit PageHeap(Memory& memory) : memory_(memory) {}
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  // 64-byte aligned, contents undefined. Throws OutOfMemory.
  void* allocate(size_t bytes);
  void release(void* block, size_t bytes) noexcept;

 private:
  static constexpr size_t kPages = kHugeBytes / kPageBytes;
  static constexpr size_t kSlabFrom = size_t{1} << 20;  // bytes of index before slabs are used

  struct Slab {
    char* base;
    size_t num_free = kPages;
    size_t most_run = kPages;  // no free run is longer
    uint64_t used[kPages / 64] = {};
    // First page of a free run, or kPages: then the next search for as many is short.
    size_t find_run(size_t pages) noexcept;
    void mark(size_t first, size_t pages, bool is_used) noexcept;
  };

  void* allocate_in_slab(size_t pages);

  Memory& memory_;
  std::mutex mutex_;
  size_t small_bytes_ = 0;
  std::vector<Slab> slabs_;  // ascending by base
};

}  // namespace monolith
