// Allocates blocks of whole pages for all tables of the process, compactly and on huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace monolith {

inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kHugeBytes = size_t{2} << 20;

// Tables allocate and free index arrays and chunks of rows of many sizes while they grow. Blocks
// are cut out of slabs of 2 MiB by a bitmap of pages, so freed neighbours merge without further
// work, and small tables share huge pages. The first 1 MiB of blocks comes from the ordinary heap.
// Thread-safe, also during a fork.
class PageHeap {
 public:
  static PageHeap& shared() noexcept;

  // Whether this heap allocates blocks of this size.
  static bool has(size_t bytes) noexcept {
    return bytes % kPageBytes == 0 && bytes > 0 && bytes < kHugeBytes;
  }
  // Returns a block with undefined contents, or null if the system has no more memory.
  void* allocate(size_t bytes) noexcept;
  void free(void* block, size_t bytes) noexcept;

  // Total size of all slabs.
  size_t held_bytes() noexcept;

  // Maps memory outside the slabs, aligned to 2 MiB, and asks for huge pages. Returns null if the
  // system has no more memory.
  static void* map(size_t bytes) noexcept;
  static void unmap(void* block, size_t bytes) noexcept;

 private:
  static constexpr size_t kPages = kHugeBytes / kPageBytes;
  static constexpr size_t kSlabFrom = size_t{1} << 20;  // bytes of ordinary blocks before slabs

  struct Slab {
    char* base;
    size_t num_free = kPages;
    size_t most_run = kPages;  // upper bound of the length of a free run
    uint64_t used[kPages / 64] = {};
    // Returns the first page of a free run, or kPages. After a failure `most_run` ends equal
    // searches at once.
    size_t find_run(size_t pages) noexcept;
    void mark(size_t first, size_t pages, bool is_used) noexcept;
  };

  PageHeap() = default;
  void* allocate_in_slab(size_t pages);

  std::mutex mutex_;
  size_t small_bytes_ = 0;
  std::vector<Slab> slabs_;  // ascending by base
};

}  // namespace monolith
