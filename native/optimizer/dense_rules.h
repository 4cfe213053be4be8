// Update rules of dense parameters, element by element: w is a weight, g its gradient; m, v and c
// are its state. Each operation rounds once, in the order written here;
// monolith/optim/update_rules.py has the same rules for other dtypes and devices. 1 - mom is
// computed from the float mom: the two weights of a mean add up to 1, so that the mean of equal
// numbers is the same number.
#pragma once

#include <array>
#include <cstddef>

#include "optimizer/arithmetic.h"

namespace monolith::MONOLITH_ISA {

// h = g + decay * w;  m <- mom * m + (1 - mom) * h;  v <- ada * v + h^2;  c <- ada * c + 1
// w <- w - rate * m / sqrt(v / c + epsilon)
struct DenseAdamom {
  static constexpr const char* kName = "adamom";
  static constexpr size_t kNumStates = 3;
  static constexpr std::array kOptions{"ada_decay", "mom_decay", "epsilon", "weight_decay"};
  static void step(float* __restrict w, const float* __restrict g, float* const* states, size_t n,
                   const float* options, float rate) {
    float* __restrict m = states[0];
    float* __restrict v = states[1];
    float* __restrict c = states[2];
    const float ada = options[0], mom = options[1], epsilon = options[2], decay = options[3];
    const float rest = 1.0f - mom;
    for (size_t i = 0; i < n; ++i) {
      const float h = g[i] + decay * w[i];
      m[i] = mom * m[i] + rest * h;
      v[i] = ada * v[i] + h * h;
      c[i] = ada * c[i] + 1.0f;
      w[i] = w[i] - rate * m[i] / square_root(v[i] / c[i] + epsilon);
    }
  }
};

// h = g + decay * w;  v <- beta2 * v + (1 - beta2) * h^2
// m <- beta1 * m + rate * h / sqrt(v + epsilon);  w <- w - m
struct DenseRmsprop {
  static constexpr const char* kName = "rmsprop";
  static constexpr size_t kNumStates = 2;
  static constexpr std::array kOptions{"beta1", "beta2", "epsilon", "weight_decay"};
  static void step(float* __restrict w, const float* __restrict g, float* const* states, size_t n,
                   const float* options, float rate) {
    float* __restrict m = states[0];
    float* __restrict v = states[1];
    const float beta1 = options[0], beta2 = options[1], epsilon = options[2], decay = options[3];
    const float rest = 1.0f - beta2;
    for (size_t i = 0; i < n; ++i) {
      const float h = g[i] + decay * w[i];
      v[i] = beta2 * v[i] + rest * (h * h);
      m[i] = beta1 * m[i] + rate * h / square_root(v[i] + epsilon);
      w[i] = w[i] - m[i];
    }
  }
};

// h = g + decay * w;  v <- beta2 * v + h^2
// m <- beta1 * m + rate * h / (sqrt(v) + epsilon);  w <- w - m
struct DenseRmspropV2 {
  static constexpr const char* kName = "rmsprop_v2";
  static constexpr size_t kNumStates = 2;
  static constexpr std::array kOptions = DenseRmsprop::kOptions;
  static void step(float* __restrict w, const float* __restrict g, float* const* states, size_t n,
                   const float* options, float rate) {
    float* __restrict m = states[0];
    float* __restrict v = states[1];
    const float beta1 = options[0], beta2 = options[1], epsilon = options[2], decay = options[3];
    for (size_t i = 0; i < n; ++i) {
      const float h = g[i] + decay * w[i];
      v[i] = beta2 * v[i] + h * h;
      m[i] = beta1 * m[i] + rate * h / (square_root(v[i]) + epsilon);
      w[i] = w[i] - m[i];
    }
  }
};

}  // namespace monolith::MONOLITH_ISA
