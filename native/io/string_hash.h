// XXH64, the 64-bit hash of Yann Collet's xxHash, by which strings become keys.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolith {

uint64_t xxh64(const void* data, size_t n, uint64_t seed) noexcept;

// out[i]: hash of bytes[splits[i] .. splits[i + 1]), the bits of an unsigned number. The splits
// ascend and end within the bytes. (n + 1,) -> (n,)
void hash_strings(const uint8_t* bytes, const int64_t* splits, size_t n, uint64_t seed,
                  int64_t* out) noexcept;

}  // namespace monolith
