// h = g + decay * w;  n <- momentum * n + h^2;  w <- w - rate * h / (sqrt(n) + 1)
// State: n.
#pragma once

namespace monolith::MONOLITH_ISA {

struct RmspropV2 {
  static constexpr const char* kName = "rmspropv2";
  static constexpr std::array kOptions{"weight_decay_factor", "momentum"};
  static uint32_t state_size(uint32_t dim) { return dim; }
  static void initialize(float* n, uint32_t dim, const float*) { fill(n, dim, 0.0f); }
  static void step(float* __restrict w, float* __restrict n, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    const float decay = options[0], momentum = options[1];
    for (uint32_t i = 0; i < dim; ++i) {
      const float h = decayed(g[i], decay, w[i]);
      n[i] = finite(momentum * n[i] + h * h);
      w[i] = finite(w[i] - rate * h / (square_root(n[i]) + 1.0f));
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
