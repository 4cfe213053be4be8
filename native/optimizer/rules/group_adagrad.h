// h = g + decay * w;  s <- s + max(h^2);  l = rate / (beta + sqrt(s));  y = h - w / l
// w <- 0 if |y| <= l2 else -l * ((|y| - l2) / |y|) * y
// State: s, one for the segment. Without a length l there is no step.
#pragma once

namespace monolith::MONOLITH_ISA {

struct GroupAdagrad {
  static constexpr const char* kName = "groupadagrad";
  static constexpr std::array kOptions{"beta", "initial_accumulator_value", "l2_regularization",
                                       "weight_decay_factor"};
  static uint32_t state_size(uint32_t) { return 1; }
  static void initialize(float* s, uint32_t, const float* options) { *s = options[1]; }
  static void step(float* __restrict w, float* __restrict s, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    const float beta = options[0], l2 = options[2], decay = options[3];
    const float largest = row_max(dim, [&](uint32_t i) {
      const float h = decayed(g[i], decay, w[i]);
      return h * h;
    });
    *s = finite(*s + largest);
    const float divisor = beta + square_root(*s);
    const float length = finite(rate / divisor);
    if (!(divisor > 0.0f && length > 0.0f)) return;
    const auto y = [&](uint32_t i) { return finite(decayed(g[i], decay, w[i]) - w[i] / length); };
    const float norm = finite(square_root(row_sum(dim, [&](uint32_t i) {
      const float yi = y(i);
      return yi * yi;
    })));
    if (norm <= l2) return fill(w, dim, 0.0f);
    const float scale = -length * ((norm - l2) / norm);
    for (uint32_t i = 0; i < dim; ++i) w[i] = finite(scale * y(i));
  }
};

}  // namespace monolith::MONOLITH_ISA
