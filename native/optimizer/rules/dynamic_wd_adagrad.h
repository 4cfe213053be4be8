// As Adagrad; decoupled: n <- n + g^2;  w <- w - rate * g / sqrt(n) - rate * decay * w
// State: n.
#pragma once

namespace monolith::MONOLITH_ISA {

struct DynamicWdAdagrad {
  static constexpr const char* kName = "dynamicwdadagrad";
  static constexpr std::array kOptions{"initial_accumulator_value", "weight_decay_factor",
                                       "decouple_weight_decay"};
  static uint32_t state_size(uint32_t dim) { return dim; }
  static void initialize(float* n, uint32_t dim, const float* options) { fill(n, dim, options[0]); }
  static void step(float* __restrict w, float* __restrict n, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    const bool decouples = options[2] != 0.0f;
    const float coupled = decouples ? 0.0f : options[1];
    const float shrink = decouples ? finite(rate * options[1]) : 0.0f;
    for (uint32_t i = 0; i < dim; ++i) {
      const float h = decayed(g[i], coupled, w[i]);
      n[i] = finite(n[i] + h * h);
      const float stepped = finite(w[i] - where_positive(n[i], rate * h / square_root(n[i])));
      w[i] = finite(stepped - shrink * w[i]);
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
