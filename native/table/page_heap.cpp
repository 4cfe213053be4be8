#include "table/page_heap.h"

#include <algorithm>

namespace monolith {

size_t PageHeap::Slab::find_run(size_t pages) noexcept {
  if (pages > most_run) return kPages;
  size_t run = 0;
  for (size_t page = 0; page < kPages; ++page) {
    if (used[page / 64] == UINT64_MAX) {  // whole word taken
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

PageHeap::~PageHeap() {
  for (const Slab& slab : slabs_) memory_.release(slab.base, kHugeBytes);
}

void* PageHeap::allocate(size_t bytes) {
  const size_t pages = bytes / kPageBytes;
  const bool is_whole = bytes % kPageBytes == 0 && pages > 0 && pages < kPages;
  if (is_whole) {
    const std::lock_guard lock(mutex_);
    if (small_bytes_ + bytes > kSlabFrom) return allocate_in_slab(pages);
    small_bytes_ += bytes;
  }
  try {
    return memory_.allocate(bytes);
  } catch (...) {
    if (is_whole) {
      const std::lock_guard lock(mutex_);
      small_bytes_ -= bytes;
    }
    throw;
  }
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
  Slab slab{static_cast<char*>(memory_.allocate(kHugeBytes))};
  slab.mark(0, pages, true);
  const auto at = std::upper_bound(slabs_.begin(), slabs_.end(), slab.base,
                                   [](char* base, const Slab& s) { return base < s.base; });
  slabs_.insert(at, slab);
  return slab.base;
}

void PageHeap::release(void* block, size_t bytes) noexcept {
  auto* address = static_cast<char*>(block);
  const size_t pages = bytes / kPageBytes;
  const bool is_whole = bytes % kPageBytes == 0 && pages > 0 && pages < kPages;
  if (is_whole) {
    const std::lock_guard lock(mutex_);
    auto after = std::upper_bound(slabs_.begin(), slabs_.end(), address,
                                  [](char* at, const Slab& slab) { return at < slab.base; });
    if (after != slabs_.begin() && address < (after - 1)->base + kHugeBytes) {
      Slab& slab = *(after - 1);
      slab.mark(static_cast<size_t>(address - slab.base) / kPageBytes, pages, false);
      if (slab.num_free == kPages) {
        memory_.release(slab.base, kHugeBytes);
        slabs_.erase(after - 1);
      }
      return;
    }
    small_bytes_ -= bytes;
  }
  memory_.release(block, bytes);
}

}  // namespace monolith
