// n' = n + g^2;  z <- z + g - (sqrt(n') - sqrt(n)) / rate * w;  n <- n'
// w <- 0 if |z| <= l1 else rate * (sign(z) * l1 - z) / (sqrt(n) + beta + l2 * rate)
// State: z, n.
#pragma once

namespace monolith::MONOLITH_ISA {

// z and n of a weight after the step, and what the weight is divided by.
struct FtrlSums {
  float z, n, divisor;
};

inline FtrlSums ftrl_sums(float w, float z, float n, float g, float rate, float beta, float l2) {
  const float h = clamp(g, kRootMax);
  const float sum = finite(n + h * h);
  const float sigma = finite((square_root(sum) - square_root(n)) / rate);
  return {finite(z + h - sigma * w), sum, finite(square_root(sum) + beta + l2 * rate)};
}

struct Ftrl {
  static constexpr const char* kName = "ftrl";
  static constexpr std::array kOptions{"initial_accumulator_value", "beta", "l1_regularization",
                                       "l2_regularization"};
  static uint32_t state_size(uint32_t dim) { return 2 * dim; }
  static void initialize(float* state, uint32_t dim, const float* options) {
    fill(state, dim, 0.0f);
    fill(state + dim, dim, options[0]);
  }
  static void step(float* __restrict w, float* __restrict state, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    loop(w, state, state + dim, g, dim, options, rate);
  }

 private:
  // With arguments of its own, the compiler knows that z and n do not overlap.
  static void loop(float* __restrict w, float* __restrict z, float* __restrict n,
                   const float* __restrict g, uint32_t dim, const float* options, float rate) {
    const float beta = options[1], l1 = options[2], l2 = options[3];
    for (uint32_t i = 0; i < dim; ++i) {
      const FtrlSums sums = ftrl_sums(w[i], z[i], n[i], g[i], rate, beta, l2);
      const float shrunk = (sums.z > 0.0f ? l1 : -l1) - sums.z;
      const float changed = finite(rate * shrunk / sums.divisor);
      w[i] = where_positive(sums.divisor, __builtin_fabsf(sums.z) <= l1 ? 0.0f : changed);
      z[i] = sums.z;
      n[i] = sums.n;
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
