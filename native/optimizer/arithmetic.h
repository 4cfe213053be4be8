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

// value(0), ..., value(dim - 1) combined in 8 lanes, lane = i % 8, from 0 on (contract 3).
template <typename Combine, typename Value>
inline float by_lanes(uint32_t dim, const Combine& combine, const Value& value) {
  float lanes[8] = {};
  uint32_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    for (uint32_t l = 0; l < 8; ++l) lanes[l] = combine(lanes[l], value(i + l));
  }
  for (uint32_t l = 0; i + l < dim; ++l) lanes[l] = combine(lanes[l], value(i + l));
  return combine(combine(combine(lanes[0], lanes[4]), combine(lanes[2], lanes[6])),
                 combine(combine(lanes[1], lanes[5]), combine(lanes[3], lanes[7])));
}

template <typename Value>
inline float row_sum(uint32_t dim, const Value& value) {
  return by_lanes(dim, [](float a, float b) { return a + b; }, value);
}

template <typename Value>
inline float row_max(uint32_t dim, const Value& value) {
  return by_lanes(dim, [](float a, float b) { return a < b ? b : a; }, value);
}

}  // namespace monolith::MONOLITH_ISA
