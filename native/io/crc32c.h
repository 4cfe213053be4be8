// Computes CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), the checksum of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace monolith {

// Returns the checksum of `data` appended to data with the checksum `previous`, which is 0 at the
// start.
uint32_t crc32c(const void* data, size_t n, uint32_t previous = 0) noexcept;

// One implementation; all implementations give the same number.
struct Crc32cKernel {
  const char* name;
  uint32_t (*extend)(uint32_t state, const unsigned char* data, size_t n) noexcept;
};

// Returns every kernel that this processor runs, the fastest last.
std::span<const Crc32cKernel> all_crc32c_kernels() noexcept;

}  // namespace monolith
