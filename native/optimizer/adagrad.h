// h = g + decay * w;  n <- n + h^2;  w <- w - rate * h / sqrt(n)
// State: n. Where n is 0, so is h, and the step is 0.
#pragma once

namespace monolith::MONOLITH_ISA {

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr std::array kOptions{"initial_accumulator_value", "weight_decay_factor"};
  static uint32_t state_size(uint32_t dim) { return dim; }
  static void initialize(float* n, uint32_t dim, const float* options) {
    for (uint32_t i = 0; i < dim; ++i) n[i] = options[0];
  }
  static void step(float* __restrict w, float* __restrict n, const float* __restrict g,
                   uint32_t dim, const float* options, float rate) {
    const float decay = options[1];
    for (uint32_t i = 0; i < dim; ++i) {
      const float h = g[i] + decay * w[i];
      n[i] += h * h;
      const float change = rate * h / __builtin_sqrtf(n[i]);
      w[i] -= n[i] > 0.0f ? change : 0.0f;
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
