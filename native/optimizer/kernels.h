// The loops over floats, compiled once per instruction set and chosen when a table is made.
//
// No contraction, IEEE divide and square root: every instruction set gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

// One rule of dense parameters, as dense_rules.h describes it.
struct DenseKernel {
  const char* name;
  size_t num_states;
  std::span<const char* const> options;
  // One step of n weights; no two of the arrays overlap.
  void (*step)(float* weights, const float* grads, float* const* states, size_t n,
               const float* options, float rate);
};

// What decides the stochastic rounding of weights.
struct Rounding {
  uint64_t seed;
  int64_t key;
  uint32_t call;   // number of the updating call; its low 16 bits count
  uint32_t first;  // column of the first weight
};

// One way to store weights (codecs.h).
struct CodecKernel {
  const char* name;
  size_t (*bytes)(size_t n);
  // parameter: unit of fixed_r8, amplitude of one_bit.
  void (*encode)(void* codes, const float* weights, size_t n, float parameter);
  void (*decode)(float* weights, const void* codes, size_t n, float parameter);
  // Encodes with stochastic rounding; null where the codec has none.
  void (*round)(void* codes, const float* weights, uint32_t n, const Rounding& rounding);
};

// One way to see weights in training (views.h). parameter: as of the codec.
struct ViewKernel {
  const char* name;
  bool is_straight;  // gradients pass unchanged
  void (*forward)(float* values, size_t n, float parameter, float scale);
  void (*backward)(float* grads, const float* weights, size_t n, float parameter, float scale);
};

struct Kernels {
  const char* name;
  std::span<const OptimizerKernel> optimizers;
  std::span<const DenseKernel> dense;
  std::span<const CodecKernel> codecs;
  std::span<const ViewKernel> views;
  // Initial values of columns [first, first + n) of a key (contract 3: Philox4x32-10, stream 0).
  void (*uniform)(float* out, uint32_t first, uint32_t n, uint64_t seed, int64_t key, float minval,
                  float maxval);
  // Index of the first NaN or infinity, or n.
  size_t (*find_non_finite)(const float* values, size_t n);
  void (*add)(float* sum, const float* values, size_t n);
  // sum + factor * values, each rounded; in place or apart.
  void (*add_scaled)(float* out, const float* sum, const float* values, float factor, size_t n);
  // In place or apart.
  void (*scale)(float* out, const float* values, float factor, size_t n);
  // Where a value is above the largest one so far, it and its place take over.
  void (*take_max)(float* largest, int32_t* places, const float* values, int32_t place, size_t n);
  // The values whose place is the given one, 0 elsewhere.
  void (*select)(float* out, const float* values, const int32_t* places, int32_t place, size_t n);
  void (*add_selected)(float* sum, const float* values, const int32_t* places, int32_t place,
                       size_t n);
  // Largest magnitude; NaN if there is one.
  float (*largest)(const float* values, size_t n);
  // As 8 partial sums, combined like those of contract 3, in double.
  double (*sum_squares)(const float* values, size_t n);
  // Dot product as 8 partial sums (contract 3).
  float (*dot)(const float* a, const float* b, uint32_t n);
};

// The member of a list that has the name. Throws std::invalid_argument.
const OptimizerKernel& find_kernel(std::span<const OptimizerKernel> list, const std::string& name);
const CodecKernel& find_kernel(std::span<const CodecKernel> list, const std::string& name);
const ViewKernel& find_kernel(std::span<const ViewKernel> list, const std::string& name);

// Best for this CPU; the same answer in every call.
const Kernels& kernels() noexcept;
// Every set this CPU can run, baseline first (tests compare them).
std::span<const Kernels* const> all_kernels() noexcept;

}  // namespace monolith
