#include "table/epochs.h"

#include <algorithm>
#include <functional>
#include <thread>

namespace monolith {

Epochs::~Epochs() {
  for (Block* block = first_.next.load(); block != nullptr;) {
    Block* next = block->next.load();
    delete block;
    block = next;
  }
}

Epochs::ThreadState* Epochs::enter() {
  const size_t start = std::hash<std::thread::id>()(std::this_thread::get_id()) >> 8;
  for (Block* block = &first_;;) {
    for (int i = 0; i < kThreadStates; ++i) {
      ThreadState& state = block->states[(start + i) % kThreadStates];
      uint64_t free = 0;
      // Sequentially consistent: a thread that retires a block after this sees the state in use.
      if (state.epoch.load(std::memory_order_relaxed) == 0 &&
          state.epoch.compare_exchange_strong(free, epoch_.load())) {
        return &state;
      }
    }
    Block* next = block->next.load();
    if (next == nullptr) {
      auto fresh = std::make_unique<Block>();
      if (block->next.compare_exchange_strong(next, fresh.get())) next = fresh.release();
    }
    block = next;
  }
}

void Epochs::Guard::refresh() noexcept { state_->epoch.store(epochs_.epoch_.load()); }

uint64_t Epochs::oldest() noexcept {
  uint64_t oldest = UINT64_MAX;
  for (Block* block = &first_; block != nullptr; block = block->next.load()) {
    for (ThreadState& state : block->states) {
      const uint64_t epoch = state.epoch.load();
      if (epoch != 0 && epoch < oldest) oldest = epoch;
    }
  }
  return oldest;
}

void Epochs::reserve(size_t n) {
  const std::lock_guard lock(mutex_);
  const size_t needed = retired_.size() + reserved_ + n;
  if (needed > retired_.capacity()) retired_.reserve(std::max(needed, 2 * retired_.capacity()));
  reserved_ += n;
}

void Epochs::unreserve(size_t n) noexcept {
  const std::lock_guard lock(mutex_);
  reserved_ -= n;
}

void Epochs::retire(Free free, void* owner, void* block, size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  --reserved_;
  retired_.push_back({free, owner, block, bytes, epoch_.fetch_add(1)});
  num_retired_.store(retired_.size(), std::memory_order_relaxed);
}

void Epochs::reclaim() noexcept {
  if (num_retired_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  const uint64_t oldest_epoch = oldest();
  size_t kept = 0;
  for (const RetiredBlock& r : retired_) {
    if (r.epoch < oldest_epoch) {
      r.free(r.owner, r.block, r.bytes);
    } else {
      retired_[kept++] = r;
    }
  }
  retired_.resize(kept);
  num_retired_.store(kept, std::memory_order_relaxed);
}

}  // namespace monolith
