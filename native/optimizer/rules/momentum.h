// n' = momentum * n - rate * (g + decay * w);  w <- w + n'
// or with nesterov w <- w - momentum * n + (1 + momentum) * n';  n <- n'
// State: n.
#pragma once

namespace monolith::MONOLITH_ISA {

struct Momentum {
  static constexpr const char* kName = "momentum";
  static constexpr std::array kOptions{"weight_decay_factor", "use_nesterov", "momentum"};
  static uint32_t state_size(uint32_t dim) { return dim; }
  static void initialize(float* n, uint32_t dim, const float*) { fill(n, dim, 0.0f); }
  static void step(float* __restrict w, float* __restrict n, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    const float decay = options[0], momentum = options[2];
    const bool nesterov = options[1] != 0.0f;
    for (uint32_t i = 0; i < dim; ++i) {
      const float h = finite(g[i] + decay * w[i]);
      const float changed = finite(momentum * n[i] - rate * h);
      w[i] = nesterov ? finite(finite(w[i] - momentum * n[i]) + finite((1.0f + momentum) * changed))
                      : finite(w[i] + changed);
      n[i] = changed;
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
