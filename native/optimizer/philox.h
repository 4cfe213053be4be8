// Computes Philox4x32-10 (Salmon et al., 2011), four blocks at a time.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace monolith::MONOLITH_ISA {
namespace {

constexpr uint32_t kPhilox0 = 0xD2511F53u, kPhilox1 = 0xCD9E8D57u;  // multipliers
constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;      // key steps

#if defined(__AVX2__) || defined(__SSE2__)

// One 32-bit number per 64-bit lane; the upper halves are undefined and never read.
#if defined(__AVX2__)
struct Lanes {
  __m256i v;
  static constexpr uint32_t kCount = 4;
  static Lanes all(uint32_t x) { return {_mm256_set1_epi64x(x)}; }
  static Lanes from(uint32_t x) { return {_mm256_set_epi64x(x + 3, x + 2, x + 1, x)}; }
  friend Lanes multiply(Lanes a, Lanes b) { return {_mm256_mul_epu32(a.v, b.v)}; }
  friend Lanes high_xor(Lanes product, Lanes a, Lanes b) {
    const __m256i high = _mm256_srli_epi64(product.v, 32);
    return {_mm256_xor_si256(_mm256_xor_si256(high, a.v), b.v)};
  }
  static void store(uint32_t* out, Lanes w0, Lanes w1, Lanes w2, Lanes w3) {
    const __m256i low = _mm256_blend_epi32(w0.v, _mm256_slli_epi64(w1.v, 32), 0xAA);
    const __m256i high = _mm256_blend_epi32(w2.v, _mm256_slli_epi64(w3.v, 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(low, high);
    const __m256i odd = _mm256_unpackhi_epi64(low, high);
    auto* to = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(to + 0, _mm256_castsi256_si128(even));
    _mm_storeu_si128(to + 1, _mm256_castsi256_si128(odd));
    _mm_storeu_si128(to + 2, _mm256_extracti128_si256(even, 1));
    _mm_storeu_si128(to + 3, _mm256_extracti128_si256(odd, 1));
  }
};
#else
struct Lanes {
  __m128i v;
  static constexpr uint32_t kCount = 2;
  static Lanes all(uint32_t x) { return {_mm_set1_epi64x(x)}; }
  static Lanes from(uint32_t x) { return {_mm_set_epi64x(x + 1, x)}; }
  friend Lanes multiply(Lanes a, Lanes b) { return {_mm_mul_epu32(a.v, b.v)}; }
  friend Lanes high_xor(Lanes product, Lanes a, Lanes b) {
    return {_mm_xor_si128(_mm_xor_si128(_mm_srli_epi64(product.v, 32), a.v), b.v)};
  }
  static void store(uint32_t* out, Lanes w0, Lanes w1, Lanes w2, Lanes w3) {
    const __m128i low_half = _mm_set1_epi64x(UINT32_MAX);
    const __m128i low = _mm_or_si128(_mm_and_si128(w0.v, low_half), _mm_slli_epi64(w1.v, 32));
    const __m128i high = _mm_or_si128(_mm_and_si128(w2.v, low_half), _mm_slli_epi64(w3.v, 32));
    auto* to = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(to + 0, _mm_unpacklo_epi64(low, high));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi64(low, high));
  }
};
#endif

#else

struct Lanes {
  uint64_t v;
  static constexpr uint32_t kCount = 1;
  static Lanes all(uint32_t x) { return {x}; }
  static Lanes from(uint32_t x) { return {x}; }
  friend Lanes multiply(Lanes a, Lanes b) {
    return {uint64_t{static_cast<uint32_t>(a.v)} * static_cast<uint32_t>(b.v)};
  }
  friend Lanes high_xor(Lanes product, Lanes a, Lanes b) { return {(product.v >> 32) ^ a.v ^ b.v}; }
  static void store(uint32_t* out, Lanes w0, Lanes w1, Lanes w2, Lanes w3) {
    const Lanes words[4] = {w0, w1, w2, w3};
    for (int w = 0; w < 4; ++w) out[w] = static_cast<uint32_t>(words[w].v);
  }
};

#endif

// Writes the words of blocks first, first + 1, .. first + 3 of counter (c0, c1, block, c3), block
// after block.
inline void philox(uint32_t out[16], uint32_t c0, uint32_t c1, uint32_t first, uint32_t c3,
                   uint64_t seed) {
  for (uint32_t l = 0; l < 4; l += Lanes::kCount) {
    Lanes w0 = Lanes::all(c0), w1 = Lanes::all(c1);
    Lanes w2 = Lanes::from(first + l), w3 = Lanes::all(c3);
    auto key0 = static_cast<uint32_t>(seed);
    auto key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, key0 += kWeyl0, key1 += kWeyl1) {
      const Lanes a = multiply(w0, Lanes::all(kPhilox0));
      const Lanes b = multiply(w2, Lanes::all(kPhilox1));
      w0 = high_xor(b, w1, Lanes::all(key0));
      w2 = high_xor(a, w3, Lanes::all(key1));
      w1 = b;
      w3 = a;
    }
    Lanes::store(out + 4 * l, w0, w1, w2, w3);
  }
}

}  // namespace
}  // namespace monolith::MONOLITH_ISA
