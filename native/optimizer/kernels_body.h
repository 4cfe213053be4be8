// The body of one instruction set's kernels; kernels_<isa>.cpp defines MONOLITH_ISA and includes
// it. Everything is in a namespace of its own: an inline function shared between translation units
// of different instruction sets could end up as the wrong one.
#include <array>
#include <cstddef>
#include <cstdint>

#include "optimizer/arithmetic.h"
#include "optimizer/kernels.h"
#include "optimizer_rules.h"  // every header in optimizer/rules/, and MONOLITH_RULES: their structs

namespace monolith::MONOLITH_ISA {
namespace {

template <typename T>
constexpr OptimizerKernel describe() {
  return {T::kName, T::kOptions, T::state_size, T::initialize, T::step};
}
template <typename... Rules>
constexpr std::array<OptimizerKernel, sizeof...(Rules)> describe_all() {
  return {describe<Rules>()...};
}
constexpr auto kOptimizers = describe_all<MONOLITH_RULES>();

// Words of the Philox4x32-10 blocks (key, first_block + l, 0), block after block.
template <uint32_t kBlocks>
void philox(uint32_t* out, int64_t key, uint32_t first_block, uint64_t seed) {
  uint32_t words[4][kBlocks];
  for (uint32_t l = 0; l < kBlocks; ++l) {
    words[0][l] = static_cast<uint32_t>(key);
    words[1][l] = static_cast<uint32_t>(static_cast<uint64_t>(key) >> 32);
    words[2][l] = first_block + l;
    words[3][l] = 0;
  }
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
    for (uint32_t l = 0; l < kBlocks; ++l) {
      const uint64_t a = uint64_t{0xD2511F53u} * words[0][l];
      const uint64_t b = uint64_t{0xCD9E8D57u} * words[2][l];
      words[0][l] = static_cast<uint32_t>(b >> 32) ^ words[1][l] ^ key0;
      words[2][l] = static_cast<uint32_t>(a >> 32) ^ words[3][l] ^ key1;
      words[1][l] = static_cast<uint32_t>(b);
      words[3][l] = static_cast<uint32_t>(a);
    }
  }
  for (uint32_t l = 0; l < kBlocks; ++l) {
    for (uint32_t w = 0; w < 4; ++w) out[4 * l + w] = words[w][l];
  }
}

void uniform(float* __restrict out, uint32_t first, uint32_t n, uint64_t seed, int64_t key,
             float minval, float maxval) {
  constexpr uint32_t kMany = 16;  // blocks computed side by side
  constexpr uint32_t kFew = 4;
  const float range = maxval - minval;
  uint32_t words[4 * kMany];
  for (uint32_t done = 0; done < n;) {
    const uint32_t block = (first + done) / 4;
    const uint32_t offset = (first + done) % 4;
    const bool is_short = offset + (n - done) <= 4 * kFew;
    is_short ? philox<kFew>(words, key, block, seed) : philox<kMany>(words, key, block, seed);
    const uint32_t covered = 4 * kMany - offset;
    const uint32_t count = covered < n - done ? covered : n - done;
    for (uint32_t i = 0; i < count; ++i) {
      out[done + i] = minval + static_cast<float>(words[offset + i] >> 8) * 0x1p-24f * range;
    }
    done += count;
  }
}

bool is_non_finite(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return (bits & 0x7F800000u) == 0x7F800000u;
}

size_t find_non_finite(const float* values, size_t n) {
  constexpr size_t kBlock = 1024;
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t end = start + kBlock < n ? start + kBlock : n;
    uint32_t found = 0;
    for (size_t i = start; i < end; ++i) found |= is_non_finite(values[i]) ? 1u : 0u;
    if (found == 0) continue;
    for (size_t i = start; i < end; ++i) {
      if (is_non_finite(values[i])) return i;
    }
  }
  return n;
}

void add(float* __restrict sum, const float* __restrict values, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += values[i];
}

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels{MONOLITH_ISA_NAME, kOptimizers, uniform, find_non_finite, add};

}  // namespace monolith::MONOLITH_ISA
