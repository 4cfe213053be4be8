// Encodes and decodes weights, and rounds stochastically to 16 bits. Same bits as
// reference_codecs.py: integer arithmetic, or float operations that round once.
#pragma once

#include "optimizer/kernels.h"
#include "optimizer/philox.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace monolith::MONOLITH_ISA {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

// A magnitude as a whole number of units of its half-precision value, and the remainder in units.
struct HalfParts {
  uint32_t exponent, units;
  float rest;
  // exponent 0 is that of subnormals; a carry into the next exponent is right as it is.
  uint32_t code(uint32_t is_away) const { return (exponent << 10) + units + is_away; }
};

inline HalfParts half_parts(uint32_t magnitude) {
  constexpr uint32_t kLargest = 0x477FE000u;  // 65504
  magnitude = magnitude < kLargest ? magnitude : kLargest;
  const uint32_t field = magnitude >> 23;
  const uint32_t exponent = field > 113 ? field - 113 : 0;
  const float scaled = float_of(magnitude) * float_of((151 - exponent) << 23);
  const auto units = static_cast<int32_t>(scaled);
  return {exponent, static_cast<uint32_t>(units), scaled - static_cast<float>(units)};
}

struct Fp16 {
  static constexpr const char* kName = "fp16";
  static constexpr uint32_t kNan = 0x7E00;

  static uint32_t nearest(uint32_t magnitude) {
    const HalfParts parts = half_parts(magnitude);
    const bool is_odd = parts.units & 1;
    return parts.code(parts.rest > 0.5f || (parts.rest == 0.5f && is_odd));
  }
  // Away from zero is up for a positive weight and down for a negative one.
  static uint32_t random(uint32_t magnitude, uint32_t sign, uint32_t word) {
    const HalfParts parts = half_parts(magnitude);
    const float u = static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f;
    const float edge = sign ? 1.0f - parts.rest : parts.rest;
    return parts.code((u < edge ? 1u : 0u) ^ sign);
  }
  static float decode(uint32_t code) {
    const uint32_t magnitude = code & 0x7FFF;
    const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
    uint32_t bits = (magnitude << 13) + (112u << 23);
    bits = magnitude < 0x400 ? bits_of(small) : bits;
    bits = magnitude >= 0x7C00 ? bits + (112u << 23) : bits;  // infinity and NaN
    bits = magnitude > 0x7C00 ? bits | 0x00400000u : bits;    // a quiet NaN
    return float_of(bits | (code & 0x8000) << 16);
  }
};

struct Bf16 {
  static constexpr const char* kName = "bf16";
  static constexpr uint32_t kNan = 0x7FC0;

  static uint32_t held(uint32_t magnitude) {
    constexpr uint32_t kLargest = 0x7F7F0000u;
    return magnitude < kLargest ? magnitude : kLargest;
  }
  static uint32_t nearest(uint32_t magnitude) {
    const uint32_t m = held(magnitude);
    return (m + 0x7FFF + ((m >> 16) & 1)) >> 16;
  }
  // u < rest with u = (word >> 8) / 2^24 and rest = low half / 2^16 is word >> 16 < low half.
  static uint32_t random(uint32_t magnitude, uint32_t sign, uint32_t word) {
    return (held(magnitude) + (word >> 16 ^ ((sign - 1) & 0xFFFF))) >> 16;
  }
  static float decode(uint32_t code) { return float_of(code << 16); }
};

// The codec of a 16-bit format, built on the three functions of its struct.
template <typename Format>
struct Half {
  static constexpr const char* kName = Format::kName;
  static size_t bytes(size_t n) { return 2 * n; }

  static uint16_t finish(uint32_t bits, uint32_t magnitude, uint32_t code) {
    const uint32_t signed_code = code | (bits >> 16 & 0x8000);
    return static_cast<uint16_t>(magnitude > 0x7F800000u ? Format::kNan : signed_code);
  }
  static uint16_t round_one(float weight, uint32_t word) {
    const uint32_t bits = bits_of(weight), magnitude = bits & 0x7FFFFFFF;
    return finish(bits, magnitude, Format::random(magnitude, bits >> 31, word));
  }
  static void encode(void* out, const float* __restrict in, size_t n, float) {
    auto* __restrict codes = static_cast<uint16_t*>(out);
    for (size_t i = 0; i < n; ++i) {
      const uint32_t bits = bits_of(in[i]), magnitude = bits & 0x7FFFFFFF;
      codes[i] = finish(bits, magnitude, Format::nearest(magnitude));
    }
  }
  static void decode(float* __restrict out, const void* in, size_t n, float) {
    const auto* __restrict codes = static_cast<const uint16_t*>(in);
    size_t i = 0;
#if defined(__F16C__)
    if constexpr (Format::kNan == Fp16::kNan) {
      for (; i + 8 <= n; i += 8) {
        const auto* at = reinterpret_cast<const __m128i*>(codes + i);
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(at)));
      }
    }
