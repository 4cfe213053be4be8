// A bin of the index holds all keys whose hashes share a prefix, in an open-addressed array of
// lines.
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

// Waits between two reads of a value that another thread is about to change: spins first, then
// yields.
inline void wait_turn(uint32_t tries) noexcept {
  tries < 1000 ? pause_cpu() : std::this_thread::yield();
}

// Raises the maximum in `most` to `seen`.
inline void raise_to(std::atomic<uint64_t>& most, uint64_t seen) noexcept {
  uint64_t old = most.load(std::memory_order_relaxed);
  while (old < seen && !most.compare_exchange_weak(old, seen)) {
  }
}

// A mutex of four bytes that spins briefly, then sleeps.
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

// Header of the array; the lines follow the header in memory. Writers lock `lock`, then check
// `is_retired`.
struct alignas(64) Bin {
  Lock lock;
  uint32_t num_lines;
  uint32_t num_keys = 0;
  uint32_t max_keys;
  uint32_t generation;       // number of rebuilds; each rebuild draws another slack
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

  // Calls f(key, row) for every key. Under the lock.
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
  // Returns the place of the key; `line` is null if the key is absent. Under the lock.
  Place find(int64_t key, uint64_t hash) noexcept;
  // The same, starting at `hint`, an earlier place of the key, which may lie in a freed array.
  Place find(int64_t key, uint64_t hash, Place hint) noexcept {
    const auto start = reinterpret_cast<uintptr_t>(lines());
    const uintptr_t offset = reinterpret_cast<uintptr_t>(hint.line) - start;
    const bool is_here = offset < size_t{num_lines} * sizeof(Line);
    return is_here && hint.line->has(hint.slot, key) ? hint : find(key, hash);
  }
  // Returns the slot for an absent key. At least one slot must be free. Under the lock.
  Place find_free(uint64_t hash) noexcept;
  // Puts an absent key into the slot that find_free() returned. Under the lock.
  void insert(int64_t key, uint64_t hash, uint32_t row, Place place) noexcept;
  // Empties the slot. Under the lock.
  void remove(Place place) noexcept;
};
static_assert(sizeof(Bin) == 64);

// An entry of the directory: the address of a bin and its number of lines in one word, which
// readers load atomically.
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
  // Returns the home line of a key; `place` is place_of() its hash.
  Line* home(uint32_t place) const noexcept {
    return lines() + ((uint64_t{place} * num_lines()) >> 32);
  }
  // Returns the line for a key whose home is full: far away in the bin, then the lines that follow.
  // If keys overflowed into the line after their home, full lines would form long runs.
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

// Enumerates the lines where a key may be, in the order of the search. After num_lines() steps it
// has visited every line of the bin.
class Path {
 public:
  Path(BinRef bin, uint32_t place) noexcept : bin_(bin), place_(place), line_(bin.home(place)) {}
  Line* line() const noexcept { return line_; }
  // Returns false after the last line.
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
