// Hashes keys, and derives places from hashes. Same numbers as src/monolith/table/initializers.py.
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

// Chooses the line of a key within its bin, and its slot while a batch is grouped. The salt is
// random for each table, because the hash is public: without the salt, an attacker could choose
// keys that all collide in one place.
inline uint32_t place_of(uint64_t hash, uint64_t salt) noexcept {
  return static_cast<uint32_t>((hash * salt) >> 32);
}

}  // namespace monolith
