// A bin of the index: all keys whose hashes share a prefix, in an open-addressed array of lines.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "table/line.h"

namespace monolith {

inline void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Between two looks at what another thread is about to change: spins, then lets it run.
inline void wait_turn(uint32_t tries) noexcept {
  tries < 1000 ? pause_cpu() : std::this_thread::yield();
}

// A counter of the most that was seen.
inline void raise_to(std::atomic<uint64_t>& most, uint64_t seen) noexcept {
  uint64_t old = most.load(std::memory_order_relaxed);
  while (old < seen && !most.compare_exchange_weak(old, seen)) {
  }
}

// Four bytes; spins shortly, then sleeps.
class Lock {
 public:
  bool try_lock() noexcept {
    uint32_t free = 0;
    return state_.load(std::memory_order_relaxed) == 0 &&
           state_.compare_exchange_strong(free, 1, std::memory_order_acquire);
  }
  void lock() noexcept {
    for (int spin = 0; spin < 200; ++spin) {
      if (try_lock()) return;
      pause_cpu();
    }
    while (state_.exchange(2, std::memory_order_acquire) != 0) state_.wait(2);
  }
  void unlock() noexcept {
    if (state_.exchange(0, std::memory_order_release) == 2) state_.notify_one();
  }

 private:
  std::atomic<uint32_t> state_{0};  // 0 free, 1 held, 2 held and waited for
};

// Header of the array; the lines follow it in memory. Writers hold `lock` and then check
// `is_retired`.
struct alignas(64) Bin {
  Lock lock;
  uint32_t num_lines;
  uint32_t num_keys = 0;
  uint32_t max_keys;
  uint32_t generation;       // number of rebuilds, so that each draws its own slack
  uint32_t num_removed = 0;  // since the last rebuild; overflow flags outlive removed keys
  uint8_t depth;             // length of the prefix in bits
  bool is_retired = false;
  uint64_t prefix;  // smallest hash of the bin
  uint64_t salt;

  Line* lines() noexcept { return reinterpret_cast<Line*>(this + 1); }
  bool has_room() const noexcept { return num_keys < max_keys; }
  size_t bytes() const noexcept { return (size_t{num_lines} + 1) * sizeof(Line); }
  uint64_t last_hash() const noexcept {
    return depth == 0 ? UINT64_MAX : prefix + ((uint64_t{1} << (64 - depth)) - 1);
  }

  // Under the lock: f(key, row) for every key.
  template <typename F>
  void for_each(F f) {
    for (Line* line = lines(); line != lines() + num_lines; ++line) {
      for (uint32_t s = 0; s < Line::kSlots; ++s) {
        const uint32_t row = line->rows[s].load(std::memory_order_relaxed);
        if (row != kNoRow) f(line->keys[s].load(std::memory_order_relaxed), row);
      }
    }
  }

  struct Place {
    Line* line = nullptr;
    uint32_t slot = 0;
  };
  // Under the lock: where the key is (line is null if it is not).
  Place find(int64_t key, uint64_t hash) noexcept;
  // The same; hint: where the key was, perhaps in an array that is gone.
  Place find(int64_t key, uint64_t hash, Place hint) noexcept {
    const auto start = reinterpret_cast<uintptr_t>(lines());
    const uintptr_t offset = reinterpret_cast<uintptr_t>(hint.line) - start;
    const bool is_here = offset < size_t{num_lines} * sizeof(Line);
    return is_here && hint.line->has(hint.slot, key) ? hint : find(key, hash);
  }
  // Under the lock: the slot that the absent key would get. One must be free.
  Place find_free(uint64_t hash) noexcept;
  // Under the lock: puts an absent key into the slot that find_free gave.
  void insert(int64_t key, uint64_t hash, uint32_t row, Place place) noexcept;
  // Under the lock: empties the slot.
  void remove(Place place) noexcept;
};
static_assert(sizeof(Bin) == 64);

// What readers load from the directory: the bin's lines and their number in one word.
class BinRef {
 public:
  static constexpr uint32_t kMaxLines = (1u << 20) - 1;

  explicit BinRef(uint64_t bits = 0) noexcept : bits_(bits) {}
  explicit BinRef(Bin* bin) noexcept
      : bits_((reinterpret_cast<uint64_t>(bin) >> 6) | (uint64_t{bin->num_lines} << 44)) {}

  uint64_t bits() const noexcept { return bits_; }
  Bin* bin() const noexcept {
    return reinterpret_cast<Bin*>((bits_ & ((uint64_t{1} << 44) - 1)) << 6);
  }
  uint32_t num_lines() const noexcept { return static_cast<uint32_t>(bits_ >> 44); }
  Line* lines() const noexcept { return bin()->lines(); }
  // place: of the key's hash (place_of).
  Line* home(uint32_t place) const noexcept {
    return lines() + ((uint64_t{place} * num_lines()) >> 32);
  }
  // Where a key goes whose home is full: far away in the bin, and from there to the next ones. If
  // it went to the line behind its home at once, full lines would come in long runs.
  Line* second(uint32_t place, Line* home) const noexcept {
    Line* const line = home + 1 + ((uint64_t{place & 0xffff} * (num_lines() - 1)) >> 16);
    return line < lines() + num_lines() ? line : line - num_lines();
  }
  Line* after(Line* line) const noexcept {
    return line + 1 == lines() + num_lines() ? lines() : line + 1;
  }

 private:
  uint64_t bits_;
};

// The lines where a key may be, in the order of the search: each of the bin, after num_lines steps.
class Path {
 public:
  Path(BinRef bin, uint32_t place) noexcept : bin_(bin), place_(place), line_(bin.home(place)) {}
  Line* line() const noexcept { return line_; }
  // False: that was all.
  bool step() noexcept {
    line_ = num_steps_ == 0 ? bin_.second(place_, line_) : bin_.after(line_);
    return ++num_steps_ <= bin_.num_lines();
  }

 private:
  const BinRef bin_;
  const uint32_t place_;
  Line* line_;
  uint32_t num_steps_ = 0;
};

}  // namespace monolith
