// Counts the memory of one part of a table, within the budget of the table.
#pragma once

#include <atomic>
#include <cstddef>

#include "table/memory.h"

namespace monolith {

// Thread-safe. Borrows the memory.
class Account {
 public:
  explicit Account(Memory& memory) : memory_(memory) {}
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  // Returns a 64-byte aligned block with undefined contents, or null if the budget does not allow
  // it. Throws OutOfMemory.
  void* allocate(size_t bytes) {
    if (!memory_.try_use(bytes)) return nullptr;
    try {
      void* block = memory_.allocate(bytes);
      bytes_.fetch_add(bytes, std::memory_order_relaxed);
      return block;
    } catch (...) {
      memory_.unuse(bytes);
      throw;
    }
  }
  void free(void* block, size_t bytes) noexcept {
    if (block == nullptr) return;
    memory_.free(block, bytes);
    memory_.unuse(bytes);
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  Memory& memory_;
  std::atomic<size_t> bytes_{0};
};

}  // namespace monolith
