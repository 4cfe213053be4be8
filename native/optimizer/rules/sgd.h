// w <- w - rate * g
#pragma once

namespace monolith::MONOLITH_ISA {

struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr std::array<const char*, 0> kOptions{};
  static uint32_t state_size(uint32_t) { return 0; }
  static void initialize(float*, uint32_t, const float*) {}
  static void step(float* __restrict w, float* __restrict, const float* __restrict g, uint32_t dim,
                   const float*, float rate, int64_t) {
    for (uint32_t i = 0; i < dim; ++i) w[i] = finite(w[i] - rate * g[i]);
  }
};

}  // namespace monolith::MONOLITH_ISA
