// Arithmetic that the update rules share. A rule is written to the same order of operations as its
// function in reference_optimizers.py; each operation rounds once.
//
// What would not fit into a float is held at the largest one, and a gradient at the largest one
// that can be squared: rows stay finite, so no rule makes NaN (contract 3).
#pragma once

namespace monolith::MONOLITH_ISA {

constexpr float kMax = 0x1.fffffep+127f;
constexpr float kRootMax = 0x1.fffffep+63f;

template <typename T>
inline T clamp(T x, float limit) {
  x = x > limit ? limit : x;
  return x < -limit ? -limit : x;
}

inline float finite(float x) { return clamp(x, kMax); }

inline float square_root(float x) { return __builtin_sqrtf(x); }

// Gradient with weight decay, small enough to be squared.
inline float decayed(float g, float decay, float w) { return clamp(g + decay * w, kRootMax); }

// The quotient, or 0 where its divisor is 0.
inline float where_positive(float divisor, float quotient) {
  return divisor > 0.0f ? quotient : 0.0f;
}

inline void fill(float* values, uint32_t n, float value) {
  for (uint32_t i = 0; i < n; ++i) values[i] = value;
}

// Eight floats that the compiler keeps in registers; left to itself, it vectorises across blocks.
using Lanes = float __attribute__((vector_size(32)));

// value(0), ..., value(dim - 1) taken in 8 lanes, lane = i % 8, from 0 on; then the lanes in one
// order (contract 3). take(a, b) changes a, a float or Lanes.
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
