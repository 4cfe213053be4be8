// z and n as in FTRL;  w <- 0 if |z| <= l1 else
// rate * z * ((l1 - |z|) / |z|) / (sqrt(n) + beta + l2 * rate), where |z| is the segment's norm
// State: z, n.
#pragma once

#include "optimizer/rules/ftrl.h"

namespace monolith::MONOLITH_ISA {

struct GroupFtrl {
  static constexpr const char* kName = "groupftrl";
  static constexpr auto kOptions = Ftrl::kOptions;
  static constexpr auto state_size = Ftrl::state_size;
  static constexpr auto initialize = Ftrl::initialize;
  static void step(float* __restrict w, float* __restrict state, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    loop(w, state, state + dim, g, dim, options, rate);
  }

 private:
  static void loop(float* __restrict w, float* __restrict z, float* __restrict n,
                   const float* __restrict g, uint32_t dim, const float* options, float rate) {
    const float beta = options[1], l1 = options[2], l2 = options[3];
    for (uint32_t i = 0; i < dim; ++i) {
      const FtrlSums sums = ftrl_sums(w[i], z[i], n[i], g[i], rate, beta, l2);
      z[i] = sums.z;
      n[i] = sums.n;
    }
    const float norm = finite(square_root(row_sum(dim, [&](uint32_t i) { return z[i] * z[i]; })));
    if (norm <= l1) return fill(w, dim, 0.0f);
    const float scale = (l1 - norm) / norm;
    for (uint32_t i = 0; i < dim; ++i) {
      const float divisor = finite(square_root(n[i]) + beta + l2 * rate);
      w[i] = where_positive(divisor, finite(rate * z[i] * scale / divisor));
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
