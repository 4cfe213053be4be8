// Hash of a key and what follows from it. Same numbers as src/monolith/embedding/counter_random.py.
#pragma once

#include <cstdint>

namespace monolith {

// The splitmix64 finaliser: bijective, so two different keys never have equal hashes.
inline uint64_t key_hash(int64_t key) noexcept {
  uint64_t x = static_cast<uint64_t>(key);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace monolith
