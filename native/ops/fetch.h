// Prefetches memory before its use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolith {

// Prefetches the cache line of an address, for use in some hundred nanoseconds, only into the
// second-level cache: a core has few fill buffers for lines on their way to the first-level cache,
// and the calls of a table run out of them (docs/design/0014-fetches-to-the-second-level.md). All
// functions here are always inline, because GCC drops calls of a function that only prefetches.
[[gnu::always_inline]] inline void fetch_line(const void* address) noexcept {
  __builtin_prefetch(address, 0, 2);
}

// Prefetches the start of a row; the hardware prefetches the rest of a long row.
[[gnu::always_inline]] inline void fetch_bytes(const void* address, size_t bytes) noexcept {
  constexpr size_t kMost = 512;
  const auto start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = start + (bytes < kMost ? bytes : kMost);
  for (uintptr_t line = start & ~uintptr_t{63}; line < end; line += 64) {
    fetch_line(reinterpret_cast<const void*>(line));
  }
}

}  // namespace monolith
