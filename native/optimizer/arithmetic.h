// Shares arithmetic among the update rules. A rule has the same order of operations as its function
// in reference_optimizers.py; each operation rounds once.
//
// Values are clamped to the largest float, and gradients to the largest float whose square is
// finite: rows stay finite, so no rule makes NaN (contract 3).
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace monolith::MONOLITH_ISA {

constexpr float kMax = 0x1.fffffep+127f;
constexpr float kRootMax = 0x1.fffffep+63f;

// Eight floats that the compiler keeps in registers; without this type it vectorises across blocks.
using Lanes = float __attribute__((vector_size(32)));

template <typename T>
inline T clamp(T x, float limit) {
  x = x > limit ? limit : x;
  return x < -limit ? -limit : x;
}

inline float square_root(float x) { return __builtin_sqrtf(x); }

// Uses intrinsics: the compiler turns a clamp into two comparisons and two selections, and vector
// square roots into scalar square roots.
#if defined(__AVX__)
inline Lanes clamp(Lanes x, float limit) {
  return _mm256_max_ps(_mm256_set1_ps(-limit), _mm256_min_ps(_mm256_set1_ps(limit), x));
}
inline Lanes square_root(Lanes x) { return _mm256_sqrt_ps(x); }
#elif defined(__SSE2__)
template <typename F>
inline Lanes by_halves(Lanes x, const F& f) {
  __m128 halves[2];
  __builtin_memcpy(halves, &x, sizeof(x));
  for (__m128& half : halves) half = f(half);
  __builtin_memcpy(&x, halves, sizeof(x));
  return x;
}
inline Lanes clamp(Lanes x, float limit) {
  return by_halves(x, [=](__m128 half) {
    return _mm_max_ps(_mm_set1_ps(-limit), _mm_min_ps(_mm_set1_ps(limit), half));
  });
}
inline Lanes square_root(Lanes x) {
  return by_halves(x, [](__m128 half) { return _mm_sqrt_ps(half); });
}
#else
inline Lanes clamp(Lanes x, float limit) {
  for (int l = 0; l < 8; ++l) x[l] = clamp(float{x[l]}, limit);
  return x;
}
inline Lanes square_root(Lanes x) {
  for (int l = 0; l < 8; ++l) x[l] = square_root(float{x[l]});
  return x;
}
#endif

template <typename T>
inline T finite(T x) {
  return clamp(x, kMax);
}

// Returns the gradient with weight decay, clamped so that its square is finite.
template <typename T>
inline T decayed(T g, float decay, T w) {
  return clamp(g + decay * w, kRootMax);
}

// Returns the quotient, or 0 where the divisor is 0.
template <typename T>
inline T where_positive(T divisor, T quotient) {
  return divisor > 0.0f ? quotient : T{};
}

template <typename T>
inline T load(const float* values) {
  T loaded;
  __builtin_memcpy(&loaded, values, sizeof(T));
  return loaded;
}

template <typename T>
inline void store(float* values, T stored) {
  __builtin_memcpy(values, &stored, sizeof(T));
}

// work(i, T{}) for columns i, ...: T is Lanes for eight columns, and float for the remaining
// columns.
template <typename Work>
inline void in_lanes(uint32_t dim, const Work& work) {
  uint32_t i = 0;
  for (; i + 8 <= dim; i += 8) work(i, Lanes{});
  for (; i < dim; ++i) work(i, 0.0f);
}

inline void fill(float* values, uint32_t n, float value) {
  for (uint32_t i = 0; i < n; ++i) values[i] = value;
}

// Reduces value(0), ..., value(dim - 1) in 8 lanes, lane = i % 8, starting from 0; then reduces the
// lanes in a fixed order (contract 3). take(a, b) updates a, which is a float or Lanes.
template <typename Take, typename Value>
inline float by_lanes(uint32_t dim, const Take& take, const Value& value) {
  Lanes lanes = {};
  float block[8];
  const auto take_block = [&] {
    Lanes values;
    __builtin_memcpy(&values, block, sizeof(values));
    take(lanes, values);
  };
  const uint32_t whole = dim / 8 * 8;
  for (uint32_t i = 0; i < whole; i += 8) {
    for (uint32_t l = 0; l < 8; ++l) block[l] = value(i + l);
    take_block();
  }
  if (whole < dim) {
    for (uint32_t l = 0; l < 8; ++l) block[l] = whole + l < dim ? value(whole + l) : 0.0f;
    take_block();
  }
  __builtin_memcpy(block, &lanes, sizeof(lanes));
  for (uint32_t half = 4; half > 0; half /= 2) {
    for (uint32_t l = 0; l < half; ++l) take(block[l], block[l + half]);
  }
  return block[0];
}

template <typename Value>
inline float row_sum(uint32_t dim, const Value& value) {
  return by_lanes(dim, [](auto& a, const auto& b) { a += b; }, value);
}

template <typename Value>
inline float row_max(uint32_t dim, const Value& value) {
  return by_lanes(dim, [](auto& a, const auto& b) { a = a < b ? b : a; }, value);
}

}  // namespace monolith::MONOLITH_ISA
