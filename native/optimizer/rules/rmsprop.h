// h = g + decay * w;  n <- momentum * n + (1 - momentum) * h^2;  w <- w - rate * h / (sqrt(n) + 1)
// In double; w and n are stored as floats. State: n.
#pragma once

namespace monolith::MONOLITH_ISA {

struct Rmsprop {
  static constexpr const char* kName = "rmsprop";
  static constexpr std::array kOptions{"weight_decay_factor", "momentum"};
  static uint32_t state_size(uint32_t dim) { return dim; }
  static void initialize(float* n, uint32_t dim, const float*) { fill(n, dim, 0.0f); }
  static void step(float* __restrict w, float* __restrict n, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    const double decay = options[0], momentum = options[1];
    for (uint32_t i = 0; i < dim; ++i) {
      const double h = clamp(g[i] + decay * w[i], kRootMax);
      n[i] = static_cast<float>(clamp(momentum * n[i] + (1.0 - momentum) * (h * h), kMax));
      const double root = __builtin_sqrt(static_cast<double>(n[i]));
      w[i] = static_cast<float>(clamp(w[i] - rate * h / (root + 1.0), kMax));
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