#endif
    for (; i < n; ++i) out[i] = Format::decode(codes[i]);
  }
  // Stream 1 of the generator, with the call in the high half of the third word (contract 3).
  static void round(void* out, const float* __restrict in, uint32_t n, const Rounding& r) {
    auto* __restrict codes = static_cast<uint16_t*>(out);
    const auto low = static_cast<uint32_t>(r.key);
    const auto high = static_cast<uint32_t>(static_cast<uint64_t>(r.key) >> 32);
    const uint32_t skipped = r.first % 4;  // columns of the first block before `first`
    uint32_t words[16];
    float block[16] = {};
    uint16_t rounded[16];
    for (uint32_t done = 0; done < n + skipped; done += 16) {
      philox(words, low, high, (r.call << 16) + (r.first + done) / 4, 1, r.seed);
      const bool is_whole = skipped == 0 && done + 16 <= n;
      if (is_whole) {
        __builtin_memcpy(block, in + done, sizeof(block));
      } else {
        for (uint32_t i = 0; i < 16; ++i) {
          const uint32_t at = done + i - skipped;  // wraps below 0, which is not below n
          block[i] = at < n ? in[at] : 0.0f;
        }
      }
#pragma GCC unroll 1  // unrolled first, it would not be vectorised
      for (int i = 0; i < 16; ++i) rounded[i] = round_one(block[i], words[i]);
      if (is_whole) {
        __builtin_memcpy(codes + done, rounded, sizeof(rounded));
        continue;
      }
      for (uint32_t i = 0; i < 16; ++i) {
        const uint32_t at = done + i - skipped;
        if (at < n) codes[at] = rounded[i];
      }
    }
  }
};

struct Fp32 {
  static constexpr const char* kName = "fp32";
  static size_t bytes(size_t n) { return 4 * n; }
  static void encode(void* out, const float* in, size_t n, float) {
    __builtin_memcpy(out, in, 4 * n);
  }
  static void decode(float* out, const void* in, size_t n, float) {
    __builtin_memcpy(out, in, 4 * n);
  }
};

// Returns the nearest multiple of the unit as a whole number in [-128, 127]; NaN becomes 0.
inline int32_t fixed_quantum(float x, float unit) {
  const float half = unit * 0.5f;
  float q = (x + (x >= 0.0f ? half : -half)) / unit;
  q = q > 127.0f ? 127.0f : q;
  q = q < -128.0f ? -128.0f : q;
  return static_cast<int32_t>(q == q ? q : 0.0f);
}

struct FixedR8 {
  static constexpr const char* kName = "fixed_r8";
  static size_t bytes(size_t n) { return n; }
  static void encode(void* out, const float* __restrict in, size_t n, float unit) {
    auto* __restrict codes = static_cast<int8_t*>(out);
    for (size_t i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(fixed_quantum(in[i], unit));
  }
  static void decode(float* __restrict out, const void* in, size_t n, float unit) {
    const auto* __restrict codes = static_cast<const int8_t*>(in);
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(codes[i]) * unit;
  }
};

struct OneBit {
  static constexpr const char* kName = "one_bit";
  static size_t bytes(size_t n) { return (n + 7) / 8; }
  static void encode(void* out, const float* __restrict in, size_t n, float) {
    auto* __restrict codes = static_cast<uint8_t*>(out);
    for (size_t first = 0; first < n; first += 8) {
      uint32_t code = 0;
      for (size_t i = first; i < n && i < first + 8; ++i) code |= (in[i] > 0.0f) << (i - first);
      codes[first / 8] = static_cast<uint8_t>(code);
    }
  }
  static void decode(float* __restrict out, const void* in, size_t n, float amplitude) {
    const auto* __restrict codes = static_cast<const uint8_t*>(in);
    for (size_t i = 0; i < n; ++i) out[i] = codes[i / 8] >> (i % 8) & 1 ? amplitude : -amplitude;
  }
};

}  // namespace monolith::MONOLITH_ISA
