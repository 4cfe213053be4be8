#include "table/memory.h"

#include <cstdlib>

#include "table/page_heap.h"

namespace monolith {

OutOfMemory::OutOfMemory(size_t asked_bytes, size_t held_bytes)
    : text_("out of memory: asked for " + std::to_string(asked_bytes) +
            " bytes more, table holds " + std::to_string(held_bytes)) {}

void* Memory::allocate(size_t bytes) {
  const size_t held = held_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  void* block = nullptr;
  if (held <= limit_bytes_.load(std::memory_order_relaxed)) {
    block = bytes >= kHugeBytes    ? PageHeap::map(bytes)
            : PageHeap::has(bytes) ? PageHeap::shared().allocate(bytes)
                                   : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  }
  if (block == nullptr) {
    held_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    throw OutOfMemory(bytes, held - bytes);
  }
  return block;
}

void Memory::free(void* block, size_t bytes) noexcept {
  if (block == nullptr) return;
  held_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  if (bytes >= kHugeBytes) {
    PageHeap::unmap(block, bytes);
  } else if (PageHeap::has(bytes)) {
    PageHeap::shared().free(block, bytes);
  } else {
    std::free(block);
  }
}

bool Memory::try_use(size_t bytes) noexcept {
  size_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (has_budget() && used + bytes > budget_bytes_) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

}  // namespace monolith
