// w <- momentum * w + (1 - momentum) * g
#pragma once

namespace monolith::MONOLITH_ISA {

struct MovingAverage {
  static constexpr const char* kName = "movingaverage";
  static constexpr std::array kOptions{"momentum"};
  static uint32_t state_size(uint32_t) { return 0; }
  static void initialize(float*, uint32_t, const float*) {}
  static void step(float* __restrict w, float* __restrict, const float* __restrict g, uint32_t dim,
                   const float* options, float, int64_t) {
    const float momentum = options[0];
    for (uint32_t i = 0; i < dim; ++i) {
      w[i] = finite(momentum * w[i] + (1.0f - momentum) * g[i]);
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
