// h = g + decay * w;  a <- r * a + (1 - r) * h^2;  x = sqrt(u + epsilon) / sqrt(a + epsilon) * h
// w <- w - rate * x;  u <- r * u + (1 - r) * x^2
// State: a, u.
#pragma once

namespace monolith::MONOLITH_ISA {

struct Adadelta {
  static constexpr const char* kName = "adadelta";
  static constexpr std::array kOptions{"weight_decay_factor", "averaging_ratio", "epsilon"};
  static uint32_t state_size(uint32_t dim) { return 2 * dim; }
  static void initialize(float* state, uint32_t dim, const float*) { fill(state, 2 * dim, 0.0f); }
  static void step(float* __restrict w, float* __restrict state, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    loop(w, state, state + dim, g, dim, options, rate);
  }

 private:
  // With arguments of its own, the compiler knows that a and u do not overlap.
  static void loop(float* __restrict w, float* __restrict a, float* __restrict u,
                   const float* __restrict g, uint32_t dim, const float* options, float rate) {
    const float decay = options[0], r = options[1], epsilon = options[2];
    for (uint32_t i = 0; i < dim; ++i) {
      const float h = decayed(g[i], decay, w[i]);
      a[i] = finite(r * a[i] + (1.0f - r) * (h * h));
      const float divisor = finite(a[i] + epsilon);
      const float ratio = finite(square_root(finite(u[i] + epsilon)) / square_root(divisor));
      const float x = where_positive(divisor, clamp(ratio * h, kRootMax));
      w[i] = finite(w[i] - rate * x);
      u[i] = finite(r * u[i] + (1.0f - r) * (x * x));
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
