// s <- s + sum(g^2) / dim;  w <- w - rate * g / (sqrt(s) + epsilon)
// State: s, one for the segment.
#pragma once

namespace monolith::MONOLITH_ISA {

struct RowWiseAdagrad {
  static constexpr const char* kName = "rowwiseadagrad";
  static constexpr std::array kOptions{"initial_accumulator_value", "epsilon"};
  static uint32_t state_size(uint32_t) { return 1; }
  static void initialize(float* s, uint32_t, const float* options) { *s = options[0]; }
  static void step(float* __restrict w, float* __restrict s, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    const float sum = row_sum(dim, [&](uint32_t i) {
      const float h = clamp(g[i], kRootMax);
      return h * h;
    });
    *s = finite(*s + sum / static_cast<float>(dim));
    const float divisor = square_root(*s) + options[1];
    for (uint32_t i = 0; i < dim; ++i) {
      const float h = clamp(g[i], kRootMax);
      w[i] = finite(w[i] - where_positive(divisor, rate * h / divisor));
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
