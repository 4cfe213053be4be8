// Computes XXH64, the 64-bit hash of Yann Collet's xxHash, which turns strings into keys.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolith {

uint64_t xxh64(const void* data, size_t n, uint64_t seed) noexcept;

// Writes to out[i], (n,), the hash of bytes[splits[i] .. splits[i + 1]), as the bits of an unsigned
// number. `splits`, (n + 1,), ascend and end within the bytes.
void hash_strings(const uint8_t* bytes, const int64_t* splits, size_t n, uint64_t seed,
                  int64_t* out) noexcept;

}  // namespace monolith
