// The loops over floats, compiled once per instruction set and chosen when a table is made.
//
// No contraction, IEEE divide and square root: every instruction set gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace monolith {

// One sparse optimizer, as its header in rules/ describes it; CMake lists the headers.
struct OptimizerKernel {
  const char* name;
  std::span<const char* const> options;
  // State of a segment of dim weights, in floats; an int64 takes the place of two.
  uint32_t (*state_size)(uint32_t dim);
  void (*initialize)(float* state, uint32_t dim, const float* options);
  // One step of one segment; grads may not overlap the row. rate is above 0.
  void (*step)(float* weights, float* state, const float* grads, uint32_t dim, const float* options,
               float rate, int64_t global_step);
};

struct Kernels {
  const char* name;
  std::span<const OptimizerKernel> optimizers;
  // Initial values of columns [first, first + n) of a key (contract 3: Philox4x32-10, stream 0).
  void (*uniform)(float* out, uint32_t first, uint32_t n, uint64_t seed, int64_t key, float minval,
                  float maxval);
  // Index of the first NaN or infinity, or n.
  size_t (*find_non_finite)(const float* values, size_t n);
  void (*add)(float* sum, const float* values, size_t n);
};

// Best for this CPU; the same answer in every call.
const Kernels& kernels() noexcept;
// Every set this CPU can run, baseline first (tests compare them).
std::span<const Kernels* const> all_kernels() noexcept;

}  // namespace monolith
