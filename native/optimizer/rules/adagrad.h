// h = g + decay * w;  n <- n + h^2;  w <- w - rate * h / sqrt(n)
// State: n. Where n is 0, so is h, and the step is 0.
#pragma once

namespace monolith::MONOLITH_ISA {

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr std::array kOptions{"initial_accumulator_value", "weight_decay_factor"};
  static uint32_t state_size(uint32_t dim) { return dim; }
  static void initialize(float* n, uint32_t dim, const float* options) { fill(n, dim, options[0]); }
  static void step(float* __restrict w, float* __restrict n, const float* __restrict g,
                   uint32_t dim, const float* options, float rate, int64_t) {
    const float decay = options[1];
    in_lanes(dim, [=](uint32_t i, auto kind) {
      using T = decltype(kind);
      const T weight = load<T>(w + i), h = decayed(load<T>(g + i), decay, weight);
      const T sum = finite(load<T>(n + i) + h * h);
      store(n + i, sum);
      store(w + i, finite(weight - where_positive(sum, rate * h / square_root(sum))));
    });
  }
};

}  // namespace monolith::MONOLITH_ISA
