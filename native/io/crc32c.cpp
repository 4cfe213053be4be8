#include "io/crc32c.h"

#include <array>
#include <cstring>

#if MONOLITH_X86
#include <nmmintrin.h>
#endif

namespace monolith {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;

using Table = std::array<uint32_t, 256>;

// tables[k][b] is the effect of byte b on the state after k more bytes.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ (state & 1 ? kPolynomial : 0);
    tables[0][byte] = state;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = make_tables();

uint32_t extend_portable(uint32_t state, const unsigned char* data, size_t n) noexcept {
  for (; n >= 8; data += 8, n -= 8) {
    uint32_t next = 0;
    for (size_t i = 0; i < 4; ++i) next ^= kTables[7 - i][data[i] ^ ((state >> (8 * i)) & 0xff)];
    for (size_t i = 4; i < 8; ++i) next ^= kTables[7 - i][data[i]];
    state = next;
  }
  for (; n > 0; ++data, --n) state = (state >> 8) ^ kTables[0][(state ^ *data) & 0xff];
  return state;
}

#if MONOLITH_X86

// Processes three parts of a block concurrently: the instruction issues once per cycle, with a
// latency of three cycles.
constexpr size_t kPart = 1024;  // bytes

// A state after kPart more bytes of zeros is linear in the state: one table per byte of it.
constexpr std::array<Table, 4> make_shift() {
  std::array<Table, 4> shift{};
  for (size_t place = 0; place < 4; ++place) {
    for (int bit = 0; bit < 8; ++bit) {
      uint32_t state = uint32_t{1} << (8 * place + static_cast<size_t>(bit));
      for (size_t i = 0; i < kPart; ++i) state = (state >> 8) ^ kTables[0][state & 0xff];
      const uint32_t low = uint32_t{1} << bit;
      for (uint32_t byte = 0; byte < low; ++byte)
        shift[place][low | byte] = shift[place][byte] ^ state;
    }
  }
  return shift;
}

constexpr std::array<Table, 4> kShift = make_shift();

uint32_t shifted(uint32_t state) noexcept {
  return kShift[0][state & 0xff] ^ kShift[1][(state >> 8) & 0xff] ^
         kShift[2][(state >> 16) & 0xff] ^ kShift[3][state >> 24];
}

uint64_t word_at(const unsigned char* data) noexcept {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

[[gnu::target("sse4.2")]] uint32_t extend_sse42(uint32_t state, const unsigned char* data,
                                                size_t n) noexcept {
  uint64_t first = state;
  for (; n >= 3 * kPart; data += 3 * kPart, n -= 3 * kPart) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kPart; i += 8) {
      first = _mm_crc32_u64(first, word_at(data + i));
      second = _mm_crc32_u64(second, word_at(data + kPart + i));
      third = _mm_crc32_u64(third, word_at(data + 2 * kPart + i));
    }
    first = shifted(static_cast<uint32_t>(first)) ^ second;
    first = shifted(static_cast<uint32_t>(first)) ^ third;
  }
  for (; n >= 8; data += 8, n -= 8) first = _mm_crc32_u64(first, word_at(data));
  auto rest = static_cast<uint32_t>(first);
  for (; n > 0; ++data, --n) rest = _mm_crc32_u8(rest, *data);
  return rest;
}

constexpr std::array<Crc32cKernel, 2> kKernels{
    {{"portable", extend_portable}, {"sse4.2", extend_sse42}}};

bool has_sse42() noexcept { return __builtin_cpu_supports("sse4.2"); }

#else

constexpr std::array<Crc32cKernel, 1> kKernels{{{"portable", extend_portable}}};

bool has_sse42() noexcept { return false; }

#endif

const Crc32cKernel kFastest = all_crc32c_kernels().back();  // chosen at load

}  // namespace

std::span<const Crc32cKernel> all_crc32c_kernels() noexcept {
  return {kKernels.data(), has_sse42() ? kKernels.size() : size_t{1}};
}

uint32_t crc32c(const void* data, size_t n, uint32_t previous) noexcept {
  return ~kFastest.extend(~previous, static_cast<const unsigned char*>(data), n);
}

}  // namespace monolith
