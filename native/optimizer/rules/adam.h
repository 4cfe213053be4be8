// l = rate * sqrt(1 - p2) / (1 - p1);  h = g + decay * w
// m <- m + (1 - beta1) * (h - m);  v <- v + (1 - beta2) * (h^2 - v)
// w <- w - l * m / (sqrt(v) + epsilon), or with nesterov (1 - beta1) * h + beta1 * m in place of m
// p1 <- p1 * beta1;  p2 <- p2 * beta2
// State: m, v, p1, p2.
#pragma once

namespace monolith::MONOLITH_ISA {

constexpr std::array kAdamOptions{"beta1", "beta2", "weight_decay_factor", "use_nesterov",
                                  "epsilon"};

// The loop; vhat is the largest v so far, for AMSGrad only. With arguments of its own, the compiler
// knows that the blocks of the state do not overlap.
template <bool kHasLargest>
inline void adam_loop(float* __restrict w, float* __restrict m, float* __restrict v,
                      float* __restrict vhat, const float* __restrict g, uint32_t dim,
                      const float* options, float length) {
  const float beta1 = options[0], beta2 = options[1], decay = options[2], epsilon = options[4];
  // The direction is m, or with nesterov (1 - beta1) * h + beta1 * m.
  const float of_h = options[3] != 0.0f ? 1.0f - beta1 : 0.0f;
  const float of_m = options[3] != 0.0f ? beta1 : 1.0f;
  for (uint32_t i = 0; i < dim; ++i) {
    const float h = decayed(g[i], decay, w[i]);
    m[i] = finite(m[i] + (1.0f - beta1) * (h - m[i]));
    v[i] = finite(v[i] + (1.0f - beta2) * (h * h - v[i]));
    if constexpr (kHasLargest) vhat[i] = vhat[i] < v[i] ? v[i] : vhat[i];
    const float divisor = square_root(kHasLargest ? vhat[i] : v[i]) + epsilon;
    const float direction = finite(of_h * h + of_m * m[i]);
    w[i] = finite(w[i] - where_positive(divisor, length * direction / divisor));
  }
}

// State: kBlocks times dim floats, then the powers.
template <uint32_t kBlocks>
struct AdamState {
  static uint32_t state_size(uint32_t dim) { return kBlocks * dim + 2; }
  static void initialize(float* state, uint32_t dim, const float* options) {
    fill(state, kBlocks * dim, 0.0f);
    state[kBlocks * dim] = options[0];
    state[kBlocks * dim + 1] = options[1];
  }
  static void step(float* __restrict w, float* __restrict state, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    float* powers = state + kBlocks * dim;
    const float length = finite(rate * square_root(1.0f - powers[1]) / (1.0f - powers[0]));
    adam_loop<kBlocks == 3>(w, state, state + dim, state + 2 * dim, g, dim, options, length);
    powers[0] *= options[0];
    powers[1] *= options[1];
  }
};

struct Adam : AdamState<2> {
  static constexpr const char* kName = "adam";
  static constexpr auto kOptions = kAdamOptions;
};

}  // namespace monolith::MONOLITH_ISA
