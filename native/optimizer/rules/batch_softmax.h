// w <- (1 - rate) * w + rate * (step - a);  a <- step. The gradient is not used; dim is 1.
// State: a, an int64 in the place of two floats, at any multiple of 4 bytes.
#pragma once

namespace monolith::MONOLITH_ISA {

struct BatchSoftmax {
  static constexpr const char* kName = "batchsoftmax";
  static constexpr std::array<const char*, 0> kOptions{};
  static uint32_t state_size(uint32_t) { return 2; }
  static void initialize(float* state, uint32_t, const float*) { fill(state, 2, 0.0f); }
  static void step(float* __restrict w, float* __restrict state, const float* __restrict, uint32_t,
                   const float*, float rate, int64_t step) {
    uint64_t last;  // unsigned, so that the difference of any two steps is defined
    __builtin_memcpy(&last, state, sizeof(last));
    const auto passed =
        static_cast<float>(static_cast<int64_t>(static_cast<uint64_t>(step) - last));
    w[0] = finite(finite((1.0f - rate) * w[0]) + finite(rate * passed));
    __builtin_memcpy(state, &step, sizeof(step));
  }
};

}  // namespace monolith::MONOLITH_ISA
