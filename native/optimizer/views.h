// Transforms weights for lookups in training, and their gradients. Same bits as
// reference_codecs.py.
#pragma once

#include "optimizer/arithmetic.h"
#include "optimizer/codecs.h"

namespace monolith::MONOLITH_ISA {

// e^x for x in [0, 20] (Cephes).
inline float exponential(float x) {
  const float scaled = x * 1.44269504088896341f + 0.5f;
  const auto n = static_cast<int32_t>(scaled);  // above 0, so this is the floor
  const auto whole = static_cast<float>(n);
  x = x - whole * 0.693359375f;
  x = x - whole * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * x + 1.3981999507e-3f;
  p = p * x + 8.3334519073e-3f;
  p = p * x + 4.1665795894e-2f;
  p = p * x + 1.6666665459e-1f;
  p = p * x + 5.0000001201e-1f;
  const float power = float_of(static_cast<uint32_t>(n + 127) << 23);
  return (p * (x * x) + x + 1.0f) * power;
}

// Uses basic operations only (Cephes), so that every instruction set gives the same bits.
inline float hyperbolic_tangent(float x) {
  const float size = __builtin_fabsf(x);
  const float z = size > 10.0f ? 10.0f : size;  // 1 from about 9 on; NaN stays
  const float large = 1.0f - 2.0f / (exponential(z + z) + 1.0f);
  const float s = z * z;
  float p = -5.70498872745e-3f;
  p = p * s + 2.06390887954e-2f;
  p = p * s + -5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s + -3.33332819422e-1f;
  const float small = p * s * z + z;
  return __builtin_copysignf(z >= 0.625f ? large : small, x);
}

struct FixedR8View {
  static constexpr const char* kName = "fixed_r8";
  static constexpr bool kIsStraight = true;
  static void forward(float* values, size_t n, float unit, float) {
    for (size_t i = 0; i < n; ++i) {
      // Through 8 bits, or the compiler may truncate the float instead, which makes -0.
      const auto code = static_cast<int8_t>(fixed_quantum(values[i], unit));
      values[i] = static_cast<float>(code) * unit;
    }
  }
  static void backward(float*, const float*, size_t, float, float) {}
};

struct OneBitView {
  static constexpr const char* kName = "one_bit";
  static constexpr bool kIsStraight = false;
  static void forward(float* values, size_t n, float amplitude, float scale) {
    for (size_t i = 0; i < n; ++i) values[i] = amplitude * hyperbolic_tangent(scale * values[i]);
  }
  static void backward(float* __restrict grads, const float* __restrict weights, size_t n,
                       float amplitude, float scale) {
    for (size_t i = 0; i < n; ++i) {
      const float y = hyperbolic_tangent(scale * weights[i]);
      const float slope = amplitude * scale * (1.0f - y * y);
      grads[i] = finite(grads[i] * slope);
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
