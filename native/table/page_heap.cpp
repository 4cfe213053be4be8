#include "table/page_heap.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace monolith {

size_t PageHeap::Slab::find_run(size_t pages) noexcept {
  if (pages > most_run) return kPages;
  size_t run = 0;
  for (size_t page = 0; page < kPages; ++page) {
    if (used[page / 64] == UINT64_MAX) {  // all pages of the word are in use
      run = 0;
      page |= 63;
      continue;
    }
    run = (used[page / 64] >> (page % 64)) & 1 ? 0 : run + 1;
    if (run == pages) return page + 1 - pages;
  }
  most_run = pages - 1;
  return kPages;
}

void PageHeap::Slab::mark(size_t first, size_t pages, bool is_used) noexcept {
  for (size_t page = first; page < first + pages; ++page) {
    const uint64_t bit = uint64_t{1} << (page % 64);
    used[page / 64] = is_used ? used[page / 64] | bit : used[page / 64] & ~bit;
  }
  num_free = is_used ? num_free - pages : num_free + pages;
  if (!is_used) most_run = kPages;
}

// Never destroyed, because tables may outlive static objects. A child of fork gets the heap
// unlocked.
PageHeap& PageHeap::shared() noexcept {
  static PageHeap* const heap = [] {
    auto* heap = new PageHeap;
    pthread_atfork([] { shared().mutex_.lock(); }, [] { shared().mutex_.unlock(); },
                   [] { shared().mutex_.unlock(); });
    return heap;
  }();
  return *heap;
}

size_t PageHeap::held_bytes() noexcept {
  const std::lock_guard lock(mutex_);
  return slabs_.size() * kHugeBytes;
}

// mmap has no alignment argument: map more, cut off both ends.
void* PageHeap::map(size_t bytes) noexcept {
  const size_t wanted = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const size_t mapped = wanted + kHugeBytes;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t start = (address + kHugeBytes - 1) / kHugeBytes * kHugeBytes;
  const uintptr_t end = start + wanted;
  if (start > address) munmap(raw, start - address);
  if (address + mapped > end) munmap(reinterpret_cast<void*>(end), address + mapped - end);
  void* block = reinterpret_cast<void*>(start);
#ifdef MADV_HUGEPAGE
  madvise(block, wanted, MADV_HUGEPAGE);  // a hint; small pages work too
#endif
  return block;
}

void PageHeap::unmap(void* block, size_t bytes) noexcept {
  munmap(block, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
}

void* PageHeap::allocate(size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (small_bytes_ + bytes > kSlabFrom) {
    try {
      return allocate_in_slab(bytes / kPageBytes);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  void* block = std::aligned_alloc(64, bytes);
  if (block != nullptr) small_bytes_ += bytes;
  return block;
}

void* PageHeap::allocate_in_slab(size_t pages) {
  // Oldest first, so that the newest may become empty: the system maps downwards.
  for (auto slab = slabs_.rbegin(); slab != slabs_.rend(); ++slab) {
    const size_t first = slab->find_run(pages);
    if (first == kPages) continue;
    slab->mark(first, pages, true);
    return slab->base + first * kPageBytes;
  }
  if (slabs_.size() == slabs_.capacity()) slabs_.reserve(2 * slabs_.size() + 1);
  Slab slab{static_cast<char*>(map(kHugeBytes))};
  if (slab.base == nullptr) return nullptr;
  slab.mark(0, pages, true);
  const auto at = std::upper_bound(slabs_.begin(), slabs_.end(), slab.base,
                                   [](char* base, const Slab& s) { return base < s.base; });
  slabs_.insert(at, slab);
  return slab.base;
}

void PageHeap::free(void* block, size_t bytes) noexcept {
  auto* address = static_cast<char*>(block);
  const std::lock_guard lock(mutex_);
  auto after = std::upper_bound(slabs_.begin(), slabs_.end(), address,
                                [](char* at, const Slab& slab) { return at < slab.base; });
  if (after == slabs_.begin() || address >= (after - 1)->base + kHugeBytes) {
    small_bytes_ -= bytes;
    return std::free(block);
  }
  Slab& slab = *(after - 1);
  slab.mark(static_cast<size_t>(address - slab.base) / kPageBytes, bytes / kPageBytes, false);
  if (slab.num_free == kPages) {
    unmap(slab.base, kHugeBytes);
    slabs_.erase(after - 1);
  }
}

}  // namespace monolith
