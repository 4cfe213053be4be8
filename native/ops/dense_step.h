// Makes one step of a dense optimizer over many tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "optimizer/kernels.h"

namespace monolith {

// All tensors are borrowed, contiguous, and do not overlap; a state tensor has the size of its
// parameter.
struct DenseTensors {
  std::span<float* const> parameters;
  std::span<const float* const> gradients;
  std::span<float* const> states;  // the first state of every parameter, then the second states
  std::span<const int64_t> sizes;
};

// Updates parameters and states, with the same bits for any number of threads and any instruction
// set. Throws std::invalid_argument before any change if rule, options or lengths do not fit.
void dense_step(const std::string& rule, const DenseTensors& tensors,
                std::span<const float> options, float rate, unsigned threads,
                const Kernels& chosen = kernels());

}  // namespace monolith
