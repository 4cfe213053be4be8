#include "table/memory.h"

#include <sys/mman.h>

#include <cstdlib>

namespace monolith {
namespace {

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// mmap has no alignment argument: map more, cut off both ends.
void* map_aligned(size_t bytes) noexcept {
  const size_t mapped = bytes + kHugeBytes;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t start = round_up(address, kHugeBytes);
  const uintptr_t end = start + bytes;
  if (start > address) munmap(raw, start - address);
  if (address + mapped > end) munmap(reinterpret_cast<void*>(end), address + mapped - end);
  void* block = reinterpret_cast<void*>(start);
#ifdef MADV_HUGEPAGE
  madvise(block, bytes, MADV_HUGEPAGE);  // a wish: small pages work too
#endif
  return block;
}

}  // namespace

OutOfMemory::OutOfMemory(size_t asked_bytes, size_t held_bytes)
    : text_("out of memory: asked for " + std::to_string(asked_bytes) +
            " bytes more, table holds " + std::to_string(held_bytes)) {}

void* Memory::allocate(size_t bytes) {
  const size_t held = held_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  void* block = nullptr;
  if (held <= limit_bytes_.load(std::memory_order_relaxed)) {
    block = bytes >= kHugeBytes ? map_aligned(round_up(bytes, kPageBytes))
                                : std::aligned_alloc(64, round_up(bytes, 64));
  }
  if (block == nullptr) {
    held_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    throw OutOfMemory(bytes, held - bytes);
  }
  return block;
}

void Memory::release(void* block, size_t bytes) noexcept {
  if (block == nullptr) return;
  held_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  if (bytes >= kHugeBytes) {
    munmap(block, round_up(bytes, kPageBytes));
  } else {
    std::free(block);
  }
}

bool Memory::try_use(size_t bytes) noexcept {
  size_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (budget_bytes_ != SIZE_MAX && used + bytes > budget_bytes_) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

}  // namespace monolith
