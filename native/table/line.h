// A line is one cache line of the index: five keys, their row numbers, and the version that guards
// both.
#pragma once

#include <atomic>
#include <cstdint>

#include "table/tsan.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace monolith {

inline constexpr uint32_t kNoRow = UINT32_MAX;  // marks a free slot; every int64 is a valid key
// Flag in the row number of a key that a running call has inserted but not written yet. Readers
// treat the key as missing, so a reader never sees an unwritten row, nor a row that a failed call
// removes again.
inline constexpr uint32_t kReserved = 1u << 31;

// The version also guards the rows that the line points to: a reader copies a row between two reads
// of the version, which costs no further cache line. The version is odd while a writer, which holds
// the lock of the bin, changes the line or one of its rows; its sequence grows with each change.
struct alignas(64) Line {
  static constexpr uint32_t kSlots = 5;  // the vector code below relies on five slots
  static constexpr uint32_t kWriting = 1;
  static constexpr uint32_t kRetired = 2;     // the bin was rebuilt; look the bin up again
  static constexpr uint32_t kOverflowed = 4;  // a key of this home line is in another line
  static constexpr uint32_t kSequence = 8;    // unit of the sequence

  std::atomic<uint32_t> version;
  std::atomic<uint32_t> rows[kSlots];
  std::atomic<int64_t> keys[kSlots];

  void reset(uint32_t first_version) noexcept {
    version.store(first_version, std::memory_order_relaxed);
    for (auto& row : rows) row.store(kNoRow, std::memory_order_relaxed);
    for (auto& key : keys) key.store(0, std::memory_order_relaxed);
  }

  // Returns a mask whose bit s is set if slot s may hold the key: the low halves are equal.
  uint32_t match_halves(int64_t key) const noexcept {
    uint32_t match = 0;
#if defined(__SSE2__) && !MONOLITH_TSAN
    const auto* pairs = reinterpret_cast<const float*>(keys);
    const __m128 halves =
        _mm_shuffle_ps(_mm_loadu_ps(pairs), _mm_loadu_ps(pairs + 4), _MM_SHUFFLE(2, 0, 2, 0));
    const __m128i wanted = _mm_set1_epi32(static_cast<int32_t>(key));
    const __m128i is_equal = _mm_cmpeq_epi32(_mm_castps_si128(halves), wanted);
    // Compared in a vector too: the compiler would turn a scalar comparison into an unpredictable
    // branch.
    const __m128i is_last = _mm_cmpeq_epi32(
        _mm_cvtsi32_si128(static_cast<int32_t>(keys[4].load(std::memory_order_relaxed))), wanted);
    match = static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(is_equal)) |
                                  (_mm_movemask_ps(_mm_castsi128_ps(is_last)) & 1) << 4);
#else
    for (uint32_t s = 0; s < kSlots; ++s) {
      match |= static_cast<uint32_t>(keys[s].load(std::memory_order_relaxed) == key) << s;
    }
#endif
    return match;
  }

  // Whether the slot holds the key; a free slot may still contain an old key.
  bool has(uint32_t slot, int64_t key) const noexcept {
    return keys[slot].load(std::memory_order_relaxed) == key &&
           rows[slot].load(std::memory_order_relaxed) != kNoRow;
  }

  // Returns the slot of the key, or kSlots.
  uint32_t find(int64_t key) const noexcept {
    for (uint32_t match = match_halves(key); match != 0; match &= match - 1) {
      const auto slot = static_cast<uint32_t>(__builtin_ctz(match));
      if (has(slot, key)) [[likely]]
        return slot;
    }
    return kSlots;
  }

  // Returns the first free slot, or kSlots.
  uint32_t find_free() const noexcept {
#if defined(__SSE2__) && !MONOLITH_TSAN
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows));
    const __m128i is_free = _mm_cmpeq_epi32(four, _mm_set1_epi32(-1));
    auto free = static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(is_free)));
    free |= static_cast<uint32_t>(rows[4].load(std::memory_order_relaxed) == kNoRow) << 4;
    return static_cast<uint32_t>(__builtin_ctz(free | 1u << kSlots));
#else
    uint32_t s = 0;
    while (s < kSlots && rows[s].load(std::memory_order_relaxed) != kNoRow) ++s;
    return s;
#endif
  }

  // Calls f(key, row, slot) for every key whose row is written. Without the lock of the bin, a key
  // and its row may come from two moments.
  template <typename F>
  void for_each(const F& f) const {
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint32_t row = rows[slot].load(std::memory_order_relaxed);
      if (!(row & kReserved)) f(keys[slot].load(std::memory_order_relaxed), row, slot);
    }
  }

  // For writers only, under the lock of the bin.
  void begin_write() noexcept {
    version.store(version.load(std::memory_order_relaxed) | kWriting, std::memory_order_relaxed);
    fence_release();
  }
  void end_write(uint32_t set_flags = 0) noexcept {
    const uint32_t v = version.load(std::memory_order_relaxed);
    version.store(((v & ~kWriting) + kSequence) | set_flags, std::memory_order_release);
  }
  // Whether the sequence is near its end. The bin must then be rebuilt, or a reader that slept
  // through a full turn of the sequence would accept a torn row. Writers check before their first
  // change, while they can still fail; the margin covers the changes of calls that checked earlier.
  static constexpr uint32_t kWorn = UINT32_MAX - (kSequence << 16);
  bool is_worn() const noexcept { return version.load(std::memory_order_relaxed) >= kWorn; }
};
static_assert(sizeof(Line) == 64);

}  // namespace monolith
