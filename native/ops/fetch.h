// Memory that is asked for before it is used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolith {

// Fetches the line of an address, for use in some hundred nanoseconds. Only as far as the
// second-level cache: a core has places for few lines on their way to the first, and they are
// what a table's calls run out of (docs/design/0014-fetches-to-the-second-level.md). All here is
// always inline: GCC drops calls of a function that does nothing but fetch.
[[gnu::always_inline]] inline void fetch_line(const void* address) noexcept {
  __builtin_prefetch(address, 0, 2);
}

// Fetches the start of a row; the hardware follows by itself where a row is long.
[[gnu::always_inline]] inline void fetch_bytes(const void* address, size_t bytes) noexcept {
  constexpr size_t kMost = 512;
  const auto start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = start + (bytes < kMost ? bytes : kMost);
  for (uintptr_t line = start & ~uintptr_t{63}; line < end; line += 64) {
    fetch_line(reinterpret_cast<const void*>(line));
  }
}

}  // namespace monolith
