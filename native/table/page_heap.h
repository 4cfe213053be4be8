// Blocks of whole pages, shared by all tables of the process: compact, and on huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace monolith {

inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kHugeBytes = size_t{2} << 20;

// Index arrays and chunks of rows of many sizes come and go while tables grow. They are cut out of
// slabs of 2 MiB by a bitmap of pages, so freed neighbours merge by themselves, and small tables
// share huge pages with each other. Until there is 1 MiB of blocks, they come from the ordinary
// heap. Thread-safe, also beside a fork.
class PageHeap {
 public:
  static PageHeap& shared() noexcept;

  // Whether blocks of this size come from here.
  static bool has(size_t bytes) noexcept {
    return bytes % kPageBytes == 0 && bytes > 0 && bytes < kHugeBytes;
  }
  // Contents are undefined. Null: the system has no more memory.
  void* allocate(size_t bytes) noexcept;
  void free(void* block, size_t bytes) noexcept;

  // Bytes of all slabs.
  size_t held_bytes() noexcept;

  // Memory of its own, aligned to 2 MiB and asked to be huge pages; null as above.
  static void* map(size_t bytes) noexcept;
  static void unmap(void* block, size_t bytes) noexcept;

 private:
  static constexpr size_t kPages = kHugeBytes / kPageBytes;
  static constexpr size_t kSlabFrom = size_t{1} << 20;  // bytes of blocks before slabs are used

  struct Slab {
    char* base;
    size_t num_free = kPages;
    size_t most_run = kPages;  // no free run is longer
    uint64_t used[kPages / 64] = {};
    // First page of a free run, or kPages: then the next search for as many is short.
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
