// Implements the kernels of one instruction set; kernels_<isa>.cpp defines MONOLITH_ISA and
// includes it. Everything is in a namespace of its own: an inline function shared between
// translation units of different instruction sets could end up as the wrong one.
#include <array>
#include <cstddef>
#include <cstdint>

#include "optimizer/arithmetic.h"
#include "optimizer/codecs.h"
#include "optimizer/dense_rules.h"
#include "optimizer/kernels.h"
#include "optimizer/philox.h"
#include "optimizer/views.h"
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

template <typename T>
constexpr DenseKernel describe_dense() {
  return {T::kName, T::kNumStates, T::kOptions, T::step};
}
constexpr std::array kDense{describe_dense<DenseAdamom>(), describe_dense<DenseRmsprop>(),
                            describe_dense<DenseRmspropV2>()};

template <typename T>
constexpr CodecKernel describe_codec() {
  if constexpr (requires { &T::round; }) {
    return {T::kName, T::bytes, T::encode, T::decode, T::round};
  } else {
    return {T::kName, T::bytes, T::encode, T::decode, nullptr};
  }
}
constexpr std::array kCodecs{describe_codec<Fp32>(), describe_codec<Half<Fp16>>(),
                             describe_codec<Half<Bf16>>(), describe_codec<FixedR8>(),
                             describe_codec<OneBit>()};

template <typename T>
constexpr ViewKernel describe_view() {
  return {T::kName, T::kIsStraight, T::forward, T::backward};
}
constexpr std::array kViews{describe_view<FixedR8View>(), describe_view<OneBitView>()};

void uniform(float* __restrict out, uint32_t first, uint32_t n, uint64_t seed, int64_t key,
             float minval, float maxval) {
  const auto low = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(static_cast<uint64_t>(key) >> 32);
  const float range = maxval - minval;
  const uint32_t skipped = first % 4;  // columns of the first block before `first`
  uint32_t words[16];
  float values[16];
  for (uint32_t done = 0; done < n + skipped; done += 16) {
    philox(words, low, high, first / 4 + done / 4, 0, seed);
    for (int i = 0; i < 16; ++i) {  // below 2^24, so the signed conversion is exact
      values[i] =
          minval + static_cast<float>(static_cast<int32_t>(words[i] >> 8)) * 0x1p-24f * range;
    }
    if (skipped == 0 && done + 16 <= n) {
      __builtin_memcpy(out + done, values, sizeof(values));
      continue;
    }
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t at = done + i - skipped;  // wraps below 0, which is not below n
      if (at < n) out[at] = values[i];
    }
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
    uint32_t has_bad = 0;
    for (size_t i = start; i < end; ++i) has_bad |= is_non_finite(values[i]) ? 1u : 0u;
    if (has_bad == 0) continue;
    for (size_t i = start; i < end; ++i) {
      if (is_non_finite(values[i])) return i;
    }
  }
  return n;
}

void add(float* __restrict sum, const float* __restrict values, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += values[i];
}

void add_scaled(float* out, const float* sum, const float* values, float factor, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = sum[i] + factor * values[i];
}

void scale(float* out, const float* values, float factor, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = factor * values[i];
}

void take_max(float* __restrict largest, int32_t* __restrict places, const float* __restrict values,
              int32_t place, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const bool wins = values[i] > largest[i];
    largest[i] = wins ? values[i] : largest[i];
    places[i] = wins ? place : places[i];
  }
}

void select(float* __restrict out, const float* __restrict values, const int32_t* __restrict places,
            int32_t place, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = places[i] == place ? values[i] : 0.0f;
}

void add_selected(float* __restrict sum, const float* __restrict values,
                  const int32_t* __restrict places, int32_t place, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += places[i] == place ? values[i] : 0.0f;
}

// Bits of magnitudes, read as whole numbers, are in the order of the magnitudes, with NaN last.
float largest(const float* values, size_t n) {
  uint32_t most_bits = 0;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, values + i, 4);
    bits &= 0x7FFFFFFFu;
    most_bits = bits > most_bits ? bits : most_bits;
  }
  return float_of(most_bits);
}

double sum_squares(const float* values, size_t n) {
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t l = 0; l < 8; ++l) lanes[l] += static_cast<double>(values[i + l]) * values[i + l];
  }
  for (size_t l = 0; i + l < n; ++l) lanes[l] += static_cast<double>(values[i + l]) * values[i + l];
  for (int half = 4; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

float dot(const float* a, const float* b, uint32_t n) {
  return row_sum(n, [=](uint32_t i) { return a[i] * b[i]; });
}

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels{MONOLITH_ISA_NAME, kOptimizers, kDense,      kCodecs, kViews,   uniform,
                       find_non_finite,   add,         add_scaled,  scale,   take_max, select,
                       add_selected,      largest,     sum_squares, dot};

}  // namespace monolith::MONOLITH_ISA
